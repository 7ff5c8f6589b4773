//! Upstream's metrics: names, labels and buckets, in one place.
//!
//! State-derived gauges with the well-known labels (`nodes_allocatable`, `pods_state`, …) are rendered by the
//! observability controllers, which build their label lists from the provider's well-known labels.

use super::handles::{Counter, Gauge, Histogram, Summary};
use super::registry::Registry;
use super::work::Work;

/// Upper bounds of upstream's duration histograms, in seconds.
pub const DURATION_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0, 120.0, 150.0, 300.0, 450.0, 600.0,
];

/// Quantiles of upstream's summaries.
pub const SUMMARY_QUANTILES: &[f64] = &[0.0, 0.5, 0.9, 0.99, 1.0];

/// The Prometheus client's default buckets, in seconds.
const DEFAULT_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;
const LIFETIME_BUCKETS: &[f64] = &[
    0.25 * HOUR,
    0.5 * HOUR,
    0.75 * HOUR,
    HOUR,
    2.0 * HOUR,
    4.0 * HOUR,
    6.0 * HOUR,
    8.0 * HOUR,
    10.0 * HOUR,
    12.0 * HOUR,
    16.0 * HOUR,
    20.0 * HOUR,
    DAY,
    2.0 * DAY,
    3.0 * DAY,
    5.0 * DAY,
    10.0 * DAY,
    15.0 * DAY,
    20.0 * DAY,
    25.0 * DAY,
    30.0 * DAY,
];

/// The handle of a kind of metric.
macro_rules! handle {
    (counter) => {
        Counter
    };
    (gauge) => {
        Gauge
    };
    (histogram) => {
        Histogram
    };
    (summary) => {
        Summary
    };
}

/// Defines the metrics: field, kind, labels, buckets or quantiles, and help. The name is that of the field after `karpenter_`.
macro_rules! metrics {
    ($($field:ident: $kind:ident $labels:tt $(($bounds:expr))? = $help:literal;)*) => {
        /// Every metric of the operator.
        #[derive(Debug, Clone)]
        pub struct Metrics {
            /// The registry of the metrics, which scrapes render.
            pub registry: Registry,
            /// `controller_runtime_*` and `workqueue_*`: reconciliations and queues.
            pub work: Work,
            $(
                #[doc = concat!("`karpenter_", stringify!($field), "`: ", $help)]
                pub $field: handle!($kind),
            )*
        }

        impl Metrics {
            fn register(registry: &Registry) -> Self {
                Self {
                    registry: registry.clone(),
                    work: Work::new(registry),
                    $($field: registry.$kind(
                        concat!("karpenter_", stringify!($field)),
                        $help,
                        &$labels,
                        $($bounds)?
                    ),)*
                }
            }
        }
    };
}

fn doubling(n: i32) -> Vec<f64> {
    (0..n).map(|i| 2f64.powi(i)).collect()
}

