//! The answer: what happens, and the cluster before, meanwhile and after.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::explain::Observed;

/// The result of a rehearsal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub api_version: String,
    pub kind: String,
    /// When and on what it was made.
    pub observed: Observed,
    /// The time at which the rehearsal starts.
    pub start: Timestamp,
    pub seconds: i64,
    pub changes: Vec<String>,
    /// The cluster at the start, before the changes.
    pub before: Totals,
    /// The cluster at the end.
    pub after: Totals,
    /// When the cluster is most expensive.
    pub peak: Peak,
    /// What the nodes launched for pods cost; absent if there are none, or no cheap plan was searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched: Option<Launched>,
    /// What the controllers do, by time.
    pub steps: Vec<Step>,
    /// The pods that are evicted.
    pub evictions: Evictions,
    /// The nodes that are not disrupted at the end, by reason.
    pub blocked: Vec<Blocked>,
    /// How long disruption budgets were used up.
    pub budgets: Vec<BudgetUse>,
    /// Nodes, dollars and pending pods over time.
    pub curve: Vec<Sample>,
    /// The same cluster without the changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchanged: Option<Unchanged>,
    /// What the changes do: the rehearsal less its unchanged twin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
    /// The versions that were rehearsed beside each other: the plan is that of the second, its unchanged twin that of the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,
    /// Why the rehearsal ended before its time, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<EndedBy>,
    /// What is approximate, and what is not predicted.
    pub approximate: Vec<String>,
    /// BLAKE3 of what was rehearsed: equal for equal clusters, settings and requests.
    pub digest: String,
}

impl Plan {
    /// Reports whether the changes make a difference; false if there was nothing to compare with.
    pub fn differs(&self) -> bool {
        self.difference
            .as_ref()
            .is_some_and(|difference| difference.differs)
    }

    pub(super) fn seal(&mut self) {
        let described = (
            self.start,
            self.seconds,
            &self.before,
            &self.after,
            &self.peak,
            &self.steps,
            &self.evictions,
            &self.blocked,
            &self.curve,
            &self.difference,
        );
        let digest = match &self.versions {
            Some(versions) => Digest::of(&(described, versions)),
            None => Digest::of(&described),
        };
        self.digest = digest.to_string();
    }
}

/// Why a rehearsal ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EndedBy {
    /// It took as long as the request allows.
    Timeout,
    /// The engine ran [`MAX_RUNS`](super::MAX_RUNS) times.
    Runs,
    /// [`MAX_EVENTS`](super::MAX_EVENTS) events happened.
    Events,
    /// A static NodePool lacks more than [`MAX_STATIC`](super::MAX_STATIC) nodes.
    StaticNodes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// The number of nodes, with instances whose node has not joined yet.
    pub nodes: usize,
    /// Their price, by list prices.
    pub price_per_hour: f64,
    /// The number of pods that have not ended. Those of DaemonSets, which come and go with their nodes, are not counted.
    pub pods: usize,
    /// The number of them without a node.
    pub pending: usize,
}

/// Two versions of Karpenter in the same cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// Objects and fields that a version does not know, and that its run leaves out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    pub from: String,
    pub to: String,
    /// The run of the version `from`.
    pub before: VersionRun,
    /// The run of the version `to`.
    pub after: VersionRun,
    /// The first step that only one of them has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<FirstDifference>,
    /// The rules in which they differ.
    pub rules: Vec<RuleAlone>,
}

/// A run in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionRun {
    /// The mean number of nodes.
    pub nodes: f64,
    /// Their mean price.
    pub price_per_hour: f64,
    pub launches: usize,
    /// The number of nodes that emptiness and consolidation deleted or replaced.
    pub reclaimed: usize,
    pub evictions: usize,
    /// How long pods waited for a node, added up.
    pub pending_seconds: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FirstDifference {
    /// What the first version does; absent if it does nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Step>,
    /// What the second version does instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Step>,
    /// The rules each of which makes this difference alone; empty if only several together do.
    pub rules: Vec<String>,
}

/// A rule or setting in which two versions differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleAlone {
    pub rule: String,
    /// Its value in the first version: `yes`, `no`, or that of a setting.
    pub from: String,
    /// Its value in the second version.
    pub to: String,
    /// The run of `from` that has this rule of `to` alone, if it was asked for and time allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<VersionRun>,
}

/// The most expensive moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peak {
    /// Seconds after the start.
    pub after: i64,
    pub nodes: usize,
    pub price_per_hour: f64,
}

/// What the nodes launched for pods cost when they are launched, with the price of each node's own (`--node-overhead-price`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launched {
    pub price_per_hour: f64,
    /// No nodes run the pods for which they were launched, those of each batch together, for less.
    pub lowest_price_per_hour: f64,
}

