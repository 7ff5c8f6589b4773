//! Disruption passes, proposals and commands, as the disruption controller makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{
    Budgets, Candidate, Command, Decision, DisruptionRequest, Method, NotConsolidatable,
    VerdictKind, plan, validate,
};
use karpenter_core::drift;
use karpenter_core::lifecycle::conditions::consolidatable_in;
use karpenter_core::lifecycle::passes::{
    CONSOLIDATED, IDLE, VALIDATION, is_fruitless, next_chance,
};
use karpenter_core::lifecycle::recent_replacements::PROTECTION;
use karpenter_core::static_capacity::{Population, Reservations};

use crate::rehearse::plan::{Action, Step};
use crate::rehearse::stepper::launch::grouped;
use crate::rehearse::stepper::{Stepper, after};

/// How long drift of a NodePool cools down after a command that could not be started.
const COOLDOWN: Duration = Duration::from_secs(60);
/// Interval between checks of drift if nothing changes.
const DRIFT: Duration = Duration::from_secs(300);

/// A command that waits for its validation.
pub(in crate::rehearse) struct Proposal {
    command: Command,
    due: Timestamp,
}

/// A command that waits for its replacements.
pub(in crate::rehearse) struct Executing {
    claims: Vec<String>,
    waiting: BTreeSet<String>,
}

/// A pass that found nothing: another finds nothing either while all of this is unchanged.
pub(in crate::rehearse) struct Fruitless {
    epoch: u64,
    budgets: BTreeMap<String, Budgets>,
    until: Timestamp,
}

fn claims(command: &Command) -> impl Iterator<Item = String> {
    let names = command.candidates.iter().map(Candidate::claim_name);
    names.map(str::to_owned)
}

/// The reason of a command in a step.
fn reason(method: Method) -> String {
    method.reason().as_str().to_owned()
}

impl Stepper {
    /// Treats nodes that are marked for deletion in the cluster as a command whose replacements are those that are starting.
    pub(super) fn resume_commands(&mut self, snapshot: &Snapshot) {
        let claims: Vec<String> = snapshot
            .nodes()
            .filter(|node| node.marked_for_deletion)
            .filter_map(|node| node.claim.as_ref())
            .filter(|claim| !claim.is_deleting())
            .map(|claim| claim.name().to_owned())
            .collect();
        if claims.is_empty() {
            return;
        }
        let starting = snapshot.node_claims().filter(|claim| {
            !claim.is_true(types::INITIALIZED)
                && !claim.is_deleting()
                && !claims.iter().any(|name| name == claim.name())
        });
        let waiting: BTreeSet<String> = starting.map(|claim| claim.name().to_owned()).collect();
        self.executing.push(Executing { claims, waiting });
        self.finish_commands();
    }

    /// Makes a pass: executes due proposals and plans.
    pub(super) fn disrupt(&mut self) {
        if self.next_pass.is_none_or(|next| next > self.now) {
            return;
        }
        self.next_pass = None;
        let snapshot = self.cluster.snapshot();
        self.recent.prune(&snapshot, self.now);
        let due = self.conditions();
        self.static_capacity();
        self.guards.refresh(&mut self.cluster);
        let mut again = self.execute_due();
        if again || self.next_plan <= self.now {
            again = self.plan();
            self.next_plan = match again {
                true => self.now,
                false => after(self.now, IDLE),
            };
        }
        let proposals = self.proposals.iter().map(|proposal| proposal.due);
        let next = proposals.fold(self.next_plan, Timestamp::min);
        let next = match self.quiet_until(due) {
            Some(quiet) => next.max(quiet),
            None => next,
        };
        self.pass_at(next);
    }

    /// Returns until when passes find nothing, because nothing changes; `due` is when a condition changes.
    fn quiet_until(&self, due: Option<Timestamp>) -> Option<Timestamp> {
        let fruitless = self.fruitless.as_ref()?;
        if !self.proposals.is_empty()
            || !self.executing.is_empty()
            || self.cluster.snapshot().epoch() != fruitless.epoch
        {
            return None;
        }
        let changes = [due, self.queue.next_change(), self.next_window()];
        let next = changes.into_iter().flatten().min();
        Some(next.map_or(fruitless.until, |next| next.min(fruitless.until)))
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
            .is_none_or(|at| after(at, DRIFT) <= self.now);
        if check_drift {
            self.drift_checked = Some(self.now);
        }
        let mut next: Option<Timestamp> = None;
        for claim in snapshot.node_claims().filter(|claim| !claim.is_deleting()) {
            let Some(pool) = claim.node_pool().and_then(|pool| snapshot.node_pool(pool)) else {
                continue;
            };
            let left = consolidatable_in(pool, claim, self.now);
            let due = left.filter(|left| left.is_positive());
            let due = due.and_then(|left| self.now.checked_add(left).ok());
            next = next.into_iter().chain(due).min();
            let is_due = left.is_some_and(|left| !left.is_positive());
            let drifted = match check_drift {
                true => self.drift_of(&snapshot, pool, claim),
                false => None,
            };
            let changes_drift = match &drifted {
                Some(Some(_)) => !claim.is_true(types::DRIFTED),
                Some(None) => claim.condition(types::DRIFTED).is_some(),
                None => false,
            };
            if is_due == claim.is_true(types::CONSOLIDATABLE) && !changes_drift {
                continue;
            }
            let mut changed = NodeClaim::clone(claim);
            match is_due {
                true => {
                    changed.set_true(types::CONSOLIDATABLE, self.now);
                }
                false => changed
                    .conditions_mut()
                    .retain(|c| c.type_ != types::CONSOLIDATABLE),
            }
            match drifted {
                Some(Some(reason)) => {
                    changed.set_true_with_reason(types::DRIFTED, reason, reason, self.now);
                }
                Some(None) => changed
                    .conditions_mut()
                    .retain(|c| c.type_ != types::DRIFTED),
                None => {}
            }
            self.cluster.apply_node_claim(&changed);
        }
        next
    }

