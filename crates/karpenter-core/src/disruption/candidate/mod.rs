//! Disruption candidates: which nodes may be disrupted, and why the others may not.

pub(super) mod blockers;
mod gates;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::pause::Pause;
use karpenter_api::v1::{NodeClaim, NodePool};
use serde::{Deserialize, Serialize};

use super::cost::{lifetime_remaining, price};
use super::staying::StayingPods;
use crate::cluster::pdb::PdbLimits;
use crate::cluster::{NodePods, NodeState, Snapshot, TableRow};
use crate::disruption::consolidation::prices::PriceLists;
use crate::disruption::consolidation::replacement::MinValuesUnmet;
use crate::instance_type::InstanceType;
use crate::pod::{Pod, PodKey};

/// Why a node is not a candidate. [`fmt::Display`] gives upstream's text; the event begins with a capital.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotDisruptable {
    /// A disruption command for it is in flight.
    InFlight,
    /// It has no NodeClaim.
    NotManaged,
    /// Its NodeClaim has no Node.
    NoNode,
    /// Its Node is not initialized.
    NotInitialized,
    /// It is being deleted or marked for deletion.
    Deleting,
    /// Pending pods are nominated to it.
    Nominated,
    /// Its Node has the annotation `karpenter.sh/do-not-disrupt`.
    NodeDoNotDisrupt,
    /// It lacks the NodePool label.
    NoNodePoolLabel,
    /// Its NodePool does not exist, or the NodePool's instance types are not known.
    NoNodePool {
        /// Name of the NodePool.
        node_pool: String,
    },
    /// A pod has the annotation `karpenter.sh/do-not-disrupt`.
    PodDoNotDisrupt {
        /// The pod.
        pod: PodKey,
    },
    /// Several PodDisruptionBudgets cover a pod.
    SeveralPdbs {
        /// The pod.
        pod: PodKey,
        /// The budgets.
        budgets: Vec<String>,
    },
    /// A PodDisruptionBudget allows no eviction.
    Pdb {
        /// The pod.
        pod: PodKey,
        /// The budget.
        budget: String,
    },
    /// It has drifted, but not all of its pods can be scheduled elsewhere.
    PodsStay {
        /// The pods, with reasons.
        pods: StayingPods,
    },
}

impl NotDisruptable {
    /// Reports whether the drift methods ignore it for nodes with a termination grace period, which ends such pods anyway.
    pub(super) fn yields_to_grace_period(&self) -> bool {
        matches!(
            self,
            Self::PodDoNotDisrupt { .. } | Self::SeveralPdbs { .. } | Self::Pdb { .. }
        )
    }

    /// Reports whether a `DisruptionBlocked` event is due. It is not for commands in flight and for nodes without a NodeClaim.
    pub fn is_reported(&self) -> bool {
        !matches!(self, Self::InFlight | Self::NotManaged)
    }
}

impl fmt::Display for NotDisruptable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight => f.write_str("candidate is already being disrupted"),
            Self::NotManaged => f.write_str("node isn't managed by karpenter"),
            Self::NoNode => f.write_str("nodeclaim does not have an associated node"),
            Self::NotInitialized => f.write_str("node isn't initialized"),
            Self::Deleting => f.write_str("node is deleting or marked for deletion"),
            Self::Nominated => f.write_str("node is nominated for a pending pod"),
            Self::NodeDoNotDisrupt => f.write_str(
                "disruption is blocked through the \"karpenter.sh/do-not-disrupt\" annotation",
            ),
            Self::NoNodePoolLabel => {
                f.write_str("node doesn't have required label (label=karpenter.sh/nodepool)")
            }
            Self::NoNodePool { node_pool } => {
                write!(f, "NodePool not found (NodePool={node_pool})")
            }
            Self::PodDoNotDisrupt { pod } => write!(
                f,
                "pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod={pod})"
            ),
            Self::SeveralPdbs { pod, budgets } => {
                write!(
                    f,
                    "eviction does not support multiple PDBs (Pod={pod}, PodDisruptionBudget=[{}])",
                    budgets.join(" ")
                )
            }
            Self::Pdb { pod, budget } => {
                write!(
                    f,
                    "pdb prevents pod evictions (PodDisruptionBudget={}/{budget})",
                    pod.namespace
                )
            }
            Self::PodsStay { pods } => pods.fmt(f),
        }
    }
}

