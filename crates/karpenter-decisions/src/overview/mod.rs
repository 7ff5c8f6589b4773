//! The state of the cluster in numbers, for the dashboard and the terminal.
//!
//! An [`Overview`] has a [`Row`] for each node, and what is counted over all of them. As JSON, rows are written as columns: an
//! array for each field, which is packed if there are many rows, and integers for thousandths of a core, MiB and millionths of a
//! dollar. [`Overview::since`] is the difference to an earlier overview, which is what a stream sends.

mod columns;
mod curve;
mod delta;
mod pack;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::labels;
use karpenter_api::v1::NodePool;
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::disruption::Budgets;
use karpenter_core::resources::{CPU, MEMORY, PODS};
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};

pub use curve::{Curve, POINTS, Point};
pub use delta::Delta;

use crate::explain::{self, LimitNow, ObjectName, Observed, Question, node_state};
use crate::history::node_key;
use crate::index::Known;
use crate::passes::Classes;
use crate::prices::{Prices, micro_dollars};
use crate::record::clipped;
use crate::stage::standing;
use columns::Columns;

/// The most groups of pending pods.
pub const MAX_GROUPS: usize = 200;
/// The most different texts of reasons. Further reasons are only known by id.
pub const MAX_TEXTS: usize = 256;

const MIB: i64 = 1 << 20;

/// The state of the cluster in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// When and on what it was made.
    pub observed: Observed,
    pub totals: Totals,
    /// The pending pods by reason and workload, the largest group first.
    pub pending: Vec<PendingGroup>,
    /// The budgets of all NodePools.
    pub budgets: Vec<PoolBudget>,
    /// The limits of all NodePools that have any.
    pub limits: Vec<PoolLimit>,
    /// The nodes, by id.
    rows: Vec<Row>,
}

/// Sums over all nodes and pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Nodes, and NodeClaims whose node has not joined.
    pub nodes: usize,
    /// Pods that are bound to nodes.
    pub pods: usize,
    pub pending: usize,
    /// NodeClaims whose node has not joined.
    pub launching: usize,
    /// Nodes that are not initialized.
    pub starting: usize,
    /// Nodes of a command that has started.
    pub disrupting: usize,
    /// Nodes that are being deleted.
    pub terminating: usize,
    /// Price of all nodes in millionths of a dollar per hour.
    pub price: i64,
    /// Requested CPU in thousandths of a core.
    pub cpu: i64,
    /// Allocatable CPU in thousandths of a core.
    pub cpu_allocatable: i64,
    /// Requested memory in MiB.
    pub memory: i64,
    /// Allocatable memory in MiB.
    pub memory_allocatable: i64,
}

/// Pending pods of one workload, with one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingGroup {
    pub reason: &'static str,
    /// The text of the reason.
    pub text: String,
    /// The class, as in records; empty for the groups that there is no room for.
    pub class: String,
    /// The number of pods.
    pub count: usize,
    /// Since when the pod has the reason that has it longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Timestamp>,
    /// The first of the pods, by name.
    pub sample: ObjectName,
}

/// The budget of a NodePool for one reason of disruption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolBudget {
    pub node_pool: String,
    /// `Drifted`, `Empty` or `Underutilized`.
    pub reason: String,
    /// The number of nodes that the budgets active now allow.
    pub allowed: u32,
    /// Nodes that are not ready or being deleted.
    pub consuming: u32,
    /// The number of nodes that may still be disrupted.
    pub remaining: u32,
}

/// A limit of a NodePool, with its usage.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolLimit {
    pub node_pool: String,
    #[serde(flatten)]
    pub limit: LimitNow,
}

/// A node, or a NodeClaim whose node has not joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Identifies the row for as long as the instance exists: the name of the NodeClaim, or of a Node without one.
    pub id: String,
    /// The name of the Node; empty until it has joined.
    pub node: String,
    /// The NodePool; empty for a node without one.
    pub node_pool: String,
    pub zone: String,
    pub instance_type: String,
    /// `spot`, `on-demand` or `reserved`.
    pub capacity_type: String,
    /// `Launching`, `Starting`, `Ready`, `Disrupting` or `Terminating`.
    pub state: &'static str,
    /// The id of the reason why the last disruption pass kept it; empty if there was none.
    pub reason: &'static str,
    /// The text of the reason.
    pub text: String,
    /// Since when it has the reason, in seconds of Unix time; 0 if there is none.
    pub since: i64,
    /// When it was created, in seconds of Unix time; 0 if that is not known.
    pub created: i64,
    /// Price in millionths of a dollar per hour; 0 if it is not known.
    pub price: i64,
    pub pods: i64,
    /// The number of pods that it can have.
    pub pods_allocatable: i64,
    /// Requested CPU in thousandths of a core.
    pub cpu: i64,
    /// Allocatable CPU in thousandths of a core.
    pub cpu_allocatable: i64,
    /// Requested memory in MiB.
    pub memory: i64,
    /// Allocatable memory in MiB.
    pub memory_allocatable: i64,
}

