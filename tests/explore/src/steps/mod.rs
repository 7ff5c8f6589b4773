//! What can happen next, and what follows.

mod claims;
mod disruption;
mod environment;
mod nodes;
mod provisioning;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::conditions::{expires_at, quiet_since};
use karpenter_core::lifecycle::disruption::{Disruption, Settings};
use karpenter_core::lifecycle::drain::MIN_DRAIN;
use karpenter_core::lifecycle::provisioning::{Change, Event, PlacedBuffers};
use karpenter_core::lifecycle::termination::deadline;

use crate::checks::{expiry, violated_if};
use crate::world::cloud::{Instance, provider_id};
use crate::world::objects::{Kind, Named as _, Objects};
use crate::world::tasks::Answer;
use crate::world::{Faults, Ghosts, Halt, World, provisioning};

/// How long kube-scheduler is behind: longer than the provisioner waits for it twice.
const BUSY: Duration = Duration::from_secs(25);
/// How late an answer is, or what a watch delivers.
const LATE: Duration = Duration::from_secs(30);

/// Something that can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The watch of the interrupted kind delivers what it has missed.
    CatchUp,
    /// A request is answered.
    Answer(usize, Answer),
    /// A pod that was deleted or whose node is gone ends.
    PodEnds(String),
    /// The kubelet of an instance registers its Node.
    Join(String),
    /// A Node becomes ready.
    Ready(String),
    /// An instance that is being terminated ends.
    InstanceEnds(String),
    /// The cloud's node controller deletes the Node of an instance that is gone.
    NodeLost(String),
    /// The volume of a Node without pods is detached; in the fair course it never is.
    Detach(String),
    /// A NodeClaim is reconciled.
    Claim(String),
    /// A Node that is being deleted is reconciled.
    Node(String),
    /// kube-scheduler binds a pod to a Node.
    Bind(String, String),
    /// kube-scheduler finds no Node for a pod.
    NoNode(String),
    /// A pod of the eviction queue is evicted.
    Evict(String),
    /// The conditions Consolidatable and Drifted of a NodeClaim are updated.
    Conditions(String),
    /// An expired NodeClaim is deleted.
    Expire(String),
    /// The provisioner's batch closes.
    Batch,
    /// The provisioner checks the pending pods.
    Check,
    /// A disruption pass, or a check of the commands.
    Disrupt,
    /// NodeClaims without instances and instances without NodeClaims are collected.
    Collect,
    /// The next deadline is reached.
    Deadline,
    /// A user changes something.
    Change(usize),
    /// The watch of a kind is interrupted.
    Interrupt(Kind),
    /// The process ends after this number of writes of a step, and begins again.
    Crash(Box<Step>, u32),
    /// The process ends between two steps, and begins again.
    Restart,
    /// The next deadline is reached although more could have happened before.
    Early,
    /// kube-scheduler is behind: it tries no pod for a while.
    Busy,
    /// A request has its effect and its answer late.
    Delay(usize),
}

impl Step {
    /// Returns whether it disturbs what few states wait for: an answer, or kube-scheduler.
    pub fn is_rare(&self, before: &World) -> bool {
        match self {
            Self::Answer(_, answer) => *answer != Answer::Right,
            Self::Delay(_) | Self::Busy => true,
            Self::Change(_) => !before.tasks.is_empty(),
            _ => false,
        }
    }

    /// Returns which of the faults that may still happen it is.
    fn fault<'a>(&self, of: &'a mut Faults) -> Option<&'a mut u8> {
        match self {
            Self::Answer(_, answer) if *answer != Answer::Right => Some(&mut of.answers),
            Self::Crash(..) | Self::Restart => Some(&mut of.crashes),
            Self::Interrupt(_) => Some(&mut of.stale),
            Self::Early | Self::Busy | Self::Delay(_) => Some(&mut of.early),
            _ => None,
        }
    }
}

