//! What it costs to disrupt: pods by their priority and deletion cost, machines by their pods and price.

use jiff::Timestamp;
use karpenter_api::{labels, v1::NodeClaim};

use crate::{cluster::NodeState, instance_type::InstanceType, pod::Pod};

/// The annotation with which controllers rank their own pods for removal.
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// How much it hurts to move a pod: 1, more for pods of priority or deletion cost, between -10 and 10.
///
/// A deletion cost that is not a number counts as not given.
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

/// How much it hurts to move pods off a machine: 1, and what each pod adds. A machine of cost 1 counts as empty.
pub fn reschedule_cost<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> f64 {
    1.0 + pods
        .into_iter()
        .map(|pod| eviction_cost(pod).max(0.0))
        .sum::<f64>()
}

/// Which part of its life a machine has left: 1 when new, 0 at expiry; 1 if it never expires.
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

/// Dollars an hour of a machine: the first offering of its zone and capacity type, available or not; 0 if there is none.
pub fn price(machine: &NodeState, instance_type: Option<&InstanceType>) -> f64 {
    let label = |key: &str| machine.labels().get(key).map(String::as_str);
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
