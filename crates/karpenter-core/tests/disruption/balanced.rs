//! Scores of the consolidation policy `Balanced`.

use std::collections::BTreeMap;

use karpenter_core::disruption::consolidation::balanced::{PoolScore, Totals};
use karpenter_core::disruption::{Candidate, Candidates};
use serde_json::json;

use crate::fixture::{NodePool, Object, World, now};
use crate::fleet::{Fleet, alone, commands, node, on_demand_pool, running, verdict, world_of};

fn balanced(name: &str) -> Object<NodePool> {
    on_demand_pool(name).consolidation_policy("Balanced")
}

/// Conformance: DIS-120
#[test]
fn in_a_uniform_pool_a_replacement_at_half_the_price_is_approved() {
    // From 16 to 8 cores: half the price of a third of the pool, for a third of its disruption.
    let apart = |node: &str| alone(&format!("p-{node}"), node, "7");
    let world = world_of(balanced("default"));
    let world = world
        .run(["a", "b", "c"].map(|name| node(name, "huge")))
        .with(["a", "b", "c"].map(apart));
    let approved = world.decide_with(|request| request.max_commands = 1);
    let score = approved.commands[0].score.unwrap();
    assert!((score - 0.5).abs() < 1e-9, "{score}");
}

/// Conformance: DIS-188
#[test]
fn a_move_that_saves_less_than_its_share_is_rejected() {
    let types = [
        crate::fleet::priced_type("huge", 16, 1.6),
        crate::fleet::priced_type("large", 14, 1.0),
    ];
    let world = World::of(balanced("default")).with_types(types);
    let world = world
        .run(["a", "b"].map(|name| node(name, "huge")))
        .with([running("p", "a", "13"), running("q", "b", "13")]);
    let plan = world.decide_with(|_| ());
    assert!(commands(&plan).is_empty());
    assert_eq!(verdict(&plan, "a"), "Score 0.38 is below 0.50");
}

/// A cluster with nodes `a` and `b` of these prices, of which `b` has room for the pod of `a`.
fn small_and_huge(small: f64, huge: f64) -> World {
    let types = [
        crate::fleet::priced_type("small", 2, small),
        crate::fleet::priced_type("huge", 16, huge),
    ];
    World::of(balanced("default"))
        .with_types(types)
        .run([node("a", "small"), node("b", "huge")])
        .with([
            running("p", "a", "1"),
            running("q", "b", "1").do_not_disrupt(),
        ])
}

/// A node that costs a quarter of its pool, for half of the pool's disruption; all of its price is saved.
#[test]
fn a_deletion_whose_score_is_the_threshold_is_approved() {
    assert_eq!(small_and_huge(1.0, 3.0).decide(), ["delete a (saves 1.00)"]);
}

#[test]
fn a_node_whose_whole_price_does_not_reach_the_threshold_is_not_simulated() {
    let world = world_of(balanced("default"))
        .run([node("a", "large"), node("b", "small")])
        .with((0..80).map(|i| running(&format!("p{i}"), "a", "10m")))
        .with(running("q", "b", "1").do_not_disrupt())
        .with((0..4).map(|i| running(&format!("r{i}"), "b", "10m")));
    let plan = world.decide_with(|_| ());
    assert_eq!((commands(&plan).len(), plan.evaluated), (1, 1));
}

/// Pools `default` and `busy`: `a` and `b` can be deleted together, as `c` has room for their pods. `a` is the only node of
/// `default`; `busy` would move nearly all of its pods to save a ninth of its price.
fn two_pools(policy_of_busy: &str) -> World {
    let policy = "/spec/disruption/consolidationPolicy";
    let busy = on_demand_pool("busy").set(policy, json!(policy_of_busy));
    let mut pods: Vec<_> = (0..20)
        .map(|index| running(&format!("p{index}"), "b", "10m"))
        .collect();
    pods.push(running("big", "c", "13"));
    pods.push(running("q", "a", "1"));
    world_of(balanced("default"))
        .with_pool(busy)
        .run([
            node("a", "small"),
            node("b", "small").pool("busy"),
            node("c", "huge").pool("busy"),
        ])
        .with(pods)
}

/// Conformance: DIS-122
#[test]
fn one_pool_that_rejects_rejects_the_move() {
    assert_eq!(
        two_pools("WhenEmptyOrUnderutilized").decide(),
        ["delete a b (saves 0.40)"]
    );
    assert_eq!(two_pools("Balanced").decide(), ["delete a (saves 0.20)"]);
}

/// Returns the totals of the NodePools of a world, and its candidates by name.
fn totals(world: &World) -> (Totals, BTreeMap<String, Candidate>) {
    let snapshot = world.cluster.snapshot();
    let all = Candidates::new(&snapshot, &<_>::default(), now());
    let totals = Totals::new(&snapshot, &all.candidates, &all.prices);
    let candidates = all.candidates.into_iter();
    let by_name = candidates.map(|candidate| (candidate.name().to_owned(), candidate));
    (totals, by_name.collect())
}

