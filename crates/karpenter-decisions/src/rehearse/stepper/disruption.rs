//! The disruption process in a rehearsal.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{Candidate, Command, DisruptionPlan, DisruptionRequest};
use karpenter_core::drift;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::conditions::{update_consolidatable, update_drifted};
use karpenter_core::lifecycle::disruption::{Effect, Event, Inputs, Report};

use crate::rehearse::plan::EndedBy;
use crate::rehearse::stepper::Stepper;

impl Stepper {
    /// Makes a pass of the disruption process, with the conditions that it needs.
    pub(super) fn disrupt(&mut self) {
        if self.next_pass.is_none_or(|next| next > self.now) {
            return;
        }
        self.next_pass = None;
        let due = self.conditions();
        self.guards.refresh(&mut self.cluster);
        self.check_commands();
        if self.disrupting.is_due(self.now) {
            self.disruption(Event::Due);
        }
        let next = self.disrupting.next();
        let next = match self.quiet_until(due) {
            Some(quiet) => next.max(quiet),
            None => next,
        };
        self.pass_at(next);
    }

    /// Returns until when passes find nothing, because nothing changes; `due` is when a condition changes.
    fn quiet_until(&self, due: Option<Timestamp>) -> Option<Timestamp> {
        let quiet = self.disrupting.quiet_until(&self.cluster.snapshot())?;
        let changes = [due, self.queue.next_change(), self.next_window()];
        let next = changes.into_iter().flatten().min();
        Some(next.map_or(quiet, |next| next.min(quiet)))
    }

    /// Returns when budgets may change with time: schedules and pauses have whole minutes.
    fn next_window(&self) -> Option<Timestamp> {
        let snapshot = self.cluster.snapshot();
        let changes = |pool: &NodePool| {
            let mut budgets = pool.spec.disruption.budgets.iter();
            budgets.any(|budget| budget.schedule.is_some())
                || karpenter_api::pause::Pause::of(pool, self.now)
                    .ok()
                    .flatten()
                    .is_some()
        };
        let any = snapshot.node_pools().any(|pool| changes(pool));
        let minute = self.now.as_second().div_euclid(60) + 1;
        any.then(|| Timestamp::from_second(minute * 60).ok())
            .flatten()
    }

    /// Sets the conditions Consolidatable and Drifted; returns when the next one is due.
    fn conditions(&mut self) -> Option<Timestamp> {
        let snapshot = self.cluster.snapshot();
        let check_drift = self
            .drift_checked
            .is_none_or(|at| after(at, drift::CHECK_INTERVAL) <= self.now);
        if check_drift {
            self.drift_checked = Some(self.now);
            self.settled.clear();
        }
        let mut next: Option<Timestamp> = None;
        for claim in snapshot.node_claims().filter(|claim| !claim.is_deleting()) {
            // NodePools do not change in a rehearsal: what holds for a NodeClaim does so until it is another one.
            let address = Arc::as_ptr(claim).addr();
            if let Some((_, until)) = self.settled.get(&address)
                && until.is_none_or(|until| self.now < until)
            {
                next = next.into_iter().chain(*until).min();
                continue;
            }
            let Some(pool) = claim.node_pool().and_then(|pool| snapshot.node_pool(pool)) else {
                continue;
            };
            let mut changed = NodeClaim::clone(claim);
            let left = update_consolidatable(pool, &mut changed, self.now);
            let due = left.and_then(|left| self.now.checked_add(left).ok());
            next = next.into_iter().chain(due).min();
            if check_drift {
                let drift = drift::check(&snapshot, pool, claim, self.now);
                update_drifted(&mut changed, drift.without_provider(claim), self.now);
            }
            if changed.status.conditions == claim.status.conditions {
                self.settled.insert(address, (Arc::clone(claim), due));
            } else {
                self.cluster.apply_node_claim(&changed);
            }
        }
        next
    }

