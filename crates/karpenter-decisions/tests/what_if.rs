//! What would be done with a node without what blocks it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use karpenter_core::disruption::{DisruptionRequest, plan};
use karpenter_decisions::change::Change;
use karpenter_decisions::pdb::PdbState;
use karpenter_decisions::what_if::{NodeWhatIf, WhatIf};
use serde_json::{Value, json};

use crate::rehearse::world::{World, now};

/// A cluster whose NodePool has these budgets.
fn with_budgets(budgets: Value) -> World {
    World::new(json!({ "disruption": { "budgets": budgets } }))
}

fn what_if(world: &World) -> WhatIf {
    WhatIf::new(&world.snapshot(), DisruptionRequest::at(now()))
}

fn ask(world: &World, node: &str) -> NodeWhatIf {
    let answer = what_if(world).node(node).unwrap();
    assert!(!answer.truncated);
    answer
}

fn open() -> Value {
    json!([{ "nodes": "100%" }])
}

fn protected() -> Value {
    json!({ "karpenter.sh/do-not-disrupt": "true" })
}

fn ids(answer: &NodeWhatIf) -> Vec<&str> {
    answer.blockers.iter().map(|it| it.reason.id).collect()
}

fn savings(answer: &NodeWhatIf) -> f64 {
    let outcome = answer.what_if.as_ref().unwrap();
    outcome
        .savings()
        .unwrap_or_else(|| panic!("{answer:#?}"))
        .list
}

/// A node with a pod that a PodDisruptionBudget covers, beside one with room.
fn guarded(demand: Value, expected: i32, healthy: i32) -> World {
    with_budgets(open())
        .node("a", 16)
        .node("b", 4)
        .pod("web-0", "a", ("web", "1"), json!({}))
        .pdb_with("web", demand, json!({
            "disruptionsAllowed": 0, "currentHealthy": healthy, "desiredHealthy": 1, "expectedPods": expected,
        }))
}

#[test]
fn a_node_saves_its_price_once_its_pods_may_move() {
    let world = guarded(json!({ "minAvailable": 1 }), 1, 1);
    let answer = ask(&world, "a");
    assert_eq!(ids(&answer), ["Pdb"]);
    assert_eq!(savings(&answer), 1.6);
    let command = answer.what_if.as_ref().unwrap().command.as_ref().unwrap();
    assert_eq!(
        (command.decision, command.pods_moved, command.nodes),
        ("delete", 1, 1)
    );
    let blocker = &answer.blockers[0];
    assert_eq!(blocker.owner.as_deref(), Some("Deployment shop/web"));
    assert_eq!(blocker.changes, ["without-pdb=shop/web"]);
    assert_eq!(blocker.alone.as_ref().unwrap().savings().unwrap().list, 1.6);
    let help = blocker.help.iter();
    let help: Vec<_> = help.map(|it| (it.text.as_str(), it.exact)).collect();
    assert_eq!(
        help,
        [
            ("Deployment shop/web: replicas 1 -> 2", false),
            ("PodDisruptionBudget shop/web: maxUnavailable 1", true),
        ]
    );
    assert_eq!(blocker.help[1].savings_per_hour.unwrap().list, 1.6);
    assert!(answer.ladder.is_empty(), "{:?}", answer.ladder);
}

#[test]
fn the_answer_is_what_a_pass_does_once_the_changes_are_made() {
    // The other node stays: otherwise a pass deletes it first, because it is empty.
    let mut world = guarded(json!({ "maxUnavailable": 0 }), 1, 1)
        .pod("api-0", "a", ("api", "1"), protected())
        .pod("db-0", "b", ("db", "1"), protected());
    let answer = ask(&world, "a");
    assert_eq!(ids(&answer), ["PodDoNotDisrupt", "Pdb"]);
    assert!(answer.ladder.iter().map(|it| it.id).eq(["Pdb"]));
    let alone = answer.blockers[0].alone.as_ref().unwrap();
    assert_eq!(alone.reason.as_ref().unwrap().id, "Pdb");

    world = world.pod("api-0", "a", ("api", "1"), json!({}));
    world.0.remove_pdb("shop", "web");
    let plan = plan(&world.0.snapshot(), &DisruptionRequest::at(now()));
    let [command] = &plan.commands[..] else {
        panic!("{plan:#?}")
    };
    assert_eq!(command.candidates[0].name(), "a");
    assert_eq!(command.savings, savings(&answer));
    assert_eq!(savings(&ask(&world, "a")), savings(&answer));
}

