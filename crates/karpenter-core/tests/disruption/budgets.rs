//! How many nodes disruption budgets allow to be disrupted at a time.

use karpenter_core::disruption::{NotConsolidatable, VerdictKind};
use serde_json::json;

use crate::fixture::{EPOCH, World, now};
use crate::fleet::{Fleet, commands, node, on_demand_pool, open_pool, running, verdict, world_of};

fn budgeted(nodes: &str) -> World {
    let pool = open_pool("default").set("/spec/disruption/budgets", json!([{ "nodes": nodes }]));
    world_of(pool)
}

fn ten() -> Vec<crate::fleet::FleetNode> {
    (0..10)
        .map(|index| node(&format!("n{index}"), "small"))
        .collect()
}

/// Conformance: DIS-094
#[test]
fn thirty_percent_of_ten_nodes_are_disrupted_at_a_time() {
    let world = budgeted("30%").run(ten());
    assert_eq!(world.decide(), ["delete n0 n1 n2 (saves 0.60)"]);
    let mut world = budgeted("30%").run(ten());
    world.cluster.mark_for_deletion(&["fake://n4", "fake://n5"]);
    assert_eq!(world.decide(), ["delete n0 (saves 0.20)"]);
}

/// Conformance: DIS-203
#[test]
fn empty_nodes_are_deleted_in_one_command_without_a_simulation() {
    // The pending pod fits on a large node alone: a simulation would keep one.
    let world = budgeted("100%")
        .run([node("a", "huge"), node("b", "huge"), node("c", "small")])
        .with(crate::fixture::pod("p").cpu("14"));
    assert_eq!(world.decide(), ["delete a b c (saves 3.40)"]);
}

/// Conformance: DIS-093
#[test]
fn only_initialized_nodes_of_the_pool_that_still_run_count() {
    let mut nodes = ten();
    nodes.push(node("x", "small").uninitialized());
    nodes.push(node("y", "small").since("InstanceTerminating", EPOCH));
    let mut world = budgeted("10%").run(nodes);
    world.add(crate::fixture::node("foreign").set("/metadata/labels", json!({})));
    let plan = world.decide_with(|_| ());
    let budget = plan.budgets["Empty"].of("default");
    assert_eq!((budget.nodes, budget.allowed, budget.remaining), (10, 1, 1));
    let all: Vec<_> = plan.budgets["Empty"].iter().collect();
    assert_eq!(all, [("default", &budget)], "for the metric of each pool");
}

/// Conformance: DIS-178
#[test]
fn nodes_that_are_not_ready_use_up_the_budget() {
    let mut nodes = ten();
    nodes[9].node = nodes[9].node.clone().set(
        "/status/conditions",
        json!([{ "type": "Ready", "status": "False" }]),
    );
    let plan = budgeted("10%").run(nodes).decide_with(|_| ());
    assert_eq!(plan.budgets["Empty"].of("default").consuming, 1);
    assert_eq!(commands(&plan), Vec::<String>::new());
}

/// Conformance: DIS-095
#[test]
fn a_pass_blocked_by_a_budget_reports_it() {
    let plan = budgeted("0").run(ten()).decide_with(|_| ());
    assert!(plan.budget_blocked);
    assert_eq!(
        verdict(&plan, "n0"),
        "NodePool \"default\" has no disruption budget left"
    );
    assert!(
        !budgeted("100%")
            .run(ten())
            .decide_with(|_| ())
            .budget_blocked
    );
}

/// Conformance: DIS-178
#[test]
fn budgets_apply_to_the_reasons_they_list() {
    let pool = open_pool("default").set(
        "/spec/disruption/budgets",
        json!([{ "nodes": "0", "reasons": ["Empty"] }, { "nodes": "100%" }]),
    );
    let world = world_of(pool).run(ten());
    assert_eq!(world.decide(), Vec::<String>::new());
    let drifted = ten().into_iter().map(|node| node.drifted(EPOCH));
    let pool = open_pool("default").set(
        "/spec/disruption/budgets",
        json!([{ "nodes": "0", "reasons": ["Empty"] }, { "nodes": "20%" }]),
    );
    let world = world_of(pool).run(drifted);
    assert_eq!(
        world.decide(),
        ["delete n0 (saves 0.20)", "delete n1 (saves 0.20)"]
    );
}

