//! The disruption process: passes, proposals, commands and their roll-back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::HasConditions;
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::{Candidate, Command, DisruptionRequest, Method, plan, validate};
use karpenter_core::lifecycle::conditions::update_drifted;
use karpenter_core::lifecycle::disruption::{
    Disruption, Effect, Event, Inputs, Report, Settings, TaintedNode,
};
use serde_json::json;

use crate::fixture::{EPOCH, World, now};
use crate::fleet::{Fleet, FleetNode, node, on_demand_pool, on_each, running, world};

/// A process, the cluster that it changes, and the effects that fail in it.
struct Stage {
    world: World,
    process: Disruption,
    now: Timestamp,
    /// Nodes that cannot be tainted.
    untaintable: Vec<&'static str>,
    /// Nodes whose taint cannot be removed.
    still_tainted: Vec<&'static str>,
    /// Nodes whose NodeClaim cannot be deleted.
    undeletable: Vec<&'static str>,
    refuses: bool,
    launches: bool,
    has_headroom: bool,
    inputs: Option<Inputs>,
    launched: usize,
}

impl Stage {
    fn new(world: World) -> Self {
        Self {
            world,
            process: Disruption::new(Settings::default(), now()),
            now: now(),
            untaintable: Vec::new(),
            still_tainted: Vec::new(),
            undeletable: Vec::new(),
            refuses: false,
            launches: true,
            has_headroom: true,
            inputs: None,
            launched: 0,
        }
    }

    /// Makes a pass if one is due `seconds` later; returns the effects, one text each.
    fn after(&mut self, seconds: i64) -> Vec<String> {
        self.now += SignedDuration::from_secs(seconds);
        let mut done = self.on(Event::Changed);
        if self.process.is_due(self.now) {
            done.extend(self.on(Event::Due));
        }
        done
    }

    fn on(&mut self, event: Event) -> Vec<String> {
        let (mut events, mut done) = (VecDeque::from([event]), Vec::new());
        while let Some(event) = events.pop_front() {
            let snapshot = self.world.cluster.snapshot();
            for effect in self.process.on(event, &snapshot, self.now) {
                events.extend(self.execute(effect, &mut done));
            }
        }
        assert!(!self.process.is_passing(), "each effect is answered");
        done
    }

    fn execute(&mut self, effect: Effect, done: &mut Vec<String>) -> Option<Event> {
        let snapshot = self.world.cluster.snapshot();
        let request = |inputs: &Inputs| {
            let mut request = DisruptionRequest::at(self.now);
            request.static_headroom = [("static".to_owned(), 1)].into();
            inputs.complete(&mut request);
            request
        };
        let (line, answer) = match effect {
            Effect::Plan(inputs) => {
                let planned = plan(&snapshot, &request(&inputs));
                self.inputs = Some(inputs);
                ("plan".to_owned(), Some(Event::Planned(planned.into())))
            }
            Effect::Validate(command, inputs) => {
                let checked = validate(&command, &snapshot, &request(&inputs));
                let line = format!("validate {}", nodes(&command));
                (line, Some(Event::Validated(checked)))
            }
            Effect::Reserve(nodes) => {
                let reserved = Event::Reserved(self.has_headroom);
                (format!("reserve {nodes:?}"), Some(reserved))
            }
            Effect::Release(nodes) => (format!("release {nodes:?}"), None),
            Effect::Taint(command) => {
                let failed = self.untaintable.iter().map(|it| format!("{it}-claim"));
                let failed = failed.collect();
                let answer = match self.refuses {
                    true => Event::Refused,
                    false => Event::Tainted { failed },
                };
                (format!("taint {}", nodes(&command)), Some(answer))
            }
            Effect::Untaint(nodes) => {
                let names: Vec<&str> = nodes.iter().map(|it| node_of(&it.claim)).collect();
                let line = format!("untaint {}", names.join(" "));
                let fails = |it: &TaintedNode| self.still_tainted.contains(&node_of(&it.claim));
                let left = nodes.into_iter().filter(fails).collect();
                (line, Some(Event::Untainted(left)))
            }
            Effect::Launch(command) => {
                let planned = command.replacements.iter().filter(|_| self.launches);
                let claims: Vec<_> = planned.map(|it| it.to_node_claim()).collect();
                let claims = claims.into_iter().map(|claim| self.create(claim)).collect();
                let line = format!("launch {}", command.replacements.len());
                (line, Some(Event::Launched(claims)))
            }
            Effect::Mark(ids, mark) => {
                let of: Vec<&str> = ids.iter().map(String::as_str).collect();
                match mark {
                    true => self.world.cluster.mark_for_deletion(&of),
                    false => self.world.cluster.unmark_for_deletion(&of),
                }
                let line = if mark { "mark" } else { "unmark" };
                (
                    format!("{line} {}", ids.len()),
                    mark.then_some(Event::Marked),
                )
            }
            Effect::Nominate(nodes) => {
                let nodes: Vec<String> = nodes.into_iter().collect();
                (format!("nominate {}", nodes.join(" ")), None)
            }
            Effect::Delete {
                command, candidate, ..
            } => {
                let claim = candidate.claim_name().to_owned();
                let deleted = !self.undeletable.contains(&node_of(&claim));
                if deleted {
                    self.world.cluster.remove_node_claim(&claim);
                    self.world.cluster.remove_node(candidate.name());
                }
                let command = command.id();
                let line = format!("delete {}", node_of(&claim));
                let answer = Event::Deleted {
                    command,
                    claim,
                    deleted,
                };
                (line, Some(answer))
            }
            Effect::Report(Report::Proposed(command)) => {
                (format!("propose {}", nodes(&command)), None)
            }
            Effect::Report(Report::Ended(command, end)) => {
                (format!("{}: {end}", nodes(&command)), None)
            }
            Effect::Report(_) => return None,
        };
        done.push(line);
        answer
    }