metrics! {
    nodeclaims_created_total: counter["reason", "nodepool", "min_values_relaxed"] =
        "NodeClaims created, by reason: provisioned, drifted, underutilized.";
    nodeclaims_terminated_total: counter["nodepool", "capacity_type", "zone"] =
        "NodeClaims whose finalizer was removed.";
    nodeclaims_disrupted_total: counter["reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode"] =
        "NodeClaims deleted by Karpenter, by reason.";
    nodeclaims_unhealthy_disrupted_total: counter["condition", "nodepool", "capacity_type", "image_id"] =
        "NodeClaims deleted by node repair.";
    nodeclaims_instance_termination_duration_seconds: histogram["nodepool"](&doubling(11)) =
        "Time from the first provider delete until the instance is gone.";
    nodeclaims_termination_duration_seconds: histogram["nodepool"](&doubling(12)) =
        "Time from deletion until the finalizer is removed.";
    nodes_created_total: counter["nodepool", "zone"] =
        "Nodes registered.";
    nodes_terminated_total: counter["nodepool", "zone"] =
        "Nodes whose finalizer was removed.";
    nodes_drained_total: counter["nodepool"] =
        "Nodes drained.";
    nodes_termination_duration_seconds: summary["nodepool"](SUMMARY_QUANTILES) =
        "Time from deletion of a node until its finalizer is removed.";
    nodes_lifetime_duration_seconds: histogram["nodepool"](LIFETIME_BUCKETS) =
        "Age of nodes when they are deleted.";
    pods_startup_duration_seconds: summary[](SUMMARY_QUANTILES) =
        "Time from creation of a pod until it is ready.";
    pods_bound_duration_seconds: histogram[](DURATION_BUCKETS) =
        "Time from creation of a pod until it is bound.";
    pods_nominations_bound_total: counter["as_planned", "plans"] =
        "Pods that kube-scheduler bound, by whether to the node they were nominated to, and whether after one plan or several.";
    pods_provisioning_bound_duration_seconds: histogram[](DURATION_BUCKETS) =
        "Time from the first successful simulation until the pod is bound.";
    pods_provisioning_startup_duration_seconds: histogram[](DURATION_BUCKETS) =
        "Time from the first successful simulation until the pod is ready.";
    pods_scheduling_decision_duration_seconds: histogram[](DURATION_BUCKETS) =
        "Time from seeing a pod until the first decision about it.";
    pods_unstarted_time_seconds: gauge["name", "namespace"] =
        "Current wait of pods that are not ready.";
    pods_unbound_time_seconds: gauge["name", "namespace"] =
        "Current wait of pods that are not bound.";
    pods_provisioning_unstarted_time_seconds: gauge["name", "namespace"] =
        "Current wait from the first successful simulation, pods not ready.";
    pods_provisioning_unbound_time_seconds: gauge["name", "namespace"] =
        "Current wait from the first successful simulation, pods not bound.";
    pods_provisioning_scheduling_undecided_time_seconds: gauge["name", "namespace"] =
        "Current wait of pods without a decision.";
    pods_eviction_requests_total: counter["code"] =
        "Evictions requested, by HTTP status.";
    pods_drained_total: counter["reason"] =
        "Pods evicted, by reason of the disruption.";
    pods_disruption_initiated_total: counter["reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode"] =
        "Reschedulable pods on disrupted NodeClaims.";
    voluntary_disruption_decision_evaluation_duration_seconds: histogram["reason", "consolidation_type"](DURATION_BUCKETS) =
        "Time of one pass of a disruption method.";
    voluntary_disruption_decisions_total: counter["decision", "reason", "consolidation_type"] =
        "Disruption decisions.";
    voluntary_disruption_decisions_by_nodepool_total: counter["decision", "reason", "consolidation_type", "nodepool"] =
        "Disruption decisions by NodePool.";
    voluntary_disruption_eligible_nodes: gauge["reason"] =
        "Nodes eligible for disruption.";
    voluntary_disruption_consolidation_timeouts_total: counter["consolidation_type"] =
        "Consolidation passes that ran out of time.";
    voluntary_disruption_failed_validations_total: counter["consolidation_type"] =
        "Candidates that failed validation.";
    voluntary_disruption_queue_failures_total: counter["decision", "reason", "consolidation_type"] =
        "Replacements of failed disruption commands that were never initialized.";
    consolidation_score: histogram["decision", "nodepool", "policy"](&[0.1, 0.25, 0.33, 0.5, 1.0, 2.0, 5.0, 10.0]) =
        "Scores of balanced consolidation.";
    consolidation_moves_total: counter["decision", "nodepool", "policy"] =
        "Moves judged by balanced consolidation.";
    nodepools_allowed_disruptions: gauge["nodepool", "reason"] =
        "Disruptions the budgets allow now.";
    nodepools_nodes_consuming_budgets: gauge["nodepool", "reason"] =
        "Nodes that consume disruption budgets.";
    nodepools_paused: gauge["nodepool"] =
        "NodePools whose voluntary disruption is paused.";
    nodepools_limit: gauge["resource_type", "nodepool"] =
        "Limits of NodePools.";
    nodepools_usage: gauge["resource_type", "nodepool"] =
        "Resources of NodePools.";
    nodepools_cost_total: gauge["nodepool"] =
        "Sum of offering prices.";
    nodepools_cost_tracker_errors_total: counter["nodepool"] =
        "Offerings without a known price.";
    scheduler_scheduling_duration_seconds: histogram["controller"](DURATION_BUCKETS) =
        "Time of one scheduling simulation.";
    scheduler_queue_depth: gauge["controller", "scheduling_id"] =
        "Pods waiting in the running simulation.";
    scheduler_unfinished_work_seconds: gauge["controller", "scheduling_id"] =
        "Age of the running simulation.";
    scheduler_ignored_pods_count: gauge[] =
        "Pods ignored because their scheduling constraints are invalid.";
    scheduler_unschedulable_pods_count: gauge["controller"] =
        "Pods that no node fits.";
    scheduler_deferred_pods_count: gauge[] =
        "Pods left out of the last simulation, because memory is near its limit.";
    scheduler_pending_pods_by_effective_zone_count: gauge["controller", "zone"] =
        "Pending pods by zone.";
    cluster_state_node_count: gauge[] =
        "Nodes in the cluster model.";
    cluster_state_synced: gauge[] =
        "1 while the cluster model is in sync.";
    cluster_state_unsynced_time_seconds: gauge[] =
        "How long the cluster model has been out of sync.";
    cluster_utilization_percent: gauge["resource_type"] =
        "Requests as a percentage of allocatable.";
    cloudprovider_duration_seconds: histogram["controller", "method", "provider"](DEFAULT_BUCKETS) =
        "Time of provider calls.";
    cloudprovider_errors_total: counter["controller", "method", "provider", "error"] =
        "Failed provider calls.";
}

impl Metrics {
    /// Registers every metric.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        let metrics = Self::register(registry);
        for kind in ["single", "multi"] {
            metrics
                .voluntary_disruption_consolidation_timeouts_total
                .add(&[kind], 0.0);
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-175
    #[test]
    fn the_counter_of_consolidation_timeouts_exists_before_the_first() {
        let text = Metrics::new(&Registry::new()).registry.render();
        let name = "karpenter_voluntary_disruption_consolidation_timeouts_total";
        for kind in ["single", "multi"] {
            let line = format!("{name}{{consolidation_type=\"{kind}\"}} 0");
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn metrics_carry_upstreams_names_and_buckets() {
        let metrics = Metrics::new(&Registry::new());
        metrics
            .nodeclaims_created_total
            .inc(&["provisioned", "default", "false"]);
        metrics
            .nodeclaims_termination_duration_seconds
            .observe(&["default"], 3.0);
        let text = metrics.registry.render();
        assert!(text.contains(r#"karpenter_nodeclaims_created_total{reason="provisioned",nodepool="default",min_values_relaxed="false"} 1"#));
        assert!(text.contains(r#"karpenter_nodeclaims_termination_duration_seconds_bucket{nodepool="default",le="2048"} 1"#));
        assert_eq!(DURATION_BUCKETS.len(), 45);
    }
}
