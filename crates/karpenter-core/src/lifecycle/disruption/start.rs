//! The start of a command: headroom, taints, replacements, marks; or its end before it has begun.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;

use super::effects::{CommandEnd, Effect, Report, TaintedNode};
use super::execution::Execution;
use super::{Disruption, provider_ids};
use crate::cluster::Snapshot;
use crate::disruption::{Candidate, Command, Decision, Method};

/// A command whose nodes are being tainted, whose replacements are being created, or whose nodes are being marked.
#[derive(Clone, Debug)]
pub(super) struct Starting {
    pub(super) command: Arc<Command>,
    pub(super) reserved: BTreeMap<String, u32>,
    replacements: Vec<Arc<NodeClaim>>,
}

impl Disruption {
    pub(super) fn start(&mut self, command: Command) {
        let mut reserved: BTreeMap<String, u32> = BTreeMap::new();
        if command.method == Method::StaticDrift {
            for planned in &command.replacements {
                *reserved.entry(planned.node_pool.clone()).or_default() += 1;
            }
        }
        let needs = (!reserved.is_empty()).then(|| Effect::Reserve(reserved.clone()));
        self.starting = Some(Starting {
            command: Arc::new(command),
            reserved,
            replacements: Vec::new(),
        });
        match needs {
            Some(reserve) => self.effects.push(reserve),
            None => self.taint(),
        }
    }

    pub(super) fn taint(&mut self) {
        let command = self.starting.as_ref().map(|it| Arc::clone(&it.command));
        self.effects.extend(command.map(Effect::Taint));
    }

    pub(super) fn tainted(&mut self, failed: &BTreeSet<String>, now: Timestamp) {
        let Some(starting) = &mut self.starting else {
            return;
        };
        let has_failed = |it: &Candidate| failed.contains(it.claim_name());
        let all = &starting.command.candidates;
        let is_whole = !all.iter().any(has_failed);
        if !is_whole
            && (starting.command.decision() == Decision::Replace || all.iter().all(has_failed))
        {
            let all = all.iter().map(TaintedNode::of).collect();
            self.untaint(all);
            self.not_started(true, now);
            return;
        }
        // The other nodes are disrupted alone. A node whose write failed may be tainted all the same, if only the answer was lost.
        let lost = all.iter().filter(|it| has_failed(it));
        let lost: Vec<_> = lost.map(TaintedNode::of).collect();
        if !is_whole {
            Arc::make_mut(&mut starting.command)
                .candidates
                .retain(|it| !has_failed(it));
        }
        let command = Arc::clone(&starting.command);
        if !lost.is_empty() {
            self.untaint(lost);
        }
        let report = Report::Starting(Arc::clone(&command));
        self.effects.push(Effect::Report(report));
        if command.replacements.is_empty() {
            self.launched(Vec::new(), now);
        } else {
            self.effects.push(Effect::Launch(command));
        }
    }

    pub(super) fn launched(&mut self, claims: Vec<Arc<NodeClaim>>, now: Timestamp) {
        let Some(starting) = &mut self.starting else {
            return;
        };
        let command = Arc::clone(&starting.command);
        if claims.len() < command.replacements.len() {
            self.untaint(command.candidates.iter().map(TaintedNode::of).collect());
            self.not_started(true, now);
            return;
        }
        starting.replacements = claims;
        let targets = command.placements.iter().filter(|it| !it.buffer);
        let targets: BTreeSet<String> = targets.map(|it| it.node.clone()).collect();
        if !targets.is_empty() {
            self.effects.push(Effect::Nominate(targets));
        }
        let ids = provider_ids(&command.candidates);
        self.effects.push(Effect::Mark(ids, true));
    }

    pub(super) fn marked(&mut self, snapshot: &Snapshot, now: Timestamp) {
        let Some(Starting {
            command,
            reserved,
            replacements,
        }) = self.starting.take()
        else {
            return;
        };
        self.release(reserved);
        if matches!(command.method, Method::MultiNode | Method::SingleNode) {
            for replacement in &replacements {
                self.protect(replacement, now);
            }
        }
        let report = Report::Started(Arc::clone(&command), replacements.clone());
        self.effects.push(Effect::Report(report));
        let queued = self.claims().len() + command.candidates.len();
        self.executions
            .push(Execution::new(command, replacements, queued, now));
        if let Some(pass) = &mut self.pass {
            pass.found = true;
        }
        self.check(snapshot, now);
    }

    /// Ends the start of a command. A NodePool whose command failed cools down.
    pub(super) fn not_started(&mut self, failed: bool, now: Timestamp) {
        let Some(starting) = self.starting.take() else {
            return;
        };
        self.release(starting.reserved);
        if failed {
            self.ended(starting.command, CommandEnd::NotStarted, now);
        }
    }

    fn release(&mut self, reserved: BTreeMap<String, u32>) {
        if !reserved.is_empty() {
            self.effects.push(Effect::Release(reserved));
        }
    }
}
