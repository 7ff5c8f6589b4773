//! PodDisruptionBudgets.

use serde_json::{Value, json};

use crate::doctor::fixture::{World, blocks, pod, says, status, with};

/// Conformance: SURGE-12, EXP-11
#[test]
fn a_budget_of_all_pods_is_impossible_and_one_with_an_unready_pod_is_not() {
    let world = |pods, status| {
        let rule = json!({ "minAvailable": 1 });
        let world = World::new().node("a", "m-4", pods);
        world.pdb("payments", "payments", rule, status)
    };
    let one = world(vec![pod("p0", "payments", "1")], status(1, 1, 0));
    let found = one.one_about(
        "PdbImpossible",
        "PodDisruptionBudget shop/payments can never allow an eviction",
    );
    assert!(blocks(&found));
    says(&found, "minAvailable 1 of 1");
    assert_eq!(found.owner, "Deployment shop/payments");
    assert_eq!(found.nodes, ["a"]);
    assert_eq!(found.since.unwrap().to_string(), "2026-01-01T00:00:00Z");

    let not_ready = [("/status/conditions", json!([]))];
    let unready = with(pod("p1", "payments", "1"), &not_ready);
    let both = vec![pod("p0", "payments", "1"), unready];
    world(both, status(2, 1, 0)).none("PdbImpossible");
}

/// Conformance: SURGE-12
#[test]
fn a_rule_is_impossible_by_its_arithmetic() {
    for (rule, pods, impossible) in [
        (json!({ "maxUnavailable": 0 }), 3, true),
        (json!({ "maxUnavailable": "0%" }), 3, true),
        (json!({ "maxUnavailable": "1%" }), 3, false),
        (json!({ "maxUnavailable": 1 }), 1, false),
        (json!({ "minAvailable": "100%" }), 3, true),
        (json!({ "minAvailable": "99%" }), 3, true),
        (json!({ "minAvailable": "66%" }), 3, false),
        (json!({ "minAvailable": 3 }), 3, true),
        (json!({ "minAvailable": 2 }), 3, false),
    ] {
        let running = (0..pods).map(|i| pod(&format!("p{i}"), "web", "100m"));
        let world = World::new().node("a", "m-4", running.collect());
        let world = world.pdb("web", "web", rule.clone(), status(pods, pods, 0));
        let found = world.found("PdbImpossible");
        assert_eq!(found.len(), usize::from(impossible), "{rule}");
    }
}

/// Conformance: SURGE-12
#[test]
fn the_wanted_replicas_count_and_not_the_pods_that_exist() {
    let world = World::new()
        .node("a", "m-4", vec![pod("p0", "web", "1")])
        .pdb("web", "web", json!({ "minAvailable": 1 }), status(3, 1, 0));
    world.none("PdbImpossible");
}

/// A node with a pod of each of two apps.
fn two_pods(first: &str, second: &str) -> World {
    let pods = vec![pod("p0", first, "1"), pod("p1", second, "1")];
    World::new().node("a", "m-4", pods)
}

fn rule() -> Value {
    json!({ "maxUnavailable": 1 })
}

/// Conformance: SURGE-12
#[test]
fn a_budget_that_selects_no_pod_or_all_pods_protects_the_wrong_ones() {
    let world = || two_pods("web", "db");
    let typo = world().pdb("web", "wbe", rule(), status(0, 0, 0));
    typo.one_about(
        "PdbSelection",
        "PodDisruptionBudget shop/web selects no pod",
    );
    world()
        .pdb("web", "web", rule(), status(1, 1, 1))
        .none("PdbSelection");

    let all = world().pdb_for("all", json!({}), rule(), status(2, 2, 1));
    let found = all.one_about(
        "PdbSelection",
        "PodDisruptionBudget shop/all selects every pod of namespace shop",
    );
    assert!(!blocks(&found));
    let exists = json!({ "matchExpressions": [{ "key": "app", "operator": "Exists" }] });
    world()
        .pdb_for("all", exists, rule(), status(2, 2, 1))
        .none("PdbSelection");
}

/// Conformance: SURGE-12
#[test]
fn two_budgets_over_one_pod_block_it_and_two_over_different_pods_do_not() {
    let world = || two_pods("web", "db");
    let one = || world().pdb("one", "web", rule(), status(1, 1, 1));
    let both = one().pdb("two", "web", rule(), status(1, 1, 1));
    let found = both.one_about(
        "SeveralPdbs",
        "2 PodDisruptionBudgets select the same 1 pod: shop/one, shop/two",
    );
    assert!(blocks(&found));
    assert_eq!(found.subjects.len(), 2);
    assert_eq!(found.nodes, ["a"]);
    one()
        .pdb("two", "db", rule(), status(1, 1, 1))
        .none("SeveralPdbs");
}

/// Conformance: SURGE-12
#[test]
fn a_status_that_does_not_follow_the_specification_is_outdated() {
    let world = || two_pods("web", "web");
    let mut old = status(2, 2, 0);
    old["observedGeneration"] = json!(0);
    let found = world().pdb("web", "web", rule(), old).one("PdbStatusStale");
    assert!(blocks(&found), "it allows nothing now");
    world()
        .pdb("web", "web", rule(), status(2, 2, 1))
        .none("PdbStatusStale");
    // The disruption controller one_about so itself.
    let mut failed = status(2, 2, 0);
    failed["conditions"] = json!([{
        "type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "jobs.batch does not implement the scale subresource",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let found = world()
        .pdb("web", "web", rule(), failed)
        .one("PdbStatusStale");
    says(&found, "scale subresource");
}
