//! Which machines may be disrupted, and why the others may not.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use jiff::Timestamp;
use karpenter_api::{
    conditions::{HasConditions, types},
    labels,
    v1::{ConsolidationPolicy, NodeClaim, NodePool},
};

use super::{
    cost::{eviction_cost, lifetime_remaining, price, reschedule_cost},
    pdb::{PdbBlock, PdbLimits},
    prices::PriceLists,
};
use crate::{
    cluster::{NodeState, Snapshot},
    instance_type::InstanceType,
    pod::{DoNotDisrupt, Pod, PodKey, do_not_disrupt},
};

/// Why a machine is no candidate. [`fmt::Display`] gives upstream's text; the event begins with a capital.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocked {
    /// A command holds it.
    InFlight,
    /// It is not Karpenter's.
    NotManaged,
    /// Its Node has not joined.
    NoNode,
    /// Its Node is not initialised.
    NotInitialized,
    /// It is going away.
    Deleting,
    /// Pods were told to go there.
    Nominated,
    /// Its Node refuses by annotation.
    NodeDoNotDisrupt,
    /// It lacks the NodePool label.
    NoNodePoolLabel,
    /// Its NodePool is gone, or the pool's instance types are not known.
    NoNodePool {
        /// Name of the NodePool.
        node_pool: String,
    },
    /// A pod refuses by annotation.
    PodDoNotDisrupt {
        /// The pod.
        pod: PodKey,
    },
    /// Two PodDisruptionBudgets cover a pod.
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
    /// It has drifted, and its pods would not all find a place.
    PodsStay {
        /// Pods and why.
        pods: Vec<(PodKey, String)>,
    },
}

impl Blocked {
    /// Whether the drift methods disregard it on machines with a termination grace period, at whose end pods go anyway.
    fn yields_to_grace_period(&self) -> bool {
        matches!(
            self,
            Self::PodDoNotDisrupt { .. } | Self::SeveralPdbs { .. } | Self::Pdb { .. }
        )
    }

    /// Whether users are told by a `DisruptionBlocked` event. They know of commands in flight and of foreign nodes.
    pub fn is_reported(&self) -> bool {
        !matches!(self, Self::InFlight | Self::NotManaged)
    }
}

impl fmt::Display for Blocked {
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
            Self::PodsStay { pods } => stuck(f, pods),
        }
    }
}

/// Says why pods would not schedule, of five pods at most.
fn stuck(f: &mut fmt::Formatter<'_>, pods: &[(PodKey, String)]) -> fmt::Result {
    f.write_str("Not all pods would schedule, ")?;
    let shown: Vec<String> = pods
        .iter()
        .take(5)
        .map(|(pod, why)| format!("{pod} => {why}"))
        .collect();
    f.write_str(&shown.join(" "))?;
    if pods.len() > 5 {
        write!(f, " and {} other(s)", pods.len() - 5)
    } else {
        Ok(())
    }
}

/// Why a candidate is not consolidated. [`fmt::Display`] gives the text of upstream's `Unconsolidatable` event.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Unconsolidatable {
    /// Its NodePool is static.
    Static,
    /// Its instance type is not offered any more.
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
    /// Emptiness takes care of it.
    Empty,
    /// `consolidationPolicy: WhenEmpty`, and it is not empty.
    WhenEmpty {
        /// The NodePool.
        node_pool: String,
    },
    /// Its Node refuses by the annotation of releases up to v0.32.
    NodeDoNotConsolidate,
    /// Pods came or went too recently.
    TooRecent,
    /// Virtual pods of capacity buffers are there.
    BufferPods {
        /// The machine.
        node: String,
    },
    /// Its pods would not all find a place.
    PodsStay {
        /// Pods and why.
        pods: Vec<(PodKey, String)>,
    },
    /// Its pods would need more than one new machine.
    SeveralReplacements {
        /// How many.
        count: usize,
    },
    /// No machine is cheaper.
    NotCheaper,
    /// The cheaper types do not satisfy minValues.
    MinValues {
        /// What is not satisfied.
        reason: String,
    },
    /// Spot machines are not exchanged for spot machines: the feature is off.
    SpotToSpotDisabled,
    /// Too few cheaper spot types to choose from.
    SpotToSpotFlexibility {
        /// How many were needed.
        needed: usize,
        /// How many were there.
        found: usize,
    },
    /// The move is not worth it by the Balanced policy.
    Score {
        /// The score.
        score: f64,
        /// What it would have to be.
        threshold: f64,
    },
    /// The pool's budget is used up.
    Budget {
        /// The NodePool.
        node_pool: String,
    },
    /// The search ended before it was looked at.
    NotEvaluated,
}