/// Conformance: EXP-11
#[test]
fn a_budget_that_can_never_allow_an_eviction_is_impossible() {
    for (demand, expected, healthy, impossible, replicas) in [
        (json!({ "minAvailable": 1 }), 1, 1, true, Some(2)),
        (json!({ "minAvailable": 1 }), 2, 1, false, Some(2)),
        (json!({ "minAvailable": "100%" }), 5, 5, true, None),
        (json!({ "minAvailable": "50%" }), 1, 1, true, Some(2)),
        (json!({ "minAvailable": "90%" }), 4, 4, true, Some(10)),
        (json!({ "maxUnavailable": 0 }), 3, 3, true, None),
        (json!({ "maxUnavailable": "0%" }), 3, 3, true, None),
        (json!({ "maxUnavailable": "1%" }), 3, 2, false, None),
        (json!({ "maxUnavailable": 1 }), 3, 2, false, None),
    ] {
        let world = guarded(demand.clone(), expected, healthy);
        let state = PdbState::of(&world.0.snapshot(), "shop", "web").unwrap();
        assert_eq!(state.impossible, impossible, "{demand}");
        assert_eq!(state.replicas_needed(), replicas, "{demand}");
    }
    let answer = ask(&guarded(json!({ "minAvailable": 1 }), 2, 1), "a");
    let help = answer.blockers[0].help.iter().map(|help| &help.text);
    assert!(help.eq(["wait until 2 of 2 pods of PodDisruptionBudget shop/web are healthy"]));
}

/// Conformance: EXP-13
#[test]
fn an_exhausted_budget_is_raised_by_what_it_takes_and_says_when_it_opens() {
    let budgets = json!([
        { "nodes": "100%" },
        { "nodes": "0", "reasons": ["Underutilized"], "schedule": "0 9 * * *", "duration": "8h" },
    ]);
    let world =
        with_budgets(budgets)
            .node("a", 16)
            .node("b", 4)
            .pod("web-0", "a", ("web", "1"), json!({}));
    let answer = ask(&world, "a");
    assert_eq!(ids(&answer), ["Budget"]);
    let blocker = &answer.blockers[0];
    assert_eq!(blocker.until, Some("2026-01-01T17:00:00Z".parse().unwrap()));
    let help = &blocker.help[0];
    let raised = "NodePool default: budget for Underutilized 0 -> 1 nodes";
    assert_eq!((help.text.as_str(), help.exact), (raised, true));
    assert_eq!(help.savings_per_hour.unwrap().list, savings(&answer));
    let later = Change::Now("2026-01-01T17:00:00Z".parse().unwrap());
    let raised: Change = "budget.default=20%".parse().unwrap();
    for change in [later, raised] {
        let outcome = what_if(&world).after("a", &[change]).unwrap().unwrap();
        assert_eq!(outcome.savings().unwrap().list, savings(&answer));
    }
}

#[test]
fn what_nodes_would_save_is_what_each_alone_would() {
    let world = guarded(json!({ "maxUnavailable": 0 }), 1, 1)
        .node("c", 8)
        .pod("api-0", "c", ("api", "1"), protected());
    let (all, complete) = what_if(&world).releasable(["a", "c"]);
    assert!(complete);
    for name in ["a", "c"] {
        assert_eq!(all[name].list, savings(&ask(&world, name)), "{name}");
    }
}

#[test]
fn what_nothing_releases_has_no_command() {
    // The pod fits nowhere else, and no smaller type takes it.
    let mut world = with_budgets(open()).node("a", 2);
    for name in ["web-0", "web-1"] {
        world = world.pod(name, "a", ("web", "1"), json!({}));
    }
    let answer = ask(&world, "a");
    assert!(answer.blockers.is_empty());
    let outcome = answer.what_if.unwrap();
    assert_eq!(outcome.command, None);
    assert_eq!(outcome.reason.unwrap().id, "NotCheaper");
}

#[test]
fn an_answer_that_was_cut_short_says_so_and_tells_nothing_unproven() {
    let mut request = DisruptionRequest::at(now());
    request.query.cancel = Some(std::sync::Arc::new(|| true));
    let world = guarded(json!({ "maxUnavailable": 0 }), 1, 1);
    let answer = WhatIf::new(&world.0.snapshot(), request).node("a").unwrap();
    assert!(answer.truncated);
    assert_eq!(answer.what_if, None);
    assert_eq!(answer.blockers[0].alone, None);
    assert!(answer.blockers[0].help.iter().all(|help| !help.exact));
}
