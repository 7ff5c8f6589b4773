//! Topology spread constraints.

mod counted_pods;
mod domains;
mod filtered;
mod narrowed;
mod planned_nodes;
mod several;
mod terms;

use karpenter_core::schedule::Plan;
use serde_json::json;

use crate::fixture::*;

fn spread(name: &str, key: &str) -> Object<Pod> {
    member(name).spread(key, 1, APP)
}

/// Returns the numbers of labeled pods per value of the key after so many such pods are launched and bound.
fn skew_of(key: &str, world: World, pod: &Object<Pod>, number: usize) -> Vec<usize> {
    let mut world = world.with(copies(pod, number));
    world.launch_and_bind();
    world.skew(key, APP)
}

fn zone_skew(world: World, pod: &Object<Pod>, number: usize) -> Vec<usize> {
    skew_of(ZONE, world, pod, number)
}

/// Adds a batch of such pods, of a size that no other batch has, and launches and binds them.
fn grow(world: &mut World, pod: &Object<Pod>, number: usize) -> Plan {
    let named = pod.clone().renamed(&format!("of-{number}"));
    world.add(copies(&named, number));
    world.launch_and_bind()
}

fn zones(zones: &[&str]) -> World {
    World::of(node_pool("default").requires(ZONE, "In", zones))
}

