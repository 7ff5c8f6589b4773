//! What a NodePool did in the last scheduling pass, and what its limits and budgets allow.

use std::collections::BTreeMap;

use karpenter_api::v1::NodePool;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::Budgets;
use karpenter_core::limits::known_usage;
use karpenter_core::resources::{Resources, plain};
use serde::Serialize;

use super::node::share;
use super::{CurrentReason, Metadata, Observed, Question};
use crate::groups::{ReasonGroup, kept_nodes};

/// What a NodePool did, and what its limits and budgets allow.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolExplanation {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub metadata: Metadata,
    /// When and on what the answer was made.
    pub observed: Observed,
    /// Whether the last scheduling pass used the NodePool, or why not; absent before the first pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<CurrentReason>,
    pub nodes: usize,
    /// Price of the nodes in dollars per hour.
    pub price_per_hour: f64,
    /// The limits, with their usage.
    pub limits: Vec<LimitNow>,
    pub budgets: Vec<BudgetNow>,
    /// The nodes that are kept, by reason.
    pub kept: Vec<ReasonGroup>,
}

/// A limit of a NodePool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitNow {
    pub resource: String,
    /// The limit, as a quantity.
    pub limit: String,
    /// The capacity of the nodes that are not being deleted, as a quantity.
    pub used: String,
    /// The used part: 1 if all is used.
    pub share: f64,
}

/// A budget of a NodePool for one reason of disruption.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BudgetNow {
    /// `Drifted`, `Empty` or `Underutilized`.
    pub reason: String,
    /// The number of nodes that the budgets active now allow.
    pub allowed: u32,
    /// Nodes that are not ready or being deleted.
    pub consuming: u32,
    /// The number of nodes that may still be disrupted.
    pub remaining: u32,
}

/// Explains a NodePool; `None` if it does not exist.
pub fn explain_node_pool(question: &Question<'_>, name: &str) -> Option<NodePoolExplanation> {
    let Question {
        snapshot,
        history,
        now,
        ..
    } = question;
    let pool = snapshot.node_pool(name)?;
    let nodes = || snapshot.nodes().filter(|n| n.node_pool() == Some(name));
    let prices = crate::prices::Prices::new(snapshot);
    let budgets = Budgets::by_reason(snapshot, *now);
    let groups = kept_nodes(snapshot, history);
    Some(NodePoolExplanation {
        api_version: crate::API_VERSION,
        kind: "NodePoolExplanation",
        metadata: Metadata::cluster(name, pool.metadata.uid.clone()),
        observed: question.observed(false),
        reason: history.pool(name).map(CurrentReason::of),
        nodes: nodes().count(),
        price_per_hour: nodes()
            .map(|node| crate::prices::finite(prices.of(node)))
            // An empty sum is -0.0.
            .fold(0.0, |sum, price| sum + price),
        limits: limits(pool, &usage(snapshot)),
        budgets: budgets
            .iter()
            .map(|(reason, budgets)| {
                let budget = budgets.of(name);
                BudgetNow {
                    reason: reason.clone(),
                    allowed: budget.allowed,
                    consuming: budget.consuming,
                    remaining: budget.remaining,
                }
            })
            .collect(),
        kept: groups
            .into_iter()
            .filter_map(|((of, _), group)| (of == name).then_some(group))
            .collect(),
    })
}

/// Returns what the nodes of each NodePool with limits that are not being deleted count with.
pub(crate) fn usage(snapshot: &Snapshot) -> BTreeMap<&str, Resources> {
    let is_limited = |pool: &&str| {
        let pool = snapshot.node_pool(pool);
        pool.is_some_and(|pool| !pool.spec.limits.is_empty())
    };
    let mut used: BTreeMap<&str, Resources> = BTreeMap::new();
    for node in snapshot.nodes().filter(|node| !node.is_deleting()) {
        if let Some(pool) = node.node_pool().filter(is_limited) {
            used.entry(pool).or_default().add_assign(&known_usage(node));
        }
    }
    used
}

/// Returns the limits of a NodePool, with their usage.
pub(crate) fn limits(pool: &NodePool, usage: &BTreeMap<&str, Resources>) -> Vec<LimitNow> {
    let limits = Resources::allocatable_from(&pool.spec.limits).unwrap_or_default();
    let used = usage.get(pool.name());
    let now = limits.iter().map(|(resource, limit)| {
        let used = used.map_or(0, |used| used.get(resource));
        LimitNow {
            resource: resource.to_owned(),
            limit: plain(resource, limit),
            used: plain(resource, used),
            share: share(used, limit),
        }
    });
    now.collect()
}
