//! One node alone gets the decision of a pass in which it is the only candidate.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_core::disruption::consolidation::prices::PriceLists;
use karpenter_core::disruption::simulation::Simulator;
use karpenter_core::disruption::{
    Assessor, Candidates, Command, DisruptionRequest, NotConsolidatable, VerdictKind, plan,
};
use karpenter_core::schedule::{MinValuesPolicy, Query};
use serde_json::json;

use crate::fixture::{EPOCH, World, buffer_pod, now, pod};
use crate::fleet::{Fleet, node, on_demand_pool, running, world, world_of};

fn request(world: &World) -> DisruptionRequest {
    let mut request = DisruptionRequest::at(now());
    request.policy = world.policy.clone();
    request.query = world.query.clone();
    request
}

fn simulator(world: &World, request: &DisruptionRequest) -> Simulator {
    let snapshot = world.cluster.snapshot();
    let prices = Arc::new(PriceLists::new(&snapshot));
    Simulator::new(&snapshot, &request.policy, &request.query, &prices)
}

fn assess(world: &World, name: &str) -> Result<Command, VerdictKind> {
    let request = request(world);
    let assessor = Assessor::new(simulator(world, &request), &request);
    assessor.assess(name).expect("the node exists")
}

fn blockers(world: &World, name: &str) -> Vec<String> {
    let request = request(world);
    let assessor = Assessor::new(simulator(world, &request), &request);
    let text = |why: &VerdictKind| match why {
        VerdictKind::NotDisruptable(why) => why.to_string(),
        VerdictKind::Kept(why) => why.to_string(),
        other => panic!("{other:?}"),
    };
    assessor.blockers(name).iter().map(text).collect()
}

/// Returns a simulator that answers again at another time.
fn at(simulator: &Simulator, request: &DisruptionRequest, now: Timestamp) -> Option<Simulator> {
    let policy = request.policy.clone().with_now(now);
    simulator.again(&policy, &request.query)
}

/// Checks that a pass over the world gives each node the verdict that it gets alone.
fn agree(world: &World, names: &[&str]) {
    let plan = plan(&world.cluster.snapshot(), &request(world));
    for name in names {
        let verdict = plan.verdicts.iter().find(|it| it.node.name() == *name);
        let verdict = verdict.expect("every node has a verdict");
        match (&verdict.kind, assess(world, name)) {
            (kept, Err(why)) => assert_eq!(*kept, why, "{name}"),
            (VerdictKind::Deleted { savings, .. }, Ok(command))
            | (VerdictKind::Replaced { savings, .. }, Ok(command)) => {
                assert_eq!(*savings, command.savings, "{name}");
            }
            (kind, Ok(command)) => panic!("{name}: {kind:?}, alone {command}"),
        }
    }
}

#[test]
fn a_node_that_can_be_deleted_or_replaced_is() {
    let world = world()
        .run([node("a", "huge")])
        .with(running("p", "a", "1"));
    agree(&world, &["a"]);
    assert!((assess(&world, "a").unwrap().savings - 1.4).abs() < 1e-9);
}

#[test]
fn a_kept_node_has_the_reason_that_a_pass_gives_it() {
    let refuses = node("a", "huge").annotation("karpenter.sh/do-not-disrupt", "true");
    let world = world()
        .run([
            refuses,
            node("b", "small"),
            node("c", "huge").without("Consolidatable"),
        ])
        .run([node("d", "huge").drifted(EPOCH)])
        .with([running("p", "a", "1"), running("q", "b", "2")])
        .with([
            running("r", "c", "1"),
            running("s", "d", "1").label("app", "guarded"),
        ])
        .pdb("pdb", "default", json!({ "maxUnavailable": 0 }), 0);
    agree(&world, &["a", "b", "c", "d"]);
}

#[test]
fn an_exhausted_budget_keeps_what_a_pass_would_delete() {
    let closed = on_demand_pool("default").budgets(&["0"]);
    let world = world_of(closed)
        .run([node("a", "huge"), node("b", "huge")])
        .with(running("p", "a", "1"));
    let request = request(&world);
    let assessor = Assessor::new(simulator(&world, &request), &request);
    let plan = plan(&world.cluster.snapshot(), &request);
    assert_eq!(assessor.budgets(), &plan.budgets);
    assert!(!plan.budgets.is_empty());
    agree(&world, &["a", "b"]);
    assert_eq!(
        blockers(&world, "a"),
        ["NodePool \"default\" has no disruption budget left"]
    );
}

