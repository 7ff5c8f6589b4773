//! Dollars: what a finding costs is what the command saves that runs once it is fixed.

use serde_json::{Value, json};

use crate::doctor::fixture::{DO_NOT_DISRUPT, World, pod, status, with};

/// Asserts that a finding costs what the commands save once it is fixed, within 1 %.
fn assert_saved(world: World, id: &str, fix: impl FnOnce(&mut World)) {
    let (costs, saved) = costs_and_saves(world, id, fix);
    assert!(saved > 0.0);
    assert!(
        (costs - saved).abs() <= saved / 100.0,
        "{costs} and {saved}"
    );
}

fn costs_and_saves(mut world: World, id: &str, fix: impl FnOnce(&mut World)) -> (f64, f64) {
    let before: f64 = world.disrupt().commands.iter().map(|it| it.savings).sum();
    assert_eq!(before, 0.0, "nothing runs before it is fixed");
    let found = world.one(id);
    assert!(!found.at_least);
    fix(&mut world);
    let plan = world.disrupt();
    let saved: f64 = plan.commands.iter().map(|it| it.savings).sum();
    (found.cost_per_day.unwrap(), saved * 24.0)
}

fn impossible(world: World, app: &str) -> World {
    world.pdb(app, app, json!({ "maxUnavailable": 0 }), status(1, 1, 0))
}

/// A node with room, whose pods never move.
fn with_room(world: World) -> World {
    let busy = (0..5).map(|i| pod(&format!("big-{i}"), "big", "2500m"));
    world.node("roomy", "m-16", busy.collect())
}

/// Conformance: SURGE-13
#[test]
fn a_node_that_would_be_deleted_costs_its_price() {
    let world = with_room(World::new()).node("kept", "m-4", vec![pod("p0", "payments", "1")]);
    assert_saved(impossible(world, "payments"), "PdbImpossible", |world| {
        world.cluster.remove_pdb("shop", "payments");
    });
}

/// Conformance: SURGE-13
#[test]
fn a_node_that_would_be_replaced_costs_the_difference() {
    let world = World::new().node("kept", "m-16", vec![pod("p0", "payments", "3")]);
    assert_saved(impossible(world, "payments"), "PdbImpossible", |world| {
        world.cluster.remove_pdb("shop", "payments");
    });
}

/// Conformance: SURGE-13
#[test]
fn nodes_that_would_be_emptied_onto_one_another_are_not_counted_twice() {
    let on = |name: &str| vec![pod(name, "payments", "1")];
    let world = World::new()
        .node("a", "m-2", on("p0"))
        .node("b", "m-2", on("p1"));
    assert_saved(impossible(world, "payments"), "PdbImpossible", |world| {
        world.cluster.remove_pdb("shop", "payments");
    });
}

/// Conformance: SURGE-13
#[test]
fn a_protected_pod_costs_what_its_node_would_save() {
    let protected = |value: Value| {
        let annotations = json!({ DO_NOT_DISRUPT: value });
        with(
            pod("p0", "web", "1"),
            &[
                ("/metadata/annotations", annotations),
                ("/spec/nodeName", json!("kept")),
            ],
        )
    };
    let world = with_room(World::new()).node("kept", "m-4", vec![protected(json!("true"))]);
    assert_saved(world, "DoNotDisruptWithoutEnd", |world| {
        let pod = protected(json!("1h"));
        world.cluster.apply_pod(&crate::doctor::fixture::read(pod));
    });
}

/// Conformance: SURGE-13
#[test]
fn a_node_pool_that_disrupts_nothing_costs_what_its_nodes_would_save() {
    for (id, field, closed, open) in [
        (
            "BudgetNeverOpens",
            "/spec/disruption/budgets",
            json!([{ "nodes": "0" }]),
            json!([]),
        ),
        (
            "ConsolidationNever",
            "/spec/disruption/consolidateAfter",
            json!("Never"),
            json!("0s"),
        ),
    ] {
        let world = World::empty()
            .pool("default", &[(field, closed)])
            .node("empty-1", "m-4", vec![])
            .node("empty-2", "m-8", vec![]);
        assert_saved(world, id, |world| {
            let opened = std::mem::replace(world, World::empty());
            *world = opened.pool("default", &[(field, open)]);
        });
    }
}

/// Conformance: SURGE-13
#[test]
fn a_node_that_something_else_keeps_costs_nothing_by_one_finding() {
    let keep = ("/metadata/annotations", json!({ DO_NOT_DISRUPT: "true" }));
    let protected = with(pod("p0", "web", "1"), &[keep]);
    let pods = vec![protected, pod("p1", "payments", "500m")];
    let world = with_room(World::new()).node("kept", "m-4", pods);
    let mut world = impossible(world, "payments");
    let found = world.one("PdbImpossible");
    assert_eq!((found.cost_per_day, found.also_blocked), (Some(0.0), 1));
    world.cluster.remove_pdb("shop", "payments");
    let found = world.one("DoNotDisruptWithoutEnd");
    assert!(
        (found.cost_per_day.unwrap() - 0.2 * 24.0).abs() < 1e-9,
        "{found:?}"
    );
}

#[test]
fn a_node_pool_that_only_removes_empty_nodes_saves_nothing_on_busy_ones() {
    let policy = json!("WhenEmpty");
    let world = World::empty().pool(
        "default",
        &[("/spec/disruption/consolidationPolicy", policy)],
    );
    let world = with_room(world).node("kept", "m-4", vec![pod("p0", "payments", "1")]);
    let found = impossible(world, "payments").one("PdbImpossible");
    assert_eq!(found.cost_per_day, Some(0.0));
}

#[test]
fn a_team_sees_what_is_in_its_namespace() {
    let world = with_room(World::empty().pool(
        "default",
        &[("/spec/disruption/budgets", json!([{ "nodes": "0" }]))],
    ))
    .node("kept", "m-4", vec![pod("p0", "payments", "1")]);
    let world = impossible(world, "payments");
    let ids = |namespace: Option<&str>| -> Vec<&str> {
        let checks = world.report_for(namespace).checks;
        checks.iter().map(|finding| finding.id).collect()
    };
    assert_eq!(ids(None), ["BudgetNeverOpens", "PdbImpossible"]);
    assert_eq!(ids(Some("shop")), ["PdbImpossible"]);
    assert_eq!(ids(Some("other")), [""; 0]);
}
