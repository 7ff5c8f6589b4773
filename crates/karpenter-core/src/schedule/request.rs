//! The input of a scheduling pass: the [`Policy`] of a solver, and the [`Query`] that it answers.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::behavior::Behavior;
use crate::pod::{Pod, PodIgnored, PodKey};
use crate::setters;

/// How preferences of pods are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum PreferencePolicy {
    /// Preferences are treated as required first, and dropped one by one until the pod fits.
    #[default]
    Respect,
    /// Preferences are ignored.
    Ignore,
}

/// How unmet minValues are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum MinValuesPolicy {
    /// A planned node must meet minValues; a NodePool that cannot is not used.
    #[default]
    Strict,
    /// minValues are lowered to the number of values available.
    BestEffort,
}

/// How used-up reserved capacity is treated when it is compatible with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum ReservedMode {
    /// Pods wait for the next pass, when reservations may be free. Used by provisioning.
    #[default]
    Strict,
    /// Other capacity is used. Used by disruption.
    Fallback,
    /// Reserved offerings are not tracked (the feature is off).
    Off,
}

/// The objective of packing, once every pod has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum Packing {
    /// Keeps the plan of first fit: each new node gets as many pods as fit.
    FewestNodes,
    /// Repacks the pods of planned nodes that cost clearly more than the pods need, onto planned nodes with a lower total price.
    LowestCost {
        /// Planned nodes with fewer pods are not repacked; 1 includes all.
        from_pods: usize,
    },
}

impl Default for Packing {
    fn default() -> Self {
        Self::LowestCost { from_pods: 1 }
    }
}

/// A default topology spread constraint, for pods that have none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DefaultSpread {
    /// The node label whose values are the domains.
    pub topology_key: String,
    /// The allowed difference between the count of a domain and the lowest count.
    pub max_skew: i32,
    /// The number of domains below which the lowest count is taken as zero.
    pub min_domains: Option<i32>,
    /// `DoNotSchedule` (true) or `ScheduleAnyway` (false).
    pub hard: bool,
    /// Whether only nodes that match the pod's node selector and required affinity count.
    pub honor_affinity: bool,
    /// Whether only nodes whose taints the pod tolerates count.
    pub honor_taints: bool,
}

/// Which pods to place.
#[derive(Clone, Debug, Default)]
pub enum PodSet {
    /// Pending pods (kube-scheduler marked them unschedulable), and pods of deleting nodes.
    #[default]
    Waiting,
    /// Pods without a node, whether or not a kube-scheduler has tried them, and pods of deleting nodes. For programs that run
    /// without a kube-scheduler.
    Unbound,
    /// The given pods. They are not validated. If bound, they no longer count on their current node.
    Given(Vec<Arc<Pod>>),
    /// Pending pods, pods of deleting nodes, and the given pods.
    WaitingAnd(Vec<Arc<Pod>>),
}

impl PodSet {
    /// Reports whether a pod of the snapshot that has no node is placed.
    pub(crate) fn includes(&self, pod: &Pod) -> bool {
        match self {
            Self::Waiting | Self::WaitingAnd(_) => pod.is_provisionable(),
            Self::Unbound => matches!(
                pod.ignored(),
                None | Some(PodIgnored::NotMarkedUnschedulable)
            ),
            Self::Given(_) => false,
        }
    }

    /// Returns the pods that the query itself brings.
    pub(crate) fn given(&self) -> &[Arc<Pod>] {
        match self {
            Self::Waiting | Self::Unbound => &[],
            Self::Given(pods) | Self::WaitingAnd(pods) => pods,
        }
    }
}

/// Returns whether the pass must stop early.
pub type Cancel = Arc<dyn Fn() -> bool + Send + Sync>;

/// Receives the number of pods not tried yet, periodically during a pass.
pub type Progress = Arc<dyn Fn(usize) + Send + Sync>;

/// The settings of a [`Solver`](crate::schedule::Solver), which hold for all its queries.
///
/// ```
/// use jiff::Timestamp;
/// use karpenter_core::schedule::{Packing, Policy, PreferencePolicy};
///
/// let policy = Policy::at(Timestamp::UNIX_EPOCH)
///     .with_preference_policy(PreferencePolicy::Ignore)
///     .with_packing(Packing::FewestNodes);
/// assert_eq!(policy.max_instance_types, 600);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Policy {
    /// The current time.
    pub now: Timestamp,
    /// How preferences of pods are treated.
    pub preference_policy: PreferencePolicy,
    /// How unmet minValues are treated.
    pub min_values_policy: MinValuesPolicy,
    /// How used-up reserved capacity is treated.
    pub reserved_mode: ReservedMode,
    /// Spread constraints for pods that have none.
    pub default_spread: Vec<DefaultSpread>,
    /// Whether pods with resource claims are rejected instead of getting devices, and DaemonSets with resource claims are ignored.
    pub ignore_dra_requests: bool,
    /// The objective of packing. Disruption uses [`Packing::FewestNodes`], because it replaces nodes by at most one node.
    pub packing: Packing,
    /// The maximum number of instance types in a NodeClaim.
    pub max_instance_types: usize,
    /// Dollars per hour that a node costs beside its instance, which no offering shows: its root volume, licenses by host, addresses. It
    /// counts in every comparison of plans.
    #[serde(default = "node_overhead_price", with = "crate::json::price")]
    pub node_overhead_price: f64,
    /// The rules in which versions of Karpenter differ. All of them are about disruption.
    #[serde(default, skip_serializing_if = "Behavior::is_default")]
    pub behavior: Behavior,
}

