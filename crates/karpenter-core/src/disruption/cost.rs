//! Disruption cost of pods, by priority and deletion cost, and of nodes, by their pods; and the price of nodes.

use jiff::Timestamp;
use karpenter_api::labels;
use karpenter_api::v1::NodeClaim;

use crate::cluster::NodeState;
use crate::instance_type::InstanceType;
use crate::pod::Pod;

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

/// Returns the share of its lifetime that a NodeClaim has left: 1 when new, 0 at expiration; 1 if it never expires.
pub fn lifetime_remaining(claim: &NodeClaim, now: Timestamp) -> f64 {
    let (Some(life), Some(created)) = (
        claim.spec.expire_after.value(),
        claim.metadata.creation_timestamp.as_ref(),
    ) else {
        return 1.0;
    };
    let age = now.duration_since(created.0).as_secs_f64();
    let life = life.as_secs_f64();
    if life <= 0.0 {
        0.0
    } else {
        (1.0 - age / life).clamp(0.0, 1.0)
    }
}

/// Returns the price of a node in dollars per hour: that of the first offering with its zone and capacity type, available or
/// not; 0 if there is none.
pub fn price(node: &NodeState, instance_type: Option<&InstanceType>) -> f64 {
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    let (zone, capacity_type) = (label(labels::ZONE), label(labels::CAPACITY_TYPE));
    let offering = instance_type
        .into_iter()
        .flat_map(|instance_type| &instance_type.offerings)
        .find(|offering| offering.zone() == zone && offering.capacity_type() == capacity_type);
    offering
        .map(|offering| offering.price)
        .filter(|price| price.is_finite())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(priority: i32, deletion_cost: Value) -> Pod {
        let pod = json!({
            "metadata": { "name": "p", "annotations": { POD_DELETION_COST: deletion_cost } },
            "spec": { "containers": [], "priority": priority },
        });
        Pod::parse(&serde_json::from_value(pod).unwrap())
    }

    fn cost(priority: i32, deletion_cost: i32) -> f64 {
        eviction_cost(&pod(priority, json!(deletion_cost.to_string())))
    }

    /// Conformance: DIS-173
    #[test]
    fn deletion_cost_counts_per_2_27_and_priority_per_2_25() {
        assert_eq!(cost(0, 0), 1.0);
        assert_eq!(cost(0, 1 << 27), 2.0);
        assert_eq!(cost(0, -(1 << 26)), 0.5);
        assert_eq!(cost(1 << 25, 0), 2.0);
        assert_eq!(cost(1 << 25, 1 << 27), 3.0);
    }

    /// Conformance: DIS-173
    #[test]
    fn an_eviction_costs_ten_at_most_and_minus_ten_at_least() {
        assert_eq!(cost(1_000_000_000, 0), 10.0);
        assert_eq!(cost(i32::MIN, 0), -10.0);
        assert_eq!(cost(1_000_000_000, i32::MIN), 10.0);
    }

    /// Conformance: DIS-173
    #[test]
    fn a_deletion_cost_that_is_not_a_number_is_ignored() {
        for text in ["", "much", "1.5", "99999999999"] {
            assert_eq!(eviction_cost(&pod(0, json!(text))), 1.0, "{text}");
        }
    }

    /// Conformance: DIS-174
    #[test]
    fn a_node_costs_one_plus_its_pods_and_no_pod_reduces_that() {
        let pods = [
            pod(0, json!("0")),
            pod(1 << 25, json!("0")),
            pod(i32::MIN, json!("0")),
        ];
        assert_eq!(reschedule_cost(&pods), 1.0 + 1.0 + 2.0 + 0.0);
        assert_eq!(reschedule_cost([]), 1.0);
    }

    /// Conformance: DIS-175
    #[test]
    fn the_remaining_lifetime_falls_from_one_to_zero_at_expiration() {
        let at = |expire_after: &str, now: &str| {
            let claim: NodeClaim = serde_json::from_value(json!({
                "metadata": { "name": "c", "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": {
                    "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [],
                    "expireAfter": expire_after,
                },
            }))
            .unwrap();
            lifetime_remaining(&claim, now.parse().unwrap())
        };
        assert_eq!(at("4h", "2026-01-01T00:00:00Z"), 1.0);
        assert_eq!(at("4h", "2026-01-01T01:00:00Z"), 0.75);
        assert_eq!(at("4h", "2026-01-01T05:00:00Z"), 0.0);
        assert_eq!(at("0s", "2026-01-01T00:00:00Z"), 0.0);
        assert_eq!(at("Never", "2027-01-01T00:00:00Z"), 1.0);
    }
}
