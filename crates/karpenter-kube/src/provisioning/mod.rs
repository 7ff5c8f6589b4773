//! From pending pods to NodeClaims.
//!
//! [`Triggers`] has the provisioning process of `karpenter-core`, [`Provisioner`] executes its effects, [`launch`] creates NodeClaims
//! from a plan.

mod catalogue;
#[cfg(feature = "decisions")]
mod hints;
pub mod launch;
mod ledger;
mod pod_nomination;
mod progress;
mod provisioner;
mod report;
mod soft_constraints;
mod triggers;

pub use catalogue::refresh_instance_types;
pub use ledger::PodLedger;
pub use provisioner::Provisioner;
#[cfg(feature = "decisions")]
pub(crate) use provisioner::SOLVE_DEADLINE;
pub(crate) use provisioner::policy;
pub(crate) use triggers::Due;
pub use triggers::Triggers;