/// Why a candidate is not consolidated. [`fmt::Display`] gives the text of upstream's `Unconsolidatable` event.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NotConsolidatable {
    /// Its NodePool is static.
    Static,
    /// Its NodePool no longer has its instance type.
    InstanceTypeUnknown {
        /// The type's name.
        name: String,
    },
    /// It lacks a label.
    NoLabel {
        /// The label.
        label: &'static str,
    },
    /// `consolidateAfter: Never`.
    Disabled {
        /// The NodePool.
        node_pool: String,
    },
    /// It is empty, which the emptiness method handles.
    Empty,
    /// `consolidationPolicy: WhenEmpty`, and it is not empty.
    WhenEmpty {
        /// The NodePool.
        node_pool: String,
    },
    /// Its Node has the annotation `karpenter.sh/do-not-consolidate` of releases up to v0.32.
    NodeDoNotConsolidate,
    /// Pods were added to or removed from it within `consolidateAfter`.
    TooRecent,
    /// Virtual pods of capacity buffers are placed on it.
    BufferPods {
        /// The node.
        node: String,
    },
    /// Not all of its pods can be scheduled elsewhere.
    PodsStay {
        /// The pods, with reasons.
        pods: StayingPods,
    },
    /// Its pods would need more new nodes than a command may launch.
    SeveralReplacements {
        /// The number of new nodes.
        count: usize,
    },
    /// No replacement is cheaper.
    NotCheaper,
    /// The cheaper instance types do not satisfy minValues.
    MinValues(MinValuesUnmet),
    /// Spot nodes are not replaced by spot nodes: the feature gate is off.
    SpotToSpotDisabled,
    /// Too few cheaper spot instance types.
    SpotToSpotFlexibility {
        /// The number required.
        needed: usize,
        /// The number available.
        found: usize,
    },
    /// The score by the Balanced policy is too low.
    Score {
        /// The score.
        score: f64,
        /// The lowest score that is approved.
        threshold: f64,
    },
    /// The NodePool's disruption budget is used up.
    Budget {
        /// The NodePool.
        node_pool: String,
    },
    /// Disruption of the NodePool is paused.
    Paused {
        /// The NodePool.
        node_pool: String,
        /// The pause: its end, its reasons, its user.
        pause: Pause,
    },
    /// The search ended before the candidate was evaluated.
    NotEvaluated,
}

impl NotConsolidatable {
    /// Reports whether an `Unconsolidatable` event is due.
    pub fn is_reported(&self) -> bool {
        !matches!(
            self,
            Self::Empty
                | Self::TooRecent
                | Self::Score { .. }
                | Self::Budget { .. }
                | Self::Paused { .. }
                | Self::NotEvaluated
        )
    }
}

impl fmt::Display for NotConsolidatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("NodePool is static"),
            Self::InstanceTypeUnknown { name } => write!(f, "Instance Type \"{name}\" not found"),
            Self::NoLabel { label } => write!(f, "Node does not have label \"{label}\""),
            Self::Disabled { node_pool } => {
                write!(f, "NodePool \"{node_pool}\" has consolidation disabled")
            }
            Self::Empty => f.write_str("Node is empty"),
            Self::WhenEmpty { node_pool } => write!(
                f,
                "NodePool \"{node_pool}\" has non-empty consolidation disabled"
            ),
            Self::NodeDoNotConsolidate => f.write_str(
                "consolidation is blocked through the \"karpenter.sh/do-not-consolidate\" annotation",
            ),
            Self::TooRecent => f.write_str("Node changed within consolidateAfter"),
            Self::BufferPods { node } => write!(f, "Node \"{node}\" has buffer pods"),
            Self::PodsStay { pods } => pods.fmt(f),
            Self::SeveralReplacements { count } => {
                write!(f, "Can't remove without creating {count} candidates")
            }
            Self::NotCheaper => f.write_str("Can't replace with a cheaper node"),
            Self::MinValues(unmet) => write!(f, "Filtering by price: {unmet}"),
            Self::SpotToSpotDisabled => f.write_str(
                "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node",
            ),
            Self::SpotToSpotFlexibility { needed, found } => {
                write!(
                    f,
                    "SpotToSpotConsolidation requires {needed} cheaper instance type options than the current candidate to consolidate, got {found}"
                )
            }
            Self::Score { score, threshold } => {
                write!(f, "Score {score:.2} is below {threshold:.2}")
            }
            Self::Budget { node_pool } => {
                write!(f, "NodePool \"{node_pool}\" has no disruption budget left")
            }
            Self::Paused { node_pool, pause } => write!(
                f,
                "Disruption of NodePool \"{node_pool}\" is paused {}",
                pause.describe()
            ),
            Self::NotEvaluated => f.write_str("Search ended before this node was evaluated"),
        }
    }
}

/// The address of a node's state, as long as a pass keeps it: cheaper to compare than its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeId(usize);

impl NodeId {
    pub(super) fn of(node: &Arc<NodeState>) -> Self {
        Self(Arc::as_ptr(node).addr())
    }
}

