//! Why a node is kept, and what a NodeClaim was launched for.

use std::collections::BTreeMap;

use karpenter_api::labels;
use karpenter_core::cluster::NodeState;
use karpenter_core::reason::Reason;
use karpenter_core::resources::{Resources, plain};
use serde::Serialize;

use super::{CurrentReason, Metadata, Observed, Question};
use crate::change::Change;
use crate::choice::ChoiceExplanation;
use crate::history::node_key;
use crate::index::{Entry, Known};
use crate::prices::Prices;
use crate::prices::finite;
use crate::record::{Item, RecordId};
use crate::what_if::NodeWhatIf;

/// Why a node is kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub metadata: Metadata,
    /// When and on what the answer was made.
    pub observed: Observed,
    /// The state of the node.
    #[serde(flatten)]
    pub node: NodeNow,
    /// The changes that were asked for; blockers and what would be done are those after them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Everything that blocks voluntary disruption now, not only what the last pass found first, and what would be done without.
    #[serde(flatten)]
    pub blocked: NodeWhatIf,
}

impl NodeExplanation {
    /// Adds what would be done with the node, after changes, without what blocks it.
    #[must_use]
    pub fn with_what_if(mut self, what_if: NodeWhatIf, changes: &[Change]) -> Self {
        self.changes = changes.iter().map(ToString::to_string).collect();
        self.observed.truncated |= what_if.truncated;
        self.blocked = what_if;
        self
    }
}

/// What a NodeClaim was launched for, and the state of its node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimExplanation {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub metadata: Metadata,
    /// When and on what the answer was made.
    pub observed: Observed,
    /// The state of the node.
    #[serde(flatten)]
    pub node: NodeNow,
    /// The record of the pass that planned it; absent if it was dropped, or made by another replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch: Option<Launch>,
    /// Why it has its instance type; absent if its NodePool or the instance types are not known.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub choice: Option<ChoiceExplanation>,
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeNow {
    /// The NodeClaim, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_claim: Option<String>,
    /// The Node, if the instance has joined the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_pool: Option<String>,
    /// `Launching`, `Starting`, `Ready`, `Disrupting` or `Terminating`.
    pub state: &'static str,
    /// Why the last disruption pass kept the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<CurrentReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// `spot`, `on-demand` or `reserved`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<String>,
    /// The decision to delete it: a command, a repair, or the surplus of a static NodePool. Absent if the node stays, if it is
    /// deleted for another reason, or if the record was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removal: Option<Removal>,
    /// Price in dollars per hour; 0 if it is not known.
    pub price_per_hour: f64,
    /// The part of the price that no pod uses: price × (1 − dominant share).
    pub waste_per_hour: f64,
    pub pods: usize,
    /// The usage of each resource that pods request.
    pub usage: BTreeMap<String, Usage>,
    /// The records of the last decisions about the node, latest first.
    pub records: Vec<RecordId>,
}

/// The usage of a resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// The requests of all pods, as a quantity.
    pub requested: String,
    /// The allocatable amount, as a quantity.
    pub allocatable: String,
    pub share: f64,
}

/// The decision to launch a NodeClaim.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Launch {
    pub record: RecordId,
    /// The item of the record: a planned node, or the command that it is a replacement of.
    pub planned: Item,
}

/// The decision to delete a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Removal {
    pub record: RecordId,
    /// The item of the record.
    pub disrupted: Item,
}

/// Explains a node by the name of its Node; `None` if it does not exist. What blocks it is found by
/// [`WhatIf::node`](crate::what_if::WhatIf::node).
pub fn explain_node(question: &Question<'_>, name: &str) -> Option<NodeExplanation> {
    let node = question.snapshot.node(name)?;
    let joined = node.node.as_ref().filter(|node| node.name == name)?;
    Some(NodeExplanation {
        api_version: crate::API_VERSION,
        kind: "NodeExplanation",
        metadata: Metadata::cluster(&joined.name, None),
        observed: question.observed(is_left_out(question, node)),
        node: now(question, node),
        changes: Vec::new(),
        blocked: NodeWhatIf::default(),
    })
}