/// Conformance: DIS-122, DIS-188
#[test]
fn pools_share_the_savings_of_a_move_by_price_and_the_least_score_counts() {
    let (totals, candidates) = totals(&two_pools("Balanced"));
    let (a, c) = (&candidates["a"], &candidates["c"]);
    // `a` costs 0.2 and `c` 1.6, so of 0.9 saved 0.1 is the share of `default` and 0.8 that of `busy`.
    let close = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
    let scores = totals.judge(&[a, c], 0.9);
    let [busy, default] = &scores[..] else {
        panic!("{scores:?}");
    };
    assert!(close(default.savings, 0.1 / 0.2), "{default:?}");
    assert!(close(default.disruption, 1.0), "{default:?}");
    assert!(close(busy.savings, 0.8 / 1.8), "{busy:?}");
    assert!(close(busy.disruption, 2.0 / 23.0), "{busy:?}");
    assert!(close(default.score, 0.5) && busy.score > 5.0, "{scores:?}");
    assert!(close(totals.score(&[a, c], 0.9).unwrap(), 0.5));
}

/// Conformance: DIS-121
#[test]
fn a_move_that_saves_nothing_or_in_a_pool_without_cost_is_rejected() {
    let world = world_of(balanced("default"))
        .run([node("a", "huge")])
        .with(running("p", "a", "7"));
    let (totals, candidates) = totals(&world);
    let a = &candidates["a"];
    assert!(totals.score(&[a], 0.8) > Some(0.0));
    assert_eq!(totals.score(&[a], 0.0), Some(0.0));
    assert_eq!(Totals::default().score(&[a], 0.8), Some(0.0));
    let nothing = totals.score(&[], 0.8);
    assert_eq!(nothing, Some(0.0), "a move without candidates");
}

/// Conformance: DIS-204
#[test]
fn a_move_is_judged_by_the_pools_of_the_balanced_policy_alone() {
    let (totals, candidates) = totals(&two_pools("WhenEmptyOrUnderutilized"));
    let (a, b) = (&candidates["a"], &candidates["b"]);
    assert_eq!(b.pool_name(), "busy");
    assert_eq!(totals.score(&[b], 0.2), None, "any other policy passes");
    let scores = totals.judge(&[a, b], 0.4);
    let pools: Vec<&str> = scores.iter().map(|score| &*score.node_pool).collect();
    assert_eq!(pools, ["default"]);
}

/// Conformance: DIS-124
#[test]
fn a_budget_of_one_is_used_for_an_empty_node_first() {
    let pool = balanced("default").set("/spec/disruption/budgets", json!([{ "nodes": "1" }]));
    let world = world_of(pool)
        .run([node("a", "huge"), node("b", "small"), node("c", "huge")])
        .with([running("p", "a", "1"), running("q", "c", "1")]);
    assert_eq!(world.decide(), ["delete b (saves 0.20)"]);
}

/// Conformance: DIS-124
#[test]
fn the_only_node_of_a_pool_may_be_consolidated() {
    let world = world_of(balanced("default")).with_pool(on_demand_pool("other"));
    let world = world.run([node("a", "medium"), node("b", "huge").pool("other")]);
    let world = world.with([running("p", "a", "1"), running("q", "b", "14")]);
    assert_eq!(world.decide(), ["delete a (saves 0.40)"]);
}

#[test]
fn a_node_that_costs_nothing_is_kept() {
    let plan = small_and_huge(0.0, 1.6).decide_with(|_| ());
    assert_eq!(commands(&plan), [""; 0]);
    assert_eq!(verdict(&plan, "a"), "Score 0.00 is below 0.50");
}

#[test]
fn the_share_of_a_pool_that_costs_nothing_is_zero_and_a_loss_scores_zero() {
    let (totals, candidates) = totals(&two_pools("WhenEmptyOrUnderutilized"));
    let a = &candidates["a"];
    let nothing = PoolScore {
        node_pool: "default".to_owned(),
        score: 0.0,
        savings: 0.0,
        disruption: 0.0,
    };
    assert_eq!(Totals::default().judge(&[a], 0.2), [nothing]);
    assert_eq!(totals.score(&[a], -0.2), Some(0.0));
}

/// Two nodes of 0.5 whose pods fit on one of 0.5: half the price of the pool, for all of its disruption.
#[test]
fn a_set_whose_score_is_the_threshold_is_approved() {
    let types = [
        crate::fleet::priced_type("medium", 4, 0.5),
        crate::fleet::priced_type("large", 8, 0.5),
    ];
    let world = World::of(balanced("default"))
        .with_types(types)
        .run([node("a", "medium"), node("b", "medium")])
        .with([running("p", "a", "2500m"), running("q", "b", "2500m")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(
        commands(&plan),
        ["replace a b with large on-demand (saves 0.50)"]
    );
    assert_eq!(plan.commands[0].score, Some(0.5));
}