impl Unconsolidatable {
    /// Whether users are told by an event.
    pub fn is_reported(&self) -> bool {
        !matches!(
            self,
            Self::Empty
                | Self::TooRecent
                | Self::Score { .. }
                | Self::Budget { .. }
                | Self::NotEvaluated
        )
    }
}

impl fmt::Display for Unconsolidatable {
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
            Self::PodsStay { pods } => stuck(f, pods),
            Self::SeveralReplacements { count } => {
                write!(f, "Can't remove without creating {count} candidates")
            }
            Self::NotCheaper => f.write_str("Can't replace with a cheaper node"),
            Self::MinValues { reason } => write!(f, "Filtering by price: {reason}"),
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
            Self::NotEvaluated => f.write_str("Search ended before this node was looked at"),
        }
    }
}

/// A machine that may be disrupted.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The machine.
    pub machine: Arc<NodeState>,
    /// Its NodeClaim.
    pub claim: Arc<NodeClaim>,
    /// Its NodePool.
    pub node_pool: Arc<NodePool>,
    /// The pool's instance types.
    pub instance_types: Arc<[InstanceType]>,
    /// Place of its own type among them, if it still is one.
    pub instance_type: Option<usize>,
    /// Dollars an hour; 0 if not known.
    pub price: f64,
    /// Pods on it.
    pub pods: Vec<Arc<Pod>>,
    /// What moving its pods costs; 1 for an empty machine.
    pub reschedule_cost: f64,
    /// What evicting all its pods costs, less the shorter it has to live.
    pub disruption_cost: f64,
    /// Virtual pods of capacity buffers that reckon with it.
    pub buffer_pods: usize,
    /// It is one only for methods that wait for pods at most a grace period.
    pub eventual_only: bool,
    /// Consolidation has bought it lately for pods that are still there.
    pub settling: bool,
}

impl Candidate {
    /// The Node's name.
    pub fn name(&self) -> &str {
        self.machine.name()
    }

    /// The NodeClaim's name.
    pub fn claim_name(&self) -> &str {
        self.claim.metadata.name.as_deref().unwrap_or_default()
    }

    /// The NodePool's name.
    pub fn pool_name(&self) -> &str {
        self.node_pool.metadata.name.as_deref().unwrap_or_default()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.machine.labels().get(key).map(String::as_str)
    }

    /// `spot`, `on-demand` or `reserved`.
    pub fn capacity_type(&self) -> Option<&str> {
        self.label(labels::CAPACITY_TYPE)
    }

    /// The zone.
    pub fn zone(&self) -> Option<&str> {
        self.label(labels::ZONE)
    }

    /// The name of its instance type, known or not.
    pub fn instance_type_name(&self) -> Option<&str> {
        self.label(labels::INSTANCE_TYPE)
    }

    /// Pods that would need another machine.
    pub fn reschedulable(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.iter().filter(|pod| pod.is_reschedulable())
    }

    /// Whether nothing that matters runs on it: moving its pods costs nothing.
    pub fn is_empty(&self) -> bool {
        self.reschedule_cost <= 1.0
    }

    /// Whether the machine's `Consolidatable` condition holds.
    pub fn is_consolidatable(&self) -> bool {
        self.claim.is_true(types::CONSOLIDATABLE)
    }

    /// When the machine drifted, if it has.
    pub fn drifted_at(&self) -> Option<Timestamp> {
        let drifted = self.claim.condition(types::DRIFTED)?;
        (drifted.status == "True").then_some(drifted.last_transition_time.0)
    }

    /// Whether the Node refuses by the annotation of releases up to v0.32, which drift and expiry never minded.
    fn refuses_consolidation(&self) -> bool {
        self.machine
            .annotations()
            .get(labels::annotations::DO_NOT_CONSOLIDATE)
            .is_some_and(|value| value == "true")
    }

