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

/// Every metric of the operator.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// The registry of the metrics, which scrapes render.
    pub registry: Registry,
    /// `controller_runtime_*` and `workqueue_*`: reconciliations and queues.
    pub work: Work,
    /// `karpenter_nodeclaims_created_total`: NodeClaims created, by reason: provisioned, drifted, underutilized.
    pub nodeclaims_created_total: Counter,
    /// `karpenter_nodeclaims_terminated_total`: NodeClaims whose finalizer was removed.
    pub nodeclaims_terminated_total: Counter,
    /// `karpenter_nodeclaims_disrupted_total`: NodeClaims deleted by Karpenter, by reason.
    pub nodeclaims_disrupted_total: Counter,
    /// `karpenter_nodeclaims_unhealthy_disrupted_total`: NodeClaims deleted by node repair.
    pub nodeclaims_unhealthy_disrupted_total: Counter,
    /// `karpenter_nodeclaims_instance_termination_duration_seconds`: Time from the first provider delete until the instance is gone.
    pub nodeclaims_instance_termination_duration_seconds: Histogram,
    /// `karpenter_nodeclaims_termination_duration_seconds`: Time from deletion until the finalizer is removed.
    pub nodeclaims_termination_duration_seconds: Histogram,
    /// `karpenter_nodes_created_total`: Nodes registered.
    pub nodes_created_total: Counter,
    /// `karpenter_nodes_terminated_total`: Nodes whose finalizer was removed.
    pub nodes_terminated_total: Counter,
    /// `karpenter_nodes_drained_total`: Nodes drained.
    pub nodes_drained_total: Counter,
    /// `karpenter_nodes_termination_duration_seconds`: Time from deletion of a node until its finalizer is removed.
    pub nodes_termination_duration_seconds: Summary,
    /// `karpenter_nodes_lifetime_duration_seconds`: Age of nodes when they are deleted.
    pub nodes_lifetime_duration_seconds: Histogram,
    /// `karpenter_pods_startup_duration_seconds`: Time from creation of a pod until it is ready.
    pub pods_startup_duration_seconds: Summary,
    /// `karpenter_pods_bound_duration_seconds`: Time from creation of a pod until it is bound.
    pub pods_bound_duration_seconds: Histogram,
    /// `karpenter_pods_provisioning_bound_duration_seconds`: Time from the first successful simulation until the pod is bound.
    pub pods_provisioning_bound_duration_seconds: Histogram,
    /// `karpenter_pods_provisioning_startup_duration_seconds`: Time from the first successful simulation until the pod is ready.
    pub pods_provisioning_startup_duration_seconds: Histogram,
    /// `karpenter_pods_scheduling_decision_duration_seconds`: Time from seeing a pod until the first decision about it.
    pub pods_scheduling_decision_duration_seconds: Histogram,
    /// `karpenter_pods_unstarted_time_seconds`: Current wait of pods that are not ready.
    pub pods_unstarted_time_seconds: Gauge,
    /// `karpenter_pods_unbound_time_seconds`: Current wait of pods that are not bound.
    pub pods_unbound_time_seconds: Gauge,
    /// `karpenter_pods_provisioning_unstarted_time_seconds`: Current wait from the first successful simulation, pods not ready.
    pub pods_provisioning_unstarted_time_seconds: Gauge,
    /// `karpenter_pods_provisioning_unbound_time_seconds`: Current wait from the first successful simulation, pods not bound.
    pub pods_provisioning_unbound_time_seconds: Gauge,
    /// `karpenter_pods_provisioning_scheduling_undecided_time_seconds`: Current wait of pods without a decision.
    pub pods_provisioning_scheduling_undecided_time_seconds: Gauge,
    /// `karpenter_pods_eviction_requests_total`: Evictions requested, by HTTP status.
    pub pods_eviction_requests_total: Counter,
    /// `karpenter_pods_drained_total`: Pods evicted, by reason of the disruption.
    pub pods_drained_total: Counter,
    /// `karpenter_pods_disruption_initiated_total`: Reschedulable pods on disrupted NodeClaims.
    pub pods_disruption_initiated_total: Counter,
    /// `karpenter_voluntary_disruption_decision_evaluation_duration_seconds`: Time of one pass of a disruption method.
    pub voluntary_disruption_decision_evaluation_duration_seconds: Histogram,
    /// `karpenter_voluntary_disruption_decisions_total`: Disruption decisions.
    pub voluntary_disruption_decisions_total: Counter,
    /// `karpenter_voluntary_disruption_decisions_by_nodepool_total`: Disruption decisions by NodePool.
    pub voluntary_disruption_decisions_by_nodepool_total: Counter,
    /// `karpenter_voluntary_disruption_eligible_nodes`: Nodes eligible for disruption.
    pub voluntary_disruption_eligible_nodes: Gauge,
    /// `karpenter_voluntary_disruption_consolidation_timeouts_total`: Consolidation passes that ran out of time.
    pub voluntary_disruption_consolidation_timeouts_total: Counter,
    /// `karpenter_voluntary_disruption_failed_validations_total`: Candidates that failed validation.
    pub voluntary_disruption_failed_validations_total: Counter,
    /// `karpenter_voluntary_disruption_queue_failures_total`: Replacements of failed disruption commands that were never initialized.
    pub voluntary_disruption_queue_failures_total: Counter,
    /// `karpenter_consolidation_score`: Scores of balanced consolidation.
    pub consolidation_score: Histogram,
    /// `karpenter_consolidation_moves_total`: Moves judged by balanced consolidation.
    pub consolidation_moves_total: Counter,
    /// `karpenter_nodepools_allowed_disruptions`: Disruptions the budgets allow now.
    pub nodepools_allowed_disruptions: Gauge,
    /// `karpenter_nodepools_nodes_consuming_budgets`: Nodes that consume disruption budgets.
    pub nodepools_nodes_consuming_budgets: Gauge,
    /// `karpenter_nodepools_paused`: NodePools whose voluntary disruption is paused. Not upstream's.
    pub nodepools_paused: Gauge,
    /// `karpenter_nodepools_limit`: Limits of NodePools.
    pub nodepools_limit: Gauge,
    /// `karpenter_nodepools_usage`: Resources of NodePools.
    pub nodepools_usage: Gauge,
    /// `karpenter_nodepools_cost_total`: Sum of offering prices.
    pub nodepools_cost_total: Gauge,
    /// `karpenter_nodepools_cost_tracker_errors_total`: Offerings without a known price.
    pub nodepools_cost_tracker_errors_total: Counter,
    /// `karpenter_scheduler_scheduling_duration_seconds`: Time of one scheduling simulation.
    pub scheduler_scheduling_duration_seconds: Histogram,
    /// `karpenter_scheduler_queue_depth`: Pods waiting in the running simulation.
    pub scheduler_queue_depth: Gauge,
    /// `karpenter_scheduler_unfinished_work_seconds`: Age of the running simulation.
    pub scheduler_unfinished_work_seconds: Gauge,
    /// `karpenter_scheduler_ignored_pods_count`: Pods ignored because their scheduling constraints are invalid.
    pub scheduler_ignored_pods_count: Gauge,
    /// `karpenter_scheduler_unschedulable_pods_count`: Pods that no node fits.
    pub scheduler_unschedulable_pods_count: Gauge,
    /// `karpenter_scheduler_deferred_pods_count`: Pods left out of the last simulation, because memory is near its limit.
    pub scheduler_deferred_pods_count: Gauge,
    /// `karpenter_scheduler_pending_pods_by_effective_zone_count`: Pending pods by zone.
    pub scheduler_pending_pods_by_effective_zone_count: Gauge,
    /// `karpenter_cluster_state_node_count`: Nodes in the cluster model.
    pub cluster_state_node_count: Gauge,
    /// `karpenter_cluster_state_synced`: 1 while the cluster model is in sync.
    pub cluster_state_synced: Gauge,
    /// `karpenter_cluster_state_unsynced_time_seconds`: How long the cluster model has been out of sync.
    pub cluster_state_unsynced_time_seconds: Gauge,
    /// `karpenter_cluster_utilization_percent`: Requests as a percentage of allocatable.
    pub cluster_utilization_percent: Gauge,
    /// `karpenter_cloudprovider_duration_seconds`: Time of provider calls.
    pub cloudprovider_duration_seconds: Histogram,
    /// `karpenter_cloudprovider_errors_total`: Failed provider calls.
    pub cloudprovider_errors_total: Counter,
}