impl Overview {
    /// Counts over the snapshot and history of a question.
    pub fn of(question: &Question<'_>) -> Self {
        let rows = rows(question);
        let pending = pending(question);
        let mut totals = Totals {
            nodes: rows.len(),
            pending: pending.iter().map(|group| group.count).sum(),
            ..Totals::default()
        };
        for row in &rows {
            totals.pods += usize::try_from(row.pods).unwrap_or_default();
            // Quantities of pods and nodes may be as large as an i64.
            for (sum, amount) in [
                (&mut totals.price, row.price),
                (&mut totals.cpu, row.cpu),
                (&mut totals.cpu_allocatable, row.cpu_allocatable),
                (&mut totals.memory, row.memory),
                (&mut totals.memory_allocatable, row.memory_allocatable),
            ] {
                *sum = sum.saturating_add(amount);
            }
            match row.state {
                "Launching" => totals.launching += 1,
                "Starting" => totals.starting += 1,
                "Disrupting" => totals.disrupting += 1,
                "Terminating" => totals.terminating += 1,
                _ => {}
            }
        }
        let history = question.history;
        let left_out = history.pods().left_out() + history.nodes().left_out();
        Self {
            observed: question.observed(left_out > 0),
            totals,
            pending,
            budgets: budgets(question),
            limits: limits(question.snapshot),
            rows,
        }
    }

    /// Returns the nodes, by id.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the overview as JSON, with the curve of its sums.
    pub fn to_json(&self, curve: &Curve) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer<'a> {
            api_version: &'static str,
            kind: &'static str,
            observed: &'a Observed,
            totals: &'a Totals,
            pending: &'a [PendingGroup],
            budgets: &'a [PoolBudget],
            limits: &'a [PoolLimit],
            curve: &'a Curve,
            nodes: Columns<'a>,
        }
        let rows: Vec<&Row> = self.rows.iter().collect();
        let answer = Answer {
            api_version: crate::API_VERSION,
            kind: "Overview",
            observed: &self.observed,
            totals: &self.totals,
            pending: &self.pending,
            budgets: &self.budgets,
            limits: &self.limits,
            curve,
            nodes: Columns::all(&rows),
        };
        serde_json::to_string(&answer).unwrap_or_default()
    }

    /// Returns the sums as a point of a curve.
    pub fn point(&self) -> Point {
        Point {
            at: self.observed.at.as_second(),
            nodes: self.totals.nodes,
            pods: self.totals.pods,
            pending: self.totals.pending,
            price: self.totals.price,
        }
    }
}

fn rows(question: &Question<'_>) -> Vec<Row> {
    let prices = Prices::new(question.snapshot);
    let mut texts = Texts::default();
    // Sorted before they are rows, which are ten times as large.
    let nodes = question.snapshot.nodes();
    let mut nodes: Vec<(&str, &NodeState)> = nodes.map(|node| (id(node), &**node)).collect();
    nodes.sort_by_key(|(id, _)| *id);
    nodes
        .into_iter()
        .map(|(_, node)| row(question, &prices, node, &mut texts))
        .collect()
}

fn id(node: &NodeState) -> &str {
    node.claim_name().unwrap_or(node.name())
}

fn row(question: &Question<'_>, prices: &Prices<'_>, node: &NodeState, texts: &mut Texts) -> Row {
    let entry = question.history.nodes().get(node_key(node));
    let known = node.labels();
    let label = |key: &str| known.get(key).unwrap_or_default().to_owned();
    let seconds = |time: Option<Timestamp>| time.map_or(0, Timestamp::as_second);
    let bound = question.snapshot.node_pods(node.name());
    let requested = |name: &str| bound.map_or(0, |bound| bound.requests().get(name));
    let allocatable = node.allocatable();
    let reason = entry.and_then(|entry| Some((entry, entry.known().id()?)));
    Row {
        id: id(node).to_owned(),
        node: node
            .node
            .as_ref()
            .map(|it| it.name.clone())
            .unwrap_or_default(),
        node_pool: label(labels::NODE_POOL),
        zone: label(labels::ZONE),
        instance_type: label(labels::INSTANCE_TYPE),
        capacity_type: label(labels::CAPACITY_TYPE),
        state: node_state(node, entry),
        reason: reason.map_or("", |(_, id)| id),
        text: reason
            .map(|(entry, _)| texts.of(entry.known()))
            .unwrap_or_default(),
        since: seconds(reason.map(|(entry, _)| entry.since())),
        created: seconds(created_at(node)),
        price: micro_dollars(prices.of(node)),
        pods: i64::try_from(bound.map_or(0, |bound| bound.pods().len())).unwrap_or(i64::MAX),
        pods_allocatable: allocatable.get(PODS),
        cpu: requested(CPU),
        cpu_allocatable: allocatable.get(CPU),
        memory: requested(MEMORY) / MIB,
        memory_allocatable: allocatable.get(MEMORY) / MIB,
    }
}

