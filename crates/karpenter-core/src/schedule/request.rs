//! The input of a scheduling pass: the pods and the policies.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::pod::{Pod, PodKey};

/// How preferences of pods are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PreferencePolicy {
    /// Preferences are treated as required first, and dropped one by one until the pod fits.
    #[default]
    Respect,
    /// Preferences are ignored.
    Ignore,
}

/// How unmet minValues are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum MinValuesPolicy {
    /// A planned node must meet minValues; a NodePool that cannot is not used.
    #[default]
    Strict,
    /// minValues are lowered to the number of values available.
    BestEffort,
}

/// How used-up reserved capacity is treated when it is compatible with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// Pending pods, and pods of deleting nodes.
    #[default]
    Waiting,
    /// The given pods. They are not validated. If bound, they no longer count on their current node.
    Given(Vec<Arc<Pod>>),
    /// Pending pods, pods of deleting nodes, and the given pods.
    WaitingAnd(Vec<Arc<Pod>>),
}

/// Returns whether the pass must stop early.
pub type Cancel = Arc<dyn Fn() -> bool + Send + Sync>;

/// Receives the number of pods not tried yet, periodically during a pass.
pub type Progress = Arc<dyn Fn(usize) + Send + Sync>;

/// The input of one scheduling pass.
#[derive(Clone)]
pub struct ScheduleRequest {
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
    /// Which pods to place.
    pub pods: PodSet,
    /// In-memory pods of capacity buffers; they are placed last and reported separately.
    pub buffer_pods: Vec<Arc<Pod>>,
    /// Names of nodes (Node or NodeClaim) that are treated as deleted.
    pub without: Vec<String>,
    /// Names of nodes (Node or NodeClaim) that only pending pods and pods of deleting nodes may use.
    pub avoid: Arc<[String]>,
    /// Pods that were nominated to a node (Node or NodeClaim name). They are tried there before other pods are placed, and are
    /// placed elsewhere only if they no longer fit on that node.
    pub nominated: Vec<(PodKey, String)>,
    /// The objective of packing. Disruption uses [`Packing::FewestNodes`], because it replaces nodes by at most one node.
    pub packing: Packing,
    /// The maximum number of instance types in a NodeClaim.
    pub max_instance_types: usize,
    /// Called periodically; once it returns true, pods not tried yet stay undecided and the placements so far are kept.
    pub cancel: Option<Cancel>,
    /// Called periodically with the number of pods not tried yet.
    pub progress: Option<Progress>,
}

impl ScheduleRequest {
    /// Returns the request of provisioning at `now`, with upstream's defaults.
    pub fn at(now: Timestamp) -> Self {
        Self {
            now,
            preference_policy: PreferencePolicy::default(),
            min_values_policy: MinValuesPolicy::default(),
            reserved_mode: ReservedMode::default(),
            default_spread: Vec::new(),
            ignore_dra_requests: true,
            pods: PodSet::default(),
            buffer_pods: Vec::new(),
            without: Vec::new(),
            avoid: Arc::default(),
            nominated: Vec::new(),
            packing: Packing::default(),
            max_instance_types: 600,
            cancel: None,
            progress: None,
        }
    }
}

impl fmt::Debug for ScheduleRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduleRequest")
            .field("now", &self.now)
            .field("preference_policy", &self.preference_policy)
            .field("min_values_policy", &self.min_values_policy)
            .field("reserved_mode", &self.reserved_mode)
            .field("default_spread", &self.default_spread)
            .field("ignore_dra_requests", &self.ignore_dra_requests)
            .field("pods", &self.pods)
            .field("buffer_pods", &self.buffer_pods.len())
            .field("without", &self.without)
            .field("avoid", &self.avoid)
            .field("nominated", &self.nominated.len())
            .field("packing", &self.packing)
            .field("max_instance_types", &self.max_instance_types)
            .finish_non_exhaustive()
    }
}
