//! The provisioning process: batches, plans, nominations and slices.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::provisioning::{BatchWindow, Effect, Event, Memory, Provisioning};
use karpenter_core::schedule::schedule;

use crate::fixture::{World, now, pod};

const WINDOW: BatchWindow = BatchWindow {
    idle: Duration::from_secs(5),
    max: Duration::from_secs(12),
};

/// Returns a time so many seconds after the begin.
fn at(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

/// Returns after how many seconds the batch closes, if these objects are triggered after so many seconds.
fn closes_after(triggers: &[(i64, &str)]) -> i64 {
    let mut process = Provisioning::new(WINDOW, now());
    for (seconds, uid) in triggers {
        if process
            .closes(at(*seconds))
            .is_none_or(|closes| at(*seconds) < closes)
        {
            process.trigger(uid, at(*seconds));
        }
    }
    let closes = process.closes(now()).unwrap();
    closes.duration_since(now()).as_secs()
}

/// Conformance: SCH-001
#[test]
fn a_single_trigger_closes_after_the_idle_time() {
    assert_eq!(closes_after(&[(0, "a")]), 5);
}

/// Conformance: SCH-002
#[test]
fn the_same_uid_does_not_extend_the_batch() {
    assert_eq!(closes_after(&[(0, "a"), (3, "a")]), 5);
}

/// Conformance: SCH-003
#[test]
fn a_new_uid_extends_the_batch_up_to_the_maximum() {
    assert_eq!(closes_after(&[(0, "a"), (3, "b")]), 8);
    let every_three = [(0, "a"), (3, "b"), (6, "c"), (9, "d"), (12, "e"), (15, "f")];
    assert_eq!(closes_after(&every_three), 12);
}

#[test]
fn a_batch_closes_though_the_clock_was_set_back() {
    let mut process = Provisioning::new(WINDOW, now());
    process.trigger("a", now());
    assert_eq!(process.closes(at(-3600)), Some(at(-3600)));
    assert_eq!(process.checks(at(-3600)), at(-3600));
}

/// A process, the cluster that it changes, and what fails in it.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) process: Provisioning,
    pub(crate) now: Timestamp,
    /// The pods of planned nodes, in the order of the plan.
    pub(crate) order: Vec<String>,
    memory: Option<Memory>,
    answers: bool,
    launches: bool,
    launched: usize,
}

impl Stage {
    pub(crate) fn new(world: World) -> Self {
        Self {
            order: Vec::new(),
            world,
            process: Provisioning::new(WINDOW, now()),
            now: now(),
            memory: None,
            answers: true,
            launches: true,
            launched: 0,
        }
    }

    /// Turns the feature gate `PodNomination` on.
    pub(crate) fn nominating(mut self) -> Self {
        self.process = self.process.with_pod_nomination(true);
        self
    }

    /// Lets a batch close; returns the effects, one text each.
    pub(crate) fn plan(&mut self) -> Vec<String> {
        self.process.trigger("pod", self.now);
        self.now = self.process.closes(self.now).unwrap();
        let (memory, buffer_pods) = (self.memory, Vec::new());
        self.on(Event::Closed {
            memory,
            buffer_pods,
        })
    }

    pub(crate) fn on(&mut self, event: Event) -> Vec<String> {
        let (mut events, mut done) = (VecDeque::from([event]), Vec::new());
        while let Some(event) = events.pop_front() {
            let snapshot = self.world.cluster.snapshot();
            for effect in self.process.on(event, &snapshot, self.now) {
                let (line, answer) = self.execute(effect);
                done.push(line);
                events.extend(answer);
            }
        }
        done
    }

