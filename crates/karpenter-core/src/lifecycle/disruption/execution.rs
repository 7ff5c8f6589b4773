//! A command that was started: it waits for its replacements, then its NodeClaims are deleted.
//!
//! UPSTREAM: pkg/controllers/disruption/queue.go

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;

use super::effects::{CommandEnd, Effect, Report};
use crate::cluster::Snapshot;
use crate::disruption::consolidation::prices::PriceLists;
use crate::disruption::{Candidate, Command, Method, Surroundings};
use crate::lifecycle::{after, has_passed};

const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// Returns how long replacements may take while `queued` nodes are part of commands.
fn timeout(queued: usize) -> Duration {
    let each = Duration::from_millis(80);
    each.saturating_mul(u32::try_from(queued).unwrap_or(u32::MAX))
        .clamp(Duration::from_secs(600), MAX_TIMEOUT)
}

/// A command whose nodes are marked for deletion.
#[derive(Clone, Debug)]
pub(super) struct Execution {
    pub(super) command: Arc<Command>,
    /// The replacements that are not initialized.
    waiting: Vec<Arc<NodeClaim>>,
    replacements: usize,
    until: Timestamp,
    /// The NodeClaims that are being deleted.
    deleting: BTreeSet<String>,
    /// The NodeClaims that could not be deleted.
    spared: BTreeSet<String>,
}

impl Execution {
    /// Returns a command that starts now, while `queued` nodes are part of commands.
    pub(super) fn new(
        command: Arc<Command>,
        replacements: Vec<Arc<NodeClaim>>,
        queued: usize,
        now: Timestamp,
    ) -> Self {
        Self {
            command,
            replacements: replacements.len(),
            waiting: replacements,
            until: after(now, timeout(queued)),
            deleting: BTreeSet::new(),
            spared: BTreeSet::new(),
        }
    }

    /// Returns what another process has started, as far as the model shows it: a command of the nodes that are marked for deletion,
    /// which waits for all NodeClaims that are being launched.
    pub(super) fn of_marks(snapshot: &Snapshot, now: Timestamp) -> Option<Self> {
        let marked = snapshot.nodes().filter(|node| node.marked_for_deletion);
        let marked: Vec<_> = marked.collect();
        if marked.is_empty() {
            return None;
        }
        let (surroundings, prices) = (Surroundings::default(), PriceLists::new(snapshot));
        let candidates = marked.iter().filter_map(|node| {
            let pods = snapshot.node_pods(node.name());
            Candidate::of(snapshot, node, pods, &surroundings, &prices, now)
        });
        let command = Command {
            method: Method::SingleNode,
            candidates: candidates.filter(|it| !it.claim.is_deleting()).collect(),
            replacements: Vec::new(),
            placements: Vec::new(),
            savings: 0.0,
            score: None,
            scores: Vec::new(),
        };
        let claims = snapshot.node_claims();
        let starting = claims.filter(|it| !it.is_true(types::INITIALIZED) && !it.is_deleting());
        let (starting, nodes) = (starting.cloned().collect(), command.candidates.len());
        (nodes > 0).then(|| Self::new(command.into(), starting, nodes, now))
    }

    /// Checks the replacements. Once all are initialized, the candidates are deleted; returns why they never will be.
    pub(super) fn check(
        &mut self,
        snapshot: &Snapshot,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Option<CommandEnd> {
        if !self.deleting.is_empty() {
            return None;
        }
        let mut ready = BTreeSet::new();
        self.waiting.retain(|replacement| {
            let current = current(snapshot, replacement);
            let Some(claim) = current.filter(|claim| claim.is_true(types::INITIALIZED)) else {
                return true;
            };
            // Pods are about to be bound: until then the node must not count as empty.
            let name = claim.status.node_name.as_deref();
            ready.insert(name.unwrap_or(claim.name()).to_owned());
            false
        });
        if !ready.is_empty() {
            effects.push(Effect::Nominate(ready));
        }
        if self.waiting.is_empty() {
            self.delete(effects);
            return None;
        }
        // The model has a replacement from its creation until the API server reports its deletion.
        let mut waiting = self.waiting.iter();
        if let Some(gone) = waiting.find(|it| current(snapshot, it).is_none()) {
            return Some(CommandEnd::ReplacementDeleted {
                name: gone.name().to_owned(),
                unready: self.waiting.len(),
            });
        }
        if has_passed(self.until, now, MAX_TIMEOUT) {
            return Some(CommandEnd::TimedOut {
                unready: self.waiting.len(),
                replacements: self.replacements,
            });
        }
        let method = self.command.method;
        let waits = |it: &Arc<NodeClaim>| Report::Waiting(Arc::clone(it), method);
        effects.extend(self.waiting.iter().map(|it| Effect::Report(waits(it))));
        None
    }

    fn delete(&mut self, effects: &mut Vec<Effect>) {
        for candidate in &self.command.candidates {
            self.deleting.insert(candidate.claim_name().to_owned());
            effects.push(Effect::Delete {
                command: Arc::clone(&self.command),
                candidate: candidate.clone(),
                until: self.until,
            });
        }
    }

    /// Notes whether a candidate is deleted; returns how the command ended.
    pub(super) fn deleted(
        &mut self,
        claim: &str,
        is_deleted: bool,
        effects: &mut Vec<Effect>,
    ) -> Option<CommandEnd> {
        let is_new = self.deleting.remove(claim);
        let mut candidates = self.command.candidates.iter();
        let candidate = candidates.find(|it| it.claim_name() == claim && is_new)?;
        if is_deleted {
            let report = Report::Terminating(Arc::clone(&self.command), candidate.clone());
            effects.push(Effect::Report(report));
        } else {
            self.spared.insert(claim.to_owned());
        }
        let end = match self.spared.len() {
            0 => CommandEnd::Succeeded,
            nodes => CommandEnd::NotDeleted { nodes },
        };
        self.deleting.is_empty().then_some(end)
    }

    /// Returns the candidates for which a command that has ended this way is rolled back.
    pub(super) fn rolled_back(&self, end: &CommandEnd) -> Vec<Candidate> {
        let candidates = self.command.candidates.iter();
        let is_rolled_back = |it: &&Candidate| match end {
            CommandEnd::Succeeded => false,
            CommandEnd::NotDeleted { .. } => self.spared.contains(it.claim_name()),
            _ => true,
        };
        candidates.filter(is_rolled_back).cloned().collect()
    }
}

/// Returns the NodeClaim as the model has it.
fn current<'a>(snapshot: &'a Snapshot, claim: &NodeClaim) -> Option<&'a NodeClaim> {
    let found = snapshot.node_claim(claim.name())?;
    (found.uid() == claim.uid()).then_some(&**found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: DIS-127
    #[test]
    fn more_nodes_in_the_queue_extend_the_timeout() {
        let minutes = |queued| timeout(queued).as_secs_f64() / 60.0;
        assert_eq!(minutes(1), 10.0);
        assert_eq!(timeout(10_000), Duration::from_secs(13 * 60 + 20));
        assert_eq!(minutes(80_000), 60.0);
    }
}
