//! A replacement is cheaper than the nodes it replaces, and never of a type that they could keep.

use karpenter_core::fake;
use serde_json::json;

use crate::fixture::{CAPACITY_TYPE, INSTANCE_TYPE, World, Z1, Z2, ZONE, values};
use crate::fleet::{
    Fleet, FleetNode, ON_DEMAND, SPOT, alone, commands, node, on_demand_pool, open_pool, running,
    type_with_offerings, verdict, world_of, world_with,
};

/// Conformance: DIS-100
#[test]
fn fewer_cheaper_types_than_min_values_do_not_replace_a_node() {
    use karpenter_core::schedule::MinValuesPolicy;
    for policy in [MinValuesPolicy::Strict, MinValuesPolicy::BestEffort] {
        few_cheaper_types(policy);
    }
}

fn few_cheaper_types(policy: karpenter_core::schedule::MinValuesPolicy) {
    let pool = open_pool("default")
        .requires(CAPACITY_TYPE, "In", &[ON_DEMAND])
        .requires_min("node.kubernetes.io/instance-type", "Exists", &[], 3);
    let world = world_of(pool);
    // Two types are cheaper than `large`; the pool's minValues is three.
    let mut world = world.run([node("a", "large")]).with(running("p", "a", "1"));
    world.policy.min_values_policy = policy;
    let plan = world.decide_with(|_| ());
    assert!(commands(&plan).is_empty());
    assert!(
        verdict(&plan, "a").starts_with("Filtering by price: minValues requirement is not met"),
        "{}",
        verdict(&plan, "a")
    );
}

/// Conformance: DIS-101
#[test]
fn one_of_two_nodes_is_deleted_if_min_values_need_their_own_type() {
    // `medium`, `large` and `huge` could replace both nodes. Without `large`, their own type, and the more expensive `huge`
    // one type is left, and the pool's minValues is two.
    let pool = on_demand_pool("default").requires_min(
        "node.kubernetes.io/instance-type",
        "Exists",
        &[],
        2,
    );
    let world = world_of(pool);
    let world = world
        .run([node("a", "large"), node("b", "large")])
        .with([running("p", "a", "1500m"), running("q", "b", "1500m")]);
    assert_eq!(world.decide(), ["delete a (saves 0.80)"]);
}

/// Conformance: DIS-103
#[test]
fn of_two_nodes_of_the_cheapest_type_one_is_deleted() {
    let types = [type_with_offerings(
        "cheap",
        4,
        vec![fake::offering(ON_DEMAND, Z1, 0.4)],
    )];
    let world = world_with(types);
    let cheap = |name: &str| node(name, "cheap").node("/status/allocatable/cpu", json!("4"));
    let world = world
        .run([cheap("a"), cheap("b")])
        .with([running("p", "a", "1"), running("q", "b", "1")]);
    let decided = world.decide();
    assert_eq!(decided.len(), 1);
    assert!(decided[0].starts_with("delete "), "{decided:?}");
}

/// Nodes of four cores of which two are allocatable, with a pod of 1.5 cores on each.
fn half_used(
    types: &[karpenter_core::instance_type::InstanceType],
    nodes: Vec<FleetNode>,
) -> World {
    let pods: Vec<_> = nodes
        .iter()
        .map(|node| running(&format!("on-{}", node.name()), node.name(), "1500m"))
        .collect();
    let nodes = nodes
        .into_iter()
        .map(|node| node.node("/status/allocatable/cpu", json!("2")));
    World::of(open_pool("default"))
        .with_types(types.to_vec())
        .run(nodes)
        .with(pods)
}

/// Conformance: DIS-103
#[test]
fn two_nodes_are_not_replaced_by_one_of_their_type_spot_or_not() {
    for capacity_type in [ON_DEMAND, SPOT] {
        let types = [type_with_offerings(
            "same",
            4,
            vec![fake::offering(capacity_type, Z1, 0.4)],
        )];
        let of_type = |name| node(name, "same").label(CAPACITY_TYPE, capacity_type);
        let world = half_used(&types, vec![of_type("a"), of_type("b")]);
        let plan = world.decide_with(|request| request.spot_to_spot = true);
        assert_eq!(commands(&plan), Vec::<String>::new(), "{capacity_type}");
    }
}

/// Conformance: DIS-103
#[test]
fn a_replacement_of_two_nodes_is_cheaper_than_the_cheaper_of_them() {
    let in_zone =
        |name: &str, zone: &str| node(name, "same").label("topology.kubernetes.io/zone", zone);
    let decide = |other: f64| {
        let types = [
            type_with_offerings(
                "same",
                4,
                vec![
                    fake::offering(ON_DEMAND, Z1, 0.3),
                    fake::offering(ON_DEMAND, Z2, 0.4),
                ],
            ),
            type_with_offerings("other", 4, vec![fake::offering(ON_DEMAND, Z1, other)]),
        ];
        half_used(&types, vec![in_zone("a", Z1), in_zone("b", Z2)]).decide()
    };
    assert_eq!(
        decide(0.25),
        ["replace a b with other on-demand (saves 0.45)"]
    );
    // Alone, the node at 0.4 may be replaced at 0.35.
    assert_eq!(
        decide(0.35),
        ["replace b with other on-demand (saves 0.05)"]
    );
}

#[test]
fn a_replacement_lists_only_the_types_and_capacity_type_that_are_cheaper() {
    let pool = open_pool("default")
        .requires(CAPACITY_TYPE, "In", &[ON_DEMAND, SPOT])
        .requires(ZONE, "In", &[Z1, Z2]);
    let world = world_of(pool);
    let world = world.run([node("a", "large")]).with(running("p", "a", "1"));
    let plan = world.decide_with(|_| ());
    let replacement = &plan.commands[0].replacements[0];
    assert_eq!(*replacement.instance_types, ["small", "medium", "large"]);
    assert_eq!(
        values(replacement, INSTANCE_TYPE),
        ["small", "medium", "large"]
    );
    assert_eq!(values(replacement, CAPACITY_TYPE), [SPOT]);
    assert_eq!(values(replacement, ZONE), [Z1, Z2]);
}

#[test]
fn each_of_several_replacements_costs_at_most_its_share_of_the_price() {
    let apart =
        |name: &str, node: &str| alone(name, node, "1").require(INSTANCE_TYPE, "NotIn", &["large"]);
    let world = crate::fleet::world()
        .run([node("a", "large"), node("b", "large")])
        .with([apart("p", "a"), apart("q", "b")]);
    let plan = world.decide_with(|request| request.multi_node.max_replacements = 2);
    // Two `small` are planned for 0.4, a quarter of 1.6: each may cost four times its price, which `huge` does not.
    assert_eq!(
        commands(&plan),
        ["replace a b with small medium on-demand with small medium on-demand (saves 1.20)"]
    );
}