/// A node that may be disrupted.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The node.
    pub node: Arc<NodeState>,
    /// Its NodeClaim.
    pub claim: Arc<NodeClaim>,
    /// Its NodePool.
    pub node_pool: Arc<NodePool>,
    /// The NodePool's instance types.
    pub instance_types: Arc<[InstanceType]>,
    /// Index of its own instance type in `instance_types`, if the NodePool still has it.
    pub instance_type: Option<usize>,
    /// Price in dollars per hour; 0 if not known.
    pub price: f64,
    /// Pods on it.
    pub pods: Arc<NodePods>,
    /// The cost of rescheduling its pods; 1 for an empty node.
    pub reschedule_cost: f64,
    /// The cost of evicting all its pods, times the remaining share of its lifetime.
    pub disruption_cost: f64,
    /// The number of virtual pods of capacity buffers placed on it.
    pub buffer_pods: usize,
    /// Whether only drift may disrupt it, because its pods block eviction until the termination grace period ends.
    pub eventual_only: bool,
    /// Whether consolidation launched it recently for pods that are still on it.
    pub is_recent_replacement: bool,
}

impl Candidate {
    /// Returns the candidate that a node would be if nothing blocked it; `None` without a NodeClaim, a Node, or a NodePool whose
    /// instance types are known.
    pub(crate) fn of(
        snapshot: &Snapshot,
        state: &Arc<NodeState>,
        pods: Option<&Arc<NodePods>>,
        surroundings: &Surroundings,
        prices: &PriceLists,
        now: Timestamp,
    ) -> Option<Self> {
        let claim = state.claim.clone().filter(|_| state.node.is_some())?;
        let pool_name = state.node_pool()?;
        let node_pool = snapshot.node_pool(pool_name)?.clone();
        let list = prices.of(pool_name).filter(|list| !list.is_empty())?;
        let pods = pods.cloned().unwrap_or_default();
        let type_name = state.facts().instance_type.as_deref();
        let instance_type = type_name.and_then(|name| list.place(name));
        let price = price(state, instance_type.map(|place| list.instance_type(place)));
        let facts = pods.facts();
        let buffer_pods = match surroundings.buffer_pods.is_empty() {
            true => 0,
            false => { surroundings.buffer_pods.get(state.name()).copied() }.unwrap_or_default(),
        };
        let is_recent_replacement = !surroundings.recent_replacements.is_empty()
            && state
                .claim_name()
                .is_some_and(|name| surroundings.recent_replacements.contains(name));
        Some(Self {
            node: state.clone(),
            disruption_cost: facts.eviction_cost * lifetime_remaining(&claim, now),
            claim,
            node_pool,
            instance_types: list.instance_types().clone(),
            instance_type,
            price,
            pods,
            reschedule_cost: facts.reschedule_cost,
            buffer_pods,
            eventual_only: false,
            is_recent_replacement,
        })
    }

    /// Returns what tells its node from others of the snapshot.
    pub(super) fn id(&self) -> NodeId {
        NodeId::of(&self.node)
    }

    /// Returns the name of the Node.
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// Returns the name of the NodeClaim.
    pub fn claim_name(&self) -> &str {
        self.claim.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the name of the NodePool.
    pub fn pool_name(&self) -> &str {
        self.node_pool.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the capacity type: `spot`, `on-demand` or `reserved`.
    pub fn capacity_type(&self) -> Option<&str> {
        self.node.facts().capacity_type.as_deref()
    }

    /// Returns the zone.
    pub fn zone(&self) -> Option<&str> {
        self.node.facts().zone.as_deref()
    }

    /// Returns the name of its instance type, whether or not the NodePool still has that type.
    pub fn instance_type_name(&self) -> Option<&str> {
        self.node.facts().instance_type.as_deref()
    }

    /// Returns the pods that must be rescheduled when the node is deleted.
    pub fn reschedulable(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let pods = self.pods.pods().iter();
        pods.filter(|pod| pod.is_reschedulable())
    }

    /// Reports whether the node is empty: rescheduling its pods has no cost.
    pub fn is_empty(&self) -> bool {
        self.reschedule_cost <= 1.0
    }

    /// Reports whether the NodeClaim's `Consolidatable` condition is true.
    pub fn is_consolidatable(&self) -> bool {
        self.node.facts().consolidatable
    }

    /// Returns when the NodeClaim drifted, if it has.
    pub fn drifted_at(&self) -> Option<Timestamp> {
        if !self.node.facts().drifted {
            return None;
        }
        let drifted = self.claim.condition(types::DRIFTED)?;
        (drifted.status == "True").then_some(drifted.last_transition_time.0)
    }
}

/// The state that selecting candidates needs in addition to the snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Surroundings {
    /// Names of NodeClaims with a disruption command in flight.
    pub in_flight: BTreeSet<String>,
    /// The number of virtual pods of capacity buffers, by node name.
    pub buffer_pods: BTreeMap<String, usize>,
    /// Names of NodeClaims that consolidation launched recently: it does not consolidate them while their pods stay.
    pub recent_replacements: BTreeSet<String>,
}

/// All nodes of a snapshot: candidates and blocked nodes.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// Nodes that may be disrupted, by price per rescheduling cost, descending; ties by name.
    pub candidates: Vec<Candidate>,
    /// The blocked nodes with the reason, by name.
    pub blocked: Vec<(Arc<NodeState>, NotDisruptable)>,
    /// The prices of instance types.
    pub prices: Arc<PriceLists>,
    /// The places of the candidates, then of the blocked nodes, in the order of [`Snapshot::nodes`].
    places: [Vec<u32>; 2],
    len: usize,
}

