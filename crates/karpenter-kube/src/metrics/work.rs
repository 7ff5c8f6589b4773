//! Metrics of controller-runtime and of client-go's work queues, by their names.
//!
//! UPSTREAM: sigs.k8s.io/controller-runtime pkg/internal/controller/metrics, pkg/metrics/workqueue.go

use std::collections::BTreeMap;
use std::time::Duration;

use super::handles::{Counter, Gauge, Histogram};
use super::registry::Registry;
use crate::queue::{QueueStats, WorkQueue};

/// controller-runtime's buckets of reconciliation times, in seconds.
const RECONCILE_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0,
];

/// controller-runtime's buckets of queue times, in seconds.
const QUEUE_BUCKETS: &[f64] = &[
    1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0,
];

/// The result of a reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded and waits for a change.
    Success,
    /// It is repeated at once: another client wrote in between.
    Requeue,
    /// It is repeated later.
    RequeueAfter,
    /// It returned an error.
    Error,
    /// It panicked.
    Panic,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
            Self::Error | Self::Panic => "error",
        }
    }
}

/// The metrics of all controllers.
#[derive(Debug, Clone)]
pub struct Work {
    total: Counter,
    errors: Counter,
    panics: Counter,
    /// Zero: every error is retried.
    terminal: Counter,
    /// Zero: a reconciliation has no time limit.
    timeouts: Counter,
    seconds: Histogram,
    most: Gauge,
    active: Gauge,
    queued: Histogram,
    worked: Histogram,
}

/// Reads the value of a queue metric.
type Value = fn(&QueueStats) -> f64;

impl Work {
    pub(super) fn new(registry: &Registry) -> Self {
        let controller = ["controller"];
        let queue = ["name", "controller"];
        Self {
            total: registry.counter(
                "controller_runtime_reconcile_total",
                "Total number of reconciliations per controller",
                &["controller", "result"],
            ),
            errors: registry.counter(
                "controller_runtime_reconcile_errors_total",
                "Total number of reconciliation errors per controller",
                &controller,
            ),
            panics: registry.counter(
                "controller_runtime_reconcile_panics_total",
                "Total number of reconciliation panics per controller",
                &controller,
            ),
            terminal: registry.counter(
                "controller_runtime_terminal_reconcile_errors_total",
                "Total number of terminal reconciliation errors per controller",
                &controller,
            ),
            timeouts: registry.counter(
                "controller_runtime_reconcile_timeouts_total",
                "Total number of reconciliation timeouts per controller",
                &controller,
            ),
            seconds: registry.histogram(
                "controller_runtime_reconcile_time_seconds",
                "Length of time per reconciliation per controller",
                &controller,
                RECONCILE_BUCKETS,
            ),
            most: registry.gauge(
                "controller_runtime_max_concurrent_reconciles",
                "Maximum number of concurrent reconciles per controller",
                &controller,
            ),
            active: registry.gauge(
                "controller_runtime_active_workers",
                "Number of currently used workers per controller",
                &controller,
            ),
            queued: registry.histogram(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested",
                &queue,
                QUEUE_BUCKETS,
            ),
            worked: registry.histogram(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
                &queue,
                QUEUE_BUCKETS,
            ),
        }
    }

    /// Returns the metrics of one controller.
    #[must_use]
    pub fn of(&self, controller: &'static str, concurrency: usize) -> ControllerWork {
        self.most.set(&[controller], concurrency as f64);
        for counter in [&self.errors, &self.panics, &self.terminal, &self.timeouts] {
            counter.add(&[controller], 0.0);
        }
        for result in ["success", "requeue", "requeue_after", "error"] {
            self.total.add(&[controller, result], 0.0);
        }
        ControllerWork {
            work: self.clone(),
            controller,
        }
    }
}

/// The metrics of one controller.
#[derive(Debug, Clone)]
pub struct ControllerWork {
    work: Work,
    controller: &'static str,
}

impl ControllerWork {
    /// Records how long a key was due before it was taken from the queue.
    pub fn waited(&self, waited: Duration) {
        let series = [self.controller; 2];
        self.work.queued.observe(&series, waited.as_secs_f64());
    }

    /// Records the number of running reconciliations.
    pub fn active(&self, running: usize) {
        self.work.active.set(&[self.controller], running as f64);
    }

