//! What a planned node can still become as pods join it, and what it leaves to other pods.

use karpenter_core::fake::{TypeBuilder, instance_type, offering};
use karpenter_core::schedule::PodSet;

use crate::fixture::*;

/// Returns an instance type with 4 GiB per core, on demand in zones at these prices.
fn sized(name: &str, cores: i64, prices: &[(&str, f64)]) -> TypeBuilder {
    let offerings = prices
        .iter()
        .map(|(zone, price)| offering("on-demand", zone, *price));
    let sized = instance_type(name).cpu(cores).gib(cores * 4).pods(20);
    sized.offerings(offerings.collect())
}

fn world(types: impl Types) -> World {
    World::empty().with_types(types).by_size()
}

#[test]
fn a_pod_starts_its_affinity_group_in_a_zone_that_fits_its_planned_nodes() {
    // Zone 2 is the cheapest for `starts`, and has no node for `first`.
    let types = [
        sized("large", 4, &[(Z1, 1.0)]),
        sized("small", 2, &[(Z1, 0.5), (Z2, 0.2)]),
    ];
    let plan = world(types)
        .with_pool(node_pool("default"))
        .with([
            member("first").cpu("3"),
            member("starts").cpu("1").affinity(ZONE, APP),
        ])
        .plan();
    assert!(all_placed(&plan));
    assert_eq!(values_with(&plan, "starts", ZONE), [Z1]);
    assert_eq!(values_with(&plan, "first", ZONE), [Z1]);
}

#[test]
fn a_pod_starts_its_affinity_group_in_a_zone_with_enough_min_values() {
    let zone_with = |other: &[(&str, f64)]| {
        let types = [
            sized("large", 4, &[(Z1, 1.0), (Z2, 1.0)]),
            sized("other", 4, other),
            sized("small", 2, &[(Z1, 0.5), (Z2, 0.2)]),
            sized("small-too", 2, &[(Z1, 0.5), (Z2, 0.2)]),
        ];
        let pool = node_pool("default").requires_min(INSTANCE_TYPE, "Exists", &[], 2);
        let plan = world(types)
            .with_pool(pool)
            .with([
                member("first").cpu("3"),
                member("starts").cpu("1").affinity(ZONE, APP),
            ])
            .plan();
        assert!(all_placed(&plan));
        assert_eq!(
            values_with(&plan, "first", ZONE),
            values_with(&plan, "starts", ZONE)
        );
        values_with(&plan, "starts", ZONE)
    };
    assert_eq!(zone_with(&[(Z1, 1.0)]), [Z1]);
    assert_eq!(zone_with(&[(Z1, 1.0), (Z2, 1.0)]), [Z2], "the cheapest");
}

#[test]
fn of_the_zones_of_a_spread_that_with_the_cheapest_type_is_used() {
    let types = [
        sized("large", 4, &[(Z1, 0.5), (Z2, 0.6)]),
        sized("small", 2, &[(Z2, 0.1)]),
    ];
    let plan = world(types)
        .with_pool(node_pool("default"))
        .with(member("p").cpu("3").spread(ZONE, 1, APP))
        .plan();
    assert_eq!(values_with(&plan, "p", ZONE), [Z1]);
}

#[test]
fn a_pod_of_several_zones_joins_a_node_that_is_open_to_all_of_them() {
    let plan = world([sized("t", 4, &[(Z1, 1.0), (Z2, 1.0)])])
        .with_pool(node_pool("default"))
        .with([
            pod("first").cpu("2"),
            pod("second").cpu("1").anti_affinity(ZONE, APP),
        ])
        .plan();
    assert_eq!(sizes(&plan), [2]);
}

#[test]
fn pods_that_count_once_joined_may_be_as_many_as_the_skew_of_hosts() {
    let nodes = |skew| {
        let picky = member("picky")
            .cpu("1")
            .select(ARCH, "amd64")
            .spread(HOSTNAME, skew, APP);
        let plan = World::new()
            .with([member("first").cpu("2"), picky])
            .by_size();
        plan.sizes()
    };
    assert_eq!(nodes(1), [1, 1]);
    assert_eq!(nodes(2), [2]);
}

#[test]
fn pods_join_a_node_as_long_as_any_type_has_room_for_them() {
    // By the sum of its resources the first is the larger one. It is full after seven pods.
    let memory = instance_type("memory").cpu(8).gib(64).pods(20).price(1.0);
    let cores = instance_type("cores").cpu(16).gib(16).pods(20).price(1.0);
    let plan = world([memory, cores])
        .with_pool(node_pool("default"))
        .with(copies(&pod("p").cpu("1").memory("500Mi"), 9))
        .plan();
    assert_eq!(sizes(&plan), [9]);
}

#[test]
fn pods_join_a_node_whose_type_is_narrowed_again_and_again() {
    let of_arch = |name: &str, cores, arch: &str| sized(name, cores, &[(Z1, 1.0)]).arch(arch);
    let types = [
        of_arch("amd-16", 16, "amd64"),
        of_arch("arm-08", 8, "arm64"),
        of_arch("arm-04", 4, "arm64"),
    ];
    let plan = world(types)
        .with_pool(node_pool("default"))
        .with([
            pod("any").cpu("1200m"),
            pod("arm").cpu("1100m").select(ARCH, "arm64"),
            pod("small").cpu("1").select(INSTANCE_TYPE, "arm-04"),
        ])
        .plan();
    assert_eq!(sizes(&plan), [3]);
}

#[test]
fn a_planned_node_is_charged_for_its_largest_type_in_any_order_of_types() {
    let apart = |name: &str| member(name).cpu("1").anti_affinity(HOSTNAME, APP);
    let placed = |order: [&str; 2]| {
        let types = [(order[0], 16), (order[1], 4)];
        let types = types.map(|(name, cores)| sized(name, cores, &[(Z1, 1.0)]));
        let plan = world(types)
            .with_pool(node_pool("default").limit("cpu", "20"))
            .with([apart("a"), apart("b"), apart("c")])
            .plan();
        plan.new_node_claims.len()
    };
    assert_eq!(placed(["a", "b"]), 2);
    assert_eq!(placed(["b", "a"]), 2);
}

#[test]
fn a_type_without_resources_left_takes_none_from_types_listed_before_it() {
    let types = [
        sized("a", 2, &[(Z1, 1.0)]),
        sized("b", 8, &[(Z1, 1.0)]),
        sized("c", 0, &[(Z1, 1.0)]),
    ];
    let plan = world(types)
        .with_pool(node_pool("default"))
        .with(pod("p").cpu("4").memory("1Gi"))
        .plan();
    assert!(all_placed(&plan));
}

#[test]
fn a_pod_that_is_given_and_waits_is_placed_once() {
    let mut world = world([sized("t", 4, &[(Z1, 1.0)])])
        .with_pool(node_pool("default"))
        .with(pod("p").cpu("1"));
    let waiting = world.cluster.snapshot().pod("default", "p").cloned();
    world.query.pods = PodSet::WaitingAnd(waiting.into_iter().collect());
    assert_eq!(world.sizes(), [1]);
}
