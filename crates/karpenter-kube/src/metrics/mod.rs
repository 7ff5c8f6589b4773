//! What the operator counts: a registry in Prometheus text format and upstream's metrics by name.
//!
//! UPSTREAM: pkg/metrics/metrics.go, pkg/controllers/**/metrics.go

mod definitions;
mod live;
mod registry;
mod work;

pub use definitions::{DURATION_BUCKETS, Metrics, SUMMARY_QUANTILES};
pub use live::{Collect, Emit};
pub use registry::{Counter, Gauge, Histogram, Registry, Summary};
pub use work::{ControllerWork, Outcome, Work, show_queues};
