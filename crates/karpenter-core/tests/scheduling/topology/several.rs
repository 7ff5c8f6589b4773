//! Pods under several constraints by one label, and constraints of which pods on planned nodes are counted later.

use karpenter_core::schedule::{Plan, PodSet};
use serde_json::json;

use super::{node_in, spread, zones};
use crate::fixture::*;

/// Returns the zones of the first planned node.
fn first_zones(plan: &Plan) -> Vec<String> {
    assert!(all_placed(plan));
    first_values(plan, ZONE)
}

/// Returns a world of two zones in which nodes without room run these numbers of pods with a label.
fn with_pods_in_zones(label: (&str, &str), [first, second]: [usize; 2]) -> World {
    let running =
        |name: &str, node: &str, count| copies(&pod(name).label(label.0, label.1).on(node), count);
    zones(&[Z1, Z2])
        .with([node_in("n1", Z1), node_in("n2", Z2)])
        .with((running("a", "n1", first), running("b", "n2", second)))
        .by_size()
}

#[test]
fn anti_affinity_orders_zones_before_affinity_does() {
    let apart = pod("p")
        .cpu("1")
        .affinity(ZONE, ("app", "front"))
        .anti_affinity(ZONE, APP);
    // No zone has a pod that it must be apart from, so the first is used, although it has more pods that it is affine to.
    let plan = with_pods_in_zones(("app", "front"), [2, 1]).with(apart);
    assert_eq!(first_zones(&plan.plan()), [Z1]);
}

#[test]
fn a_spread_orders_zones_before_anti_affinity_does() {
    let apart = member("p")
        .cpu("1")
        .spread(ZONE, 5, APP)
        .anti_affinity(ZONE, ("app", "other"));
    let plan = with_pods_in_zones(APP, [1, 0]).with(apart);
    assert_eq!(first_zones(&plan.plan()), [Z2]);
}

#[test]
fn required_anti_affinity_fixes_the_zone_and_preferred_does_not() {
    let zones_of = |pod: Object<Pod>| {
        let world = with_pods_in_zones(APP, [0, 0]).with(pod);
        first_zones(&world.plan()).len()
    };
    let member = || member("p").cpu("1");
    assert_eq!(zones_of(member().anti_affinity(ZONE, APP)), 1);
    assert_eq!(zones_of(member().prefer_anti_affinity(1, ZONE, APP)), 2);
}

#[test]
fn a_spread_does_not_keep_a_pod_in_the_zones_of_other_counted_pods() {
    let first = member("first").cpu("3").require(ZONE, "In", &[Z1, Z2]);
    let second = spread("second", ZONE).cpu("1").select(ZONE, Z3);
    let plan = World::new().with([first, second]).by_size().plan();
    assert!(all_placed(&plan));
    assert_eq!(all_zones(&plan), [vec![Z1, Z2], vec![Z3]]);
}

#[test]
fn a_pod_starts_its_affinity_group_whatever_pods_its_spread_counts() {
    let first = member("p")
        .affinity(ZONE, APP)
        .spread(ZONE, 5, ("app", "other"));
    let world = with_pods_in_zones(("app", "other"), [1, 0]).with(first);
    assert!(world.is_placed());
}

/// kube-scheduler lets a pod start its group only if no pod anywhere matches all of its terms.
#[test]
fn a_pod_does_not_start_its_group_by_one_label_if_it_has_pods_by_another() {
    let placed = |running: usize| {
        let without_zone = node("n")
            .label(CAPACITY_TYPE, "on-demand")
            .without_label(ZONE)
            .set("/status/allocatable", json!({ "cpu": "0", "pods": "5" }));
        let both = member("p").affinity(ZONE, APP).affinity(CAPACITY_TYPE, APP);
        let world = World::new()
            .with(without_zone)
            .with(copies(&member("e").on("n"), running));
        world.places(both)
    };
    assert_eq!((placed(0), placed(1)), (true, false));
}

#[test]
fn a_pod_that_its_own_spread_does_not_count_joins_no_host_over_the_skew() {
    let node = node("n").cpu("4").pods("9").label("disk", "ssd");
    let counted = |count| {
        let on_node = member("e").cpu("1").select("disk", "ssd");
        copies(&on_node, count)
    };
    let last = pod("z")
        .label("app", "y")
        .cpu("100m")
        .spread(HOSTNAME, 1, APP);
    let on_node = |count| {
        let world = World::new().with((node.clone(), counted(count), last.clone()));
        world.by_size().plan().existing.len() - count
    };
    assert_eq!((on_node(1), on_node(2)), (1, 0));
}

#[test]
fn a_moving_pod_is_not_one_that_it_must_be_near() {
    let member = member("moving").cpu("1").on("n");
    let mut world = zones(&[Z1, Z2]).with((node_in("n", Z1), member.affinity(ZONE, APP)));
    let moving = world.cluster.snapshot().pod("default", "moving").cloned();
    world.query.pods = PodSet::Given(moving.into_iter().collect());
    world.query.without = vec!["n".to_owned()];
    assert!(world.is_placed());
    // The same while the node stays, without room for the pod.
    world.query.without = Vec::new();
    assert!(world.is_placed());
}

#[test]
fn pods_on_other_nodes_are_joined_where_a_node_without_them_is_left_out() {
    let mut world = World::new().with((
        [node("a"), node("b")],
        member("e").cpu("1").on("b"),
        pod("p").cpu("1").affinity(HOSTNAME, APP),
    ));
    world.query.without = vec!["a".to_owned()];
    let plan = world.plan();
    assert_eq!(plan.existing[0].node, "b");
}
