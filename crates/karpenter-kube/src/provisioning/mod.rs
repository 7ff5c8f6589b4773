//! From pending pods to NodeClaims.
//!
//! [`Batcher`] gathers triggers, [`Provisioner`] decides on a snapshot, [`launch`] turns drafts into NodeClaims,
//! [`Nominations`] remembers which node each pod was given until kube-scheduler binds it.

mod batcher;
mod catalogue;
pub mod launch;
mod ledger;
mod nominations;
mod progress;
mod provisioner;
mod report;

pub use batcher::Batcher;
pub use catalogue::refresh_instance_types;
pub use ledger::PodLedger;
pub use nominations::Nominations;
pub use provisioner::Provisioner;
pub(crate) use provisioner::request;
