//! How many machines may go at a time.

use serde_json::json;

use crate::fixture::World;
use crate::fleet::{Fleet, commands, machine, open_pool, sizes, verdict};

fn budgeted(nodes: &str) -> World {
    let pool = open_pool("default").set("/spec/disruption/budgets", json!([{ "nodes": nodes }]));
    World::empty().with_types(sizes()).with_pool(pool)
}

fn ten() -> Vec<crate::fleet::Machine> {
    (0..10)
        .map(|index| machine(&format!("n{index}"), "small"))
        .collect()
}

/// Conformance: DIS-094
#[test]
fn a_third_of_ten_nodes_go_at_a_time_counting_those_on_their_way() {
    let world = budgeted("30%").run(ten());
    assert_eq!(world.decide(), ["delete n0 n1 n2 (saves 0.60)"]);
    let mut world = budgeted("30%").run(ten());
    world.cluster.mark_for_deletion(&["fake://n4", "fake://n5"]);
    assert_eq!(world.decide(), ["delete n0 (saves 0.20)"]);
}

/// Conformance: DIS-093
#[test]
fn only_initialised_machines_of_the_pool_that_still_run_count() {
    let mut machines = ten();
    machines.push(
        machine("x", "small").node("/metadata/labels/karpenter.sh~1initialized", json!("false")),
    );
    machines.push(machine("y", "small").since("InstanceTerminating", "2026-01-01T00:00:00Z"));
    let mut world = budgeted("10%").run(machines);
    world.add(crate::fixture::node("foreign").set("/metadata/labels", json!({})));
    let plan = world.decide_with(|_| ());
    let budget = plan.budgets["Empty"].of("default");
    assert_eq!((budget.nodes, budget.allowed, budget.remaining), (10, 1, 1));
}

#[test]
fn nodes_that_are_not_ready_use_up_the_budget() {
    let mut machines = ten();
    machines[9].node = machines[9].node.clone().set(
        "/status/conditions",
        json!([{ "type": "Ready", "status": "False" }]),
    );
    let plan = budgeted("10%").run(machines).decide_with(|_| ());
    assert_eq!(plan.budgets["Empty"].of("default").consuming, 1);
    assert_eq!(commands(&plan), Vec::<String>::new());
}

/// Conformance: DIS-095
#[test]
fn a_pass_that_a_budget_held_back_says_so() {
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

#[test]
fn budgets_bind_the_reasons_they_name() {
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
        .map(|machine| machine.drifted("2026-01-01T00:00:00Z"));
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