/// Returns a world whose NodePool `default` has the annotation, and whose budget allows everything.
fn paused(value: &str) -> World {
    let pool = on_demand_pool("default").annotation("operations.karpenter.sh/paused", value);
    world_of(pool)
}

/// Adds an empty node, and a drifted one with a pod.
fn with_empty_and_drifted(world: World) -> World {
    world
        .run([node("empty", "small"), node("old", "small").drifted(EPOCH)])
        .with(running("o", "old", "1500m"))
}

fn in_an_hour() -> jiff::Timestamp {
    now() + jiff::SignedDuration::from_hours(1)
}

/// Scenario ROLL-10.
#[test]
fn nothing_is_disrupted_while_disruption_is_paused() {
    let until = in_an_hour();
    let world = paused(&format!("until={until};by=alice;why=incident 42"));
    let world = with_empty_and_drifted(world)
        .run([node("roomy", "huge"), node("busy", "huge")])
        .with([running("p", "roomy", "1"), running("q", "busy", "14")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(commands(&plan), Vec::<String>::new());
    let budgets = plan.budgets.values().map(|all| all.of("default").allowed);
    assert_eq!(budgets.collect::<Vec<_>>(), [0, 0, 0]);
    let why =
        format!("Disruption of NodePool \"default\" is paused until {until} by alice: incident 42");
    for name in ["empty", "old", "roomy"] {
        assert_eq!(verdict(&plan, name), why, "{name}");
    }
    let kept = plan.verdicts.iter().find(|v| v.node.name() == "empty");
    let VerdictKind::Kept(NotConsolidatable::Paused { node_pool, pause }) = &kept.unwrap().kind
    else {
        panic!("{kept:?}");
    };
    assert_eq!((node_pool.as_str(), pause.until), ("default", until));
    assert_eq!(pause.by.as_deref(), Some("alice"));
}

#[test]
fn a_pause_holds_for_its_reasons_and_until_its_end() {
    let until = in_an_hour();
    let decide = |value: &str| with_empty_and_drifted(paused(value)).decide_with(|_| ());
    let drifted = decide(&format!("until={until};reasons=Drifted"));
    assert_eq!(commands(&drifted), ["delete empty (saves 0.20)"]);
    let empty = decide(&format!("until={until};reasons=Empty,Underutilized"));
    assert_eq!(empty.commands.len(), 1);
    assert_eq!(empty.commands[0].candidates[0].name(), "old");
    // The end is excluded.
    let over = decide(&format!("until={}", now()));
    assert_eq!(commands(&over), ["delete empty (saves 0.20)"]);
}

#[test]
fn an_invalid_pause_counts_as_absent() {
    let far = now() + jiff::SignedDuration::from_hours(24 * 8);
    for value in ["true", "until=soon", &format!("until={far}")] {
        let world = with_empty_and_drifted(paused(value));
        assert_eq!(world.decide(), ["delete empty (saves 0.20)"], "{value}");
    }
}

#[test]
fn a_pause_of_one_nodepool_leaves_the_others_alone() {
    let world = paused(&format!("until={}", in_an_hour()))
        .with_pool(on_demand_pool("other"))
        .run([node("a", "small"), node("b", "small").pool("other")]);
    assert_eq!(world.decide(), ["delete b (saves 0.20)"]);
}

#[test]
fn drift_of_a_static_nodepool_is_paused() {
    let pool = |value: &str| {
        on_demand_pool("fixed")
            .replicas(1)
            .annotation("operations.karpenter.sh/paused", value)
    };
    let drifted = |value: &str| {
        let old = node("old", "small").pool("fixed");
        let world = world_of(pool(value));
        world.run([old.drifted(EPOCH)]).decide_with(|request| {
            request.static_headroom = [("fixed".to_owned(), 1)].into();
        })
    };
    let plan = drifted(&format!("until={};reasons=Drifted", in_an_hour()));
    assert!(plan.commands.is_empty());
    assert!(verdict(&plan, "old").contains("\"fixed\" is paused until"));
    assert_eq!(drifted("until=2020-01-01T00:00:00Z").commands.len(), 1);
}
