//! Validation of a command before it is started.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;

use super::candidate::blockers::blockers;
use super::candidate::{Candidate, Candidates, NotDisruptable, Surroundings};
use super::command::{Command, Method};
use super::request::DisruptionRequest;
use super::simulation::Simulator;
use crate::cluster::{NodeState, Snapshot};
use crate::disruption::Budgets;

/// Why a command is no longer valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandInvalidated {
    /// Budgets changed, or pending pods were nominated to one of the nodes.
    Budget,
    /// The pods cannot be scheduled any more, or need other replacements.
    Scheduling,
    /// The nodes changed: new pods, a pod with `do-not-disrupt`, a PodDisruptionBudget that blocks.
    Churn,
}

impl CommandInvalidated {
    /// Returns the reason in the `ConsolidationRejected` event.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Scheduling => "scheduling",
            Self::Churn => "churn",
        }
    }
}

impl fmt::Display for CommandInvalidated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns what of a command may begin on the snapshot of the moment it is to be started; nothing if what has changed since it was
/// planned or validated forbids it. It is cheap: no scheduling is simulated.
///
/// An emptiness command loses the nodes that are blocked or no longer empty, and those beyond the budgets. A command of another
/// method begins as a whole, or not at all.
pub(crate) fn startable(
    mut command: Command,
    snapshot: &Snapshot,
    in_flight: &BTreeSet<String>,
    now: Timestamp,
) -> Option<Command> {
    let surroundings = Surroundings {
        in_flight: in_flight.clone(),
        ..Surroundings::default()
    };
    let method = command.method;
    let blocks = |why: &NotDisruptable, candidate: &Candidate| {
        let has_grace_period = candidate.claim.spec.termination_grace_period.is_some();
        !(method.is_eventual() && has_grace_period && why.yields_to_grace_period())
    };
    let is_current = |candidate: &Candidate| {
        let node = snapshot.node(candidate.name());
        let node = node.filter(|node| {
            let is_same = |it: &NodeClaim| it.uid() == candidate.claim.uid();
            let has_reason = |it: &NodeClaim| !method.is_eventual() || it.is_true(types::DRIFTED);
            let claim = node.claim.as_deref();
            claim.is_some_and(|claim| is_same(claim) && has_reason(claim))
        });
        node.is_some_and(|node| {
            let why = blockers(snapshot, node, &surroundings, now);
            !why.iter().any(|why| blocks(why, candidate))
        })
    };
    let is_empty = |candidate: &Candidate| {
        let pods = snapshot.node_pods(candidate.name());
        pods.is_none_or(|pods| pods.facts().reschedule_cost <= 1.0)
    };
    let mut budgets = Budgets::new(snapshot, &method.reason(), now);
    let all = command.candidates.len();
    command.candidates.retain(|candidate| {
        is_current(candidate)
            && (method != Method::Emptiness || is_empty(candidate))
            && budgets.take(candidate.pool_name())
    });
    let left = command.candidates.len();
    (left == all || (method == Method::Emptiness && left > 0)).then_some(command)
}

/// Checks a command against a newer snapshot; returns the part of it that is still valid.
///
/// An emptiness command loses the nodes that are no longer empty. Commands of other methods are valid or invalid as a whole:
/// every node must still be a candidate, budgets must allow all of them, and the simulation must need as many replacements, for
/// which the planned instance types are still compatible.
pub fn validate(
    command: &Command,
    snapshot: &Snapshot,
    request: &DisruptionRequest,
) -> Result<Command, CommandInvalidated> {
    validate_after(None, command, snapshot, request, &mut None)
}

/// Does the same, with the simulator of an earlier pass; `used` is the one that it needed.
pub(super) fn validate_after(
    earlier: Option<&Simulator>,
    command: &Command,
    snapshot: &Snapshot,
    request: &DisruptionRequest,
    used: &mut Option<Simulator>,
) -> Result<Command, CommandInvalidated> {
    let now = request.now();
    if !command.method.is_validated() {
        return Ok(command.clone());
    }
    let names: BTreeSet<&str> = command
        .candidates
        .iter()
        .map(Candidate::claim_name)
        .collect();
    let is_nominated = |node: &Arc<NodeState>| {
        node.is_nominated(now) && node.claim_name().is_some_and(|name| names.contains(name))
    };
    if command.method != Method::Emptiness && snapshot.nodes().any(is_nominated) {
        return Err(CommandInvalidated::Budget);
    }
    let all = Candidates::new(snapshot, &request.surroundings, now);
    let holds = |candidate: &&Candidate| {
        names.contains(candidate.claim_name())
            && !candidate.eventual_only
            && match command.method {
                Method::Emptiness => candidate.not_empty().is_none(),
                _ => candidate.unconsolidatable().is_none(),
            }
    };
    let current: Vec<Candidate> = all.candidates.iter().filter(holds).cloned().collect();
    let mut budgets = Budgets::new(snapshot, &command.method.reason(), now);
    let mut checked = command.clone();
    if command.method == Method::Emptiness {
        let churned = current.is_empty();
        checked.candidates = current
            .into_iter()
            .filter(|c| budgets.take(c.pool_name()))
            .collect();
        checked.savings = checked
            .candidates
            .iter()
            .map(|candidate| candidate.price)
            .sum();
        return match (checked.candidates.is_empty(), churned) {
            (false, _) => Ok(checked),
            (true, true) => Err(CommandInvalidated::Churn),
            (true, false) => Err(CommandInvalidated::Budget),
        };
    }
    if current.len() != names.len() {
        return Err(CommandInvalidated::Churn);
    }
    if !current
        .iter()
        .all(|candidate| budgets.take(candidate.pool_name()))
    {
        return Err(CommandInvalidated::Budget);
    }
    let (policy, query) = (&request.policy, &request.query);
    let simulator = Simulator::after_pass(earlier, snapshot, policy, query, &all.prices);
    let simulator = used.insert(simulator);
    let outcome = simulator.remove(&current.iter().collect::<Vec<_>>(), true);
    if !outcome.stuck.is_empty() || outcome.new_node_claims.len() != command.replacements.len() {
        return Err(CommandInvalidated::Scheduling);
    }
    let still_do = command
        .replacements
        .iter()
        .zip(&outcome.new_node_claims)
        .all(|(planned, now)| {
            let now: BTreeSet<&String> = now.instance_types.iter().collect();
            planned.instance_types.iter().all(|name| now.contains(name))
        });
    if !still_do {
        return Err(CommandInvalidated::Scheduling);
    }
    checked.candidates = current;
    checked.placements = outcome.placements;
    Ok(checked)
}