#[test]
fn the_score_of_a_balanced_pool_is_that_of_a_pass() {
    let balanced = on_demand_pool("default").consolidation_policy("Balanced");
    let world = world_of(balanced)
        .run([node("a", "large"), node("b", "small")])
        .with((0..14).map(|i| running(&format!("p{i}"), "a", "250m")))
        .with(running("q", "b", "2").do_not_disrupt());
    agree(&world, &["a", "b"]);
    let why = assess(&world, "a").unwrap_err();
    assert!(
        matches!(why, VerdictKind::Kept(NotConsolidatable::Score { .. })),
        "{why:?}"
    );
}

#[test]
fn all_gates_are_blockers_in_the_order_of_the_checks() {
    let pool = on_demand_pool("default")
        .budgets(&["0"])
        .consolidation_policy("WhenEmpty");
    let world = world_of(pool)
        .run([node("a", "huge").without("Consolidatable")])
        .with(running("p", "a", "1").do_not_disrupt());
    assert_eq!(
        blockers(&world, "a"),
        [
            "pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod=default/p)",
            "NodePool \"default\" has non-empty consolidation disabled",
            "Node changed within consolidateAfter",
            "NodePool \"default\" has no disruption budget left",
        ]
    );
}

#[test]
fn a_pod_does_not_block_the_drift_of_a_node_with_a_grace_period() {
    let found = |drifted: bool, grace_period: Option<&str>| {
        let mut node = node("a", "huge");
        if drifted {
            node = node.drifted(EPOCH);
        }
        if let Some(period) = grace_period {
            node = node.claim("/spec/terminationGracePeriod", json!(period));
        }
        let world = world()
            .run([node])
            .with(running("p", "a", "1").do_not_disrupt());
        blockers(&world, "a").len()
    };
    assert_eq!(found(true, Some("1h")), 0);
    assert_eq!(found(true, None), 1);
    assert_eq!(found(false, Some("1h")), 1);
}

#[test]
fn a_node_with_pods_of_a_capacity_buffer_is_not_blocked_as_empty() {
    let pool = on_demand_pool("default").consolidation_policy("WhenEmpty");
    let world = world_of(pool).run([node("a", "huge")]);
    let found = |buffer_pods: usize| {
        let mut request = request(&world);
        if buffer_pods > 0 {
            let held = [("a".to_owned(), buffer_pods as _)];
            request.surroundings.buffer_pods = held.into_iter().collect();
        }
        let assessor = Assessor::new(simulator(&world, &request), &request);
        assessor.blockers("a").len()
    };
    assert_eq!((found(0), found(1)), (0, 1));
}

#[test]
fn a_simulator_answers_again_at_another_time_and_not_for_another_policy() {
    let world = world().run([node("a", "huge")]);
    let request = request(&world);
    let simulator = simulator(&world, &request);
    let later = now() + jiff::SignedDuration::from_hours(1);
    let again = at(&simulator, &request, later);
    assert_eq!(again.map(|again| again.now()), Some(later));
    let mut other = request.policy.clone();
    other.min_values_policy = MinValuesPolicy::BestEffort;
    assert!(simulator.again(&other, &request.query).is_none());
}

#[test]
fn a_changed_copy_gives_what_a_new_simulator_gives() {
    let guarded = |name: &str, node: &str| running(name, node, "1").label("app", "guarded");
    let world = world()
        .run([node("a", "huge"), node("b", "large")])
        .with([guarded("p", "a"), guarded("q", "b")])
        .pdb("pdb", "default", json!({ "maxUnavailable": 0 }), 0);
    let request = request(&world);
    let before = simulator(&world, &request);
    let mut changed = world;
    changed.cluster.remove_pdb("default", "pdb");
    let copy = changed.cluster.snapshot();
    let shared = Assessor::new(before.with_policies_of(&copy), &request);
    let fresh = Assessor::new(simulator(&changed, &request), &request);
    for name in ["a", "b"] {
        let command = |assessor: &Assessor<'_>| assessor.assess(name).unwrap().unwrap();
        let (shared, fresh) = (command(&shared), command(&fresh));
        assert_eq!(shared.savings, fresh.savings);
        assert_eq!(shared.to_string(), fresh.to_string());
    }
}

#[test]
fn an_annotation_of_the_node_blocks_its_drift_in_spite_of_a_grace_period() {
    let refuses = json!({ "karpenter.sh/do-not-disrupt": "true" });
    let node = node("a", "huge")
        .drifted(EPOCH)
        .claim("/spec/terminationGracePeriod", json!("1h"))
        .node("/metadata/annotations", refuses);
    assert_eq!(
        blockers(&world().run([node]), "a"),
        ["disruption is blocked through the \"karpenter.sh/do-not-disrupt\" annotation"]
    );
}