    /// What consolidation has against the candidate before anything is simulated.
    pub fn unconsolidatable(&self) -> Option<Unconsolidatable> {
        let node_pool = || self.pool_name().to_owned();
        let disruption = &self.node_pool.spec.disruption;
        if self.node_pool.is_static() {
            return Some(Unconsolidatable::Static);
        }
        if self.instance_type.is_none() {
            let name = self.instance_type_name().unwrap_or_default().to_owned();
            return Some(Unconsolidatable::InstanceTypeUnknown { name });
        }
        for label in [labels::CAPACITY_TYPE, labels::ZONE] {
            if self.label(label).is_none() {
                return Some(Unconsolidatable::NoLabel { label });
            }
        }
        if disruption.consolidate_after.value().is_none() {
            return Some(Unconsolidatable::Disabled {
                node_pool: node_pool(),
            });
        }
        if self.refuses_consolidation() {
            return Some(Unconsolidatable::NodeDoNotConsolidate);
        }
        if self.is_empty() && self.buffer_pods == 0 {
            return Some(Unconsolidatable::Empty);
        }
        if disruption.consolidation_policy == ConsolidationPolicy::WhenEmpty {
            return Some(Unconsolidatable::WhenEmpty {
                node_pool: node_pool(),
            });
        }
        let too_recent = !self.is_consolidatable() || self.settling;
        too_recent.then_some(Unconsolidatable::TooRecent)
    }

    /// What emptiness has against the candidate; `None` if it can go.
    pub fn not_empty(&self) -> Option<Unconsolidatable> {
        let node_pool = || self.pool_name().to_owned();
        if self.node_pool.is_static() {
            return Some(Unconsolidatable::Static);
        }
        if self
            .node_pool
            .spec
            .disruption
            .consolidate_after
            .value()
            .is_none()
        {
            return Some(Unconsolidatable::Disabled {
                node_pool: node_pool(),
            });
        }
        // The annotation never kept nodes whose pool removes empty nodes only.
        let only_empty =
            self.node_pool.spec.disruption.consolidation_policy == ConsolidationPolicy::WhenEmpty;
        if self.refuses_consolidation() && !only_empty {
            return Some(Unconsolidatable::NodeDoNotConsolidate);
        }
        if self.buffer_pods > 0 {
            return Some(Unconsolidatable::BufferPods {
                node: self.name().to_owned(),
            });
        }
        if !self.is_empty() {
            return Some(Unconsolidatable::WhenEmpty {
                node_pool: node_pool(),
            });
        }
        (!self.is_consolidatable()).then_some(Unconsolidatable::TooRecent)
    }
}

/// What looking at candidates needs to know besides the snapshot.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// NodeClaims that commands hold.
    pub in_flight: BTreeSet<String>,
    /// Virtual pods of capacity buffers by machine.
    pub buffer_pods: BTreeMap<String, usize>,
    /// NodeClaims that consolidation has bought lately: it does not take them back while their pods stay.
    pub settling: BTreeSet<String>,
}

/// Every machine of a snapshot: a candidate, or blocked.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// Machines that may be disrupted, ordered by price per cost of moving, most worthwhile first; ties by name.
    pub candidates: Vec<Candidate>,
    /// The others, by name.
    pub blocked: Vec<(Arc<NodeState>, Blocked)>,
    /// What machines cost.
    pub prices: Arc<PriceLists>,
}

impl Candidates {
    /// Looks at every machine.
    pub fn new(snapshot: &Snapshot, surroundings: &Surroundings, now: Timestamp) -> Self {
        let pdbs = PdbLimits::new(snapshot);
        let mut all = Self {
            prices: Arc::new(PriceLists::new(snapshot)),
            ..Self::default()
        };
        for machine in snapshot.nodes() {
            match candidate(snapshot, machine, surroundings, (&pdbs, &all.prices), now) {
                Ok(candidate) => {
                    if let Some(blocked) = candidate.1 {
                        all.blocked.push((machine.clone(), blocked));
                    }
                    all.candidates.push(candidate.0);
                }
                Err(blocked) => all.blocked.push((machine.clone(), blocked)),
            }
        }
        // The most money for the least trouble first.
        let worth = |candidate: &Candidate| candidate.price / candidate.reschedule_cost;
        all.candidates.sort_by(|a, b| {
            worth(b)
                .total_cmp(&worth(a))
                .then_with(|| a.name().cmp(b.name()))
        });
        all
    }
}

