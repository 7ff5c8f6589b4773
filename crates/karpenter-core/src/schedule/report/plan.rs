//! The result of a scheduling pass.

use std::collections::BTreeMap;
use std::fmt;

use super::planned_node_claim::PlannedNodeClaim;
use crate::pod::{PodIgnored, PodKey};
use crate::schedule::reasons::{PoolReport, Unschedulable};

/// The placements of a scheduling pass, and the nodes it plans to launch.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// Planned nodes, in the order they were opened.
    pub new_node_claims: Vec<PlannedNodeClaim>,
    /// What the planned nodes cost, and the least they could; `None` unless [`Query::bounds_price`](crate::schedule::Query::bounds_price).
    pub objective: Option<Objective>,
    /// Pods placed on existing nodes, in the order they were placed.
    pub existing: Vec<Placement>,
    /// Pods that were not placed.
    pub unplaced: Vec<Unplaced>,
    /// The outcome of each NodePool, in the order they were tried.
    pub pools: Vec<PoolReport>,
    /// Pending pods by the zone that binds them before the pass; filled only for [`PodSet::Waiting`](crate::schedule::PodSet::Waiting).
    pub pending_by_zone: BTreeMap<EffectiveZone, usize>,
    /// Pods that were not tried because the pass was cancelled.
    pub undecided: Vec<PodKey>,
    /// Pods without a node that the pass was not asked to place, and why: most are not marked unschedulable (yet). Filled only for
    /// [`PodSet::Waiting`](crate::schedule::PodSet::Waiting) and [`PodSet::Unbound`](crate::schedule::PodSet::Unbound).
    pub ignored: Vec<IgnoredPod>,
    /// The number of pods in the snapshot that are bound to a node: they use room there and are not placed. Filled as `ignored`.
    pub bound_pods: usize,
}

impl Plan {
    /// Returns the price of all planned nodes in dollars per hour, each at its cheapest offering.
    pub fn hourly_price(&self) -> f64 {
        self.new_node_claims
            .iter()
            .map(|claim| claim.hourly_price)
            .sum()
    }

    /// Returns the planned node that a pod was placed on.
    pub fn claim_of(&self, pod: &PodKey) -> Option<&PlannedNodeClaim> {
        self.new_node_claims
            .iter()
            .find(|claim| claim.pods.contains(pod) || claim.buffer_pods.contains(pod))
    }

    /// Returns the existing node that a pod was placed on.
    pub fn node_of(&self, pod: &PodKey) -> Option<&str> {
        self.existing
            .iter()
            .find(|placement| placement.pod == *pod)
            .map(|placement| placement.node.as_str())
    }
}

/// What a search minimizes, in dollars per hour: the price of each planned node at its cheapest offering, and
/// [`Policy::node_overhead_price`](crate::schedule::Policy::node_overhead_price) for each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Objective {
    /// What the planned nodes cost.
    pub price: f64,
    /// No nodes that the NodePools can launch run the same pods for less. Whether any run them for as little is not known.
    pub lowest: f64,
}

/// A pod that a pass was not asked to place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IgnoredPod {
    /// The pod.
    pub pod: PodKey,
    /// Why.
    pub why: PodIgnored,
}

/// A pod placed on an existing node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The pod.
    pub pod: PodKey,
    /// The name of the Node, or of the NodeClaim while there is no Node.
    pub node: String,
    /// Whether the pod belongs to a capacity buffer.
    pub buffer: bool,
}

/// A pod that was not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unplaced {
    /// The pod.
    pub pod: PodKey,
    /// Whether the pod belongs to a capacity buffer.
    pub buffer: bool,
    /// Why.
    pub why: Unschedulable,
}

/// The zones in which a pending pod can be placed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EffectiveZone {
    /// Several zones.
    Flexible,
    /// No zone.
    None,
    /// Exactly this zone.
    Zone(String),
}

impl fmt::Display for EffectiveZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flexible => "flexible",
            Self::None => "none",
            Self::Zone(zone) => zone,
        })
    }
}
