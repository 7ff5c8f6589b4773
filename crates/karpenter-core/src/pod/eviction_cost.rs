//! The cost of evicting pods, by priority and deletion cost.

use super::Pod;

/// The annotation with which controllers rank their own pods for deletion.
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Returns the cost of evicting a pod: 1, adjusted by its priority and deletion cost, between -10 and 10.
///
/// A deletion cost that is not a number is ignored.
///
/// UPSTREAM: pkg/utils/disruption/disruption.go
pub fn eviction_cost(pod: &Pod) -> f64 {
    let deletion = pod
        .annotations
        .get(POD_DELETION_COST)
        .and_then(|text| text.parse::<i32>().ok());
    let deletion = f64::from(deletion.unwrap_or_default()) / f64::from(1 << 27);
    let priority = f64::from(pod.shape.priority) / f64::from(1 << 25);
    (1.0 + deletion + priority).clamp(-10.0, 10.0)
}

/// Returns the cost of rescheduling the pods of a node: 1, plus the cost of each pod. A node with cost 1 counts as empty.
pub fn reschedule_cost<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> f64 {
    1.0 + pods
        .into_iter()
        .map(|pod| eviction_cost(pod).max(0.0))
        .sum::<f64>()
}
