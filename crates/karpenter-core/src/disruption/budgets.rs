//! How many machines of each NodePool may be disrupted now, and for which reason.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_api::{
    budget,
    conditions::{HasConditions, types},
    v1::DisruptionReason,
};

use crate::cluster::{NodeState, Snapshot};

/// What is left of every pool's budgets, for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    by_pool: BTreeMap<String, PoolBudget>,
}

/// One pool's budget for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolBudget {
    /// Machines that count: managed, initialised, not yet terminating at the provider.
    pub nodes: u32,
    /// Those of them that are not ready or going away, for whatever cause.
    pub consuming: u32,
    /// What the budgets that are active now allow.
    pub allowed: u32,
    /// What is left.
    pub remaining: u32,
}

impl Budgets {
    /// What is left for `reason`.
    pub fn new(snapshot: &Snapshot, reason: &DisruptionReason, now: Timestamp) -> Self {
        let mut by_pool: BTreeMap<String, PoolBudget> = BTreeMap::new();
        for machine in snapshot.nodes().filter(|machine| counts(machine)) {
            let Some(pool) = machine.node_pool() else {
                continue;
            };
            let budget = by_pool.entry(pool.to_owned()).or_default();
            budget.nodes += 1;
            let ready = machine.node.as_ref().is_some_and(|node| node.is_ready());
            budget.consuming += u32::from(!ready || machine.is_deleting());
        }
        for pool in snapshot.node_pools() {
            let name = pool.metadata.name.clone().unwrap_or_default();
            let budget = by_pool.entry(name).or_default();
            budget.allowed = budget::allowed(pool, reason, budget.nodes, now);
            budget.remaining = budget::remaining(budget.allowed, budget.consuming);
        }
        Self { by_pool }
    }

    /// What is left for each reason of voluntary disruption, by its name.
    pub fn by_reason(snapshot: &Snapshot, now: Timestamp) -> BTreeMap<String, Self> {
        let reasons = [
            DisruptionReason::Empty,
            DisruptionReason::Drifted,
            DisruptionReason::Underutilized,
        ];
        reasons
            .iter()
            .map(|reason| (reason.as_str().to_owned(), Self::new(snapshot, reason, now)))
            .collect()
    }

    /// One pool's budget.
    pub fn of(&self, pool: &str) -> PoolBudget {
        self.by_pool.get(pool).copied().unwrap_or_default()
    }

    /// All pools' budgets, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &PoolBudget)> {
        self.by_pool
            .iter()
            .map(|(name, budget)| (name.as_str(), budget))
    }

    /// Takes one from a pool's budget; false if nothing is left.
    pub fn take(&mut self, pool: &str) -> bool {
        let Some(budget) = self.by_pool.get_mut(pool) else {
            return false;
        };
        let left = budget.remaining > 0;
        budget.remaining = budget.remaining.saturating_sub(1);
        left
    }
}

fn counts(machine: &NodeState) -> bool {
    machine.is_initialized()
        && machine
            .claim
            .as_ref()
            .is_some_and(|claim| !claim.is_true(types::INSTANCE_TERMINATING))
}
