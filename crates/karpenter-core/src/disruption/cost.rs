//! Disruption cost of pods, by priority and deletion cost, and of nodes, by their pods; and the price of nodes.

use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;

use crate::cluster::NodeState;
use crate::instance_type::InstanceType;
pub use crate::pod::eviction_cost::{POD_DELETION_COST, eviction_cost, reschedule_cost};

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
    let facts = node.facts();
    let (zone, capacity_type) = (facts.zone.as_deref(), facts.capacity_type.as_deref());
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
    use super::*;
    use crate::pod::Pod;

    fn pod(priority: i32, deletion_cost: &str) -> Pod {
        let pod = karpenter_fixtures::pod("p").priority(priority);
        Pod::parse(&pod.annotation(POD_DELETION_COST, deletion_cost).build())
    }

    fn cost(priority: i32, deletion_cost: i32) -> f64 {
        eviction_cost(&pod(priority, &deletion_cost.to_string()))
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
            assert_eq!(eviction_cost(&pod(0, text)), 1.0, "{text}");
        }
    }

    /// Conformance: DIS-174
    #[test]
    fn a_node_costs_one_plus_its_pods_and_no_pod_reduces_that() {
        let pods = [0, 1 << 25, i32::MIN].map(|priority| pod(priority, "0"));
        assert_eq!(reschedule_cost(&pods), 1.0 + 1.0 + 2.0 + 0.0);
        assert_eq!(reschedule_cost([]), 1.0);
    }

    /// Conformance: DIS-175
    #[test]
    fn the_remaining_lifetime_falls_from_one_to_zero_at_expiration() {
        let at = |expire_after: &str, now: &str| {
            let claim = karpenter_fixtures::node_claim("c").expire_after(expire_after);
            let claim = claim.created("2026-01-01T00:00:00Z").build();
            lifetime_remaining(&claim, now.parse().unwrap())
        };
        assert_eq!(at("4h", "2026-01-01T00:00:00Z"), 1.0);
        assert_eq!(at("4h", "2026-01-01T01:00:00Z"), 0.75);
        assert_eq!(at("4h", "2026-01-01T05:00:00Z"), 0.0);
        assert_eq!(at("0s", "2026-01-01T00:00:00Z"), 0.0);
        assert_eq!(at("Never", "2027-01-01T00:00:00Z"), 1.0);
    }
}