impl Candidates {
    /// Returns the number of nodes in the snapshot.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Iterates over the candidates, each with its place in the order of [`Snapshot::nodes`].
    pub(super) fn candidates_with_places(&self) -> impl Iterator<Item = (&Candidate, usize)> {
        let places = self.places[0].iter().map(|place| *place as usize);
        self.candidates.iter().zip(places)
    }

    /// Iterates over the blocked nodes, each with its place in the order of [`Snapshot::nodes`].
    pub(super) fn blocked_with_places(
        &self,
    ) -> impl Iterator<Item = (&(Arc<NodeState>, NotDisruptable), usize)> {
        let places = self.places[1].iter().map(|place| *place as usize);
        self.blocked.iter().zip(places)
    }

    /// Checks every node of the snapshot.
    pub fn new(snapshot: &Snapshot, surroundings: &Surroundings, now: Timestamp) -> Self {
        let pdbs = PdbLimits::new(snapshot);
        let mut all = Self {
            prices: Arc::new(PriceLists::new(snapshot)),
            ..Self::default()
        };
        let mut found: Vec<Option<(Candidate, u32)>> = Vec::new();
        let mut worth: Vec<f64> = Vec::new();
        for (place, row) in snapshot.node_table().iter().enumerate() {
            let place = place as u32;
            let blocked = match candidate(snapshot, row, surroundings, (&pdbs, &all.prices), now) {
                Ok((candidate, blocked)) => {
                    worth.push(candidate.price / candidate.reschedule_cost);
                    found.push(Some((candidate, place)));
                    blocked
                }
                Err(blocked) => Some(blocked),
            };
            if let Some(blocked) = blocked {
                all.blocked.push((row.state.clone(), blocked));
                all.places[1].push(place);
            }
        }
        all.len = snapshot.node_table().len();
        // Highest price per disruption first. Candidates are Nodes, which come by name, and the sort is stable.
        let mut order: Vec<usize> = (0..found.len()).collect();
        order.sort_by(|a, b| worth[*b].total_cmp(&worth[*a]));
        let sorted = order.iter().filter_map(|place| found[*place].take());
        (all.candidates, all.places[0]) = sorted.unzip();
        all
    }
}

/// Returns the candidate, with what blocks it for methods that do not end at a grace period; the error blocks it for all.
pub(super) fn candidate(
    snapshot: &Snapshot,
    row: &TableRow,
    surroundings: &Surroundings,
    (pdbs, prices): (&PdbLimits, &PriceLists),
    now: Timestamp,
) -> Result<(Candidate, Option<NotDisruptable>), NotDisruptable> {
    let (state, pods) = (&row.state, row.pods.as_ref());
    let has_types = |pool: &str| prices.of(pool).is_some_and(|list| !list.is_empty());
    if let Some(blocked) = blockers::of_node(snapshot, state, surroundings, has_types, now).next() {
        return Err(blocked);
    }
    // INVARIANT: each part that is missing is a blocker of its own.
    let candidate = Candidate::of(snapshot, state, pods, surroundings, prices, now);
    let Some(mut candidate) = candidate else {
        return Err(NotDisruptable::NotManaged);
    };
    let may_be_blocked = candidate.pods.facts().may_refuse_disruption || !pdbs.is_empty();
    let blocked = may_be_blocked
        .then(|| blockers::of_pods(candidate.pods.pods(), pdbs, now).next())
        .flatten();
    if let Some(blocked) = &blocked
        && !(blocked.yields_to_grace_period()
            && candidate.claim.spec.termination_grace_period.is_some())
    {
        return Err(blocked.clone());
    }
    candidate.eventual_only = blocked.is_some();
    Ok((candidate, blocked))
}