    /// Hands an event to the disruption process, and executes the effects.
    pub(super) fn disruption(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let snapshot = self.cluster.snapshot();
            for effect in self.disrupting.on(event, &snapshot, self.now) {
                events.extend(self.execute(effect, &snapshot));
            }
        }
    }

    /// Executes an effect; returns its answer.
    fn execute(&mut self, effect: Effect, snapshot: &Snapshot) -> Option<Event> {
        Some(match effect {
            Effect::Plan(inputs) => match self.plan(snapshot, &inputs) {
                Some(plan) => Event::Planned(plan),
                None => Event::Unanswered,
            },
            Effect::Validate(command, inputs) => match self.may_run() {
                true => {
                    let request = self.request(snapshot, &inputs);
                    Event::Validated(self.planner.validate(&command, snapshot, &request))
                }
                false => Event::Unanswered,
            },
            Effect::Reserve(nodes) => Event::Reserved(self.static_pools.reserve(&nodes, snapshot)),
            Effect::Release(nodes) => {
                self.static_pools.release(&nodes);
                return None;
            }
            Effect::Taint(_) => Event::Tainted {
                failed: BTreeSet::new(),
            },
            Effect::Launch(command) => Event::Launched(self.replace(&command)),
            Effect::Mark(ids, mark) => {
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                if !mark {
                    self.cluster.unmark_for_deletion(&ids);
                    return None;
                }
                self.cluster.mark_for_deletion(&ids);
                self.trigger(&ids.join(" "));
                Event::Marked
            }
            Effect::Nominate(nodes) => {
                self.nominate(nodes.iter().map(String::as_str));
                return None;
            }
            Effect::Untaint(_) => Event::Untainted(Vec::new()),
            Effect::Delete {
                command, candidate, ..
            } => {
                self.delete_claim(candidate.claim_name());
                Event::Deleted {
                    command: command.id(),
                    claim: candidate.claim_name().to_owned(),
                    deleted: true,
                }
            }
            Effect::Report(Report::Started(command, _)) => {
                let launches = std::mem::take(&mut self.replacements);
                self.report.disrupt(self.now, &command, launches);
                return None;
            }
            Effect::Report(_) => return None,
        })
    }

    fn request(&self, snapshot: &Snapshot, inputs: &Inputs) -> DisruptionRequest {
        let mut request = self.disruption.clone();
        request.policy.now = self.now;
        inputs.complete(&mut request);
        request.surroundings.buffer_pods = self.buffers.on_nodes(snapshot);
        request.static_headroom = self.static_pools.drift_headroom(snapshot);
        request
    }

    fn plan(&mut self, snapshot: &Snapshot, inputs: &Inputs) -> Option<Arc<DisruptionPlan>> {
        if !self.may_run() {
            return None;
        }
        let request = self.request(snapshot, inputs);
        let found = Arc::new(self.planner.plan(snapshot, &request));
        if self.is_cancelled() {
            self.report.end_early(EndedBy::Timeout);
            return None;
        }
        self.report.planned(self.now, Arc::clone(&found));
        self.last_pass = Some((snapshot.fork(), request));
        Some(found)
    }

    /// Makes the last pass again, to report why it kept each node.
    pub(super) fn find_reasons(&mut self) {
        let Some((snapshot, mut request)) = self.last_pass.take() else {
            return;
        };
        request.finds_reasons = true;
        let found = self.planner.plan(&snapshot, &request);
        if self.is_cancelled() {
            self.report.end_early(EndedBy::Timeout);
        } else {
            self.report.explained(found);
        }
    }

    /// Creates the replacements of a command.
    fn replace(&mut self, command: &Command) -> Vec<Arc<NodeClaim>> {
        let replaced = command.candidates.iter().map(Candidate::claim_name);
        let replaced: BTreeSet<String> = replaced.map(str::to_owned).collect();
        let created = self.create_claims(&command.replacements, &replaced);
        let (names, launches): (Vec<_>, Vec<_>) = created.into_iter().flatten().unzip();
        self.replacements = launches;
        let snapshot = self.cluster.snapshot();
        let claims = names.iter().filter_map(|name| snapshot.node_claim(name));
        claims.cloned().collect()
    }

    /// Lets commands check their replacements.
    pub(super) fn check_commands(&mut self) {
        self.disruption(Event::Changed);
    }
}
