//! What one method works on, and what it finds.

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_api::v1::{ConsolidationPolicy, NodePool};
use rustc_hash::FxHashMap;

use super::Budgets;
use super::candidate::{Candidate, NodeId, NotConsolidatable, NotDisruptable};
use super::command::{Command, Method};
use super::consolidation::Move;
use super::request::DisruptionRequest;
use super::simulation::Simulator;
use crate::cluster::{Cluster, Snapshot};
use crate::disruption::consolidation::balanced::Totals;
use crate::disruption::consolidation::prices::PriceLists;

/// The state of one method: the snapshot including its commands so far, its candidates, the remaining budgets.
pub(super) struct Pass<'a> {
    pub(super) request: &'a DisruptionRequest,
    pub(super) method: Method,
    pub(super) snapshot: Snapshot,
    pub(super) candidates: Vec<&'a Candidate>,
    pub(super) budgets: Budgets,
    pub(super) prices: Arc<PriceLists>,
    /// Number of replacements in the snapshot, for their names.
    pub(super) drafted: usize,
    /// Results of candidates evaluated alone against the snapshot.
    pub(super) alone: Alone,
    /// The number of nodes that were evaluated alone.
    pub(super) evaluated: usize,
    /// The simulator of the snapshot that the pass started from, once a method needed it.
    pub(super) start: Option<Simulator>,
    /// The simulator of an earlier pass.
    pub(super) earlier: Option<&'a Simulator>,
    /// Whether a command changed the snapshot since.
    pub(super) is_changed: bool,
    /// What passes over single nodes share.
    pub(super) shared: Option<&'a Shared>,
}

/// A simulator and the totals of a snapshot, made once for many passes over it.
pub(super) struct Shared {
    pub(super) simulator: Simulator,
    pub(super) totals: Totals,
}

/// Results of deleting one node alone.
pub(super) type Alone = FxHashMap<NodeId, Result<Move, NotConsolidatable>>;

impl Pass<'_> {
    /// Returns a simulator of the snapshot including the commands so far.
    pub(super) fn simulator(&mut self) -> Simulator {
        if let Some(shared) = self.shared {
            return shared.simulator.clone();
        }
        let (policy, query) = (&self.request.policy, &self.request.query);
        match &self.start {
            Some(start) if self.is_changed => {
                start.later(&self.snapshot, policy, query, &self.prices)
            }
            Some(start) => start.clone(),
            None => {
                let earlier = self.earlier;
                let new =
                    Simulator::after_pass(earlier, &self.snapshot, policy, query, &self.prices);
                if !self.is_changed {
                    self.start = Some(new.clone());
                }
                new
            }
        }
    }

    /// Returns the totals of the snapshot for the Balanced policy.
    pub(super) fn totals(&self, candidates: &[&Candidate]) -> Totals {
        match self.shared {
            Some(shared) => shared.totals.clone(),
            // Only the Balanced policy reads them.
            None if !self.snapshot.node_pools().any(is_balanced) => Totals::default(),
            None => Totals::new(&self.snapshot, candidates.iter().copied(), &self.prices),
        }
    }

    /// Applies a command to the snapshot: its nodes are marked for deletion, its replacements are launching.
    pub(super) fn adopt(&mut self, command: &Command) {
        let mut cluster = Cluster::from(self.snapshot.fork());
        let ids: Vec<&str> = command
            .candidates
            .iter()
            .filter_map(|candidate| candidate.node.provider_id())
            .collect();
        cluster.mark_for_deletion(&ids);
        for draft in &command.replacements {
            let mut claim = draft.to_node_claim();
            // Not a valid object name, so it cannot clash with a NodeClaim.
            claim.metadata.name = Some(format!("planned/{}", self.drafted));
            self.drafted += 1;
            cluster.apply_node_claim(&claim);
        }
        self.snapshot = cluster.snapshot();
        self.shared = None;
        self.is_changed = true;
        self.alone.clear();
        for candidate in &command.candidates {
            self.budgets.take(candidate.pool_name());
        }
    }
}

/// The result of a method.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) commands: Vec<Command>,
    pub(super) kept: Kept,
    /// Drifted nodes whose pods cannot be scheduled elsewhere.
    pub(super) blocked: FxHashMap<NodeId, NotDisruptable>,
    pub(super) budget_blocked: bool,
    pub(super) timed_out: bool,
    pub(super) unseen_pools: BTreeSet<String>,
}

/// Reasons why candidates are kept.
pub(super) type Kept = FxHashMap<NodeId, NotConsolidatable>;

impl Found {
    /// Records why a candidate is kept.
    pub(super) fn keep(&mut self, candidate: &Candidate, why: NotConsolidatable) {
        self.kept.insert(candidate.id(), why);
    }

    /// Records that a candidate is kept because its NodePool is paused, or because the NodePool's budget is used up.
    pub(super) fn keep_for_budget(&mut self, candidate: &Candidate, budgets: &Budgets) {
        self.budget_blocked = true;
        self.keep(candidate, budgets.refusal(candidate.pool_name()));
    }
}

/// Reports whether the Balanced policy applies to a NodePool.
pub(super) fn is_balanced(pool: &Arc<NodePool>) -> bool {
    pool.spec.disruption.consolidation_policy == ConsolidationPolicy::Balanced
}

/// Returns the command for what a method found.
pub(super) fn command(
    method: Method,
    candidates: Vec<Candidate>,
    found: Move,
    score: Option<f64>,
) -> Command {
    let Move {
        replacements,
        placements,
        savings,
    } = found;
    Command {
        method,
        candidates,
        replacements,
        placements,
        savings,
        score,
        scores: Vec::new(),
    }
}