/// Conformance: SCH-104
#[test]
fn pods_are_spread_over_zones() {
    assert_eq!(zone_skew(World::new(), &spread("p", ZONE), 4), [2, 1, 1]);
    let expressions = json!({ "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["x"] }] } });
    let by_expression = member("p").spread_with(ZONE, 1, APP, expressions);
    assert_eq!(zone_skew(World::new(), &by_expression, 4), [2, 1, 1]);
}

fn node_in(name: &str, zone: &str) -> Object<Node> {
    node(name)
        .zone(zone)
        .set("/status/allocatable", json!({ "cpu": "0", "pods": "5" }))
}

/// Conformance: SCH-107
#[test]
fn pods_are_placed_in_one_zone_up_to_the_skew() {
    let five = member("p").spread(ZONE, 5, APP).cpu("1");
    let existing = |name: &str, node: &str| member(name).on(node);
    let world = zones(&[Z3]).with((
        node_in("n1", Z1),
        node_in("n2", Z2),
        existing("e1", "n1"),
        existing("e2", "n2"),
    ));
    assert_eq!(zone_skew(world, &five, 10), [6, 1, 1]);
}

/// Conformance: SCH-112
#[test]
fn pods_are_spread_over_hosts() {
    assert_eq!(
        World::new().with(copies(&spread("p", HOSTNAME), 4)).sizes(),
        [1, 1, 1, 1]
    );
    let four = member("p").spread(HOSTNAME, 4, APP);
    assert_eq!(World::new().with(copies(&four, 4)).sizes(), [4]);
    let other = pod("q").label("app", "y").spread(HOSTNAME, 1, ("app", "y"));
    assert_eq!(
        World::new()
            .with(copies(&spread("p", HOSTNAME), 2))
            .with(copies(&other, 2))
            .sizes(),
        [2, 2]
    );
    let arch = |name: &str, arch: &str| spread(name, HOSTNAME).select(ARCH, arch);
    let plan = World::new()
        .with(copies(&arch("a", "amd64"), 2))
        .with(copies(&arch("b", "arm64"), 2))
        .plan();
    assert_eq!(sizes(&plan), [1, 1, 1, 1]);
}

#[test]
fn a_pod_that_its_own_spread_does_not_count_joins_a_host_at_the_skew() {
    let full = || World::new().with((node("n").cpu("4").pods("9"), member("e").on("n")));
    let other = pod("p").label("app", "y").spread(HOSTNAME, 1, APP);
    assert_eq!(full().with(other.clone()).plan().existing.len(), 1);
    let counted = spread("p", HOSTNAME);
    assert_eq!(full().with(counted).sizes(), [1]);
    // The same on a planned node.
    let planned = World::new().with([spread("a", HOSTNAME).cpu("1"), other.cpu("500m")]);
    assert_eq!(planned.by_size().sizes(), [2]);
}

/// Conformance: SCH-113
#[test]
fn later_pods_continue_the_spread() {
    let mut world = World::new().with(copies(&spread("a", HOSTNAME), 4));
    world.launch_and_bind();
    let world_after = skew_of(HOSTNAME, world, &spread("b", HOSTNAME), 5);
    assert_eq!(world_after, [1; 9]);
    let roomy = spread("a", ZONE).cpu("100m");
    let mut world = World::new()
        .with_types(karpenter_core::fake::instance_types(5))
        .with(copies(&roomy, 4));
    world.launch_and_bind();
    world.add(copies(&spread("b", ZONE).cpu("100m"), 5));
    world.launch_and_bind();
    assert_eq!(world.skew(ZONE, APP), [3, 3, 3]);
}

/// Conformance: SCH-114
#[test]
fn pods_are_spread_over_capacity_types() {
    let both =
        || World::of(node_pool("default").requires(CAPACITY_TYPE, "In", &["spot", "on-demand"]));
    assert_eq!(
        skew_of(CAPACITY_TYPE, both(), &spread("p", CAPACITY_TYPE), 4),
        [2, 2]
    );
    for (policy, expected) in [
        ("DoNotSchedule", vec![2, 1]),
        ("ScheduleAnyway", vec![5, 1]),
    ] {
        let on_demand =
            World::of(node_pool("default").requires(CAPACITY_TYPE, "In", &["on-demand"]));
        let spot = node_in("n", Z1).set(
            "/metadata/labels/karpenter.sh~1capacity-type",
            json!("spot"),
        );
        let world = on_demand.with((spot, member("e").on("n")));
        let asked = member("p").cpu("1").spread_with(
            CAPACITY_TYPE,
            1,
            APP,
            json!({ "whenUnsatisfiable": policy }),
        );
        assert_eq!(
            skew_of(CAPACITY_TYPE, world, &asked, 5),
            expected,
            "{policy}"
        );
    }
}

/// Conformance: SCH-116
#[test]
fn zone_and_host_are_spread_together() {
    let both = spread("p", ZONE).spread(HOSTNAME, 3, APP);
    let mut world = World::new();
    for (more, expected) in [
        (2, vec![1, 1]),
        (3, vec![2, 2, 1]),
        (5, vec![4, 3, 3]),
        (11, vec![7, 7, 7]),
    ] {
        assert!(all_placed(&grow(&mut world, &both, more)));
        assert_eq!(world.skew(ZONE, APP), expected);
        assert!(world.skew(HOSTNAME, APP).iter().all(|count| *count <= 3));
    }
}

/// Conformance: SCH-117
#[test]
fn a_zone_without_room_stops_a_hard_spread() {
    let soft = json!({ "whenUnsatisfiable": "ScheduleAnyway" });
    let asked = spread("p", ZONE).spread_with(HOSTNAME, 1, APP, soft);
    let world = World::of(node_pool("a").requires(ZONE, "In", &[Z1, Z2]))
        .with_pool(node_pool("b").requires(ZONE, "In", &[Z3]).limit("cpu", "0"));
    assert_eq!(zone_skew(world, &asked, 10), [1, 1]);
}

/// Conformance: SCH-118
#[test]
fn capacity_type_and_host_are_spread_together() {
    let both = member("p")
        .spread(CAPACITY_TYPE, 1, APP)
        .spread(HOSTNAME, 3, APP);
    let mut world = World::new();
    for (more, expected) in [
        (2, vec![1, 1]),
        (3, vec![3, 2]),
        (5, vec![5, 5]),
        (11, vec![11, 10]),
    ] {
        grow(&mut world, &both, more);
        assert_eq!(world.skew(CAPACITY_TYPE, APP), expected);
        assert!(world.skew(HOSTNAME, APP).iter().all(|count| *count <= 3));
    }
}

/// Conformance: SCH-119
#[test]
fn a_custom_label_spreads_capacity_types_in_proportion() {
    let part = "capacity.spread.4-1";
    let world = || {
        World::of(
            node_pool("spot")
                .requires(CAPACITY_TYPE, "In", &["spot"])
                .requires(part, "In", &["2", "3", "4", "5"]),
        )
        .with_pool(
            node_pool("on-demand")
                .requires(CAPACITY_TYPE, "In", &["on-demand"])
                .requires(part, "In", &["1"]),
        )
    };
    let mut all = world().with(copies(&spread("p", part), 20));
    assert!(all_placed(&all.launch_and_bind()));
    assert_eq!(all.skew(part, APP), [4; 5]);
    assert_eq!(all.skew(CAPACITY_TYPE, APP), [16, 4]);
}

/// Conformance: SCH-120
#[test]
fn three_skews_are_kept_at_once_in_growing_batches() {
    let asked = member("p")
        .spread(CAPACITY_TYPE, 1, APP)
        .spread(ZONE, 2, APP)
        .spread(HOSTNAME, 3, APP);
    let mut world = World::new();
    for batch in 1..7 {
        grow(&mut world, &asked, batch);
        let range = |skew: Vec<usize>, domains: usize| {
            let least = if skew.len() < domains {
                0
            } else {
                *skew.last().unwrap()
            };
            skew[0] - least
        };
        assert!(range(world.skew(CAPACITY_TYPE, APP), 2) <= 1);
        assert!(range(world.skew(ZONE, APP), 3) <= 2);
        assert!(world.skew(HOSTNAME, APP).iter().all(|count| *count <= 3));
    }
}

/// Conformance: SCH-126
#[test]
fn an_empty_zone_is_filled_first() {
    let mut world = World::new().with(copies(&spread("a", ZONE).require(ZONE, "In", &[Z1, Z2]), 6));
    world.launch_and_bind();
    world.add(spread("b", ZONE).require(ZONE, "In", &[Z2, Z3]));
    world.launch_and_bind();
    assert_eq!(world.skew(ZONE, APP), [3, 3, 1]);
    assert_eq!(zone_skew(world, &spread("c", ZONE), 5), [4, 4, 4]);
}

/// Conformance: SCH-108
#[test]
fn emptied_zones_are_filled_again() {
    let asked = spread("p", ZONE).cpu("1100m");
    let mut world = World::new().with(copies(&asked, 9));
    world.launch_and_bind();
    assert_eq!(world.skew(ZONE, APP), [3, 3, 3]);
    let snapshot = world.cluster.snapshot();
    for node in snapshot
        .nodes()
        .filter(|node| node.labels().get(ZONE) != Some(Z1))
    {
        for pod in snapshot.pods_on(node.name()) {
            world.cluster.remove_pod(&pod.key.namespace, &pod.key.name);
        }
    }
    world.add(copies(&spread("q", ZONE).cpu("1100m"), 3));
    world.launch_and_bind();
    assert_eq!(world.skew(ZONE, APP), [3, 2, 1]);
}
