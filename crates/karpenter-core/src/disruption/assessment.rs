//! What a pass would decide about one node if it were the only candidate.

use std::collections::BTreeMap;

use karpenter_api::v1::DisruptionReason;

use super::Budgets;
use super::candidate::{Candidate, Candidates, NotConsolidatable, NotDisruptable, candidate};
use super::command::{Command, Method, VerdictKind};
use super::methods;
use super::pass::{Alone, Pass, Shared, is_balanced};
use super::request::DisruptionRequest;
use super::simulation::Simulator;
use crate::cluster::TableRow;
use crate::disruption::candidate::blockers;
use crate::disruption::consolidation::balanced::Totals;

/// Assesses nodes of one snapshot, each alone, with the methods of a pass in the order of a pass.
///
/// Multi-node consolidation takes no part, so that a node that is kept alone may still be deleted together with others.
pub struct Assessor<'a> {
    request: &'a DisruptionRequest,
    shared: Shared,
    budgets: BTreeMap<String, Budgets>,
}

impl std::fmt::Debug for Assessor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assessor").finish_non_exhaustive()
    }
}

impl<'a> Assessor<'a> {
    /// Creates an assessor of the simulator's snapshot.
    pub fn new(simulator: Simulator, request: &'a DisruptionRequest) -> Self {
        let (snapshot, now) = (simulator.snapshot(), request.now());
        // Only the Balanced policy reads the totals.
        let totals = if snapshot.node_pools().any(is_balanced) {
            let all = Candidates::new(snapshot, &request.surroundings, now);
            let single = |candidate: &Candidate| Method::SingleNode.may_take(candidate);
            let candidates = all.candidates.iter().filter(|each| single(each));
            Totals::new(snapshot, candidates, simulator.prices())
        } else {
            Totals::default()
        };
        Self {
            budgets: Budgets::by_reason(snapshot, now),
            request,
            shared: Shared { simulator, totals },
        }
    }

    /// Returns the simulator.
    pub fn simulator(&self) -> &Simulator {
        &self.shared.simulator
    }

    /// Returns the command that would disrupt the node (Node or NodeClaim name), else why it is kept; `None` if it does not exist.
    pub fn assess(&self, name: &str) -> Option<Result<Command, VerdictKind>> {
        let simulator = &self.shared.simulator;
        let snapshot = simulator.snapshot();
        let node = snapshot.node(name)?;
        let (surroundings, now) = (&self.request.surroundings, self.request.now());
        let lists = (simulator.pdbs(), simulator.prices());
        let row = TableRow {
            state: node.clone(),
            pods: snapshot.node_pods(node.name()).cloned(),
        };
        let (candidate, blocked) = match candidate(snapshot, &row, surroundings, lists, now) {
            Ok(found) => found,
            Err(blocked) => return Some(Err(VerdictKind::NotDisruptable(blocked))),
        };
        let (mut kept, mut stuck) = (None, None);
        for method in [
            Method::Emptiness,
            Method::StaticDrift,
            Method::Drift,
            Method::SingleNode,
        ] {
            if !method.may_take(&candidate) {
                continue;
            }
            let mut found = methods::run(&mut self.pass(method, &candidate));
            if !found.commands.is_empty() {
                return Some(Ok(found.commands.swap_remove(0)));
            }
            kept = found.kept.remove(&candidate.id()).or(kept);
            stuck = found.blocked.remove(&candidate.id()).or(stuck);
        }
        Some(Err(match stuck.or(blocked) {
            Some(why) => VerdictKind::NotDisruptable(why),
            None => {
                let why = kept.or_else(|| candidate.unconsolidatable());
                VerdictKind::Kept(why.unwrap_or(NotConsolidatable::NotEvaluated))
            }
        }))
    }

    fn pass<'c>(&'c self, method: Method, candidate: &'c Candidate) -> Pass<'c> {
        let simulator = &self.shared.simulator;
        Pass {
            request: self.request,
            method,
            snapshot: simulator.snapshot().fork(),
            candidates: vec![candidate],
            budgets: self
                .budgets
                .get(method.reason().as_str())
                .cloned()
                .unwrap_or_default(),
            prices: simulator.price_lists().clone(),
            drafted: 0,
            alone: Alone::default(),
            earlier: None,
            evaluated: 0,
            start: None,
            is_changed: false,
            shared: Some(&self.shared),
        }
    }

    /// Returns everything that blocks the method that would disrupt the node, as far as it is known without a simulation: its
    /// gates, each pod with its annotation or its PodDisruptionBudgets, the gates of consolidation, the NodePool's budget or
    /// pause. Drift of a drifted node, emptiness of an empty one, else consolidation. Empty if the node does not exist.
    pub fn blockers(&self, name: &str) -> Vec<VerdictKind> {
        let simulator = &self.shared.simulator;
        let snapshot = simulator.snapshot();
        let Some(node) = snapshot.node(name) else {
            return Vec::new();
        };
        let (surroundings, now) = (&self.request.surroundings, self.request.now());
        let gates = blockers::all(snapshot, node, surroundings, simulator.pdbs(), now);
        let (prices, pods) = (simulator.prices(), snapshot.node_pods(node.name()));
        let parts = Candidate::of(snapshot, node, pods, surroundings, prices, now);
        let Some(candidate) = parts else {
            return gates.into_iter().map(VerdictKind::NotDisruptable).collect();
        };
        let drifted = candidate.drifted_at().is_some();
        let ends = drifted && candidate.claim.spec.termination_grace_period.is_some();
        let applies = |gate: &NotDisruptable| !(ends && gate.yields_to_grace_period());
        let mut all: Vec<VerdictKind> = gates
            .into_iter()
            .filter(applies)
            .map(VerdictKind::NotDisruptable)
            .collect();
        let empty = candidate.is_empty() && candidate.buffer_pods == 0;
        let (reason, kept): (_, Vec<_>) = match (drifted, empty) {
            (true, _) => (DisruptionReason::Drifted, Vec::new()),
            (false, true) => (
                DisruptionReason::Empty,
                candidate.emptiness_gates().collect(),
            ),
            (false, false) => (
                DisruptionReason::Underutilized,
                candidate.consolidation_gates().collect(),
            ),
        };
        all.extend(kept.into_iter().map(VerdictKind::Kept));
        let budgets = self.budgets.get(reason.as_str());
        all.extend(budgets.and_then(|budgets| {
            let pool = candidate.pool_name();
            let open = budgets.of(pool).remaining > 0;
            (!open).then(|| VerdictKind::Kept(budgets.refusal(pool)))
        }));
        all
    }

    /// Returns the budgets, by reason.
    pub fn budgets(&self) -> &BTreeMap<String, Budgets> {
        &self.budgets
    }
}
