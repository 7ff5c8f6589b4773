//! Controller framework: model changes add keys to a queue, keys are reconciled one at a time each, failures back off.
//!
//! kube's own `Controller` keeps a cache per controller and does not count failures; these controllers share the model.

mod compute;
mod run;

pub use crate::error::{Doing, ReconcileError, is_not_found};
pub use crate::queue::{ObjectKey, Queue, QueueStats, WorkQueue};
pub use compute::compute;
pub use karpenter_core::lifecycle::backoff::Backoff;
pub use run::{Controller, Next, Periodic, current_controller, run, run_periodic};