/// The candidate, with what blocks it for methods that respect pods' wishes without end; or what blocks it altogether.
fn candidate(
    snapshot: &Snapshot,
    machine: &Arc<NodeState>,
    surroundings: &Surroundings,
    (pdbs, prices): (&PdbLimits, &PriceLists),
    now: Timestamp,
) -> Result<(Candidate, Option<Blocked>), Blocked> {
    if machine
        .claim_name()
        .is_some_and(|name| surroundings.in_flight.contains(name))
    {
        return Err(Blocked::InFlight);
    }
    let claim = machine.claim.clone().ok_or(Blocked::NotManaged)?;
    let node = machine.node.as_ref().ok_or(Blocked::NoNode)?;
    if !machine.is_initialized() {
        return Err(Blocked::NotInitialized);
    }
    if machine.is_deleting() {
        return Err(Blocked::Deleting);
    }
    if machine.is_nominated(now) {
        return Err(Blocked::Nominated);
    }
    let refuses = machine
        .annotations()
        .get(labels::annotations::DO_NOT_DISRUPT);
    if refuses.is_some_and(|value| value == "true") {
        return Err(Blocked::NodeDoNotDisrupt);
    }
    let pool_name = machine.node_pool().ok_or(Blocked::NoNodePoolLabel)?;
    let no_pool = || Blocked::NoNodePool {
        node_pool: pool_name.to_owned(),
    };
    let node_pool = snapshot.node_pool(pool_name).ok_or_else(no_pool)?.clone();
    let list = prices.of(pool_name).filter(|list| !list.is_empty());
    let list = list.ok_or_else(no_pool)?;

    let pods = snapshot.pods_on(&node.name).to_vec();
    let blocked = pods_refuse(&pods, pdbs, now);
    if let Some(blocked) = &blocked
        && !(blocked.yields_to_grace_period() && claim.spec.termination_grace_period.is_some())
    {
        return Err(blocked.clone());
    }
    let type_name = machine.labels().get(labels::INSTANCE_TYPE);
    let instance_type = type_name.and_then(|name| list.place(name));
    let price = price(
        machine,
        instance_type.map(|place| list.instance_type(place)),
    );
    let reschedulable = pods
        .iter()
        .map(|pod| &**pod)
        .filter(|pod| pod.is_reschedulable());
    let reschedule_cost = reschedule_cost(reschedulable);
    let eviction: f64 = pods.iter().map(|pod| eviction_cost(pod)).sum();
    let buffer_pods = surroundings
        .buffer_pods
        .get(machine.name())
        .copied()
        .unwrap_or_default();
    let settling = machine
        .claim_name()
        .is_some_and(|name| surroundings.settling.contains(name));
    let candidate = Candidate {
        machine: machine.clone(),
        disruption_cost: eviction * lifetime_remaining(&claim, now),
        claim,
        node_pool,
        instance_types: list.instance_types().clone(),
        instance_type,
        price,
        pods,
        reschedule_cost,
        buffer_pods,
        eventual_only: blocked.is_some(),
        settling,
    };
    Ok((candidate, blocked))
}

/// The first pod that refuses, and why.
fn pods_refuse(pods: &[Arc<Pod>], pdbs: &PdbLimits, now: Timestamp) -> Option<Blocked> {
    let refuses =
        |pod: &&Arc<Pod>| pod.is_active() && do_not_disrupt(pod, now) == DoNotDisrupt::Yes;
    if let Some(pod) = pods.iter().find(refuses) {
        return Some(Blocked::PodDoNotDisrupt {
            pod: pod.key.clone(),
        });
    }
    let blocks: Vec<(&Arc<Pod>, PdbBlock)> = pods
        .iter()
        .filter_map(|pod| Some((pod, pdbs.blocks(pod, now)?)))
        .collect();
    let several = blocks.iter().find_map(|(pod, block)| match block {
        PdbBlock::Several { budgets } => Some((pod, budgets)),
        PdbBlock::Prevents { .. } => None,
    });
    if let Some((pod, budgets)) = several {
        return Some(Blocked::SeveralPdbs {
            pod: pod.key.clone(),
            budgets: budgets.clone(),
        });
    }
    blocks.into_iter().find_map(|(pod, block)| match block {
        PdbBlock::Prevents { budget } => Some(Blocked::Pdb {
            pod: pod.key.clone(),
            budget,
        }),
        PdbBlock::Several { .. } => None,
    })
}
