//! From pending pods to NodeClaims.
//!
//! [`Batcher`] collects triggers, [`Provisioner`] plans on a snapshot, [`launch`] creates NodeClaims from drafts,
//! [`Nominations`] remembers the node of each pod until kube-scheduler binds it.

mod batcher;
mod catalogue;
mod hints;
pub mod launch;
mod ledger;
mod memory;
mod nominations;
mod progress;
mod provisioner;
mod report;
mod soft_constraints;

pub use batcher::Batcher;
pub use catalogue::refresh_instance_types;
pub use ledger::PodLedger;
pub use nominations::Nominations;
pub use provisioner::Provisioner;
pub(crate) use provisioner::policy;
