//! How a controller runs: its keys come from model changes, its work is done a key at a time, failures back off.
//!
//! kube's own `Controller` keeps a cache per controller and counts no failures; ours share the model and are many.

mod compute;
mod error;
mod queue;
mod run;

pub use compute::compute;
pub use error::{Doing, ReconcileError, is_not_found};
pub use queue::{Backoff, Queue, QueueStats, WorkQueue};
pub use run::{Controller, Next, ObjectKey, Periodic, current_controller, run, run_periodic};
