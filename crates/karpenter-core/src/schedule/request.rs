//! What is asked of the scheduler.

use std::{fmt, sync::Arc};

use jiff::Timestamp;

use crate::pod::{Pod, PodKey};

/// Whether preferences count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PreferencePolicy {
    /// Preferences are required first, and dropped one by one.
    #[default]
    Respect,
    /// Preferences do not exist.
    Ignore,
}

/// What happens when too few different instance types are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum MinValuesPolicy {
    /// The NodePool cannot be used.
    #[default]
    Strict,
    /// The minimum is lowered to what is there.
    BestEffort,
}

/// What happens when reserved capacity would do, but is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ReservedMode {
    /// Pods wait: what is reserved now may be free at the next pass. Provisioning does so.
    #[default]
    Strict,
    /// Other capacity is used. Disruption does so.
    Fallback,
    /// Reserved offerings are not tracked (the feature is off).
    Off,
}

/// What machines are launched for, once every pod has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// As first fit found it: as many pods on each new machine as it holds.
    FewestMachines,
    /// Pods of a machine that costs clearly more than what they need are packed anew, on machines that cost less together.
    LowestCost {
        /// Machines of fewer pods stay whole; 1 leaves none out.
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
    /// The tolerated difference between a domain and the least loaded one.
    pub max_skew: i32,
    /// How many domains there must be before the least load counts as more than zero.
    pub min_domains: Option<i32>,
    /// `DoNotSchedule` (true) or `ScheduleAnyway` (false).
    pub hard: bool,
    /// Only nodes the pod's node selector and required affinity accept count.
    pub honor_affinity: bool,
    /// Only nodes whose taints the pod tolerates count.
    pub honor_taints: bool,
}

/// Which pods to place.
#[derive(Clone, Debug, Default)]
pub enum PodSet {
    /// Pending pods, and pods of machines that are going away.
    #[default]
    Waiting,
    /// These. They are not validated, and may be bound: they then count as gone from where they are.
    Given(Vec<Arc<Pod>>),
    /// Pending pods, pods of machines that are going away, and these.
    WaitingAnd(Vec<Arc<Pod>>),
}

/// Says when to stop early.
pub type Cancel = Arc<dyn Fn() -> bool + Send + Sync>;

/// Told how many pods are still to be looked at, now and then while a run goes on.
pub type Progress = Arc<dyn Fn(usize) + Send + Sync>;

/// One scheduling run.
#[derive(Clone)]
pub struct ScheduleRequest {
    /// The time decisions are taken at.
    pub now: Timestamp,
    /// Whether preferences count.
    pub preference_policy: PreferencePolicy,
    /// What happens when too few different instance types are left.
    pub min_values_policy: MinValuesPolicy,
    /// What happens when reserved capacity is used up.
    pub reserved_mode: ReservedMode,
    /// Spread constraints for pods that have none.
    pub default_spread: Vec<DefaultSpread>,
    /// Pods with resource claims fail instead of being given devices, and DaemonSets with claims do not count.
    pub ignore_dra_requests: bool,
    /// Which pods to place.
    pub pods: PodSet,
    /// In-memory pods of capacity buffers; they come last and are reported apart.
    pub buffer_pods: Vec<Arc<Pod>>,
    /// Machines (Node or NodeClaim names) that count as gone.
    pub without: Vec<String>,
    /// Machines (Node or NodeClaim names) that only pending pods and pods of deleting nodes may use.
    pub reluctant: Arc<[String]>,
    /// Pods that were nominated to a node (Node or NodeClaim name). They are tried there before other pods are placed, and are
    /// placed elsewhere only if that node cannot take them any more.
    pub nominated: Vec<(PodKey, String)>,
    /// What machines are launched for. Disruption asks for the fewest: it replaces machines by at most one.
    pub packing: Packing,
    /// How many instance types a NodeClaim lists at most.
    pub max_instance_types: usize,
    /// Asked now and then; once it says yes, pods not tried yet stay undecided and what was placed is kept.
    pub cancel: Option<Cancel>,
    /// Who wants to know how far the run is.
    pub progress: Option<Progress>,
}

impl ScheduleRequest {
    /// Provisioning's request at `now`, with upstream's defaults.
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
            reluctant: Arc::default(),
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
            .field("reluctant", &self.reluctant)
            .field("nominated", &self.nominated.len())
            .field("packing", &self.packing)
            .field("max_instance_types", &self.max_instance_types)
            .finish_non_exhaustive()
    }
}