fn created_at(node: &NodeState) -> Option<Timestamp> {
    let claim = node.claim.as_ref();
    let of_claim = claim.and_then(|claim| claim.metadata.creation_timestamp.as_ref());
    let of_node = || node.node.as_ref().and_then(|node| node.created_at);
    of_claim.map(|time| time.0).or_else(of_node)
}

/// The texts of reasons, up to [`MAX_TEXTS`] different ones.
#[derive(Default)]
struct Texts {
    /// Reasons are shared, by address.
    known: FxHashMap<*const Known, String>,
}

impl Texts {
    fn of(&mut self, known: &Arc<Known>) -> String {
        let reason = match &**known {
            Known::Reason {
                reason: Some(reason),
                ..
            } => reason,
            Known::Reason { reason: None, .. } | Known::Placed { .. } => return String::new(),
        };
        let address = Arc::as_ptr(known);
        if let Some(text) = self.known.get(&address) {
            return text.clone();
        }
        if self.known.len() >= MAX_TEXTS {
            return String::new();
        }
        let text = clipped(reason.to_string());
        self.known.insert(address, text.clone());
        text
    }
}

/// Groups the pending pods; the groups beyond [`MAX_GROUPS`] are counted in one group for each reason, without a class.
fn pending(question: &Question<'_>) -> Vec<PendingGroup> {
    let mut classes = Classes::default();
    let mut groups: BTreeMap<(&'static str, String), PendingGroup> = BTreeMap::new();
    for pod in question.snapshot.unbound_pods() {
        let Some(standing) = standing(question.snapshot, question.history, pod, None) else {
            continue;
        };
        let sample = || ObjectName::namespaced(&pod.key.namespace, &pod.key.name);
        let class = classes.of(pod).to_owned();
        let group = groups.entry((standing.id, class.clone()));
        let group = group.or_insert_with(|| PendingGroup {
            reason: standing.id,
            text: standing
                .reason
                .as_ref()
                .map_or_else(String::new, |it| clipped(it.to_string())),
            class,
            count: 0,
            oldest: None,
            sample: sample(),
        });
        group.count += 1;
        group.oldest = earlier(group.oldest, standing.since);
        if (&pod.key.namespace, &pod.key.name) < (group.namespace(), &group.sample.name) {
            group.sample = sample();
        }
    }
    let mut groups: Vec<PendingGroup> = groups.into_values().collect();
    groups.sort_by(|a, b| {
        b.count
            .cmp(&a.count)
            .then_with(|| a.order().cmp(&b.order()))
    });
    let rest = groups.split_off(groups.len().min(MAX_GROUPS));
    let mut others: BTreeMap<&'static str, PendingGroup> = BTreeMap::new();
    for group in rest {
        match others.get_mut(group.reason) {
            Some(other) => {
                other.count += group.count;
                other.oldest = earlier(other.oldest, group.oldest);
            }
            None => {
                let class = String::new();
                others.insert(group.reason, PendingGroup { class, ..group });
            }
        }
    }
    groups.extend(others.into_values());
    groups
}

impl PendingGroup {
    fn namespace(&self) -> &String {
        self.sample.namespace.as_ref().unwrap_or(&self.sample.name)
    }

    fn order(&self) -> (&'static str, &str) {
        (self.reason, &self.class)
    }
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn budgets(question: &Question<'_>) -> Vec<PoolBudget> {
    let mut all = Vec::new();
    for (reason, budgets) in Budgets::by_reason(question.snapshot, question.now) {
        all.extend(budgets.iter().map(|(pool, budget)| PoolBudget {
            node_pool: pool.to_owned(),
            reason: reason.clone(),
            allowed: budget.allowed,
            consuming: budget.consuming,
            remaining: budget.remaining,
        }));
    }
    all.sort_by(|a, b| (&a.node_pool, &a.reason).cmp(&(&b.node_pool, &b.reason)));
    all
}

fn limits(snapshot: &Snapshot) -> Vec<PoolLimit> {
    let usage = explain::usage(snapshot);
    let of_pool = |pool: &Arc<NodePool>| {
        let limits = explain::limits(pool, &usage).into_iter();
        let node_pool = pool.name().to_owned();
        limits.map(move |limit| PoolLimit {
            node_pool: node_pool.clone(),
            limit,
        })
    };
    snapshot.node_pools().flat_map(of_pool).collect()
}

impl Serialize for Curve {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.columns().serialize(serializer)
    }
}
