//! The operator's metrics: a registry in Prometheus text format and upstream's metrics by name.
//!
//! UPSTREAM: pkg/metrics/metrics.go, pkg/controllers/**/metrics.go

mod definitions;
mod family;
mod handles;
mod live;
#[cfg(target_os = "linux")]
mod process;
mod registry;
mod requests;
mod runtime;
mod work;

pub use definitions::{DURATION_BUCKETS, Metrics, SUMMARY_QUANTILES};
pub use family::Description;
pub use handles::{Counter, Gauge, Histogram, Summary};
pub use live::{Collect, Emit};
pub use registry::Registry;
pub use requests::Counting;
pub use work::{ControllerWork, Outcome, Work, show_queues};

/// Registers the build-info metric.
pub fn show_build(registry: &Registry) {
    let labels = ["version", "goversion", "goarch", "commit"];
    let help =
        "A metric with a constant '1' value labeled by version from which karpenter was built.";
    let build = registry.gauge("karpenter_build_info", help, &labels);
    let version = env!("CARGO_PKG_VERSION");
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    // Go's version is empty, and the crate version stands for the commit, as in the log.
    build.set(&[version, "", arch, version], 1.0);
}

/// Registers the metrics of the process and of the current tokio runtime.
pub fn show_process(registry: &Registry) {
    #[cfg(target_os = "linux")]
    process::show(registry);
    runtime::show(registry);
}
