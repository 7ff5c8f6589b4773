//! Metrics of the tokio runtime, as upstream has those of Go's runtime.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeMetrics};

use super::registry::Registry;

/// A metric of tokio's runtime: name, help, kind, and how it is read.
type OfRuntime = (
    &'static str,
    &'static str,
    &'static str,
    fn(&RuntimeMetrics) -> f64,
);

const OF_RUNTIME: [OfRuntime; 4] = [
    (
        "tokio_workers",
        "Number of threads that run tasks.",
        "gauge",
        |runtime| runtime.num_workers() as f64,
    ),
    (
        "tokio_alive_tasks",
        "Number of tasks that have not ended.",
        "gauge",
        |runtime| runtime.num_alive_tasks() as f64,
    ),
    (
        "tokio_global_queue_depth",
        "Number of tasks that wait in the runtime's global queue.",
        "gauge",
        |runtime| runtime.global_queue_depth() as f64,
    ),
    (
        "tokio_workers_busy_seconds_total",
        "Total time that threads spent running tasks in seconds.",
        "counter",
        |runtime| {
            let workers = 0..runtime.num_workers();
            let busy = workers.map(|worker| runtime.worker_total_busy_duration(worker));
            busy.sum::<Duration>().as_secs_f64()
        },
    ),
];

/// Registers the metrics of the current runtime, if there is one.
pub(super) fn show(registry: &Registry) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    for (name, help, kind, read) in OF_RUNTIME {
        let metrics = runtime.metrics();
        let collect = move |emit: &mut super::Emit<'_>| emit.set(&[], read(&metrics));
        registry.show(name, help, &[], kind, collect);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_are_counted_while_they_live() {
        let registry = Registry::new();
        show(&registry);
        let value = |name: &str| -> f64 {
            let text = registry.render();
            let line = text.lines().find_map(|l| l.strip_prefix(name));
            line.unwrap().trim().parse().unwrap()
        };
        assert_eq!(value("tokio_workers "), 1.0);
        let before = value("tokio_alive_tasks ");
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(ended);
        assert_eq!(value("tokio_alive_tasks "), before + 1.0);
        end.send(()).unwrap();
        task.await.unwrap().unwrap();
        assert_eq!(value("tokio_alive_tasks "), before);
    }

    #[test]
    fn outside_of_a_runtime_no_metric_is_registered() {
        let registry = Registry::new();
        show(&registry);
        assert_eq!(registry.render(), "");
    }
}
