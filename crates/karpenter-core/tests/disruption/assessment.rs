//! One node alone gets the decision of a pass in which it is the only candidate.

use std::sync::Arc;

use karpenter_core::disruption::consolidation::prices::PriceLists;
use karpenter_core::disruption::simulation::Simulator;
use karpenter_core::disruption::{
    Assessor, Command, DisruptionRequest, NotConsolidatable, VerdictKind, plan,
};
use karpenter_core::schedule::MinValuesPolicy;
use serde_json::json;

use crate::fixture::{World, now};
use crate::fleet::{Fleet, node, on_demand_pool, running, sizes, world};

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
    let found = assessor.blockers(name);
    found
        .iter()
        .map(|why| match why {
            VerdictKind::NotDisruptable(why) => why.to_string(),
            VerdictKind::Kept(why) => why.to_string(),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Checks that a pass over the world gives each node the verdict that it gets alone.
fn agree(world: &World, names: &[&str]) {
    let plan = plan(&world.cluster.snapshot(), &request(world));
    for name in names {
        let verdict = plan.verdicts.iter().find(|it| it.node.name() == *name);
        let verdict = verdict.expect("every node has a verdict");
        match (&verdict.kind, assess(world, name)) {
            (
                VerdictKind::Deleted { savings, .. } | VerdictKind::Replaced { savings, .. },
                Ok(command),
            ) => {
                assert_eq!(*savings, command.savings, "{name}");
            }
            (kept, Err(why)) => assert_eq!(*kept, why, "{name}"),
            (kind, Ok(command)) => panic!("{name}: {kind:?}, alone {command}"),
        }
    }
}

#[test]
fn a_node_that_can_be_deleted_or_replaced_is() {
    let world = world()
        .run([node("a", "huge")])
        .with([running("p", "a", "1")]);
    agree(&world, &["a"]);
    assert!((assess(&world, "a").unwrap().savings - 1.4).abs() < 1e-9);
}

#[test]
fn a_kept_node_has_the_reason_that_a_pass_gives_it() {
    let refuses = node("a", "huge").node(
        "/metadata/annotations",
        json!({ "karpenter.sh/do-not-disrupt": "true" }),
    );
    let world = world()
        .run([
            refuses,
            node("b", "small"),
            node("c", "huge").without("Consolidatable"),
        ])
        .run([node("d", "huge").drifted("2026-01-01T00:00:00Z")])
        .with([running("p", "a", "1"), running("q", "b", "2")])
        .with([
            running("r", "c", "1"),
            running("s", "d", "1").label("app", "guarded"),
        ])
        .pdb("pdb", "default", json!({ "maxUnavailable": 0 }), 0);
    agree(&world, &["a", "b", "c", "d"]);
}

#[test]
fn the_budgets_are_those_of_a_pass() {
    let closed = on_demand_pool("default").budgets(&["0"]);
    let world = World::empty()
        .with_types(sizes())
        .with_pool(closed)
        .run([node("a", "huge")]);
    let request = request(&world);
    let assessor = Assessor::new(simulator(&world, &request), &request);
    let plan = plan(&world.cluster.snapshot(), &request);
    assert_eq!(assessor.budgets(), &plan.budgets);
    assert!(!plan.budgets.is_empty());
}

#[test]
fn an_exhausted_budget_keeps_what_would_be_deleted() {
    let closed = on_demand_pool("default").budgets(&["0"]);
    let world = World::empty()
        .with_types(sizes())
        .with_pool(closed)
        .run([node("a", "huge"), node("b", "huge")])
        .with([running("p", "a", "1")]);
    agree(&world, &["a", "b"]);
    assert_eq!(
        blockers(&world, "a"),
        ["NodePool \"default\" has no disruption budget left"]
    );
}

#[test]
fn the_score_of_a_balanced_pool_is_that_of_a_pass() {
    let balanced = on_demand_pool("default").consolidation_policy("Balanced");
    let world = World::empty()
        .with_types(sizes())
        .with_pool(balanced)
        .run([node("a", "large"), node("b", "small")])
        .with((0..14).map(|i| running(&format!("p{i}"), "a", "250m")))
        .with([running("q", "b", "2").do_not_disrupt()]);
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
    let world = World::empty()
        .with_types(sizes())
        .with_pool(pool)
        .run([node("a", "huge").without("Consolidatable")])
        .with([running("p", "a", "1").do_not_disrupt()]);
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
            node = node.drifted("2026-01-01T00:00:00Z");
        }
        if let Some(period) = grace_period {
            node = node.claim("/spec/terminationGracePeriod", json!(period));
        }
        let world = world()
            .run([node])
            .with([running("p", "a", "1").do_not_disrupt()]);
        blockers(&world, "a").len()
    };
    assert_eq!(found(true, Some("1h")), 0);
    assert_eq!(found(true, None), 1);
    assert_eq!(found(false, Some("1h")), 1);
}

#[test]
fn a_node_that_holds_pods_of_a_capacity_buffer_is_not_blocked_as_an_empty_one() {
    let pool = on_demand_pool("default").consolidation_policy("WhenEmpty");
    let world = World::empty()
        .with_types(sizes())
        .with_pool(pool)
        .run([node("a", "huge")]);
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
    let again = simulator.again(&request.policy.clone().with_now(later), &request.query);
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