/// Explains a NodeClaim; `None` if it does not exist.
pub fn explain_node_claim(question: &Question<'_>, name: &str) -> Option<NodeClaimExplanation> {
    let claim = question.snapshot.node_claim(name)?;
    let node = question.snapshot.node(name)?;
    let launch = question.history.ring().iter().rev().find_map(|record| {
        let is_this = |item: &&Item| match item {
            Item::Launched { node_claim, .. } => node_claim.as_deref() == Some(name),
            Item::Disrupted { outcome, .. } => outcome
                .as_ref()
                .is_some_and(|outcome| outcome.replacements.iter().any(|it| it == name)),
            _ => false,
        };
        let planned = record.items.iter().find(is_this)?.clone();
        Some(Launch {
            record: record.id,
            planned,
        })
    });
    let now = now(question, node);
    let recorded = question.history.choices().get(claim.uid());
    Some(NodeClaimExplanation {
        choice: ChoiceExplanation::of(question.snapshot, claim, now.price_per_hour, recorded),
        api_version: crate::API_VERSION,
        kind: "NodeClaimExplanation",
        metadata: Metadata::cluster(claim.name(), claim.metadata.uid.clone()),
        observed: question.observed(is_left_out(question, node)),
        node: now,
        launch,
    })
}

fn entry<'a>(question: &Question<'a>, node: &NodeState) -> Option<&'a Entry> {
    question.history.nodes().get(node_key(node))
}

fn is_left_out(question: &Question<'_>, node: &NodeState) -> bool {
    entry(question, node).is_none() && question.history.nodes().left_out() > 0
}

fn now(question: &Question<'_>, node: &NodeState) -> NodeNow {
    let entry = entry(question, node);
    let label = |key: &str| node.labels().get(key).map(str::to_owned);
    let price = finite(Prices::of_one(question.snapshot, node));
    let bound = question.snapshot.node_pods(node.name());
    let requested = bound.map(|bound| bound.requests().clone());
    let usage = usage(&requested.unwrap_or_default(), &node.allocatable());
    let dominant = usage.values().map(|usage| usage.share).fold(0.0, f64::max);
    NodeNow {
        node_claim: node.claim_name().map(str::to_owned),
        node_name: node.node.as_ref().map(|node| node.name.clone()),
        node_pool: node.node_pool().map(str::to_owned),
        state: state(node, entry),
        reason: entry.and_then(|entry| match &**entry.known() {
            Known::Reason { id, reason, .. } => Some(CurrentReason::with_id(
                id,
                reason.as_ref(),
                Some(entry.since()),
                entry.is_at_least(),
            )),
            Known::Placed { .. } => None,
        }),
        removal: removal(question, node),
        instance_type: label(labels::INSTANCE_TYPE),
        zone: label(labels::ZONE),
        capacity_type: label(labels::CAPACITY_TYPE),
        price_per_hour: price,
        waste_per_hour: price * (1.0 - dominant.min(1.0)),
        pods: bound.map_or(0, |bound| bound.pods().len()),
        usage,
        records: question.records(entry),
    }
}

/// Finds the latest decision to delete a node that is being deleted. Records name some nodes by their NodeClaims.
fn removal(question: &Question<'_>, node: &NodeState) -> Option<Removal> {
    if !node.is_deleting() {
        return None;
    }
    let mut records = question.history.ring().iter().rev();
    let is_it = |name: &String| name == node.name() || Some(name.as_str()) == node.claim_name();
    let is_this = |item: &&Item| match item {
        Item::Disrupted {
            names,
            rejected: None,
            ..
        } => names.iter().any(is_it),
        _ => false,
    };
    records.find_map(|record| {
        let disrupted = record.items.iter().find(is_this)?.clone();
        Some(Removal {
            record: record.id,
            disrupted,
        })
    })
}

fn is_in_flight(entry: Option<&Entry>) -> bool {
    entry.and_then(|entry| entry.known().id()) == Some(Reason::InFlight {}.id())
}

/// Returns the state of a node, as [`NodeNow::state`].
pub(crate) fn state(node: &NodeState, entry: Option<&Entry>) -> &'static str {
    if node.is_deleting() {
        "Terminating"
    } else if node.node.is_none() {
        "Launching"
    } else if !node.is_initialized() {
        "Starting"
    } else if is_in_flight(entry) {
        "Disrupting"
    } else {
        "Ready"
    }
}

fn usage(requested: &Resources, allocatable: &Resources) -> BTreeMap<String, Usage> {
    let amounts = requested.iter().filter(|(_, amount)| *amount > 0);
    let usage = amounts.map(|(name, amount)| {
        let of = allocatable.get(name);
        let usage = Usage {
            requested: plain(name, amount),
            allocatable: plain(name, of),
            share: share(amount, of),
        };
        (name.to_owned(), usage)
    });
    usage.collect()
}

/// Returns the used part of an amount; 1 of nothing.
pub(super) fn share(used: i64, of: i64) -> f64 {
    if of > 0 { used as f64 / of as f64 } else { 1.0 }
}