/// A moment of the curve; it holds until the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// Seconds after the start.
    pub after: i64,
    pub nodes: usize,
    pub price_per_hour: f64,
    /// The number of pods without a node.
    pub pending: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Action {
    /// Nodes are launched for pods, or for a static NodePool.
    Launch,
    Delete,
    /// Nodes are deleted once the launched ones are initialized.
    Replace,
}

impl Action {
    /// Returns the word for texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Delete => "delete",
            Self::Replace => "replace",
        }
    }
}

/// Something that the controllers do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Seconds after the start.
    pub after: i64,
    pub action: Action,
    /// `Pending`, `CapacityBuffer`, `Static`, `Empty`, `Drifted`, `Underutilized`, `Expired`, `Deleted`.
    pub reason: String,
    /// The nodes that are deleted. Nodes that the rehearsal itself launched have names as `default-plan-1`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The nodes that are launched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<Launch>,
    /// The number of pods that get a new node, or must move.
    pub pods: usize,
    /// What the step saves, in dollars per hour; absent for launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub savings_per_hour: Option<f64>,
    /// The price of the cluster when the step begins.
    pub price_per_hour: f64,
}

/// Launched nodes of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launch {
    pub node_pool: String,
    /// The number of nodes.
    pub count: usize,
    pub instance_type: String,
    pub capacity_type: String,
    /// The zone; empty for several.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zone: String,
    pub price_per_hour: f64,
    /// The number of instance types that the cloud may choose from.
    pub instance_types: usize,
    /// The size of one: cores, or four GiB of memory if that is more, rounded up to a power of two.
    pub size_class: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evictions {
    pub total: usize,
    /// The 95th percentile of the evictions of a workload that has any.
    pub p95: usize,
    /// The workloads with the most evictions, at most [`WORKLOADS`].
    pub by_workload: Vec<WorkloadEvictions>,
}

/// The number of workloads that an answer names.
pub const WORKLOADS: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadEvictions {
    /// `Deployment shop/web`.
    pub workload: String,
    pub evictions: usize,
    /// The number of its pods at the end.
    pub pods: usize,
}

impl Evictions {
    pub(super) fn of(evicted: &BTreeMap<String, usize>, pods: &BTreeMap<String, usize>) -> Self {
        let mut counts: Vec<usize> = evicted.values().copied().collect();
        counts.sort_unstable();
        let rank = (counts.len() * 95).div_ceil(100).saturating_sub(1);
        let mut by_workload: Vec<WorkloadEvictions> = evicted
            .iter()
            .map(|(workload, evictions)| WorkloadEvictions {
                workload: workload.clone(),
                evictions: *evictions,
                pods: pods.get(workload).copied().unwrap_or_default(),
            })
            .collect();
        by_workload.sort_by(|a, b| {
            let more = b.evictions.cmp(&a.evictions);
            more.then_with(|| a.workload.cmp(&b.workload))
        });
        by_workload.truncate(WORKLOADS);
        Self {
            total: counts.iter().sum(),
            p95: counts.get(rank).copied().unwrap_or_default(),
            by_workload,
        }
    }
}

/// Nodes that are not disrupted for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    pub reason: String,
    pub nodes: usize,
    pub price_per_hour: f64,
    /// At most three of them.
    pub names: Vec<String>,
}

/// How long the disruption budget of a NodePool was used up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetUse {
    pub node_pool: String,
    /// The seconds in which the budget, or a pause, blocked a node that would have been disrupted.
    pub seconds: i64,
}

/// The cluster without the changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unchanged {
    /// The cluster at the end.
    pub after: Totals,
    /// When it is most expensive.
    pub peak: Peak,
    pub steps: usize,
    pub evictions: usize,
    /// Nodes, dollars and pending pods over time.
    pub curve: Vec<Sample>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Whether there is a difference at all.
    pub differs: bool,
    /// Nodes at the end, more (or fewer) than without the changes.
    pub nodes: i64,
    /// Dollars per hour at the end, more (or less) than without the changes.
    pub price_per_hour: f64,
    /// Pending pods at the end, more (or fewer) than without the changes.
    pub pending: i64,
    /// Evictions, more (or fewer) than without the changes.
    pub evictions: i64,
    /// Steps that happen only with the changes, whenever they happen.
    pub only_changed: Vec<Step>,
    /// Steps that happen only without them.
    pub only_unchanged: Vec<Step>,
}

/// Reports whether a node's name was given by the rehearsal.
pub fn is_planned(name: &str) -> bool {
    name.rsplit_once("-plan-").is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}