/// Some $22 a month: a root volume, an address, and an agent that is licensed by host.
fn node_overhead_price() -> f64 {
    0.03
}

impl Policy {
    /// Returns the policy of provisioning at `now`, with upstream's defaults.
    pub fn at(now: Timestamp) -> Self {
        Self {
            now,
            preference_policy: PreferencePolicy::default(),
            min_values_policy: MinValuesPolicy::default(),
            reserved_mode: ReservedMode::default(),
            default_spread: Vec::new(),
            ignore_dra_requests: true,
            packing: Packing::default(),
            max_instance_types: 600,
            node_overhead_price: node_overhead_price(),
            behavior: Behavior::default(),
        }
    }

    setters! {
        /// Sets the current time.
        with_now(now: Timestamp);
        /// Sets how preferences of pods are treated.
        with_preference_policy(preference_policy: PreferencePolicy);
        /// Sets how unmet minValues are treated.
        with_min_values_policy(min_values_policy: MinValuesPolicy);
        /// Sets how used-up reserved capacity is treated.
        with_reserved_mode(reserved_mode: ReservedMode);
        /// Sets the spread constraints for pods that have none.
        with_default_spread(default_spread: Vec<DefaultSpread>);
        /// Sets whether pods with resource claims are rejected.
        with_ignore_dra_requests(ignore_dra_requests: bool);
        /// Sets the objective of packing.
        with_packing(packing: Packing);
        /// Sets what a node costs beside its instance, in dollars per hour.
        with_node_overhead_price(node_overhead_price: f64);
        /// Sets the rules in which versions of Karpenter differ.
        with_behavior(behavior: Behavior);
    }
}

/// One question to a [`Solver`](crate::schedule::Solver): which pods to place, and on which nodes.
///
/// ```
/// use karpenter_core::schedule::{PodSet, Query};
///
/// // Would the pending pods have a place without node-1?
/// let query = Query::new(PodSet::Waiting).with_removed_nodes(["node-1".to_owned()]);
/// assert_eq!(query.without, ["node-1"]);
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Query {
    /// Which pods to place.
    pub pods: PodSet,
    /// In-memory pods of capacity buffers; they are placed last and reported separately.
    pub buffer_pods: Vec<Arc<Pod>>,
    /// Names of nodes (Node or NodeClaim) that are treated as deleted.
    pub without: Vec<String>,
    /// Names of nodes (Node or NodeClaim) that only pending pods and pods of deleting nodes may use.
    pub avoid: Arc<[String]>,
    /// Whether the pass ends once a pod that does not wait is placed on a node that is not initialized: the plan is of no use then.
    pub(crate) ends_when_stuck: bool,
    /// Pods that were nominated to a node (Node or NodeClaim name). They are tried there before other pods are placed, and are
    /// placed elsewhere only if they no longer fit on that node.
    pub nominated: Vec<(PodKey, String)>,
    /// The objective of packing, instead of the policy's.
    pub packing: Option<Packing>,
    /// Whether the plan has its [`Objective`](crate::schedule::Objective). The bound takes up to a tenth of the time of the plan.
    pub bounds_price: bool,
    /// Called periodically; once it returns true, pods not tried yet stay undecided and the placements so far are kept.
    pub cancel: Option<Cancel>,
    /// Called periodically with the number of pods not tried yet.
    pub progress: Option<Progress>,
}

impl Query {
    /// Asks for the places of these pods.
    pub fn new(pods: PodSet) -> Self {
        Self {
            pods,
            ..Self::default()
        }
    }

    setters! {
        /// Sets the pods of capacity buffers.
        with_buffer_pods(buffer_pods: Vec<Arc<Pod>>);
        /// Treats nodes as deleted; names of Nodes or NodeClaims.
        with_removed_nodes(without: impl IntoIterator<Item = String>) = without.into_iter().collect();
        /// Sets the nodes that pods were nominated to.
        with_nominated(nominated: Vec<(PodKey, String)>);
        /// Sets the objective of packing, instead of the policy's.
        with_packing(packing: Packing) = Some(packing);
        /// Sets what ends the pass early.
        with_cancel(cancel: Cancel) = Some(cancel);
        /// Sets what receives the number of pods not tried yet.
        with_progress(progress: Progress) = Some(progress);
    }

    /// Asks for the price of the plan, and for the least that its nodes could cost.
    #[must_use]
    pub fn with_bounded_price(self) -> Self {
        Self {
            bounds_price: true,
            ..self
        }
    }

    /// Returns the objective of packing.
    pub(crate) fn packing(&self, policy: &Policy) -> Packing {
        self.packing.unwrap_or(policy.packing)
    }

    /// Reports whether the pass must stop early.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel())
    }

    /// Iterates over the pods that the query itself brings; the solver's snapshot need not have them.
    pub(crate) fn own_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.given().iter().chain(&self.buffer_pods)
    }
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query")
            .field("pods", &self.pods)
            .field("buffer_pods", &self.buffer_pods.len())
            .field("without", &self.without)
            .field("avoid", &self.avoid)
            .field("nominated", &self.nominated.len())
            .field("packing", &self.packing)
            .field("bounds_price", &self.bounds_price)
            .finish_non_exhaustive()
    }
}
