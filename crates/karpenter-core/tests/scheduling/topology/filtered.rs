//! Planned nodes that may or may not pass the node filter of a spread: labels are decided so that it is known.

use karpenter_core::fake::{instance_type, offering};
use karpenter_core::schedule::Plan;
use serde_json::json;

use super::spread;
use crate::fixture::*;

/// Returns a world of amd64 nodes, and of arm64 nodes that cost twice as much, in two zones.
fn world() -> World {
    let types = [("amd64", 1.0), ("arm64", 2.0)].map(|(arch, price)| {
        let offerings = [Z1, Z2].map(|zone| offering("on-demand", zone, price));
        let sized = instance_type(arch).cpu(4).gib(16).pods(20).arch(arch);
        sized.offerings(offerings.into())
    });
    World::empty().with_types(types).by_size()
}

/// Returns the instance types of the planned node of a pod.
fn types_of(plan: &Plan, pod: &str) -> Vec<String> {
    let draft = claim_with(plan, pod);
    draft.map_or_else(Vec::new, |draft| draft.instance_types.to_vec())
}

/// Returns the sizes of the planned nodes of a counted pod and of one whose spread counts nodes of some teams. Both fit on one node, and
/// within the skew.
fn nodes_with(label: &str, values: &[&str], admitted: (&str, &[&str])) -> Vec<usize> {
    let picky = member("picky")
        .cpu("1")
        .require(label, admitted.0, admitted.1)
        .spread(ZONE, 2, APP);
    let plan = world()
        .with_pool(node_pool("default").requires(label, "In", values))
        .with([member("first").cpu("2"), picky])
        .plan();
    assert!(all_placed(&plan));
    sizes(&plan)
}

/// The first value is taken, as the launch would do.
#[test]
fn a_label_that_a_node_filter_reads_is_decided_before_its_pods_are_placed() {
    let teams = ["a", "b"];
    assert_eq!(nodes_with("team", &teams, ("NotIn", &["a"])), [1, 1]);
    assert_eq!(nodes_with("team", &teams, ("In", &["b"])), [1, 1]);
    assert_eq!(nodes_with("team", &teams, ("In", &["a"])), [2]);
    assert_eq!(nodes_with("tier", &["3", "9"], ("Gt", &["5"])), [1, 1]);
    assert_eq!(nodes_with("tier", &["3", "9"], ("Lt", &["5"])), [2]);
}

#[test]
fn a_label_that_a_node_filter_only_requires_stays_open() {
    let picky = spread("picky", ZONE)
        .cpu("2")
        .require("team", "Exists", &[]);
    let plan = world()
        .with_pool(node_pool("default").requires("team", "In", &["a", "b"]))
        .with([member("first").cpu("3"), picky])
        .plan();
    assert_eq!(sizes(&plan), [1, 1]);
    assert_eq!(first_values(&plan, "team"), ["a", "b"]);
}

#[test]
fn pods_on_nodes_with_another_value_of_a_custom_label_do_not_count() {
    let picky = |name: &str| spread(name, ZONE).cpu("3").require("team", "NotIn", &["a"]);
    let plan = world()
        .with_pool(node_pool("default").requires("team", "In", &["a", "b"]))
        .with([
            member("first").cpu("3500m").select(ZONE, Z1),
            picky("picky"),
        ])
        .plan();
    assert_eq!(all_zones(&plan), [[Z1], [Z1]], "nothing counts in zone 1");
}

/// Returns the instance types of a counted pod in zone 1 beside a pod whose spread counts nodes of an architecture.
fn types_beside(operator: &str, archs: &[&str], when: &str, pool: Object<NodePool>) -> Vec<String> {
    let when = json!({ "whenUnsatisfiable": when });
    let picky = pod("picky").cpu("2").require(ARCH, operator, archs);
    let plan = world()
        .with_pool(pool)
        .with([
            member("first").cpu("3").select(ZONE, Z1),
            picky.spread_with(ZONE, 1, APP, when),
        ])
        .plan();
    assert_eq!(sizes(&plan), [1, 1]);
    types_of(&plan, "first")
}

