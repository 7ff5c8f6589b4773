//! Metrics: names, kinds, labels, buckets (section 8 of core-api.md).

use std::collections::BTreeSet;

use karpenter_kube::metrics::{Metrics, Registry, show_build};

const D: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0, 120.0, 150.0, 300.0, 450.0, 600.0,
];
const DEFAULT: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const TO_1024: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];
const TO_2048: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0,
];
const SCORES: &[f64] = &[0.1, 0.25, 0.33, 0.5, 1.0, 2.0, 5.0, 10.0];
/// 15, 30, 45 minutes; 1, 2, 4, 6, 8, 10, 12, 16, 20 hours; 1, 2, 3, 5, 10, 15, 20, 25, 30 days.
const LIFETIMES: &[f64] = &[
    900.0,
    1800.0,
    2700.0,
    3600.0,
    7200.0,
    14400.0,
    21600.0,
    28800.0,
    36000.0,
    43200.0,
    57600.0,
    72000.0,
    86400.0,
    172_800.0,
    259_200.0,
    432_000.0,
    864_000.0,
    1_296_000.0,
    1_728_000.0,
    2_160_000.0,
    2_592_000.0,
];

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
    Summary,
}
use Kind::{Counter, Gauge, Histogram, Summary};

const DISRUPTED: &str = "reason nodepool capacity_type consolidation_policy termination_mode";
const DECISION: &str = "decision reason consolidation_type";

/// Name without `karpenter_`, kind, labels.
const METRICS: &[(&str, Kind, &str)] = &[
    ("build_info", Gauge, "version goversion goarch commit"),
    (
        "nodeclaims_created_total",
        Counter,
        "reason nodepool min_values_relaxed",
    ),
    (
        "nodeclaims_terminated_total",
        Counter,
        "nodepool capacity_type zone",
    ),
    ("nodeclaims_disrupted_total", Counter, DISRUPTED),
    (
        "nodeclaims_unhealthy_disrupted_total",
        Counter,
        "condition nodepool capacity_type image_id",
    ),
    (
        "nodeclaims_instance_termination_duration_seconds",
        Histogram(TO_1024),
        "nodepool",
    ),
    (
        "nodeclaims_termination_duration_seconds",
        Histogram(TO_2048),
        "nodepool",
    ),
    ("nodes_created_total", Counter, "nodepool zone"),
    ("nodes_terminated_total", Counter, "nodepool zone"),
    ("nodes_drained_total", Counter, "nodepool"),
    ("nodes_termination_duration_seconds", Summary, "nodepool"),
    (
        "nodes_lifetime_duration_seconds",
        Histogram(LIFETIMES),
        "nodepool",
    ),
    ("cluster_utilization_percent", Gauge, "resource_type"),
    ("pods_startup_duration_seconds", Summary, ""),
    ("pods_bound_duration_seconds", Histogram(D), ""),
    ("pods_nominations_bound_total", Counter, "as_planned plans"),
    ("pods_provisioning_bound_duration_seconds", Histogram(D), ""),
    (
        "pods_provisioning_startup_duration_seconds",
        Histogram(D),
        "",
    ),
    (
        "pods_scheduling_decision_duration_seconds",
        Histogram(D),
        "",
    ),
    ("pods_unstarted_time_seconds", Gauge, "name namespace"),
    ("pods_unbound_time_seconds", Gauge, "name namespace"),
    (
        "pods_provisioning_unstarted_time_seconds",
        Gauge,
        "name namespace",
    ),
    (
        "pods_provisioning_unbound_time_seconds",
        Gauge,
        "name namespace",
    ),
    (
        "pods_provisioning_scheduling_undecided_time_seconds",
        Gauge,
        "name namespace",
    ),
    ("pods_eviction_requests_total", Counter, "code"),
    ("pods_drained_total", Counter, "reason"),
    ("pods_disruption_initiated_total", Counter, DISRUPTED),
    (
        "voluntary_disruption_decision_evaluation_duration_seconds",
        Histogram(D),
        "reason consolidation_type",
    ),
    ("voluntary_disruption_decisions_total", Counter, DECISION),
    (
        "voluntary_disruption_decisions_by_nodepool_total",
        Counter,
        "decision reason consolidation_type nodepool",
    ),
    ("voluntary_disruption_eligible_nodes", Gauge, "reason"),
    (
        "voluntary_disruption_consolidation_timeouts_total",
        Counter,
        "consolidation_type",
    ),
    (
        "voluntary_disruption_failed_validations_total",
        Counter,
        "consolidation_type",
    ),
    (
        "voluntary_disruption_queue_failures_total",
        Counter,
        DECISION,
    ),
    (
        "consolidation_score",
        Histogram(SCORES),
        "decision nodepool policy",
    ),
    (
        "consolidation_moves_total",
        Counter,
        "decision nodepool policy",
    ),
    ("nodepools_allowed_disruptions", Gauge, "nodepool reason"),
    (
        "nodepools_nodes_consuming_budgets",
        Gauge,
        "nodepool reason",
    ),
    ("nodepools_paused", Gauge, "nodepool"),
    ("nodepools_limit", Gauge, "resource_type nodepool"),
    ("nodepools_usage", Gauge, "resource_type nodepool"),
    ("nodepools_cost_total", Gauge, "nodepool"),
    ("nodepools_cost_tracker_errors_total", Counter, "nodepool"),
    (
        "scheduler_scheduling_duration_seconds",
        Histogram(D),
        "controller",
    ),
    ("scheduler_queue_depth", Gauge, "controller scheduling_id"),
    (
        "scheduler_unfinished_work_seconds",
        Gauge,
        "controller scheduling_id",
    ),
    ("scheduler_ignored_pods_count", Gauge, ""),
    ("scheduler_unschedulable_pods_count", Gauge, "controller"),
    ("scheduler_deferred_pods_count", Gauge, ""),
    (
        "scheduler_pending_pods_by_effective_zone_count",
        Gauge,
        "controller zone",
    ),
    ("cluster_state_node_count", Gauge, ""),
    ("cluster_state_synced", Gauge, ""),
    ("cluster_state_unsynced_time_seconds", Gauge, ""),
    (
        "cloudprovider_duration_seconds",
        Histogram(DEFAULT),
        "controller method provider",
    ),
    (
        "cloudprovider_errors_total",
        Counter,
        "controller method provider error",
    ),
];

