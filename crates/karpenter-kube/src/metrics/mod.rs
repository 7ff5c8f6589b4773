//! What the operator counts: a registry in Prometheus text format and upstream's metrics by name.
//!
//! UPSTREAM: pkg/metrics/metrics.go, pkg/controllers/**/metrics.go

mod definitions;
mod live;
#[cfg(target_os = "linux")]
mod process;
mod registry;
mod runtime;
mod work;

pub use definitions::{DURATION_BUCKETS, Metrics, SUMMARY_QUANTILES};
pub use live::{Collect, Emit};
pub use registry::{Counter, Gauge, Histogram, Registry, Summary};
pub use work::{ControllerWork, Outcome, Work, show_queues};

/// Shows what the process and the runtime this is called in take.
pub fn show_process(registry: &Registry) {
    #[cfg(target_os = "linux")]
    process::show(registry);
    runtime::show(registry);
}