impl Metrics {
    /// Registers every metric.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        let doubling = |n: i32| (0..n).map(|i| 2f64.powi(i)).collect::<Vec<_>>();
        let metrics = Self {
            registry: registry.clone(),
            work: Work::new(registry),
            nodeclaims_created_total: registry.counter(
                "karpenter_nodeclaims_created_total",
                "NodeClaims created, by reason: provisioned, drifted, underutilized.",
                &["reason", "nodepool", "min_values_relaxed"],
            ),
            nodeclaims_terminated_total: registry.counter(
                "karpenter_nodeclaims_terminated_total",
                "NodeClaims whose finalizer was removed.",
                &["nodepool", "capacity_type", "zone"],
            ),
            nodeclaims_disrupted_total: registry.counter(
                "karpenter_nodeclaims_disrupted_total",
                "NodeClaims deleted by Karpenter, by reason.",
                &[
                    "reason",
                    "nodepool",
                    "capacity_type",
                    "consolidation_policy",
                    "termination_mode",
                ],
            ),
            nodeclaims_unhealthy_disrupted_total: registry.counter(
                "karpenter_nodeclaims_unhealthy_disrupted_total",
                "NodeClaims deleted by node repair.",
                &["condition", "nodepool", "capacity_type", "image_id"],
            ),
            nodeclaims_instance_termination_duration_seconds: registry.histogram(
                "karpenter_nodeclaims_instance_termination_duration_seconds",
                "Time from the first provider delete until the instance is gone.",
                &["nodepool"],
                &doubling(11),
            ),
            nodeclaims_termination_duration_seconds: registry.histogram(
                "karpenter_nodeclaims_termination_duration_seconds",
                "Time from deletion until the finalizer is removed.",
                &["nodepool"],
                &doubling(12),
            ),
            nodes_created_total: registry.counter(
                "karpenter_nodes_created_total",
                "Nodes registered.",
                &["nodepool", "zone"],
            ),
            nodes_terminated_total: registry.counter(
                "karpenter_nodes_terminated_total",
                "Nodes whose finalizer was removed.",
                &["nodepool", "zone"],
            ),
            nodes_drained_total: registry.counter(
                "karpenter_nodes_drained_total",
                "Nodes drained.",
                &["nodepool"],
            ),
            nodes_termination_duration_seconds: registry.summary(
                "karpenter_nodes_termination_duration_seconds",
                "Time from deletion of a node until its finalizer is removed.",
                &["nodepool"],
                SUMMARY_QUANTILES,
            ),
            nodes_lifetime_duration_seconds: registry.histogram(
                "karpenter_nodes_lifetime_duration_seconds",
                "Age of nodes when they are deleted.",
                &["nodepool"],
                LIFETIME_BUCKETS,
            ),
            pods_startup_duration_seconds: registry.summary(
                "karpenter_pods_startup_duration_seconds",
                "Time from creation of a pod until it is ready.",
                &[],
                SUMMARY_QUANTILES,
            ),
            pods_bound_duration_seconds: registry.histogram(
                "karpenter_pods_bound_duration_seconds",
                "Time from creation of a pod until it is bound.",
                &[],
                DURATION_BUCKETS,
            ),
            pods_provisioning_bound_duration_seconds: registry.histogram(
                "karpenter_pods_provisioning_bound_duration_seconds",
                "Time from the first successful simulation until the pod is bound.",
                &[],
                DURATION_BUCKETS,
            ),
            pods_provisioning_startup_duration_seconds: registry.histogram(
                "karpenter_pods_provisioning_startup_duration_seconds",
                "Time from the first successful simulation until the pod is ready.",
                &[],
                DURATION_BUCKETS,
            ),
            pods_scheduling_decision_duration_seconds: registry.histogram(
                "karpenter_pods_scheduling_decision_duration_seconds",
                "Time from seeing a pod until the first decision about it.",
                &[],
                DURATION_BUCKETS,
            ),
            pods_unstarted_time_seconds: registry.gauge(
                "karpenter_pods_unstarted_time_seconds",
                "Current wait of pods that are not ready.",
                &["name", "namespace"],
            ),
            pods_unbound_time_seconds: registry.gauge(
                "karpenter_pods_unbound_time_seconds",
                "Current wait of pods that are not bound.",
                &["name", "namespace"],
            ),
            pods_provisioning_unstarted_time_seconds: registry.gauge(
                "karpenter_pods_provisioning_unstarted_time_seconds",
                "Current wait from the first successful simulation, pods not ready.",
                &["name", "namespace"],
            ),
            pods_provisioning_unbound_time_seconds: registry.gauge(
                "karpenter_pods_provisioning_unbound_time_seconds",
                "Current wait from the first successful simulation, pods not bound.",
                &["name", "namespace"],
            ),
            pods_provisioning_scheduling_undecided_time_seconds: registry.gauge(
                "karpenter_pods_provisioning_scheduling_undecided_time_seconds",
                "Current wait of pods without a decision.",
                &["name", "namespace"],
            ),
            pods_eviction_requests_total: registry.counter(
                "karpenter_pods_eviction_requests_total",
                "Evictions requested, by HTTP status.",
                &["code"],
            ),
            pods_drained_total: registry.counter(
                "karpenter_pods_drained_total",
                "Pods evicted, by reason of the disruption.",
                &["reason"],
            ),
            pods_disruption_initiated_total: registry.counter(
                "karpenter_pods_disruption_initiated_total",
                "Reschedulable pods on disrupted NodeClaims.",
                &[
                    "reason",
                    "nodepool",
                    "capacity_type",
                    "consolidation_policy",
                    "termination_mode",
                ],
            ),
            voluntary_disruption_decision_evaluation_duration_seconds: registry.histogram(
                "karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
                "Time of one pass of a disruption method.",
                &["reason", "consolidation_type"],
                DURATION_BUCKETS,
            ),
            voluntary_disruption_decisions_total: registry.counter(
                "karpenter_voluntary_disruption_decisions_total",
                "Disruption decisions.",
                &["decision", "reason", "consolidation_type"],
            ),
            voluntary_disruption_decisions_by_nodepool_total: registry.counter(
                "karpenter_voluntary_disruption_decisions_by_nodepool_total",
                "Disruption decisions by NodePool.",
                &["decision", "reason", "consolidation_type", "nodepool"],
            ),
            voluntary_disruption_eligible_nodes: registry.gauge(
                "karpenter_voluntary_disruption_eligible_nodes",
                "Nodes eligible for disruption.",
                &["reason"],
            ),
            voluntary_disruption_consolidation_timeouts_total: registry.counter(
                "karpenter_voluntary_disruption_consolidation_timeouts_total",
                "Consolidation passes that ran out of time.",
                &["consolidation_type"],
            ),
            voluntary_disruption_failed_validations_total: registry.counter(
                "karpenter_voluntary_disruption_failed_validations_total",
                "Candidates that failed validation.",
                &["consolidation_type"],
            ),
            voluntary_disruption_queue_failures_total: registry.counter(
                "karpenter_voluntary_disruption_queue_failures_total",
                "Replacements of failed disruption commands that were never initialized.",
                &["decision", "reason", "consolidation_type"],
            ),
            consolidation_score: registry.histogram(
                "karpenter_consolidation_score",
                "Scores of balanced consolidation.",
                &["decision", "nodepool", "policy"],
                &[0.1, 0.25, 0.33, 0.5, 1.0, 2.0, 5.0, 10.0],
            ),
            consolidation_moves_total: registry.counter(
                "karpenter_consolidation_moves_total",
                "Moves judged by balanced consolidation.",
                &["decision", "nodepool", "policy"],
            ),
            nodepools_allowed_disruptions: registry.gauge(
                "karpenter_nodepools_allowed_disruptions",
                "Disruptions the budgets allow now.",
                &["nodepool", "reason"],
            ),
            nodepools_nodes_consuming_budgets: registry.gauge(
                "karpenter_nodepools_nodes_consuming_budgets",
                "Nodes that consume disruption budgets.",
                &["nodepool", "reason"],
            ),
            nodepools_paused: registry.gauge(
                "karpenter_nodepools_paused",
                "NodePools whose voluntary disruption is paused.",
                &["nodepool"],
            ),
            nodepools_limit: registry.gauge(
                "karpenter_nodepools_limit",
                "Limits of NodePools.",
                &["resource_type", "nodepool"],
            ),
            nodepools_usage: registry.gauge(
                "karpenter_nodepools_usage",
                "Resources of NodePools.",
                &["resource_type", "nodepool"],
            ),
            nodepools_cost_total: registry.gauge(
                "karpenter_nodepools_cost_total",
                "Sum of offering prices.",
                &["nodepool"],
            ),
            nodepools_cost_tracker_errors_total: registry.counter(
                "karpenter_nodepools_cost_tracker_errors_total",
                "Offerings without a known price.",
                &["nodepool"],
            ),
            scheduler_scheduling_duration_seconds: registry.histogram(
                "karpenter_scheduler_scheduling_duration_seconds",
                "Time of one scheduling simulation.",
                &["controller"],
                DURATION_BUCKETS,
            ),
            scheduler_queue_depth: registry.gauge(
                "karpenter_scheduler_queue_depth",
                "Pods waiting in the running simulation.",
                &["controller", "scheduling_id"],
            ),
            scheduler_unfinished_work_seconds: registry.gauge(
                "karpenter_scheduler_unfinished_work_seconds",
                "Age of the running simulation.",
                &["controller", "scheduling_id"],
            ),
            scheduler_ignored_pods_count: registry.gauge(
                "karpenter_scheduler_ignored_pods_count",
                "Pods ignored because their scheduling constraints are invalid.",
                &[],
            ),
            scheduler_unschedulable_pods_count: registry.gauge(
                "karpenter_scheduler_unschedulable_pods_count",
                "Pods that no node fits.",
                &["controller"],
            ),
            scheduler_deferred_pods_count: registry.gauge(
                "karpenter_scheduler_deferred_pods_count",
                "Pods left out of the last simulation, because memory is near its limit.",
                &[],
            ),
            scheduler_pending_pods_by_effective_zone_count: registry.gauge(
                "karpenter_scheduler_pending_pods_by_effective_zone_count",
                "Pending pods by zone.",
                &["controller", "zone"],
            ),
            cluster_state_node_count: registry.gauge(
                "karpenter_cluster_state_node_count",
                "Nodes in the cluster model.",
                &[],
            ),
            cluster_state_synced: registry.gauge(
                "karpenter_cluster_state_synced",
                "1 while the cluster model is in sync.",
                &[],
            ),
            cluster_state_unsynced_time_seconds: registry.gauge(
                "karpenter_cluster_state_unsynced_time_seconds",
                "How long the cluster model has been out of sync.",
                &[],
            ),
            cluster_utilization_percent: registry.gauge(
                "karpenter_cluster_utilization_percent",
                "Requests as a percentage of allocatable.",
                &["resource_type"],
            ),
            cloudprovider_duration_seconds: registry.histogram(
                "karpenter_cloudprovider_duration_seconds",
                "Time of provider calls.",
                &["controller", "method", "provider"],
                DEFAULT_BUCKETS,
            ),
            cloudprovider_errors_total: registry.counter(
                "karpenter_cloudprovider_errors_total",
                "Failed provider calls.",
                &["controller", "method", "provider", "error"],
            ),
        };
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