    fn create(&mut self, mut claim: NodeClaim) -> Arc<NodeClaim> {
        self.launched += 1;
        let name = format!("new-{}", self.launched);
        claim.metadata.uid = Some(format!("uid of {name}"));
        claim.metadata.name = Some(name);
        claim.metadata.creation_timestamp = Some(Time(self.now));
        self.world.cluster.apply_node_claim(&claim);
        Arc::new(claim)
    }

    /// Lets a replacement be initialized.
    fn initialize(&mut self, name: &str) {
        let snapshot = self.world.cluster.snapshot();
        let mut claim = NodeClaim::clone(snapshot.node_claim(name).unwrap());
        claim.status.node_name = Some(format!("node-of-{name}"));
        claim.set_true("Initialized", self.now);
        self.world.cluster.apply_node_claim(&claim);
    }

    /// Returns the NodePools in cool-down at the last plan.
    fn cooling_down(&self) -> Vec<&str> {
        let pools = &self.inputs.as_ref().unwrap().cooling_down_pools;
        pools.iter().map(String::as_str).collect()
    }
}

/// Returns the name of the node of a NodeClaim of the fleet.
fn node_of(claim: &str) -> &str {
    claim.trim_end_matches("-claim")
}

fn nodes(command: &Command) -> String {
    let names: Vec<&str> = command.candidates.iter().map(Candidate::name).collect();
    names.join(" ")
}

/// Returns a stage with an empty node.
fn empty() -> Stage {
    Stage::new(world().run([node("a", "small")]))
}

fn drifted(name: &str) -> FleetNode {
    node(name, "large").drifted(EPOCH)
}

/// Returns a stage with a drifted node whose pod needs a replacement.
fn replaced() -> Stage {
    Stage::new(world().run([drifted("a")]).with(running("p", "a", "7")))
}

#[test]
fn an_empty_node_is_deleted_if_that_is_still_valid_15_seconds_later() {
    let mut stage = empty();
    assert_eq!(stage.after(0), ["plan", "propose a"]);
    // The pass that follows at once finds the node in flight.
    assert_eq!(stage.after(0), ["plan"]);
    assert_eq!(stage.after(9), [""; 0]);
    assert_eq!(stage.after(1), ["plan"]);
    assert_eq!(
        stage.after(5),
        [
            "validate a",
            "taint a",
            "mark 1",
            "delete a",
            "plan",
            "a: succeeded"
        ]
    );
}

