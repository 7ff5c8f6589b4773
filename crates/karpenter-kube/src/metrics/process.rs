//! Metrics of the process, by the names of Prometheus' client libraries. They are read from Linux' /proc; elsewhere they
//! are left out.
//!
//! UPSTREAM: client_golang prometheus/process_collector.go

use procfs::process::{LimitValue, Process};
use procfs::{WithCurrentSystemInfo, ticks_per_second};

use super::registry::Registry;

/// A metric of the process: name, help, kind, and how it is read. `None`: not supported by the platform.
type Metric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Process) -> Option<f64>,
);

const OF_PROCESS: [Metric; 6] = [
    (
        "process_cpu_seconds_total",
        "Total user and system CPU time spent in seconds.",
        "counter",
        |process| {
            let stat = process.stat().ok()?;
            Some((stat.utime + stat.stime) as f64 / ticks_per_second() as f64)
        },
    ),
    (
        "process_resident_memory_bytes",
        "Resident memory size in bytes.",
        "gauge",
        |process| Some(process.stat().ok()?.rss_bytes().get() as f64),
    ),
    (
        "process_virtual_memory_bytes",
        "Virtual memory size in bytes.",
        "gauge",
        |process| Some(process.stat().ok()?.vsize as f64),
    ),
    (
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        "gauge",
        |process| {
            let since_boot = process.stat().ok()?.starttime as f64 / ticks_per_second() as f64;
            Some(procfs::boot_time_secs().ok()? as f64 + since_boot)
        },
    ),
    (
        "process_open_fds",
        "Number of open file descriptors.",
        "gauge",
        |process| Some(process.fd_count().ok()? as f64),
    ),
    (
        "process_max_fds",
        "Maximum number of open file descriptors.",
        "gauge",
        |process| match process.limits().ok()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit as f64),
            LimitValue::Unlimited => None,
        },
    ),
];

/// Registers the metrics of the current process.
pub(super) fn show(registry: &Registry) {
    for (name, help, kind, read) in OF_PROCESS {
        let collect = move |emit: &mut super::Emit<'_>| {
            if let Some(value) = Process::myself().ok().as_ref().and_then(read) {
                emit.set(&[], value);
            }
        };
        registry.show(name, help, &[], kind, collect);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_of_the_process_are_registered() {
        let registry = Registry::new();
        show(&registry);
        let text = registry.render();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|l| l.strip_prefix(name));
            line.unwrap().trim().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes ") > 1e6);
        assert!(value("process_virtual_memory_bytes ") > value("process_resident_memory_bytes "));
        assert!(value("process_open_fds ") >= 3.0);
        let now = jiff::Timestamp::now().as_second() as f64;
        let age = now - value("process_start_time_seconds ");
        assert!((-2.0..86_400.0).contains(&age), "{age}");
    }
}