    /// Returns why a NodeClaim has drifted, or that it has not; `None` if only its provider knows.
    fn drift_of(
        &self,
        snapshot: &Snapshot,
        pool: &NodePool,
        claim: &NodeClaim,
    ) -> Option<Option<&'static str>> {
        use karpenter_api::conditions::reasons;
        if !claim.is_true(types::LAUNCHED) {
            return Some(None);
        }
        let names = &snapshot.config().well_known;
        if let Ok(Some(reason)) = drift::from_node_pool(pool, claim, names) {
            return Some(Some(reason));
        }
        let created = claim.metadata.creation_timestamp.as_ref();
        let old = created
            .is_some_and(|created| after(created.0, drift::INSTANCE_TYPE_CHECKED_AFTER) < self.now);
        if old
            && let Some(Ok(types)) = snapshot.instance_types(pool.name())
            && drift::is_instance_type_gone(types, claim, names)
        {
            return Some(Some(reasons::INSTANCE_TYPE_NOT_FOUND));
        }
        let known = claim.condition(types::DRIFTED).map(|it| it.reason.as_str());
        let ours = [
            reasons::NODE_POOL_DRIFTED,
            reasons::REQUIREMENTS_DRIFTED,
            reasons::INSTANCE_TYPE_NOT_FOUND,
        ];
        match known {
            Some(reason) if !ours.contains(&reason) => None,
            _ => Some(None),
        }
    }

    /// Returns how long until a proposal is validated; a rehearsal of one moment does not wait.
    fn validation(&self) -> Duration {
        match self.is_moment() {
            true => Duration::ZERO,
            false => VALIDATION,
        }
    }

    fn in_flight(&self) -> BTreeSet<String> {
        self.executing
            .iter()
            .flat_map(|it| it.claims.clone())
            .collect()
    }

    fn request(&self, in_flight: BTreeSet<String>) -> DisruptionRequest {
        let mut request = self.disruption.clone();
        request.policy.now = self.now;
        request.surroundings.in_flight = in_flight;
        request.surroundings.recent_replacements = self.recent.claims();
        request.surroundings.buffer_pods = self.buffers.on_nodes(&self.cluster.snapshot());
        request.unseen_pools.clone_from(&self.unseen_pools);
        let cooling = self
            .cooling_down
            .iter()
            .filter(|(_, until)| **until > self.now);
        request.cooling_down_pools = cooling.map(|(pool, _)| pool.clone()).collect();
        let snapshot = self.cluster.snapshot();
        request.static_headroom = snapshot
            .node_pools()
            .filter(|pool| pool.is_static())
            .map(|pool| {
                let claims = snapshot.node_claims_of_pool(pool.name());
                let population = Population::count(&snapshot, claims.map(AsRef::as_ref));
                let headroom = Reservations::default().drift_headroom(pool, population);
                (pool.name().to_owned(), headroom)
            })
            .collect();
        request
    }

    /// Starts the proposals that are due, as far as they are still valid; returns whether any was started.
    fn execute_due(&mut self) -> bool {
        let (due, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.proposals)
            .into_iter()
            .partition(|proposal| proposal.due <= self.now);
        self.proposals = waiting;
        let mut started = false;
        for proposal in due {
            if !self.may_run() {
                return false;
            }
            let request = self.request(self.in_flight());
            let checked = validate(&proposal.command, &self.cluster.snapshot(), &request);
            if let Ok(command) = checked {
                started |= self.start(&command);
            }
        }
        started
    }

    /// Plans, starts commands that need no validation and proposes the others; returns whether there was any.
    fn plan(&mut self) -> bool {
        let snapshot = self.cluster.snapshot();
        let epoch = snapshot.epoch();
        let same = |fruitless: &Fruitless| {
            fruitless.epoch == epoch
                && self.now < fruitless.until
                && fruitless.budgets == Budgets::by_reason(&snapshot, self.now)
        };
        if self.fruitless.as_ref().is_some_and(same) || !self.may_run() {
            return false;
        }
        let consolidate = !self
            .proposals
            .iter()
            .any(|proposal| proposal.command.method != Method::Emptiness);
        let mut in_flight = self.in_flight();
        in_flight.extend(self.proposals.iter().flat_map(|it| claims(&it.command)));
        let mut request = self.request(in_flight);
        if !consolidate {
            request.multi_node.cancel = Some(std::sync::Arc::new(|| true));
            request.single_node_cancel = Some(std::sync::Arc::new(|| true));
        }
        let found = plan(&snapshot, &request);
        if self.is_cancelled() {
            self.cut_short();
            return false;
        }
        self.count_budgets();
        self.budget_blocked = found
            .verdicts
            .iter()
            .filter_map(|verdict| match &verdict.kind {
                VerdictKind::Kept(
                    NotConsolidatable::Budget { node_pool }
                    | NotConsolidatable::Paused { node_pool, .. },
                ) => Some(node_pool.clone()),
                _ => None,
            })
            .collect();
        if consolidate {
            self.unseen_pools.clone_from(&found.unseen_pools);
            let cooling_down = !request.cooling_down_pools.is_empty();
            let believed = after(self.now, CONSOLIDATED);
            let ends = [self.recent.first_expiry(), next_chance(&found, &snapshot)];
            let until = ends.into_iter().flatten().fold(believed, Timestamp::min);
            self.fruitless = (is_fruitless(&found) && !cooling_down).then(|| Fruitless {
                epoch,
                budgets: found.budgets.clone(),
                until,
            });
        }
        let mut any = false;
        for command in &found.commands {
            if command.method.is_validated() {
                self.proposals.push(Proposal {
                    command: command.clone(),
                    due: after(self.now, self.validation()),
                });
                any = true;
            } else {
                any |= self.start(command);
            }
        }
        self.last_plan = Some(found);
        any
    }

    /// Starts a command; returns whether it was started.
    fn start(&mut self, command: &Command) -> bool {
        let replaced: BTreeSet<String> = claims(command).collect();
        let created = self.create_claims(&command.replacements, &replaced);
        let names: Vec<String> = created
            .iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        if names.len() < command.replacements.len() {
            if command.method.is_eventual() {
                let until = after(self.now, COOLDOWN);
                let pools = command.candidates.iter().map(Candidate::pool_name);
                let pools = pools.map(|pool| (pool.to_owned(), until));
                self.cooling_down.extend(pools);
            }
            return false;
        }
        let launches = created.into_iter().flatten().map(|(_, launch)| launch);
        let step = Step {
            after: self.seconds(),
            action: match command.decision() {
                Decision::Delete => Action::Delete,
                Decision::Replace => Action::Replace,
            },
            reason: reason(command.method),
            nodes: command
                .candidates
                .iter()
                .map(|it| it.name().to_owned())
                .collect(),
            launches: grouped(launches.collect()),
            pods: command.pods().count(),
            savings_per_hour: Some(crate::rehearse::stepper::dollars(
                crate::prices::micro_dollars(command.savings),
            )),
            price_per_hour: self.price(),
        };
        self.record(step);
        if matches!(command.method, Method::MultiNode | Method::SingleNode) {
            let (snapshot, until) = (self.cluster.snapshot(), after(self.now, PROTECTION));
            for claim in names.iter().filter_map(|name| snapshot.node_claim(name)) {
                self.recent.add(claim, until);
            }
        }
        let ids: Vec<&str> = command
            .candidates
            .iter()
            .filter_map(|candidate| candidate.node.provider_id())
            .collect();
        self.cluster.mark_for_deletion(&ids);
        let targets = command.placements.iter().filter(|it| !it.buffer);
        let targets: BTreeSet<&str> = targets.map(|it| it.node.as_str()).collect();
        self.nominate(targets);
        self.executing.push(Executing {
            claims: claims(command).collect(),
            waiting: names.into_iter().collect(),
        });
        self.trigger();
        self.finish_commands();
        true
    }

    /// Deletes the nodes of commands whose replacements are initialized.
    fn finish_commands(&mut self) {
        let (ready, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.executing)
            .into_iter()
            .partition(|command| command.waiting.is_empty());
        self.executing = waiting;
        for claim in ready.iter().flat_map(|command| &command.claims) {
            self.delete_claim(claim);
        }
    }

    /// Notes that a NodeClaim is initialized.
    pub(super) fn replacement_ready(&mut self, name: &str) {
        for command in &mut self.executing {
            command.waiting.remove(name);
        }
        self.finish_commands();
    }

    /// Rolls back the commands that wait for a NodeClaim that is gone.
    pub(super) fn replacement_lost(&mut self, name: &str) {
        let (lost, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.executing)
            .into_iter()
            .partition(|command| command.waiting.contains(name));
        self.executing = kept;
        let snapshot = self.cluster.snapshot();
        let nodes = lost.iter().flat_map(|command| &command.claims);
        let ids: Vec<&str> = nodes
            .filter_map(|claim| snapshot.node(claim)?.provider_id())
            .collect();
        self.cluster.unmark_for_deletion(&ids);
    }
}
