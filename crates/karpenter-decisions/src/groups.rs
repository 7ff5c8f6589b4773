//! Pending pods and kept nodes, grouped by reason.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use serde::Serialize;

use crate::explain::{ObjectName, Observed};
use crate::history::{History, node_key};
use crate::prices::Prices;
use crate::prices::finite;
use crate::stage::standing;
use crate::what_if::WhatIf;

/// How many objects a group names.
const SAMPLES: usize = 3;

/// Objects with one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonGroup {
    pub reason: &'static str,
    pub count: usize,
    /// Price of the nodes in dollars per hour; absent for pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<f64>,
    /// What deleting or replacing each of the nodes alone would save, in dollars per hour, without the policies that block it;
    /// absent if no policy blocks them, or it was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub releasable_per_hour: Option<f64>,
    /// Since when the object has the reason that has it longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Timestamp>,
    pub samples: Vec<ObjectName>,
}

impl ReasonGroup {
    fn since(&mut self, since: Option<Timestamp>) {
        self.oldest = self.oldest.into_iter().chain(since).min();
    }

    fn add(&mut self, since: Option<Timestamp>, name: impl FnOnce() -> ObjectName) {
        self.count += 1;
        self.since(since);
        if self.samples.len() < SAMPLES {
            self.samples.push(name());
        }
    }
}

/// The groups of all pending pods, or of all nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonGroupList {
    pub api_version: &'static str,
    pub kind: &'static str,
    /// When and on what the answer was made.
    pub observed: Observed,
    /// `pods` or `nodes`.
    pub of: &'static str,
    /// The groups, the largest first; for nodes the most expensive first.
    pub items: Vec<ReasonGroup>,
}

impl ReasonGroupList {
    fn new(of: &'static str, observed: Observed, mut items: Vec<ReasonGroup>) -> Self {
        let price = |group: &ReasonGroup| group.price_per_hour.unwrap_or_default();
        items.sort_by(|a, b| {
            price(b)
                .total_cmp(&price(a))
                .then(b.count.cmp(&a.count))
                .then(a.reason.cmp(b.reason))
        });
        Self {
            api_version: crate::API_VERSION,
            kind: "ReasonGroupList",
            observed,
            of,
            items,
        }
    }
}

/// Counts pending pods by reason.
pub fn pending_pods(snapshot: &Snapshot, history: &History) -> BTreeMap<&'static str, ReasonGroup> {
    let mut groups: BTreeMap<&'static str, ReasonGroup> = BTreeMap::new();
    for pod in snapshot.unbound_pods() {
        if let Some(standing) = standing(snapshot, history, pod, None) {
            let group = groups.entry(standing.id).or_default();
            group.reason = standing.id;
            group.add(standing.since, || {
                ObjectName::namespaced(&pod.key.namespace, &pod.key.name)
            });
        }
    }
    groups
}

/// Groups the pending pods by reason.
pub fn of_pods(snapshot: &Snapshot, history: &History, observed: Observed) -> ReasonGroupList {
    let groups = pending_pods(snapshot, history);
    ReasonGroupList::new("pods", observed, groups.into_values().collect())
}

/// Counts the nodes that are kept, by NodePool and reason. Nodes without a NodePool have an empty one.
pub fn kept_nodes(
    snapshot: &Snapshot,
    history: &History,
) -> BTreeMap<(String, &'static str), ReasonGroup> {
    let prices = Prices::new(snapshot);
    let mut groups: BTreeMap<(String, &'static str), ReasonGroup> = BTreeMap::new();
    for node in snapshot.nodes() {
        let Some(entry) = history.nodes().get(node_key(node)) else {
            continue;
        };
        let Some(id) = entry.known().id() else {
            continue;
        };
        let pool = node.node_pool().unwrap_or_default().to_owned();
        let group = groups.entry((pool, id)).or_default();
        group.reason = id;
        *group.price_per_hour.get_or_insert_default() += finite(prices.of(node));
        group.add(Some(entry.since()), || ObjectName::cluster(node.name()));
    }
    groups
}

/// Groups the nodes by reason, over all NodePools.
pub fn of_nodes(snapshot: &Snapshot, history: &History, observed: Observed) -> ReasonGroupList {
    let mut groups: BTreeMap<&'static str, ReasonGroup> = BTreeMap::new();
    for ((_, id), part) in kept_nodes(snapshot, history) {
        let group = groups.entry(id).or_default();
        group.reason = id;
        group.count += part.count;
        *group.price_per_hour.get_or_insert_default() += part.price_per_hour.unwrap_or_default();
        group.since(part.oldest);
        group.samples.extend(part.samples);
        group.samples.truncate(SAMPLES);
    }
    ReasonGroupList::new("nodes", observed, groups.into_values().collect())
}

/// The reasons of nodes that a user can release by changing a policy.
const POLICIES: [&str; 7] = [
    "Nominated",
    "NodeDoNotDisrupt",
    "PodDoNotDisrupt",
    "SeveralPdbs",
    "Pdb",
    "Budget",
    "Paused",
];

impl ReasonGroupList {
    /// Adds what the nodes would save, each alone, without the policies that block them.
    #[must_use]
    pub fn with_releasable(
        mut self,
        snapshot: &Snapshot,
        history: &History,
        what_if: &WhatIf,
    ) -> Self {
        let mut blocked: Vec<(&'static str, &str)> = Vec::new();
        for node in snapshot.nodes() {
            let entry = history.nodes().get(node_key(node));
            let id = entry.and_then(|entry| entry.known().id());
            blocked.extend(
                id.filter(|id| POLICIES.contains(id))
                    .map(|id| (id, node.name())),
            );
        }
        let (savings, complete) = what_if.releasable(blocked.iter().map(|(_, name)| *name));
        self.observed.truncated |= !complete;
        for group in &mut self.items {
            if !POLICIES.contains(&group.reason) {
                continue;
            }
            let of_group = blocked.iter().filter(|(id, _)| *id == group.reason);
            let of_group = of_group.filter_map(|(_, name)| savings.get(*name));
            // An empty sum is -0.0.
            group.releasable_per_hour = Some(of_group.map(|it| it.list).sum::<f64>() + 0.0);
        }
        self
    }
}
