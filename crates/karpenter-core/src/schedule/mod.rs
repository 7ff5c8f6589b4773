//! Scheduling simulation: places pods on existing nodes, else on planned nodes.
//!
//! [`schedule`] is one call; [`Solver`] is the same in two steps, for several requests against one snapshot.
//!
//! How a request becomes a plan, one folder per step:
//!
//! 1. `compile`: the snapshot becomes a [`Solver`], once for all requests.
//! 2. `pods`: the pods of the request are sorted and grouped into classes with the same constraints.
//! 3. `topology`: the pods of the cluster are counted by the domains of those constraints.
//! 4. `place`: the pods are placed one by one, and their constraints relaxed where nothing fits.
//! 5. `repack`: planned nodes that cost more than their pods need are replaced by cheaper ones.
//! 6. `report`: the placements become a [`Plan`], with the reason for every pod that was not placed.
//!
//! `pass` is the state of steps 2 to 6; `portfolio` runs several passes that differ in what the constraints leave open, and
//! takes the best plan.

mod compile;
mod pass;
mod place;
mod pods;
mod portfolio;
mod repack;
mod report;
mod request;
mod strategy;
mod topology;

pub use compile::solver::Solver;
pub use report::plan::{EffectiveZone, Placement, Plan, PoolReport, Unplaced};
pub use report::planned_node_claim::PlannedNodeClaim;
pub use report::reasons::{
    ExceededLimit, Incompatibility, InstanceTypeMismatch, InvalidNodePool, PoolIncompatibility,
    PoolOutcome, Requested, TopologyConstraint, Unschedulable,
};
pub use request::{
    Cancel, DefaultSpread, MinValuesPolicy, Packing, PodSet, PreferencePolicy, Progress,
    ReservedMode, ScheduleRequest,
};

use crate::cluster::Snapshot;

/// Places the pods of `request` on the nodes of `snapshot` and on planned nodes.
///
/// Pure: the plan is a function of both arguments, whatever the order in which objects were applied. A pass runs on one thread,
/// because the place of a pod depends on the pods placed before it. Many passes over one [`Solver`] can run in parallel.
///
/// ```
/// use jiff::Timestamp;
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use karpenter_core::instance_type::InstanceType;
/// use karpenter_core::offering::Offering;
/// use karpenter_core::resources::Resources;
/// use karpenter_core::schedule::{ScheduleRequest, schedule};
/// use serde_json::json;
///
/// // An instance type of four cores, with one offering.
/// let capacity = Resources::new().with("cpu", 4000).with("memory", 8 << 30).with("pods", 20);
/// let labels = [("node.kubernetes.io/instance-type", "four"), ("topology.kubernetes.io/zone", "a")];
/// let mut four = InstanceType::new("four", labels.into_iter().collect(), capacity);
/// let offered = [("topology.kubernetes.io/zone", "a"), ("karpenter.sh/capacity-type", "on-demand")];
/// four.offerings.push(Offering::new(offered.into_iter().collect(), 0.2));
///
/// // A NodePool and three pending pods.
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// let ready = json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
/// cluster.apply_node_pool(&serde_json::from_value(json!({
///     "metadata": { "name": "default" },
///     "spec": { "template": { "spec": {
///         "requirements": [], "nodeClassRef": { "group": "example.com", "kind": "Rack", "name": "any" },
///     } } },
///     "status": { "conditions": [ready] },
/// }))?);
/// cluster.set_instance_types("default", Ok([four].into()));
/// for (name, cpu) in [("web-1", "1"), ("web-2", "1"), ("giant", "64")] {
///     cluster.apply_pod(&serde_json::from_value(json!({
///         "metadata": { "name": name, "namespace": "default", "uid": name },
///         "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": cpu } } }] },
///         "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
///     }))?);
/// }
///
/// let plan = schedule(&cluster.snapshot(), &ScheduleRequest::at(Timestamp::UNIX_EPOCH));
/// assert_eq!(plan.new_claims.len(), 1);
/// assert_eq!(plan.new_claims[0].pods.len(), 2);
/// assert_eq!(plan.hourly_price(), 0.2);
/// assert_eq!(plan.unplaced[0].pod.name, "giant");
/// assert!(plan.unplaced[0].why.to_string().contains("no instance type has enough resources"));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn schedule(snapshot: &Snapshot, request: &ScheduleRequest) -> Plan {
    Solver::prepare(snapshot, request).solve(request)
}
