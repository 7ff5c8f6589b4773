//! What can happen next, and what follows.

mod claims;
mod disruption;
mod environment;
mod nodes;
mod provisioning;
mod tasks;

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::conditions::{expires_at, quiet_since};
use karpenter_core::lifecycle::disruption::{Disruption, Settings};
use karpenter_core::lifecycle::drain::MIN_DRAIN;
use karpenter_core::lifecycle::provisioning::Provisioning;
use karpenter_core::lifecycle::termination::deadline;

use crate::checks::expiry;
use crate::world::objects::{Kind, Objects};
use crate::world::tasks::Answer;
use crate::world::{Halt, WINDOW, World};

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
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CatchUp => f.write_str(
                "the interrupted watch is connected again and delivers all that it missed",
            ),
            Self::Answer(_, answer) => write!(f, "an outstanding request is answered ({answer})"),
            Self::PodEnds(pod) => write!(f, "pod {pod} ends"),
            Self::Join(node) => write!(f, "the kubelet of instance {node} registers its Node"),
            Self::Ready(name) => write!(f, "Node {name} becomes ready"),
            Self::InstanceEnds(name) => write!(f, "the provider ends instance {name}"),
            Self::NodeLost(name) => write!(
                f,
                "the cloud's node controller deletes Node {name}, whose instance is gone"
            ),
            Self::Claim(name) => write!(f, "NodeClaim {name} is reconciled"),
            Self::Node(name) => write!(f, "the deleted Node {name} is reconciled"),
            Self::Bind(pod, node) => write!(f, "kube-scheduler binds pod {pod} to Node {node}"),
            Self::NoNode(pod) => write!(f, "kube-scheduler finds no Node for pod {pod}"),
            Self::Evict(pod) => write!(f, "the eviction queue evicts pod {pod}"),
            Self::Conditions(name) => write!(
                f,
                "the disruption conditions of NodeClaim {name} are updated"
            ),
            Self::Expire(name) => write!(f, "NodeClaim {name} expires"),
            Self::Batch => f.write_str("the provisioner's batch closes"),
            Self::Check => f.write_str("the provisioner checks the pending pods"),
            Self::Disrupt => f.write_str("the disruption process makes a pass"),
            Self::Collect => f.write_str("garbage is collected"),
            Self::Deadline => f.write_str("nothing else happens until the next deadline"),
            Self::Change(_) => f.write_str("a user changes something"),
            Self::Interrupt(kind) => write!(f, "FAULT: the watch of {kind:?} is interrupted"),
            Self::Crash(step, writes) => write!(
                f,
                "FAULT: {step}, and the process ends after {writes} writes"
            ),
            Self::Restart => f.write_str("FAULT: the process ends and begins again"),
            Self::Early => {
                f.write_str("FAULT: the next deadline is reached before anything else happens")
            }
        }
    }
}

impl Step {
    /// Returns whether it is something that others than the controllers do.
    pub fn is_of_environment(&self) -> bool {
        matches!(
            self,
            Self::CatchUp
                | Self::PodEnds(_)
                | Self::Join(_)
                | Self::Ready(_)
                | Self::InstanceEnds(_)
                | Self::NodeLost(_)
                | Self::Bind(..)
                | Self::NoNode(_)
        )
    }

    /// Returns whether it is a step of the controllers' process.
    fn is_ours(&self) -> bool {
        matches!(
            self,
            Self::Answer(..)
                | Self::Claim(_)
                | Self::Node(_)
                | Self::Evict(_)
                | Self::Conditions(_)
                | Self::Expire(_)
                | Self::Batch
                | Self::Check
                | Self::Disrupt
                | Self::Collect
        )
    }
}

