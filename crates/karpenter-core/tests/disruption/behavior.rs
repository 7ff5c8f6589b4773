//! The rules in which versions of Karpenter differ, each both ways.

use std::collections::BTreeSet;

use karpenter_api::labels::annotations::CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS;
use karpenter_core::behavior::{Behavior, RULES};
use karpenter_core::lifecycle::disruption::Inputs;
use serde_json::json;

use crate::fixture::{CAPACITY_TYPE, EPOCH, World, node_pool, now};
use crate::fleet::{
    Fleet, ON_DEMAND, commands, node, on_demand_pool, running, world as fresh, world_of,
};

/// Returns what is decided if a rule holds, and if it does not.
fn both(rule: &str, world: &World) -> [Vec<String>; 2] {
    let rule = RULES.iter().find(|it| it.name == rule).unwrap();
    let default = Behavior::default();
    [true, false].map(|holds| {
        let plan = world.decide_with(|request| {
            request.policy.behavior = match rule.holds(default) == holds {
                true => default,
                false => rule.switched(default),
            };
        });
        commands(&plan)
    })
}

/// Returns a world in which a node can only be deleted if its pod moves to one that changed within `consolidateAfter`, with this
/// annotation of the NodePool.
fn beside_a_recent_node(annotation: Option<&str>) -> World {
    let recently = (now() - jiff::SignedDuration::from_mins(1)).to_string();
    let target = node("b", "huge")
        .without("Consolidatable")
        .claim("/status/lastPodEventTime", json!(recently));
    let mut pool = on_demand_pool("default").consolidate_after("5m");
    if let Some(value) = annotation {
        pool = pool.annotation(CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS, value);
    }
    world_of(pool)
        .run([node("a", "small"), target])
        .with([running("p", "a", "1"), running("q", "b", "10")])
}

#[test]
fn consolidation_moves_pods_to_nodes_within_consolidate_after_up_to_1_13() {
    let world = beside_a_recent_node(None);
    let [applies, does_not] = both("consolidate-after-applies-to-destinations", &world);
    assert_eq!(applies, [""; 0]);
    assert_eq!(does_not, ["delete a (saves 0.20)"]);
}

#[test]
fn the_annotation_of_a_node_pool_counts_more_than_the_setting() {
    let decided = |value| {
        let world = beside_a_recent_node(Some(value));
        both("consolidate-after-applies-to-destinations", &world).map(|it| it.len())
    };
    assert_eq!(decided("true"), [0, 0]);
    assert_eq!(decided("false"), [1, 1]);
    assert_eq!(decided("no"), [0, 1], "an invalid value counts as absent");
}

#[test]
fn the_cheapest_disruption_comes_before_the_largest_savings_up_to_1_13() {
    let pool = node_pool("default").requires(CAPACITY_TYPE, "In", &[ON_DEMAND]);
    let world = world_of(pool.budget("1"))
        .run([
            node("a", "small"),
            node("b", "huge"),
            node("c", "huge").label("team", "x"),
        ])
        .with([
            running("p", "a", "1"),
            running("q", "b", "1"),
            running("r", "b", "1"),
            running("s", "c", "10").select("team", "x"),
        ]);
    let [savings, cost] = both("candidates-by-savings", &world);
    assert_eq!(savings, ["delete b (saves 1.60)"]);
    assert_eq!(cost, ["delete a (saves 0.20)"]);
}

#[test]
fn drifted_nodes_come_before_empty_nodes_in_1_0() {
    let world = fresh()
        .run([node("a", "small"), node("b", "huge").drifted(EPOCH)])
        .with(running("p", "b", "15"));
    let [emptiness, drift] = both("emptiness-before-drift", &world);
    assert_eq!(emptiness, ["delete a (saves 0.20)"]);
    assert_eq!(drift, ["replace b with huge on-demand (saves 0.00)"]);
}

/// Returns a world of nodes that can only be replaced one by one, the last of them in another NodePool.
fn apart() -> World {
    let alone = |name: &str, pool: &str| {
        let pod = crate::fleet::alone(&format!("p-{name}"), name, "1");
        pod.select("karpenter.sh/nodepool", pool)
    };
    fresh()
        .with_pool(on_demand_pool("other"))
        .run([
            node("a", "huge"),
            node("b", "huge"),
            node("c", "large").pool("other"),
        ])
        .with([
            alone("a", "default"),
            alone("b", "default"),
            alone("c", "other"),
        ])
}

/// Returns the names of the nodes of commands.
fn names(commands: &[String]) -> Vec<&str> {
    let words = commands.iter().map(|it| it.split(' ').nth(1));
    words.flatten().collect()
}

#[test]
fn single_node_consolidation_takes_node_pools_in_one_order_in_1_0() {
    let [turns, one_order] = both("node-pools-take-turns", &apart());
    assert_eq!(names(&turns), ["a", "c", "b"]);
    assert_eq!(names(&one_order), ["a", "b", "c"]);
}

#[test]
fn upstreams_pass_replaces_one_drifted_node_and_consolidates_one() {
    let [several, one] = both("several-commands-per-pass", &apart());
    assert_eq!((several.len(), names(&one)), (3, vec!["a"]));
    let drifted = |name: &str| node(name, "huge").drifted(EPOCH);
    let world = fresh()
        .run([drifted("a"), drifted("b")])
        .with([running("p", "a", "15"), running("q", "b", "15")]);
    let [several, one] = both("several-commands-per-pass", &world);
    assert_eq!((names(&several), names(&one)), (vec!["a", "b"], vec!["a"]));
}

#[test]
fn upstream_consolidates_a_node_that_consolidation_launched() {
    let claims = ["a-claim".to_owned()];
    let inputs = Inputs {
        in_flight: BTreeSet::new(),
        recent_replacements: claims.into(),
        unseen_pools: BTreeSet::new(),
        cooling_down_pools: BTreeSet::new(),
        consolidates: true,
        after: None,
    };
    let world = fresh()
        .run([node("a", "huge")])
        .with(running("p", "a", "1"));
    let decided = |behavior| {
        let plan = world.decide_with(|request| {
            request.policy.behavior = behavior;
            inputs.complete(request);
        });
        plan.commands.len()
    };
    assert_eq!(decided(Behavior::default()), 0);
    assert_eq!(decided(Behavior::of("head").unwrap()), 1);
}

#[test]
fn upstreams_multi_node_consolidation_considers_the_first_nodes() {
    // `b` is second in the order, and its pod cannot move.
    let large = |name: &str| node(name, "large");
    let world = fresh()
        .run([large("a"), large("b").label("team", "x"), large("c")])
        .with([
            running("p", "a", "100m"),
            running("q", "b", "200m").select("team", "x"),
            running("r", "c", "300m"),
        ]);
    let [any_set, prefix] = both("multi-node-considers-any-set", &world);
    assert_eq!(any_set, ["delete a c (saves 1.60)"]);
    assert_eq!(
        prefix,
        ["delete a (saves 0.80)", "delete c (saves 0.80)"],
        "only single nodes are left"
    );
}