#[test]
fn a_proposal_that_is_not_valid_any_more_is_dropped() {
    let mut stage = empty();
    stage.after(0);
    stage.world.add(running("p", "a", "1"));
    assert_eq!(stage.after(15), ["validate a", "plan"]);
    assert_eq!(stage.process.proposals().count(), 0);
}

/// Returns the effects of a plan on a drifted node that is answered after a change of the cluster, one text each.
fn planned_before(change: impl FnOnce(&mut World)) -> Vec<String> {
    let mut stage = replaced();
    let snapshot = stage.world.cluster.snapshot();
    let effects = stage.process.on(Event::Due, &snapshot, stage.now);
    assert!(matches!(effects[..], [Effect::Plan(_)]), "{effects:?}");
    let planned = plan(&snapshot, &DisruptionRequest::at(stage.now));
    change(&mut stage.world);
    stage.on(Event::Planned(planned.into()))
}

#[test]
fn a_planned_command_starts_unless_a_later_change_forbids_it() {
    assert_eq!(planned_before(|_| ())[..1], ["taint a"]);
    let changed = |change: fn(&mut NodeClaim)| {
        planned_before(|world| {
            let snapshot = world.cluster.snapshot();
            let mut claim = NodeClaim::clone(snapshot.node_claim("a-claim").unwrap());
            change(&mut claim);
            world.cluster.apply_node_claim(&claim);
        })
    };
    let deleted = changed(|claim| claim.metadata.deletion_timestamp = Some(Time(now())));
    assert_eq!(deleted, [""; 0], "a user has deleted the NodeClaim");
    let reverted = changed(|claim| update_drifted(claim, None, now()));
    assert_eq!(reverted, [""; 0], "the NodePool is as it was before");
    let guarded = planned_before(|world| world.add(running("q", "a", "1").do_not_disrupt()));
    assert_eq!(guarded, [""; 0], "a protected pod was bound");
    let nominated = planned_before(|world| {
        let until = now() + SignedDuration::from_secs(10);
        world.cluster.nominate("a", until);
    });
    assert_eq!(nominated, [""; 0], "a pod was nominated to the node");
}

#[test]
fn nodes_with_pods_are_not_consolidated_while_such_a_proposal_waits() {
    let fleet = [node("a", "small"), node("b", "huge")];
    let fleet = world()
        .run(fleet)
        .with([running("p", "a", "1"), running("q", "b", "14")]);
    let mut stage = Stage::new(fleet);
    assert_eq!(stage.after(0), ["plan", "propose a"]);
    assert!(stage.inputs.as_ref().unwrap().consolidates);
    stage.after(0);
    let inputs = stage.inputs.as_ref().unwrap();
    assert!(!inputs.consolidates && inputs.in_flight.contains("a-claim"));
}

#[test]
fn a_pass_of_upstream_waits_for_validation_then_tries_the_next_method() {
    let nodes = ["a", "b", "c"].map(|name| node(name, "large"));
    let pods = on_each(["a", "b", "c"], "1");
    let mut stage = Stage::new(world().run(nodes).with(pods));
    let settings = Settings {
        waits_for_validation: true,
        ..Settings::default()
    };
    stage.process = Disruption::new(settings, now());
    let proposed = stage.after(0).pop().unwrap();
    let several = proposed.matches(' ').count() > 1;
    assert!(several, "{proposed}");
    assert_eq!(stage.after(10), [""; 0]);
    // A node of the command may not be disrupted any more: single-node consolidation is next.
    let kept = proposed.rsplit(' ').next().unwrap().to_owned();
    let pod = running("kept", &kept, "1").do_not_disrupt();
    stage.world.add(pod);
    let next = stage.after(5);
    assert_eq!(next[0], proposed.replace("propose", "validate"));
    let after = stage.inputs.as_ref().unwrap().after;
    assert_eq!(after, Some(Method::MultiNode));
    assert_eq!((next[1].as_str(), next.len() > 2), ("plan", true));
    // It is the last method: the next pass is in ten seconds.
    let single = next[2..].iter();
    let single: Vec<&str> = single.map(|it| it.trim_start_matches("propose ")).collect();
    for name in &single {
        let pod = running(&format!("kept-{name}"), name, "1");
        let pod = pod.do_not_disrupt();
        stage.world.add(pod);
    }
    let validated = single.iter().map(|name| format!("validate {name}"));
    assert_eq!(stage.after(15), validated.collect::<Vec<_>>());
    assert_eq!(stage.after(9), [""; 0]);
    assert_eq!(stage.after(1)[0], "plan");
    assert_eq!(stage.inputs.as_ref().unwrap().after, None);
}