/// Makes a series of the metric whose labels have their own names as values.
fn touch(registry: &Registry, name: &str, kind: Kind, labels: &[&str]) -> &'static str {
    match kind {
        Counter => registry.counter(name, "", labels).inc(labels),
        Gauge => registry.gauge(name, "", labels).set(labels, 1.0),
        Histogram(_) => registry
            .histogram(name, "", labels, &[])
            .observe(labels, 0.0),
        Summary => registry.summary(name, "", labels, &[]).observe(labels, 0.0),
    }
    match kind {
        Counter => "counter",
        Gauge => "gauge",
        Histogram(_) => "histogram",
        Summary => "summary",
    }
}

/// The values of a label of the lines that begin so.
fn values(text: &str, start: &str, label: &str) -> Vec<f64> {
    let lines = text.lines().filter(|line| line.starts_with(start));
    let value = |line: &str| {
        let (_, rest) = line.split_once(&format!("{label}=\""))?;
        rest.split('"').next()?.parse().ok()
    };
    lines
        .filter_map(value)
        .filter(|value: &f64| value.is_finite())
        .collect()
}

/// Conformance: API-169
#[test]
fn metrics_have_their_names_kinds_labels_and_buckets() {
    let registry = Registry::new();
    let _metrics = Metrics::new(&registry);
    show_build(&registry);
    let known = registry.names().into_iter();
    let known: BTreeSet<String> = known
        .filter(|name| name.starts_with("karpenter_"))
        .collect();
    let expected = METRICS
        .iter()
        .map(|(name, _, _)| format!("karpenter_{name}"));
    assert_eq!(known, expected.collect());

    for (name, kind, labels) in METRICS {
        let name = format!("karpenter_{name}");
        let labels: Vec<&str> = labels.split_whitespace().collect();
        let written = touch(&registry, &name, *kind, &labels);
        let text = registry.render();
        assert!(
            text.lines()
                .any(|line| line == format!("# TYPE {name} {written}")),
            "{name} is not a {written}"
        );
        let own: Vec<String> = labels
            .iter()
            .map(|label| format!("{label}=\"{label}\""))
            .collect();
        let shown = match (own.is_empty(), kind) {
            (true, _) => String::new(),
            (false, _) => format!("{{{}}}", own.join(",")),
        };
        let suffix = match kind {
            Histogram(_) | Summary => "_count",
            Counter | Gauge => "",
        };
        let line = format!("{name}{suffix}{shown} 1");
        assert!(text.lines().any(|l| l == line), "{line}");
        match kind {
            Histogram(buckets) => assert_eq!(
                &values(&text, &format!("{name}_bucket"), "le"),
                buckets,
                "{name}"
            ),
            Summary => {
                let quantiles = values(&text, &format!("{name}{{"), "quantile");
                assert_eq!(quantiles, [0.0, 0.5, 0.9, 0.99, 1.0], "{name}");
            }
            Counter | Gauge => {}
        }
    }
}