    /// Records the end of a reconciliation.
    pub fn ended(&self, outcome: Outcome, took: Duration) {
        let (work, controller, seconds) = (&self.work, self.controller, took.as_secs_f64());
        work.total.inc(&[controller, outcome.as_str()]);
        if matches!(outcome, Outcome::Error | Outcome::Panic) {
            work.errors.inc(&[controller]);
        }
        if outcome == Outcome::Panic {
            work.panics.inc(&[controller]);
        }
        work.seconds.observe(&[controller], seconds);
        work.worked.observe(&[controller; 2], seconds);
    }
}

/// Registers the metrics of queues; queues of one name are summed up.
pub fn show_queues(registry: &Registry, queues: Vec<(&'static str, Box<dyn WorkQueue>)>) {
    let queues = std::sync::Arc::new(queues);
    let metrics: [(&str, &str, &'static str, Value); 5] = [
        ("depth", "Current depth of workqueue", "gauge", |s| {
            s.depth as f64
        }),
        (
            "adds_total",
            "Total number of adds handled by workqueue",
            "counter",
            |s| s.adds as f64,
        ),
        (
            "retries_total",
            "Total number of retries handled by workqueue",
            "counter",
            |s| s.retries as f64,
        ),
        (
            "unfinished_work_seconds",
            "How many seconds of work has been done that is in progress and hasn't been observed by work_duration.",
            "gauge",
            |s| s.unfinished.as_secs_f64(),
        ),
        (
            "longest_running_processor_seconds",
            "How many seconds has the longest running processor for workqueue been running.",
            "gauge",
            |s| s.longest.as_secs_f64(),
        ),
    ];
    for (name, help, kind, value) in metrics {
        let queues = std::sync::Arc::clone(&queues);
        let longest = name.starts_with("longest");
        let collect = move |emit: &mut super::Emit<'_>| {
            let mut by_name: BTreeMap<&str, f64> = BTreeMap::new();
            for (name, queue) in queues.iter() {
                let (known, value) = (by_name.entry(name).or_default(), value(&queue.stats()));
                *known = if longest {
                    known.max(value)
                } else {
                    *known + value
                };
            }
            for (name, value) in by_name {
                emit.set(&[name, name], value);
            }
        };
        let (name, labels) = (format!("workqueue_{name}"), ["name", "controller"]);
        registry.show(&name, help, &labels, kind, collect);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;

    /// Conformance: API-179
    #[tokio::test(start_paused = true)]
    async fn reconciliations_and_queues_are_counted_by_controller_runtimes_names() {
        let registry = Registry::new();
        let work = Work::new(&registry).of("node.health", 10);
        work.waited(Duration::from_millis(5));
        work.active(1);
        work.ended(Outcome::RequeueAfter, Duration::from_millis(20));
        work.ended(Outcome::Panic, Duration::from_millis(20));
        let (a, b) = (Queue::new(), Queue::new());
        show_queues(
            &registry,
            vec![("q", Box::new(a.clone())), ("q", Box::new(b.clone()))],
        );
        a.add("x");
        b.add("x");
        let text = registry.render();
        for line in [
            r#"controller_runtime_reconcile_total{controller="node.health",result="requeue_after"} 1"#,
            r#"controller_runtime_reconcile_total{controller="node.health",result="success"} 0"#,
            r#"controller_runtime_reconcile_errors_total{controller="node.health"} 1"#,
            r#"controller_runtime_reconcile_panics_total{controller="node.health"} 1"#,
            r#"controller_runtime_terminal_reconcile_errors_total{controller="node.health"} 0"#,
            r#"controller_runtime_reconcile_timeouts_total{controller="node.health"} 0"#,
            r#"controller_runtime_reconcile_time_seconds_count{controller="node.health"} 2"#,
            r#"controller_runtime_max_concurrent_reconciles{controller="node.health"} 10"#,
            r#"controller_runtime_active_workers{controller="node.health"} 1"#,
            r#"workqueue_queue_duration_seconds_count{name="node.health",controller="node.health"} 1"#,
            r#"workqueue_work_duration_seconds_count{name="node.health",controller="node.health"} 2"#,
            "# TYPE workqueue_depth gauge",
            r#"workqueue_depth{name="q",controller="q"} 2"#,
            "# TYPE workqueue_adds_total counter",
            r#"workqueue_adds_total{name="q",controller="q"} 2"#,
            r#"workqueue_retries_total{name="q",controller="q"} 0"#,
            r#"workqueue_unfinished_work_seconds{name="q",controller="q"} 0"#,
            r#"workqueue_longest_running_processor_seconds{name="q",controller="q"} 0"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
    }
}