/// Conformance: DIS-125
#[test]
fn a_drifted_node_is_deleted_once_its_replacement_is_initialized() {
    let mut stage = replaced();
    assert_eq!(stage.after(0), ["plan", "taint a", "launch 1", "mark 1"]);
    assert_eq!(stage.after(0), ["plan"]);
    stage.initialize("new-1");
    assert_eq!(
        stage.after(1),
        ["nominate node-of-new-1", "delete a", "a: succeeded"]
    );
}

/// Conformance: DIS-126
#[test]
fn a_command_whose_replacement_is_deleted_rolls_back() {
    let mut stage = replaced();
    stage.after(0);
    stage.world.cluster.remove_node_claim("new-1");
    let done = stage.after(1);
    let expected = ["a: replacement was deleted, new-1", "untaint a", "unmark 1"];
    assert_eq!(done[..3], expected);
    // Half of the cool-down of a minute is fixed; meanwhile no drift of the NodePool is disrupted.
    assert_eq!(stage.after(30), ["plan"]);
    assert_eq!(stage.cooling_down(), ["default"]);
    assert_eq!(stage.after(30)[..2], ["plan", "taint a"]);
}

#[test]
fn the_command_of_another_process_is_continued_from_its_marks() {
    let mut stage = replaced();
    stage.after(0);
    stage.process = Disruption::new(Settings::default(), stage.now);
    let snapshot = stage.world.cluster.snapshot();
    stage.process.resume(&snapshot, stage.now);
    assert_eq!(stage.after(0), ["plan"]);
    let inputs = stage.inputs.as_ref().unwrap();
    assert!(inputs.in_flight.contains("a-claim"));
    stage.initialize("new-1");
    let deleted = ["nominate node-of-new-1", "delete a", "a: succeeded"];
    assert_eq!(stage.after(1), deleted);
}

/// Conformance: DIS-127
#[test]
fn a_command_without_initialized_replacement_in_ten_minutes_rolls_back() {
    let mut stage = replaced();
    stage.after(0);
    assert!(!stage.after(599).contains(&"untaint a".to_owned()));
    let done = stage.after(1);
    let timeout = "a: command reached timeout, 1 of 1 replacements not initialized";
    assert_eq!(done[..3], [timeout, "untaint a", "unmark 1"]);
}

/// Conformance: DIS-190
#[test]
fn a_node_that_cannot_be_tainted_is_spared_and_untainted() {
    let mut stage = Stage::new(world().run([node("a", "small"), node("b", "small")]));
    stage.after(0);
    stage.untaintable = vec!["b"];
    let done = stage.after(15);
    let expected = [
        "validate a b",
        "taint a b",
        "untaint b",
        "mark 1",
        "delete a",
        "plan",
        "a: succeeded",
        "propose b",
    ];
    assert_eq!(done, expected);
}

/// Conformance: DIS-190
#[test]
fn a_command_with_replacements_needs_all_of_its_nodes_tainted() {
    let mut stage = replaced();
    stage.untaintable = vec!["a"];
    assert_eq!(
        stage.after(0),
        ["plan", "taint a", "untaint a", "a: not started"]
    );
    assert_eq!(stage.launched, 0);
}

#[test]
fn a_failed_command_keeps_other_commands_of_its_node_pool_from_starting() {
    let pods = [running("p", "a", "7"), running("q", "b", "7")];
    let mut stage = Stage::new(world().run([drifted("a"), drifted("b")]).with(pods));
    stage.launches = false;
    let failed = ["plan", "taint a", "launch 1", "untaint a", "a: not started"];
    assert_eq!(stage.after(0), failed);
}