/// Returns nodes `a`, whose pod has no other place than `b`, and `b`, whose pods changed two minutes ago.
fn changed_two_minutes_ago(consolidate_after: &str) -> World {
    let changed = node("b", "huge")
        .pool("target")
        .without("Consolidatable")
        .claim("/status/lastPodEventTime", json!("2025-12-31T23:58:00Z"));
    world()
        .with_pool(on_demand_pool("target").consolidate_after(consolidate_after))
        .run([node("a", "small"), changed])
        .with([running("p", "a", "1"), running("q", "b", "14")])
}

/// Returns where the simulator places the pods of a node that consolidation deletes: on existing nodes, and on how many new ones.
fn places(simulator: &Simulator, name: &str) -> (Vec<String>, usize) {
    let snapshot = simulator.snapshot();
    let all = Candidates::new(snapshot, &<_>::default(), simulator.now());
    let mut candidates = all.candidates.iter();
    let candidate = candidates.find(|candidate| candidate.name() == name);
    let outcome = simulator.remove(&[candidate.expect("the node is a candidate")], true);
    let placements = outcome.placements.iter();
    let existing = placements.map(|it| format!("{} on {}", it.pod.name, it.node));
    (existing.collect(), outcome.new_node_claims.len())
}

#[test]
fn a_later_answer_moves_pods_to_nodes_past_their_consolidate_after() {
    let world = changed_two_minutes_ago("5m");
    let request = request(&world);
    let simulator = simulator(&world, &request);
    assert_eq!(places(&simulator, "a"), (vec![], 1));
    let later = now() + jiff::SignedDuration::from_mins(3);
    let again = at(&simulator, &request, later).unwrap();
    assert_eq!(places(&again, "a"), (vec!["p on b".to_owned()], 0));
}

#[test]
fn a_simulator_that_answers_again_places_the_pods_of_the_new_query() {
    let world = world()
        .run([node("a", "small"), node("b", "huge")])
        .with([running("p", "a", "1"), running("q", "b", "14")]);
    let request = request(&world);
    let simulator = simulator(&world, &request);
    assert_eq!(places(&simulator, "a"), (vec!["p on b".to_owned()], 0));
    let buffer = buffer_pod(pod("buffer").cpu("15"));
    let query = Query::default().with_buffer_pods(vec![buffer]);
    let again = simulator.again(&request.policy, &query).unwrap();
    assert_eq!(places(&again, "a").1, 1, "a new node for the buffer");
}

#[test]
fn the_consolidate_after_of_a_changed_copy_decides_where_pods_go() {
    let world = changed_two_minutes_ago("5m");
    let before = simulator(&world, &request(&world));
    assert_eq!(places(&before, "a"), (vec![], 1));
    let copy = changed_two_minutes_ago("1m").cluster.snapshot();
    let after = before.with_policies_of(&copy);
    assert_eq!(places(&after, "a"), (vec!["p on b".to_owned()], 0));
}

#[test]
fn the_budgets_of_a_changed_copy_keep_its_nodes() {
    let mut world = world()
        .run([node("a", "huge")])
        .with(running("p", "a", "1"));
    let request = request(&world);
    let before = simulator(&world, &request);
    let closed = on_demand_pool("default").budgets(&["0"]);
    world.cluster.apply_node_pool(&closed.clone().build());
    let after = before.with_policies_of(&world.cluster.snapshot());
    let kept = Assessor::new(after, &request).assess("a").unwrap();
    assert_eq!(
        kept.unwrap_err(),
        VerdictKind::Kept(NotConsolidatable::Budget {
            node_pool: "default".to_owned()
        })
    );
}

/// While the budget blocks every eviction, the pod stays on the node that is being deleted, and needs no other.
#[test]
fn the_disruption_budgets_of_a_changed_copy_decide_which_pods_leave() {
    let leaving = crate::fixture::node("gone").set("/metadata/deletionTimestamp", EPOCH);
    let mut world = world()
        .run([node("a", "small"), node("b", "huge")])
        .with(leaving)
        .with([running("p", "a", "1"), running("q", "b", "14")])
        .with(running("r", "gone", "15").label("app", "guarded"))
        .pdb("pdb", "default", json!({ "maxUnavailable": 0 }), 0);
    let before = simulator(&world, &request(&world));
    assert_eq!(places(&before, "a"), (vec!["p on b".to_owned()], 0));
    world.cluster.remove_pdb("default", "pdb");
    let after = before.with_policies_of(&world.cluster.snapshot());
    assert_eq!(places(&after, "a"), (vec!["p on b".to_owned()], 1));
}
