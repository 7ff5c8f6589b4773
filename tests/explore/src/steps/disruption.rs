//! Executes the disruption process.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{Candidate, Command, DisruptionRequest, Method, plan, validate};
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::disruption::{
    CommandEnd, Effect, Event, Inputs, Report, TaintedNode,
};

use crate::checks::{COOLDOWN, disruption_name, violated_if};
use crate::world::objects::disrupt;
use crate::world::tasks::{Answer, Request};
use crate::world::{Halt, Started, World};

fn claims_of(command: &Command) -> BTreeSet<String> {
    let all = command.candidates.iter();
    all.map(|it| it.claim_name().to_owned()).collect()
}

impl World {
    /// Makes a pass, or checks the commands.
    pub(super) fn disrupt(&mut self) {
        self.disruption_on(Event::Changed);
        if self.disruption.is_due(self.now) && !self.disruption.is_passing() {
            self.disruption_on(Event::Due);
        }
    }

    /// Hands an event to the process, and executes the effects.
    fn disruption_on(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let snapshot = self.model.fork();
            let now = self.now;
            let effects = self.disruption_mut().on(event, &snapshot, now);
            for effect in effects {
                events.extend(self.execute(effect, &snapshot));
            }
        }
    }

    /// Executes an effect; returns its answer, unless a request will.
    fn execute(&mut self, effect: Effect, snapshot: &Snapshot) -> Option<Event> {
        match effect {
            Effect::Plan(inputs) => self.request(Request::DisruptionPlan(snapshot.fork(), inputs)),
            Effect::Validate(command, inputs) => {
                let command = Box::new(command);
                self.request(Request::Validate(snapshot.fork(), command, inputs));
            }
            // The clusters have no static NodePools.
            Effect::Reserve(_) => return Some(Event::Reserved(true)),
            Effect::Taint(command) => {
                self.check_command(&command);
                self.request(Request::Taint(command));
            }
            Effect::Untaint(nodes) => self.request(Request::Untaint(nodes)),
            Effect::Launch(command) => self.request(Request::Replace(command)),
            Effect::Delete {
                command, candidate, ..
            } => {
                self.check_deletion(&command, &candidate);
                self.request(Request::Delete(command, Box::new(candidate)));
            }
            Effect::Mark(ids, mark) => {
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                self.change_model(|cluster| match mark {
                    true => cluster.mark_for_deletion(&ids),
                    false => cluster.unmark_for_deletion(&ids),
                });
                if mark {
                    let now = self.now;
                    self.provisioning_mut().trigger(&ids.join(" "), now);
                }
                return mark.then_some(Event::Marked);
            }
            Effect::Nominate(nodes) => self.nominate(&nodes),
            Effect::Report(report) => self.reported(report),
            Effect::Release(_) => {}
        }
        None
    }

    fn reported(&mut self, report: Report) {
        match report {
            Report::Proposed(command) => {
                let proposed = command.candidates.iter();
                let proposed = proposed.map(|it| (it.claim_name().to_owned(), (self.now, false)));
                self.ghosts.proposed.extend(proposed);
                self.check_proposal(&command);
                self.tell(|| format!("{} is proposed", disruption_name(&command)));
            }
            Report::Starting(_) | Report::Waiting(..) | Report::Terminating(..) => {}
            Report::Started(command, replacements) => {
                let (claims, count) = (claims_of(&command), replacements.len());
                let name = || disruption_name(&command);
                self.tell(|| format!("{} is started with {count} replacements", name()));
                let is_held = claims.iter().any(|claim| self.ghosts.holds(claim));
                violated_if!(self.violations, is_held => "{} is started, although another command holds one of its NodeClaims", name());
                let replacements = replacements.iter().map(|it| it.name().to_owned());
                let replacements: Vec<String> = replacements.collect();
                if matches!(command.method, Method::MultiNode | Method::SingleNode) {
                    let moved = replacements.iter().map(|name| (name.clone(), self.now));
                    self.ghosts.moved.extend(moved);
                }
                self.ghosts.commands.push(Started {
                    claims,
                    at: self.now,
                    waiting: replacements.iter().cloned().collect(),
                    replacements,
                });
            }
            Report::Ended(command, end) => {
                self.tell(|| format!("{} has ended: {end}", disruption_name(&command)));
                if let CommandEnd::ReplacementDeleted { name, .. } = &end {
                    let exists = self.api.claim(name).is_some();
                    violated_if!(self.violations, exists => "a command has ended, although its replacement {name} exists");
                }
                if command.method.is_eventual() {
                    let until = after(self.now, COOLDOWN);
                    for pool in command.candidates.iter().map(Candidate::pool_name) {
                        match end {
                            CommandEnd::Succeeded => self.ghosts.cooling.remove(pool),
                            _ => self.ghosts.cooling.insert(pool.to_owned(), until),
                        };
                    }
                }
                let claims = claims_of(&command);
                let commands = &mut self.ghosts.commands;
                commands.retain(|it| it.claims.is_disjoint(&claims));
            }
        }
    }

    fn disruption_request(&self, snapshot: &Snapshot, inputs: &Inputs) -> DisruptionRequest {
        let mut request = DisruptionRequest::at(self.now);
        let buffer_pods = &self.setting.buffer_pods;
        request.query.buffer_pods.clone_from(buffer_pods);
        request.surroundings.buffer_pods = self.buffers.on_nodes(snapshot);
        inputs.complete(&mut request);
        request
    }

    pub(crate) fn answer_disruption_plan(
        &mut self,
        snapshot: &Snapshot,
        inputs: &Inputs,
        answer: Answer,
    ) {
        if answer != Answer::Right {
            return self.disruption_on(Event::Unanswered);
        }
        let request = self.disruption_request(snapshot, inputs);
        let found = plan(snapshot, &request);
        for command in &found.commands {
            self.check_planned(command, snapshot, &request);
        }
        self.tell(|| {
            let commands: Vec<String> = found.commands.iter().map(disruption_name).collect();
            format!("disruption plans: {commands:?}")
        });
        self.disruption_on(Event::Planned(Arc::new(found)));
    }

    pub(crate) fn answer_validation(
        &mut self,
        snapshot: &Snapshot,
        command: Command,
        inputs: &Inputs,
        answer: Answer,
    ) {
        if answer != Answer::Right {
            return self.disruption_on(Event::Unanswered);
        }
        let request = self.disruption_request(snapshot, inputs);
        let checked = validate(&command, snapshot, &request);
        if let Ok(checked) = &checked {
            self.check_planned(checked, snapshot, &request);
            for candidate in &checked.candidates {
                if let Some(known) = self.ghosts.proposed.get_mut(candidate.claim_name()) {
                    known.1 = true;
                }
            }
        }
        self.tell(|| match &checked {
            Ok(_) => format!("{} is still valid", disruption_name(&command)),
            Err(why) => format!("{} is not valid any more: {why}", disruption_name(&command)),
        });
        self.disruption_on(Event::Validated(checked));
    }

    pub(crate) fn answer_taint(&mut self, command: &Command, answer: Answer) -> Result<(), Halt> {
        let mut failed = BTreeSet::new();
        let last = command.candidates.len().saturating_sub(1);
        for (index, candidate) in command.candidates.iter().enumerate() {
            let fault = if index == last { answer } else { Answer::Right };
            let done = fault != Answer::Failed && self.taint(candidate, command)?;
            if !done || fault == Answer::Lost {
                failed.insert(candidate.claim_name().to_owned());
            }
        }
        self.disruption_on(Event::Tainted { failed });
        Ok(())
    }

    fn taint(&mut self, candidate: &Candidate, command: &Command) -> Result<bool, Halt> {
        let (node, claim) = (candidate.name(), candidate.claim_name());
        if self.api.node(node).is_none() {
            return Ok(false);
        }
        self.write()?;
        self.change(node, disrupt);
        self.tell(|| format!("Node {node} is tainted"));
        if self.api.claim(claim).is_none() {
            return Ok(false);
        }
        self.write()?;
        let (now, reason) = (self.now, command.method.reason());
        let reason = reason.as_str();
        self.change::<NodeClaim>(claim, |claim| {
            claim.set_true_with_reason(types::DISRUPTION_REASON, reason, reason, now);
        });
        Ok(true)
    }

    pub(crate) fn answer_untaint(
        &mut self,
        nodes: Vec<TaintedNode>,
        answer: Answer,
    ) -> Result<(), Halt> {
        for of in nodes.iter().filter(|_| answer != Answer::Failed) {
            let node = of.node.as_deref().unwrap_or_default();
            if self.api.node(node).is_some() {
                self.write()?;
                self.change::<Node>(node, |node| {
                    let taints = node.spec.iter_mut().flat_map(|it| &mut it.taints);
                    taints.for_each(|all| all.retain(|taint| taint.key != taints::DISRUPTED));
                });
            }
            if self.api.claim(&of.claim).is_some() {
                self.write()?;
                self.change::<NodeClaim>(&of.claim, |claim| {
                    let conditions = claim.conditions_mut();
                    conditions.retain(|it| it.type_ != types::DISRUPTION_REASON);
                });
            }
            self.tell(|| format!("the taint of {} is removed", of.claim));
        }
        let is_known = answer == Answer::Right;
        let left = if is_known { Vec::new() } else { nodes };
        self.disruption_on(Event::Untainted(left));
        Ok(())
    }

    pub(crate) fn answer_replace(&mut self, command: &Command, answer: Answer) -> Result<(), Halt> {
        let created = self.create_claims(&command.replacements, &claims_of(command), answer)?;
        self.disruption_on(Event::Launched(created.into_iter().flatten().collect()));
        Ok(())
    }

    pub(crate) fn answer_delete(
        &mut self,
        command: &Command,
        candidate: &Candidate,
        answer: Answer,
    ) -> Result<(), Halt> {
        self.write()?;
        let claim = candidate.claim_name().to_owned();
        let deleted = answer != Answer::Failed;
        if deleted {
            self.tell(|| format!("NodeClaim {claim} is deleted"));
            self.delete::<NodeClaim>(&claim);
        }
        if answer == Answer::Lost {
            // The deletion is retried.
            self.delete::<NodeClaim>(&claim);
        }
        let command = command.id();
        self.disruption_on(Event::Deleted {
            command,
            claim,
            deleted,
        });
        Ok(())
    }
}
