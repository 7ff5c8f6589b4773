//! Replacements of and by spot nodes.

use karpenter_core::fake;

use crate::fixture::{CAPACITY_TYPE, World, Z1, Z2, values};
use crate::fleet::{
    Fleet, ON_DEMAND, SPOT, commands, node, open_pool, running, type_with_offerings, verdict,
    world_of, world_with,
};

fn spot_types(count: usize) -> Vec<karpenter_core::instance_type::InstanceType> {
    // The types are not in the order of price.
    (0..count)
        .map(|index| {
            let place = (index * 11) % count;
            let price = 0.10 + 0.01 * place as f64;
            type_with_offerings(
                &format!("spot-{place:02}"),
                2,
                vec![fake::offering(SPOT, Z1, price)],
            )
        })
        .collect()
}

fn spot_world(cheaper: usize, min_values: Option<u32>) -> World {
    let mut types = spot_types(cheaper);
    types.push(type_with_offerings(
        "huge",
        16,
        vec![fake::offering(SPOT, Z1, 1.0)],
    ));
    let pool = open_pool("default").requires(CAPACITY_TYPE, "In", &[SPOT]);
    let pool = match min_values {
        Some(least) => pool.requires_min("node.kubernetes.io/instance-type", "Exists", &[], least),
        None => pool,
    };
    World::of(pool)
        .with_types(types)
        .run([node("a", "huge").spot()])
        .with(running("p", "a", "1"))
}

/// Conformance: DIS-097
#[test]
fn spot_replaces_spot_only_with_the_gate_and_fifteen_cheaper_types() {
    let world = spot_world(20, None);
    let plan = world.decide_with(|_| ());
    assert_eq!(
        verdict(&plan, "a"),
        "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"
    );
    let few = spot_world(14, None).decide_with(|request| request.spot_to_spot = true);
    assert_eq!(
        verdict(&few, "a"),
        "SpotToSpotConsolidation requires 15 cheaper instance type options than the current candidate to consolidate, got 14"
    );
    let enough = spot_world(15, None).decide_with(|request| request.spot_to_spot = true);
    assert_eq!(commands(&enough).len(), 1);
    // A node whose type is among the fifteen cheapest has fewer than fifteen cheaper types.
    let world = world_with(spot_types(20));
    let world = world
        .run([node("a", "spot-14").spot()])
        .with(running("p", "a", "1"));
    assert!(commands(&world.decide_with(|request| request.spot_to_spot = true)).is_empty());
}

/// Conformance: DIS-098
#[test]
fn of_eighteen_cheaper_spot_types_the_fifteen_cheapest_are_launched() {
    let plan = spot_world(18, None).decide_with(|request| request.spot_to_spot = true);
    let expected: Vec<String> = (0..15).map(|index| format!("spot-{index:02}")).collect();
    assert_eq!(
        plan.commands[0].replacements[0].instance_types.to_vec(),
        expected
    );
}

/// Conformance: DIS-099
#[test]
fn min_values_keep_more_than_fifteen() {
    let plan = spot_world(18, Some(17)).decide_with(|request| request.spot_to_spot = true);
    assert_eq!(plan.commands[0].replacements[0].instance_types.len(), 17);
}

/// Conformance: DIS-102
#[test]
fn the_most_expensive_spot_zone_decides_about_a_replacement() {
    for spot_prices in [[0.2, 0.6], [0.6, 0.2]] {
        let types = [
            type_with_offerings("now", 4, vec![fake::offering(ON_DEMAND, Z1, 0.5)]),
            type_with_offerings(
                "other",
                4,
                vec![
                    fake::offering(SPOT, Z1, spot_prices[0]),
                    fake::offering(SPOT, Z2, spot_prices[1]),
                    fake::offering(ON_DEMAND, Z1, 0.9),
                ],
            ),
        ];
        let world = world_with(types);
        let world = world.run([node("a", "now")]).with(running("p", "a", "1"));
        assert_eq!(world.verdict("a"), "Can't replace with a cheaper node");
    }
}

/// Conformance: DIS-184
#[test]
fn a_replacement_of_either_capacity_type_is_pinned_to_spot() {
    let world = world_of(open_pool("default"));
    let world = world.run([node("a", "huge")]).with(running("p", "a", "1"));
    let plan = world.decide_with(|_| ());
    assert_eq!(
        values(&plan.commands[0].replacements[0], CAPACITY_TYPE),
        [SPOT]
    );
}

/// Spot capacity costs more than on-demand capacity where it is scarce.
#[test]
fn the_types_of_a_spot_replacement_are_in_the_order_of_spot_prices() {
    let offered = |name: &str, on_demand: f64, spot: f64| {
        let offerings = vec![
            fake::offering(ON_DEMAND, Z1, on_demand),
            fake::offering(SPOT, Z1, spot),
        ];
        type_with_offerings(name, 4, offerings)
    };
    let types = [
        offered("scarce", 0.1, 0.4),
        offered("plenty", 0.3, 0.2),
        offered("huge", 1.6, 1.5),
    ];
    let world = world_with(types)
        .run([node("a", "huge")])
        .with(running("p", "a", "1"));
    assert_eq!(
        world.decide(),
        ["replace a with plenty scarce huge spot (saves 1.40)"]
    );
}