#[test]
fn a_label_of_the_provider_is_decided_for_a_required_spread_only() {
    let pool = || node_pool("default").requires(CAPACITY_TYPE, "In", &["on-demand"]);
    let of_both = || pool().requires(ARCH, "In", &["amd64", "arm64"]);
    let hard = "DoNotSchedule";
    for pool in [pool(), of_both()] {
        let types = |operator, archs| types_beside(operator, archs, hard, pool.clone());
        assert_eq!(types("In", &["amd64"]), ["amd64"], "the cheaper");
        assert_eq!(types("NotIn", &["amd64"]), ["amd64"]);
        let soft = types_beside("In", &["amd64"], "ScheduleAnyway", pool.clone());
        assert_eq!(soft.len(), 2);
    }
}

#[test]
fn all_pods_of_a_planned_node_count_once_its_zone_is_decided() {
    let types = [instance_type("t")
        .cpu(4)
        .gib(16)
        .pods(20)
        .offerings([Z1, Z2].map(|zone| offering("on-demand", zone, 1.0)).into())];
    let too_large = pod("too-large").cpu("9000");
    let plan = World::new()
        .with_types(types)
        .by_size()
        .with([
            member("first").cpu("1300m"),
            member("second").cpu("1200m"),
            pod("last").cpu("1100m").select(ZONE, Z1),
            spread("a", ZONE).cpu("1"),
            spread("b", ZONE).cpu("1"),
            too_large.spread(ZONE, 3, APP),
        ])
        .plan();
    let third: Vec<_> = (plan.new_node_claims.iter())
        .map(|draft| (draft.pods.len(), values(draft, ZONE).concat()))
        .collect();
    assert_eq!(third, [(3, Z1.to_owned()), (2, Z2.to_owned())]);
}

#[test]
fn a_pod_is_tried_again_once_the_pod_it_must_be_near_joins_a_node() {
    let plan = world()
        .with_pool(node_pool("default"))
        .with([
            pod("first").cpu("2"),
            pod("follower").cpu("1500m").affinity(HOSTNAME, APP),
            member("target").cpu("100m"),
        ])
        .plan();
    assert!(all_placed(&plan));
    assert_eq!(sizes(&plan), [3]);
}

/// Returns a world in which one pod costs less on amd64, and two cost less on one arm64 node.
fn cheaper_for_more() -> World {
    let types = [
        ("small", "amd64", 4, 1.0),
        ("amd64", "amd64", 16, 9.0),
        ("arm64", "arm64", 16, 3.0),
    ];
    let types = types.map(|(name, arch, cpu, price)| {
        let sized = instance_type(name).cpu(cpu).gib(64).pods(20).arch(arch);
        sized
            .offerings(vec![offering("on-demand", Z1, price)])
            .build()
    });
    let world = World::empty().with_types(types);
    world.with_pool(node_pool("default")).by_size()
}

/// The two pods come first. As soon as the first is placed, amd64 would be cheaper.
#[test]
fn whether_a_spread_counts_a_node_is_decided_when_its_pod_is_placed() {
    let picky = pod("picky").cpu("1").require(ARCH, "In", &["amd64"]);
    let plan = cheaper_for_more()
        .with(["first", "second"].map(|name| member(name).cpu("3").select(ZONE, Z1)))
        .with(picky.spread(ZONE, 1, APP))
        .plan();
    assert!(all_placed(&plan));
    assert_eq!(types_of(&plan, "second"), ["arm64"]);
}

#[test]
fn a_pod_that_no_node_has_room_for_does_not_decide_what_its_spread_counts() {
    let picky = pod("picky").cpu("100").require(ARCH, "In", &["arm64"]);
    let plan = cheaper_for_more()
        .with(["first", "second"].map(|name| member(name).cpu("3").select(ZONE, Z1)))
        .with(picky.spread(ZONE, 1, APP))
        .plan();
    assert_eq!(plan.unplaced.len(), 1);
    assert_eq!(types_of(&plan, "second"), ["arm64", "amd64"]);
}
