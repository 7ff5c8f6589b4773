//! Validation of a command after its delay.

use karpenter_core::disruption::{Command, CommandInvalidated, DisruptionRequest, validate};
use serde_json::json;

use crate::fixture::{World, now, pod};
use crate::fleet::{Fleet, node, on_demand_pool, running, sizes, world};

/// Returns a world in which `a` can be deleted, as its pod fits on `b`.
fn movable() -> World {
    world()
        .run([node("a", "small"), node("b", "huge")])
        .with([running("p", "a", "1"), running("q", "b", "14")])
}

fn command(world: &World) -> Command {
    world.decide_with(|_| ()).commands.remove(0)
}

fn check(command: &Command, world: &World) -> Result<Vec<String>, CommandInvalidated> {
    let mut request = DisruptionRequest::at(now());
    request.policy = world.policy.clone();
    request.query = world.query.clone();
    let checked = validate(command, &world.cluster.snapshot(), &request)?;
    Ok(checked
        .candidates
        .iter()
        .map(|candidate| candidate.name().to_owned())
        .collect())
}

/// Conformance: DIS-189
#[test]
fn a_command_stays_valid_while_nothing_changes() {
    let world = movable();
    assert_eq!(check(&command(&world), &world), Ok(vec!["a".to_owned()]));
}

/// Scenario ROLL-11.
#[test]
fn a_pause_since_the_decision_invalidates_a_command_of_its_reasons() {
    let command = command(&movable());
    let until = now() + jiff::SignedDuration::from_hours(1);
    let paused = |reason: &str| {
        let value = format!("until={until};reasons={reason}");
        movable().with_pool(
            on_demand_pool("default").annotation("operations.karpenter.sh/paused", &value),
        )
    };
    let underutilized = check(&command, &paused("Underutilized"));
    assert_eq!(underutilized, Err(CommandInvalidated::Budget));
    assert!(check(&command, &paused("Drifted")).is_ok());
}

/// Conformance: DIS-111
#[test]
fn changes_since_the_decision_invalidate_a_command() {
    let command = command(&movable());
    let refusing = movable().with(running("new", "a", "100m").do_not_disrupt());
    assert_eq!(check(&command, &refusing), Err(CommandInvalidated::Churn));
    let guarded = movable()
        .with(running("p", "a", "1").label("app", "guarded"))
        .pdb("pdb", "default", json!({}), 0);
    assert_eq!(check(&command, &guarded), Err(CommandInvalidated::Churn));
    let mut nominated = movable();
    nominated
        .cluster
        .nominate("a", now() + jiff::SignedDuration::from_secs(20));
    assert_eq!(check(&command, &nominated), Err(CommandInvalidated::Budget));
    let full = movable().with(running("filler", "b", "1500m"));
    assert_eq!(check(&command, &full), Err(CommandInvalidated::Scheduling));
    let changed = movable().run([node("a", "small").without("Consolidatable")]);
    assert_eq!(check(&command, &changed), Err(CommandInvalidated::Churn));
    // The replacement had three instance types; one of them is no longer offered.
    let with_types = |types: Vec<karpenter_core::instance_type::InstanceType>| {
        World::of(on_demand_pool("default"))
            .with_types(types)
            .run([node("a", "huge")])
            .with(running("p", "a", "1"))
    };
    let replacing = self::command(&with_types(sizes().to_vec()));
    assert_eq!(replacing.replacements[0].instance_types.len(), 3);
    let others = with_types(sizes().iter().skip(1).cloned().collect());
    assert_eq!(
        check(&replacing, &others),
        Err(CommandInvalidated::Scheduling)
    );
    let unchanged = || with_types(sizes().to_vec());
    assert!(check(&replacing, &unchanged()).is_ok());
    // The pod now fits on another node: the replacement is not needed.
    let roomy = unchanged().run([node("b", "small")]);
    assert_eq!(
        check(&replacing, &roomy),
        Err(CommandInvalidated::Scheduling)
    );
}

/// Conformance: DIS-112
#[test]
fn of_empty_nodes_only_those_with_new_pods_drop_out_of_a_command() {
    let empty = || world().run([node("a", "huge"), node("b", "huge")]);
    let command = command(&empty());
    let one = empty().with(running("p", "a", "1"));
    assert_eq!(check(&command, &one), Ok(vec!["b".to_owned()]));
    let both = empty().with([running("p", "a", "1"), running("q", "b", "1")]);
    assert_eq!(check(&command, &both), Err(CommandInvalidated::Churn));
}

/// Conformance: DIS-189
#[test]
fn a_pending_pod_that_needs_the_room_invalidates_a_command() {
    let command = command(&movable());
    let busy = movable()
        .run([node("b", "huge").label("team", "x")])
        .with(pod("big").cpu("1500m").select("team", "x"));
    assert_eq!(check(&command, &busy), Err(CommandInvalidated::Scheduling));
}