    fn execute(&mut self, effect: Effect) -> (String, Option<Event>) {
        match effect {
            Effect::Plan(question) => {
                // A trigger while a batch is planned opens the next.
                self.process.trigger("meanwhile", self.now);
                assert_eq!(self.process.closes(self.now), None);
                self.now += SignedDuration::from_secs(3);
                let plan = schedule(&question.snapshot, &self.world.policy, &question.query);
                let answer = match self.answers {
                    true => Event::Planned(Arc::new(plan)),
                    false => Event::Unanswered,
                };
                let line = format!("plan {}", question.standing.unplaced.len());
                (line, Some(answer))
            }
            Effect::Nominate(nodes) => {
                let nodes: Vec<String> = nodes.into_iter().collect();
                (format!("nominate {}", nodes.join(" ")), None)
            }
            Effect::Launch(_, plan) => {
                assert!(self.process.is_launching());
                let planned = &plan.new_node_claims;
                let pods = planned.iter().flat_map(|planned| &planned.pods);
                self.order.extend(pods.map(|pod| pod.name.clone()));
                let names = planned.iter().map(|planned| {
                    let claim = planned.to_node_claim();
                    self.launches.then(|| self.create(claim))
                });
                let names = names.collect();
                (
                    format!("launch {}", planned.len()),
                    Some(Event::Launched(names)),
                )
            }
            Effect::NominatePods(pods) => {
                let pods = pods.iter().map(|it| match &it.node {
                    Some(node) => format!("{} to {node}", it.pod.name),
                    None => format!("{} to none", it.pod.name),
                });
                let pods: Vec<String> = pods.collect();
                (format!("write {}", pods.join(" ")), None)
            }
            Effect::ReportIdle => ("idle".to_owned(), None),
        }
    }

    fn create(&mut self, mut claim: NodeClaim) -> String {
        self.launched += 1;
        let name = format!("new-{}", self.launched);
        claim.metadata.name = Some(name.clone());
        self.world.cluster.apply_node_claim(&claim);
        name
    }

    /// Returns in how many seconds the open batch closes.
    fn closes_in(&self) -> Option<i64> {
        let closes = self.process.closes(self.now)?;
        Some(closes.duration_since(self.now).as_secs())
    }
}

#[test]
fn a_pending_pod_gets_a_node_and_keeps_its_nomination() {
    let mut stage = Stage::new(World::new().with(pod("p")));
    assert_eq!(stage.plan(), ["plan 1", "launch 1", "nominate new-1"]);
    assert!(!stage.process.is_launching());
    assert_eq!(stage.plan(), [""; 0], "nothing is to be planned");
    stage.process.release("new-1");
    stage.world.cluster.remove_node_claim("new-1");
    assert_eq!(stage.plan()[0], "plan 1");
}

/// Conformance: SCH-180
#[test]
fn a_trigger_during_a_pass_opens_the_next_batch_for_the_whole_window() {
    let mut stage = Stage::new(World::new().with(pod("p")));
    stage.plan();
    assert_eq!(stage.closes_in(), Some(5));
}

#[test]
fn a_batch_that_the_engine_did_not_answer_is_planned_again() {
    let mut stage = Stage::new(World::new().with(pod("p")));
    stage.answers = false;
    assert_eq!(stage.plan(), ["plan 1"]);
    assert_eq!(stage.closes_in(), Some(5));
    stage.answers = true;
    assert_eq!(stage.plan()[..2], ["plan 1", "launch 1"]);
}

#[test]
fn pending_pods_without_a_nomination_are_planned_every_ten_seconds() {
    let mut stage = Stage::new(World::new().with(pod("p")));
    stage.launches = false;
    stage.plan();
    stage.process.on(
        Event::Closed {
            memory: None,
            buffer_pods: Vec::new(),
        },
        &World::new().cluster.snapshot(),
        stage.now,
    );
    assert_eq!(stage.closes_in(), None);
    assert_eq!(
        stage.process.checks(stage.now),
        stage.now + SignedDuration::from_secs(10)
    );
    stage.now = stage.process.checks(stage.now);
    assert_eq!(stage.on(Event::Check), [""; 0]);
    assert_eq!(stage.closes_in(), Some(5));
}

#[test]
fn a_check_protects_the_nodes_of_nominated_pods() {
    let mut stage = Stage::new(World::new().with(pod("p")));
    stage.plan();
    assert_eq!(stage.on(Event::Check), ["nominate new-1"]);
    stage.world = World::new();
    assert_eq!(stage.on(Event::Check), ["idle"]);
}

#[test]
fn near_the_memory_limit_slices_of_the_pods_are_planned_one_after_another() {
    let pods = (0..450).map(|n| pod(&format!("p-{n:03}")));
    let mut stage = Stage::new(World::new().with(pods.collect::<Vec<_>>()));
    stage.memory = Some(Memory {
        limit: 1 << 20,
        resident: 1 << 30,
    });
    let slices = [(); 3].map(|()| stage.plan()[0].clone());
    // Two hundred are planned in any case.
    assert_eq!(slices, ["plan 200", "plan 200", "plan 50"]);
}