impl World {
    /// Returns the ordinary steps, in the order in which a fair course takes them; some of them change nothing. The deadline is not
    /// among them.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        steps.extend(self.stale.map(|_| Step::CatchUp));
        steps.extend((0..self.tasks.len()).map(|task| Step::Answer(task, Answer::Right)));
        self.steps_of_environment(&mut steps);
        steps.extend(self.seen.claims.keys().cloned().map(Step::Claim));
        let leaving = self
            .seen
            .nodes
            .iter()
            .filter(|(_, node)| node.value.metadata.deletion_timestamp.is_some());
        steps.extend(leaving.map(|(name, _)| Step::Node(name.clone())));
        self.steps_of_scheduler(&mut steps);
        steps.extend(self.evictions.keys().cloned().map(Step::Evict));
        let staying = self
            .seen
            .claims
            .iter()
            .filter(|(_, claim)| !claim.value.is_deleting());
        for (name, claim) in staying {
            steps.push(Step::Conditions(name.clone()));
            if expires_at(&claim.value).is_some_and(|at| at <= self.now) {
                steps.push(Step::Expire(name.clone()));
            }
        }
        if self
            .provisioning
            .closes(self.now)
            .is_some_and(|at| at <= self.now)
        {
            steps.push(Step::Batch);
        }
        if self.provisioning.checks(self.now) <= self.now {
            steps.push(Step::Check);
        }
        let is_due = self.disruption.is_due(self.now) && !self.disruption.is_passing();
        if is_due || self.disruption.is_executing() {
            steps.push(Step::Disrupt);
        }
        steps.push(Step::Collect);
        steps
    }

    /// Returns what else may happen: faults, and changes of users. `ordinary` are the ordinary steps that change something, each with
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
        let faults = &self.faults;
        if faults.all == 0 {
            return steps;
        }
        if faults.stale > 0 && self.stale.is_none() {
            steps.extend(self.setting.kinds.iter().copied().map(Step::Interrupt));
        }
        if faults.answers > 0 {
            for (index, task) in self.tasks.iter().enumerate() {
                steps.extend(
                    task.kind
                        .faults()
                        .iter()
                        .map(|fault| Step::Answer(index, *fault)),
                );
            }
        }
        if faults.crashes > 0 {
            steps.push(Step::Restart);
            for (step, writes) in ordinary.iter().filter(|(step, _)| step.is_ours()) {
                steps
                    .extend((1..*writes).map(|writes| Step::Crash(Box::new(step.clone()), writes)));
            }
        }
        if faults.early > 0 && !is_idle {
            steps.push(Step::Early);
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
        let halt = match step {
            Step::Answer(index, answer) => {
                if *answer != Answer::Right {
                    self.faults.answers -= 1;
                    self.faults.all -= 1;
                }
                self.answer(*index, *answer)
            }
            Step::Claim(name) => self.reconcile_claim(name),
            Step::Node(name) => self.reconcile_node(name),
            Step::Evict(pod) => self.evict(pod),
            Step::Conditions(name) => self.update_conditions(name),
            Step::Expire(name) => self.delete_unchanged(name),
            Step::Batch => {
                self.close_batch();
                Ok(())
            }
            Step::Check => {
                self.check_pods();
                Ok(())
            }
            Step::Disrupt => {
                self.disrupt();
                Ok(())
            }
            Step::Collect => self.collect(),
            Step::Crash(step, writes) => return self.crash(step, *writes),
            Step::Restart => {
                self.faults.crashes -= 1;
                self.faults.all -= 1;
                self.restart();
                Ok(())
            }
            Step::Interrupt(kind) => {
                self.faults.stale -= 1;
                self.faults.all -= 1;
                self.stale = Some(*kind);
                Ok(())
            }
            Step::Deadline => {
                self.check_waiting_commands();
                self.reach_deadline();
                Ok(())
            }
            Step::Early => {
                self.faults.early -= 1;
                self.faults.all -= 1;
                self.reach_deadline();
                Ok(())
            }
            Step::CatchUp => {
                if let Some(kind) = self.stale {
                    self.catch_up(kind);
                }
                Ok(())
            }
            Step::Change(index) => {
                self.change(*index);
                Ok(())
            }
            step => {
                self.step_of_environment(step);
                Ok(())
            }
        };
        if halt == Err(Halt::Conflict) {
            self.tell(|| {
                "the API server has another version: the step is repeated later".to_owned()
            });
        }
    }

    /// Takes a step that the process does not survive.
    fn crash(&mut self, step: &Step, writes: u32) {
        self.writes_left = Some(writes);
        self.take_part(step);
        self.writes_left = None;
        self.faults.crashes -= 1;
        self.faults.all -= 1;
        self.restart();
    }

    /// Begins the process again: it lists all objects and knows nothing else.
    fn restart(&mut self) {
        self.tell(|| "a new process lists all objects".to_owned());
        if let Some(kind) = self.stale {
            self.catch_up(kind);
        }
        self.tasks.clear();
        self.evictions.clear();
        self.buffers.clear();
        self.ghosts.commands.clear();
        self.ghosts.planned.clear();
        self.ghosts.cooling.clear();
        self.ghosts.moved.clear();
        *self.provisioning_mut() = Provisioning::new(WINDOW, self.now);
        *self.disruption_mut() = Disruption::new(Settings::default(), self.now);
        self.own = Objects::default();
        let marks: Vec<_> = self.model.marks().collect();
        self.change_model(|cluster| {
            for mark in &marks {
                let id = crate::world::cloud::provider_id(&mark.name);
                cluster.unmark_for_deletion(&[&id]);
                cluster.nominate(&mark.name, Timestamp::MIN);
            }
        });
        self.trigger("synced", false);
    }

    /// Returns the next time at which something becomes due.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let now = self.now;
        let mut due: Vec<Timestamp> = Vec::new();
        due.extend(self.provisioning.closes(now));
        if self.model.pending_pods().next().is_some()
            || self.model.pods_of_deleting_nodes().next().is_some()
        {
            due.push(self.provisioning.checks(now));
        }
        let next = self.disruption.next();
        due.push(
            self.disruption
                .quiet_until(&self.model)
                .map_or(next, |quiet| next.max(quiet)),
        );
        due.extend(
            self.ghosts
                .commands
                .iter()
                .map(|it| after(it.at, std::time::Duration::from_secs(600))),
        );
        let whole = |time: Timestamp, seconds: i64| {
            time.saturating_add(SignedDuration::from_secs(seconds))
                .unwrap_or(time)
        };
        for stored in self.seen.claims.values() {
            let claim = &stored.value;
            let since = |condition: &str| {
                claim
                    .condition(condition)
                    .map(|it| it.last_transition_time.0)
            };
            if claim.is_deleting() {
                due.extend(since(types::DRAINED).map(|at| after(at, MIN_DRAIN)));
                let until = deadline(claim);
                due.extend(until);
                due.extend(until.map(|at| whole(at, 1)));
                // A pod of 30 seconds' grace is deleted in time for the deadline.
                due.extend(until.map(|at| whole(at, -29)));
            } else {
                if !claim.is_true(types::LAUNCHED) {
                    due.extend(since(types::LAUNCHED).map(|at| whole(at, 300)));
                } else if !claim.is_true(types::REGISTERED) {
                    due.extend(since(types::REGISTERED).map(|at| whole(at, 900)));
                }
                due.extend(expiry(claim));
                let pool = claim
                    .node_pool()
                    .and_then(|pool| self.model.node_pool(pool));
                let quiet = pool.and_then(|pool| pool.spec.disruption.consolidate_after.value());
                let quiet = quiet.zip(quiet_since(claim));
                due.extend(quiet.and_then(|(quiet, since)| since.checked_add(quiet).ok()));
            }
        }
        let orphans = self
            .instances
            .iter()
            .filter(|(name, it)| !it.is_terminating && !self.api.claims.contains_key(*name));
        due.extend(orphans.map(|(_, it)| whole(it.launched, 30)));
        due.into_iter().filter(|at| *at > now).min()
    }

    fn reach_deadline(&mut self) {
        if let Some(at) = self.next_deadline() {
            self.now = at;
            self.tell(|| format!("it is {at}"));
        }
    }
}