#[test]
fn no_command_starts_while_a_node_may_still_be_tainted() {
    let nodes = world().run([drifted("a"), node("b", "small")]);
    let mut stage = Stage::new(nodes.with(running("p", "a", "7")));
    stage.after(0);
    (stage.launches, stage.still_tainted) = (false, vec!["a"]);
    stage.world.add(running("q", "b", "1"));
    let done = stage.after(15);
    // The emptiness of b is over.
    assert_eq!(done[..2], ["validate b", "plan"]);
    let failed = ["taint a", "launch 1", "untaint a", "a: not started"];
    assert_eq!(done[2..], failed);
    assert_eq!(stage.after(1), ["untaint a"]);
    stage.still_tainted.clear();
    assert_eq!(stage.after(1), ["untaint a"]);
    assert_eq!(stage.after(8)[..1], ["plan"]);
    assert_eq!(stage.cooling_down(), ["default"]);
}

/// Conformance: DIS-168
#[test]
fn taints_of_an_earlier_process_are_removed_before_a_pass() {
    let taint = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
    let tainted = node("a", "small").node("/spec/taints", taint);
    let mut stage = Stage::new(world().run([tainted]));
    assert_eq!(stage.after(0), ["untaint a"]);
    stage.world = world().run([node("a", "small")]);
    assert_eq!(stage.after(0), [""; 0], "the model learns of it first");
    assert_eq!(stage.after(1), ["plan", "propose a"]);
}

/// Conformance: DIS-012
#[test]
fn a_pass_that_found_nothing_is_not_repeated_while_nothing_changes() {
    let full = world().run([node("a", "huge")]);
    let mut stage = Stage::new(full.with(running("p", "a", "15")));
    assert_eq!(stage.after(0), ["plan"]);
    assert_eq!(stage.after(10), [""; 0]);
    assert_eq!(stage.after(290), ["plan"], "five minutes later");
    stage.world.add(running("q", "a", "100m"));
    assert_eq!(stage.after(10), ["plan"]);
    let buffer_pods = BTreeMap::from([("a".to_owned(), 1)]);
    stage.process.set_buffer_pods(buffer_pods.clone());
    assert_eq!(stage.after(10), ["plan"], "a node holds a buffer");
    stage.process.set_buffer_pods(buffer_pods);
    assert_eq!(stage.after(10), [""; 0]);
}

#[test]
fn a_node_that_cannot_be_deleted_is_rolled_back_alone() {
    let mut stage = Stage::new(world().run([node("a", "small"), node("b", "small")]));
    stage.after(0);
    stage.undeletable = vec!["b"];
    let done = stage.after(15);
    let expected = [
        "validate a b",
        "taint a b",
        "mark 2",
        "delete a",
        "delete b",
        "plan",
        "a b: failed to delete 1 nodes",
        "untaint b",
        "unmark 1",
    ];
    assert_eq!(done, expected);
}

#[test]
fn the_replacement_of_a_static_node_needs_headroom() {
    let stage = || {
        let world = world().with_pool(on_demand_pool("static").replicas(1));
        Stage::new(world.run([drifted("a").pool("static")]))
    };
    let mut full = stage();
    full.has_headroom = false;
    let reserve = r#"reserve {"static": 1}"#;
    assert_eq!(full.after(0), ["plan", reserve, "a: not started"]);
    let release = r#"release {"static": 1}"#;
    assert_eq!(
        stage().after(0),
        ["plan", reserve, "taint a", "launch 1", "mark 1", release]
    );
}

#[test]
fn a_command_that_is_refused_changes_nothing_and_cools_nothing_down() {
    let mut stage = replaced();
    stage.refuses = true;
    assert_eq!(stage.after(0), ["plan", "taint a"]);
    assert_eq!(stage.after(10), ["plan", "taint a"]);
    assert!(stage.cooling_down().is_empty());
}

#[test]
fn a_proposal_is_validated_though_the_clock_was_set_back() {
    let mut stage = empty();
    stage.after(0);
    assert_eq!(stage.after(-3600)[..2], ["validate a", "taint a"]);
}

#[test]
fn a_restart_forgets_commands_and_unmarks_their_nodes() {
    let mut stage = replaced();
    stage.after(0);
    assert!(stage.process.is_executing());
    let (effects, mut done) = (stage.process.restart(stage.now), Vec::new());
    for effect in effects {
        stage.execute(effect, &mut done);
    }
    assert_eq!(done, ["unmark 1"]);
    assert!(!stage.process.is_executing());
}
