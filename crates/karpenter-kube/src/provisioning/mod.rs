//! From pending pods to NodeClaims.
//!
//! [`Batcher`] gathers triggers, [`Provisioner`] decides on a snapshot, [`launch`] turns drafts into NodeClaims.

mod batcher;
mod catalogue;
pub mod launch;
mod ledger;
mod progress;
mod provisioner;
mod report;

pub use batcher::Batcher;
pub use catalogue::refresh_instance_types;
pub use ledger::PodLedger;
pub use provisioner::Provisioner;
pub(crate) use provisioner::request;
