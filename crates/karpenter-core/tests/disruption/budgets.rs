//! How many nodes disruption budgets allow to be disrupted at a time.

use serde_json::json;

use crate::fixture::World;
use crate::fleet::{Fleet, commands, node, open_pool, sizes, verdict};

fn budgeted(nodes: &str) -> World {
    let pool = open_pool("default").set("/spec/disruption/budgets", json!([{ "nodes": nodes }]));
    World::empty().with_types(sizes()).with_pool(pool)
}

fn ten() -> Vec<crate::fleet::FleetNode> {
    (0..10)
        .map(|index| node(&format!("n{index}"), "small"))
        .collect()
}

/// Conformance: DIS-094
#[test]
fn thirty_percent_of_ten_nodes_are_disrupted_at_a_time_including_deleting_ones() {
    let world = budgeted("30%").run(ten());
    assert_eq!(world.decide(), ["delete n0 n1 n2 (saves 0.60)"]);
    let mut world = budgeted("30%").run(ten());
    world.cluster.mark_for_deletion(&["fake://n4", "fake://n5"]);
    assert_eq!(world.decide(), ["delete n0 (saves 0.20)"]);
}

/// Conformance: DIS-093
#[test]
fn only_initialized_nodes_of_the_pool_that_still_run_count() {
    let mut nodes = ten();
    nodes.push(
        node("x", "small").node("/metadata/labels/karpenter.sh~1initialized", json!("false")),
    );
    nodes.push(node("y", "small").since("InstanceTerminating", "2026-01-01T00:00:00Z"));
    let mut world = budgeted("10%").run(nodes);
    world.add(crate::fixture::node("foreign").set("/metadata/labels", json!({})));
    let plan = world.decide_with(|_| ());
    let budget = plan.budgets["Empty"].of("default");
    assert_eq!((budget.nodes, budget.allowed, budget.remaining), (10, 1, 1));
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
    let world = World::empty()
        .with_types(sizes())
        .with_pool(pool)
        .run(ten());
    assert_eq!(world.decide(), Vec::<String>::new());
    let drifted = ten()
        .into_iter()
        .map(|node| node.drifted("2026-01-01T00:00:00Z"));
    let pool = open_pool("default").set(
        "/spec/disruption/budgets",
        json!([{ "nodes": "0", "reasons": ["Empty"] }, { "nodes": "20%" }]),
    );
    let world = World::empty()
        .with_types(sizes())
        .with_pool(pool)
        .run(drifted);
    assert_eq!(
        world.decide(),
        ["delete n0 (saves 0.20)", "delete n1 (saves 0.20)"]
    );
}
