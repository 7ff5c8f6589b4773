//! Scheduling simulation: places pods on existing nodes, else on planned nodes.
//!
//! [`schedule`] is one call; [`Solver`] is the same in two steps, for several queries against one snapshot.
//!
//! How a query becomes a plan, one folder per step:
//!
//! 1. `compile`: the snapshot becomes a [`Solver`], once for all queries.
//! 2. `pods`: the pods of the query are sorted and grouped into classes with the same constraints.
//! 3. `topology`: the pods of the cluster are counted by the domains of those constraints.
//! 4. `place`: the pods are placed one by one, and their constraints relaxed where nothing fits.
//! 5. `repack`: planned nodes that cost more than their pods need are replaced by cheaper ones.
//! 6. `report`: the placements become a [`Plan`], with the reason for every pod that was not placed.
//!
//! `pass` takes steps 2 to 6; `search` places the pods again and again, in other orders, and keeps the best plan by `objective`,
//! until none can be better by `bound`. A step uses those before it, and never one
//! after it; all know `request`, and `reasons`, why something was not placed.

mod bound;
mod compile;
mod objective;
mod pass;
mod place;
mod pods;
mod random;
mod reasons;
mod repack;
mod report;
mod request;
mod search;
mod topology;

pub use compile::solver::Solver;
pub use reasons::{
    ExceededLimit, Incompatibility, InstanceTypeMismatch, InvalidNodePool, PoolIncompatibility,
    PoolOutcome, PoolReport, Requested, Shortage, TopologyConstraint, Unschedulable,
};
pub use report::plan::{EffectiveZone, IgnoredPod, Objective, Placement, Plan, Unplaced};
pub use report::planned_node_claim::{CheapestOffering, PlannedNodeClaim};
pub use request::{
    Cancel, DefaultSpread, MinValuesPolicy, Packing, PodSet, Policy, PreferencePolicy, Progress,
    Query, ReservedMode,
};

use crate::cluster::Snapshot;

/// Places the pods of `query` on the nodes of `snapshot` and on planned nodes.
///
/// Pure: the plan is a function of the arguments, whatever the order in which objects were applied. A pass runs on one thread,
/// because the place of a pod depends on the pods placed before it. Many passes over one [`Solver`] can run in parallel.
///
/// ```
/// use jiff::Timestamp;
/// use karpenter_api::v1::{NodeClassReference, NodePool};
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use karpenter_core::instance_type::InstanceType;
/// use karpenter_core::offering::{Offering, Price};
/// use karpenter_core::pod::Pod;
/// use karpenter_core::resources::Resources;
/// use karpenter_core::schedule::{Policy, Query, schedule};
///
/// // Two instance types, each with one offering. CPUs are counted in thousandths.
/// let sized = |cores: i64| Resources::new().with("cpu", cores * 1000).with("memory", cores << 31).with("pods", 20);
/// let four = InstanceType::linux("four", "amd64", sized(4)).with_offering(Offering::on_demand("a", Price::per_hour(0.2)));
/// let eight = InstanceType::linux("eight", "amd64", sized(8)).with_offering(Offering::on_demand("a", Price::per_hour(0.4)));
///
/// // A NodePool and three pending pods.
/// let class = NodeClassReference { group: "example.com".into(), kind: "Rack".into(), name: "any".into() };
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// cluster.apply_node_pool(&NodePool::ready("default", class));
/// cluster.set_instance_types("default", Ok([four, eight].into()));
/// for (name, cores) in [("web-1", 1), ("web-2", 1), ("giant", 64)] {
///     cluster.insert_pod(Pod::pending("default", name, Resources::new().with("cpu", cores * 1000)));
/// }
///
/// let plan = schedule(&cluster.snapshot(), &Policy::at(Timestamp::UNIX_EPOCH), &Query::default());
/// let planned = &plan.new_node_claims[0];
/// assert_eq!(planned.pods.len(), 2);
/// assert_eq!((planned.zones(), planned.capacity_types()), (vec!["a".to_owned()], vec!["on-demand".to_owned()]));
/// assert_eq!(
///     planned.cheapest().unwrap().to_string(),
///     "four at $0.2 per hour (on-demand, a) is the cheapest of 2 instance types that fit; the next is eight at $0.4",
/// );
/// assert_eq!(plan.unplaced[0].pod.name, "giant");
/// assert!(plan.unplaced[0].why.to_string().contains("no instance type has enough resources"));
/// ```
pub fn schedule(snapshot: &Snapshot, policy: &Policy, query: &Query) -> Plan {
    Solver::prepare_for(snapshot, policy, query).solve(query)
}
