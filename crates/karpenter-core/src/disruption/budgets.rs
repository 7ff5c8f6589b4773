//! Disruption budgets: how many nodes of each NodePool may be disrupted now, per reason.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_api::budget;
use karpenter_api::pause::Pause;
use karpenter_api::v1::DisruptionReason;
use rustc_hash::FxHashMap;

use super::candidate::NotConsolidatable;
use crate::cluster::{NodeState, Snapshot};

/// The remaining budgets of all NodePools, for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    by_pool: BTreeMap<String, PoolBudget>,
    /// The pauses that cover the reason.
    pauses: BTreeMap<String, Pause>,
}

/// The budget of one NodePool for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolBudget {
    /// Nodes that count: managed, initialized, and without condition InstanceTerminating.
    pub nodes: u32,
    /// Those of them that are not ready or being deleted, for whatever cause.
    pub consuming: u32,
    /// The number of nodes that the budgets active now allow; 0 while disruption is paused.
    pub allowed: u32,
    /// The number of nodes that may still be disrupted.
    pub remaining: u32,
}

impl Budgets {
    /// Computes the budgets of all NodePools for `reason`.
    pub fn new(snapshot: &Snapshot, reason: &DisruptionReason, now: Timestamp) -> Self {
        Self::of_counts(count(snapshot), snapshot, reason, now)
    }

    /// Computes the budgets of NodePools whose nodes were counted.
    fn of_counts(
        mut by_pool: BTreeMap<String, PoolBudget>,
        snapshot: &Snapshot,
        reason: &DisruptionReason,
        now: Timestamp,
    ) -> Self {
        let mut pauses = BTreeMap::new();
        for pool in snapshot.node_pools() {
            let name = pool.metadata.name.clone().unwrap_or_default();
            // An invalid pause counts as absent; the shell reports it.
            let pause = Pause::of(pool, now).ok().flatten();
            let pause = pause.filter(|pause| pause.covers(reason));
            let budget = by_pool.entry(name.clone()).or_default();
            budget.allowed = match &pause {
                Some(_) => 0,
                None => budget::allowed(pool, reason, budget.nodes, now),
            };
            budget.remaining = budget::remaining(budget.allowed, budget.consuming);
            pauses.extend(pause.map(|pause| (name, pause)));
        }
        Self { by_pool, pauses }
    }

    /// Computes the budgets for each reason of voluntary disruption, by the name of the reason.
    pub fn by_reason(snapshot: &Snapshot, now: Timestamp) -> BTreeMap<String, Self> {
        let reasons = [
            DisruptionReason::Empty,
            DisruptionReason::Drifted,
            DisruptionReason::Underutilized,
        ];
        let counts = count(snapshot);
        let of = |reason: &DisruptionReason| {
            let budgets = Self::of_counts(counts.clone(), snapshot, reason, now);
            (reason.as_str().to_owned(), budgets)
        };
        reasons.iter().map(of).collect()
    }

    /// Returns the budget of a NodePool; zero for an unknown one.
    pub fn of(&self, pool: &str) -> PoolBudget {
        self.by_pool.get(pool).copied().unwrap_or_default()
    }

    /// Returns the pause of a NodePool, if it covers the reason.
    pub fn pause(&self, pool: &str) -> Option<&Pause> {
        self.pauses.get(pool)
    }

    /// Returns why no node of a NodePool without remaining budget may be disrupted: it is paused, or the budget is used up.
    pub(super) fn refusal(&self, pool: &str) -> NotConsolidatable {
        let node_pool = pool.to_owned();
        match self.pause(pool).cloned() {
            Some(pause) => NotConsolidatable::Paused { node_pool, pause },
            None => NotConsolidatable::Budget { node_pool },
        }
    }

    /// Iterates over the budgets of all NodePools, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &PoolBudget)> {
        self.by_pool
            .iter()
            .map(|(name, budget)| (name.as_str(), budget))
    }

    /// Deducts one node from a NodePool's budget; returns false if nothing is left.
    pub fn take(&mut self, pool: &str) -> bool {
        let Some(budget) = self.by_pool.get_mut(pool) else {
            return false;
        };
        let left = budget.remaining > 0;
        budget.remaining = budget.remaining.saturating_sub(1);
        left
    }
}

/// Counts the nodes of each NodePool.
fn count(snapshot: &Snapshot) -> BTreeMap<String, PoolBudget> {
    let mut by_pool: FxHashMap<&str, PoolBudget> = FxHashMap::default();
    for node in snapshot.nodes() {
        let Some(pool) = node.node_pool().filter(|_| counts(node)) else {
            continue;
        };
        let budget = by_pool.entry(pool).or_default();
        budget.nodes += 1;
        budget.consuming += u32::from(!node.facts().ready || node.is_deleting());
    }
    let by_name = by_pool.into_iter();
    by_name.map(|(pool, of)| (pool.to_owned(), of)).collect()
}

fn counts(node: &NodeState) -> bool {
    node.claim.is_some() && node.is_initialized() && !node.facts().instance_terminating
}