impl World {
    /// Returns the ordinary steps, in the order in which a fair course takes them; some of them change nothing. The deadline is not
    /// among them.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        steps.extend(
            (self.stale.is_some() && self.stale_until <= self.now).then_some(Step::CatchUp),
        );
        let tasks = self.tasks.iter().enumerate();
        let answered = tasks.filter(|(_, task)| task.from <= self.now);
        steps.extend(answered.map(|(task, _)| Step::Answer(task, Answer::Right)));
        self.steps_of_environment(&mut steps);
        steps.extend(self.seen.claims.keys().cloned().map(Step::Claim));
        let leaving = self.seen.nodes.iter().filter(|(_, it)| it.is_leaving());
        steps.extend(leaving.map(|(name, _)| Step::Node(name.clone())));
        self.steps_of_scheduler(&mut steps);
        steps.extend(self.evictions.keys().cloned().map(Step::Evict));
        let claims = self.seen.claims.iter();
        for (name, claim) in claims.filter(|(_, it)| !it.is_deleting()) {
            steps.push(Step::Conditions(name.clone()));
            if expires_at(claim).is_some_and(|at| at <= self.now) {
                steps.push(Step::Expire(name.clone()));
            }
        }
        let closes = self.provisioning.closes(self.now);
        let is_due = self.disruption.is_due(self.now) && !self.disruption.is_passing();
        let rest = [
            (closes.is_some_and(|at| at <= self.now), Step::Batch),
            (self.provisioning.checks(self.now) <= self.now, Step::Check),
            (is_due || self.disruption.is_executing(), Step::Disrupt),
            (true, Step::Collect),
        ];
        steps.extend(rest.into_iter().filter(|it| it.0).map(|it| it.1));
        steps
    }

    /// Returns what else may happen: faults, changes of users, and what a fair course does without. `ordinary` are the ordinary steps that change something, each with
    /// its number of writes.
    pub fn faults(&self, ordinary: &[(Step, u32)], is_idle: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        let changes = self.setting.changes.iter().enumerate();
        let open = changes
            .filter(|(index, change)| self.changed & (1 << index) == 0 && self.may_change(change));
        let open: Vec<usize> = open.map(|(index, _)| index).collect();
        let next = self.changed.trailing_ones() as usize;
        let may =
            |index: &&usize| self.faults.changes > 0 && (!self.setting.in_order || **index == next);
        steps.extend(open.iter().filter(may).map(|index| Step::Change(*index)));
        steps
            .extend((self.stale.is_some() && self.stale_until > self.now).then_some(Step::CatchUp));
        let attached = self.model.volume_attachments().map(|it| &it.node);
        let unused = attached.filter(|node| self.api.pods_on(node).next().is_none());
        steps.extend(unused.cloned().map(Step::Detach));
        let faults = &self.faults;
        if faults.all == 0 {
            return steps;
        }
        if faults.stale > 0 && self.stale.is_none() {
            steps.extend(self.setting.kinds.iter().copied().map(Step::Interrupt));
        }
        if faults.answers > 0 {
            for (index, task) in self.tasks.iter().enumerate() {
                let faults = task.kind.faults().iter();
                steps.extend(faults.map(|fault| Step::Answer(index, *fault)));
            }
        }
        if faults.crashes > 0 {
            steps.push(Step::Restart);
            for (step, writes) in ordinary {
                let crash = |writes| Step::Crash(Box::new(step.clone()), writes);
                steps.extend((1..*writes).map(crash));
            }
        }
        if faults.early > 0 {
            steps.extend((!is_idle).then_some(Step::Early));
            let tasks = self.tasks.iter().enumerate();
            let waits = tasks.filter(|(_, task)| task.from <= self.now);
            steps.extend(waits.map(|(task, _)| Step::Delay(task)));
            let waits = self.api.pods.keys().any(|pod| self.api.waits(pod));
            steps.extend((waits && self.busy <= self.now).then_some(Step::Busy));
        }
        steps
    }

    /// Takes a step.
    pub fn take(&mut self, step: &Step) {
        self.take_part(step);
        self.print_processes();
    }

    fn take_part(&mut self, step: &Step) {
        self.writes = 0;
        if let Some(fault) = step.fault(&mut self.faults) {
            *fault -= 1;
            self.faults.all -= 1;
        }
        let mut halt = Ok(());
        match step {
            Step::Answer(index, answer) => halt = self.answer(*index, *answer),
            Step::Claim(name) => halt = self.reconcile_claim(name),
            Step::Node(name) => halt = self.reconcile_node(name),
            Step::Evict(pod) => halt = self.evict(pod),
            Step::Conditions(name) => halt = self.update_conditions(name),
            Step::Expire(name) => {
                let at = self.seen.claim(name).and_then(|it| expiry(it));
                let is_early = at.is_none_or(|at| at > self.now);
                violated_if!(self.violations, is_early => "NodeClaim {name} expires early");
                halt = self.delete_unchanged(name);
            }
            Step::Collect => halt = self.collect(),
            Step::Batch => {
                let buffer_pods = self.setting.buffer_pods.clone();
                self.provisioning_on(Event::Closed {
                    memory: None,
                    buffer_pods,
                });
            }
            Step::Check => self.provisioning_on(Event::Check),
            Step::Disrupt => self.disrupt(),
            Step::Crash(step, writes) => {
                self.writes_left = Some(*writes);
                self.take_part(step);
                self.writes_left = None;
                self.restart();
            }
            Step::Restart => self.restart(),
            Step::Interrupt(kind) => self.interrupt(*kind),
            Step::Deadline | Step::Early => {
                if *step == Step::Deadline {
                    self.check_waiting_commands();
                }
                self.now = self.next_deadline().unwrap_or(self.now);
                let now = self.now;
                self.tell(|| format!("it is {now}"));
                if *step == Step::Early {
                    self.busy = now;
                }
            }
            Step::Busy => self.busy = after(self.now, BUSY),
            Step::Delay(task) => self.tasks[*task].from = after(self.now, LATE),
            Step::CatchUp => self.stale.into_iter().for_each(|kind| self.catch_up(kind)),
            Step::Change(index) => self.change_by_user(*index),
            step => self.step_of_environment(step),
        }
        if halt == Err(Halt::Conflict) {
            self.tell(|| "conflict: the step is repeated later".to_owned());
        }
    }

    /// Interrupts the watch of a kind for a while.
    pub(crate) fn interrupt(&mut self, kind: Kind) {
        (self.stale, self.stale_until) = (Some(kind), after(self.now, LATE));
    }

    /// Begins the process again: it lists all objects and knows nothing else.
    fn restart(&mut self) {
        self.tell(|| "a new process lists all objects".to_owned());
        if let Some(kind) = self.stale {
            self.catch_up(kind);
        }
        self.tasks.clear();
        self.evictions.clear();
        self.buffers = PlacedBuffers::default();
        self.is_unknown = false;
        self.ghosts = Ghosts {
            unknown: self.ghosts.promised.values().cloned().collect(),
            promised: std::mem::take(&mut self.ghosts.promised),
            proposed: std::mem::take(&mut self.ghosts.proposed),
            ..Ghosts::default()
        };
        *self.provisioning_mut() = provisioning(&self.setting, self.now);
        *self.disruption_mut() = Disruption::new(Settings::default(), self.now);
        self.own = Objects::default();
        let marks: Vec<_> = self.model.marks().collect();
        self.change_model(|cluster| {
            for mark in &marks {
                cluster.unmark_for_deletion(&[&provider_id(&mark.name)]);
                cluster.nominate(&mark.name, Timestamp::MIN);
            }
        });
        self.observe(Change::Synced);
    }

    /// Returns the next time at which something becomes due.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let now = self.now;
        let mut due: Vec<Timestamp> = Vec::new();
        due.extend(self.provisioning.closes(now));
        let mut pods = self.model.pending_pods();
        if pods.next().is_some() || self.model.pods_of_deleting_nodes().next().is_some() {
            due.push(self.provisioning.checks(now));
        }
        let next = self.disruption.next();
        let quiet = self.disruption.quiet_until(&self.model);
        due.push(quiet.map_or(next, |quiet| next.max(quiet)));
        let longest = Duration::from_secs(600);
        due.extend(self.ghosts.commands.iter().map(|it| after(it.at, longest)));
        let whole = |time: Timestamp, seconds: i64| {
            time.saturating_add(SignedDuration::from_secs(seconds))
                .unwrap_or(time)
        };
        for claim in self.seen.claims.values() {
            let since = |condition: &str| Some(claim.condition(condition)?.last_transition_time.0);
            if claim.is_deleting() {
                due.extend(since(types::DRAINED).map(|at| after(at, MIN_DRAIN)));
                // A pod of 30 seconds' grace is deleted in time for the deadline.
                let until = deadline(claim).into_iter();
                due.extend(until.flat_map(|at| [at, whole(at, 1), whole(at, -29)]));
                continue;
            }
            if !claim.is_true(types::LAUNCHED) {
                due.extend(since(types::LAUNCHED).map(|at| whole(at, 300)));
            } else if !claim.is_true(types::REGISTERED) {
                due.extend(since(types::REGISTERED).map(|at| whole(at, 900)));
            }
            due.extend(expiry(claim));
            let pool = claim.node_pool().and_then(|it| self.model.node_pool(it));
            let quiet = pool.and_then(|pool| pool.spec.disruption.consolidate_after.value());
            let quiet = quiet.zip(quiet_since(claim));
            due.extend(quiet.and_then(|(quiet, since)| since.checked_add(quiet).ok()));
        }
        due.extend([self.busy, self.stale_until]);
        due.extend(self.tasks.iter().map(|task| task.from));
        due.extend(self.instances.values().map(Instance::joins));
        due.extend(self.instances.values().map(Instance::ready_from));
        let is_orphan = |(name, it): &(&String, &Instance)| {
            !it.is_terminating && self.api.claim(name).is_none()
        };
        let orphans = self.instances.iter().filter(is_orphan);
        due.extend(orphans.map(|(_, it)| whole(it.launched, 30)));
        due.into_iter().filter(|at| *at > now).min()
    }
}
