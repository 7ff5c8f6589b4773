//! Planned nodes whose requirements are narrowed by later pods: from then on their pods count in fewer domains, or in one.

use karpenter_core::fake::{instance_type, offering};

use super::{node_in, spread};
use crate::fixture::*;

/// Returns an instance type of four cores with offerings in these zones.
fn four_cores(name: &str, zones: &[&str], price: f64) -> karpenter_core::fake::TypeBuilder {
    let offerings = zones.iter().map(|zone| offering("on-demand", zone, price));
    let sized = instance_type(name).cpu(4).gib(16).pods(20);
    sized.offerings(offerings.collect())
}

fn world(zones: &[&str]) -> World {
    World::new()
        .with_types(four_cores("t", zones, 1.0))
        .by_size()
}

/// A pod that fits nowhere, with a constraint that counts others.
fn too_large() -> Object<Pod> {
    pod("too-large").cpu("9000")
}

#[test]
fn the_only_zone_left_is_listed_once_pods_of_a_planned_node_count() {
    let zones_with = |counting: Object<Pod>| {
        let plan = world(&[Z1, Z2, Z3])
            .with([
                counting,
                member("first").cpu("2"),
                pod("second").cpu("1").require(ZONE, "NotIn", &[Z1, Z2]),
            ])
            .plan();
        assert_eq!(sizes(&plan), [2]);
        values_with(&plan, "first", ZONE)
    };
    assert_eq!(zones_with(too_large().affinity(ZONE, APP)), [Z3]);
    // The launch decides where nothing counts the pods by zone.
    let by_host = too_large().affinity(HOSTNAME, APP);
    assert_eq!(zones_with(by_host), [Z1, Z2], "those that are excluded");
}

#[test]
fn pods_of_a_planned_node_count_in_the_zone_that_a_later_pod_requires() {
    let plan = world(&[Z1, Z2])
        .with([
            member("first").cpu("2"),
            pod("second").cpu("1800m").select(ZONE, Z1),
            spread("third", ZONE).cpu("1500m"),
        ])
        .plan();
    assert_eq!(sizes(&plan), [2, 1]);
    assert_eq!(values_with(&plan, "third", ZONE), [Z2], "zone 1 has a pod");
}

#[test]
fn anti_affinity_excludes_only_zones_that_a_planned_node_can_be_in() {
    let guard = pod("guard")
        .cpu("1500m")
        .anti_affinity(ZONE, APP)
        .label("app", "guard");
    let plan = world(&[Z1, Z2])
        .with([
            member("first").cpu("2"),
            pod("second").cpu("1800m").select(ZONE, Z2),
            guard,
        ])
        .plan();
    assert!(all_placed(&plan));
    assert_eq!(values_with(&plan, "guard", ZONE), [Z1]);
}

/// Returns whether `refused`, which has no place at first, has one once `last` joins the planned node of `first`. A pod of `last` may
/// be counted by another constraint, too, whose pods have no place.
fn is_tried_again(first: Object<Pod>, refused: Object<Pod>, last: Object<Pod>) -> [bool; 2] {
    [false, true].map(|counts_elsewhere| {
        let mut last = last.clone();
        if counts_elsewhere {
            last = last.label("app", "elsewhere");
        }
        let by_host = too_large().spread(HOSTNAME, 1, ("app", "elsewhere"));
        // Only zone 1 has nodes with much memory.
        let types = [
            four_cores("t", &[Z1, Z2], 1.0),
            four_cores("memory", &[Z1], 2.0).gib(64),
        ];
        let plan = World::new()
            .with_types(types)
            .by_size()
            .with(node_in("n", Z1).label(ARCH, "amd64"))
            .with([member("running").on("n"), by_host])
            .with([first.clone(), refused.clone(), last])
            .plan();
        assert!(!plan.unplaced.iter().any(|pod| pod.pod.name == "last"));
        !plan.unplaced.iter().any(|pod| pod.pod.name == "refused")
    })
}

#[test]
fn a_pod_is_tried_again_once_a_pod_of_its_spread_counts_in_another_zone() {
    let first = member("first").cpu("2");
    // Zone 1 has a pod, so another may come there only once zone 2 has one.
    let refused = spread("refused", ZONE).cpu("1500m").memory("30Gi");
    let last = pod("last").cpu("1").select(ZONE, Z2);
    assert_eq!(is_tried_again(first, refused, last), [true, true]);
}

#[test]
fn a_pod_is_tried_again_once_a_pod_of_its_spread_passes_the_node_filter() {
    let first = member("first").cpu("2");
    let refused = spread("refused", ZONE)
        .cpu("1500m")
        .memory("30Gi")
        .select(ARCH, "amd64");
    let last = pod("last").cpu("1").select(ZONE, Z2).select(ARCH, "amd64");
    assert_eq!(is_tried_again(first, refused, last), [true, true]);
}

#[test]
fn a_pod_is_tried_again_once_anti_affinity_no_longer_excludes_its_zone() {
    let first = member("first").cpu("2");
    let refused = spread("refused", ZONE)
        .label("app", "y")
        .cpu("1500m")
        .select(ZONE, Z2)
        .anti_affinity(ZONE, APP);
    let last = pod("last").cpu("1").select(ZONE, Z1);
    assert_eq!(is_tried_again(first, refused, last), [true, true]);
}

#[test]
fn pods_count_once_their_planned_node_passes_the_node_filter() {
    // Only amd64 nodes count for `third`. These are cheaper, so that `first` gets one.
    let types = [("amd64", 1.0), ("arm64", 2.0)]
        .map(|(arch, price)| four_cores(arch, &[Z1, Z2], price).arch(arch).build());
    let plan = World::new()
        .with_types(types)
        .by_size()
        .with([
            member("first").cpu("3").select(ZONE, Z1),
            spread("third", ZONE).cpu("2").select(ARCH, "amd64"),
        ])
        .plan();
    assert_eq!(sizes(&plan), [1, 1]);
    assert_eq!(values_with(&plan, "third", ZONE), [Z2], "zone 1 has a pod");
}

#[test]
fn an_open_label_gets_its_value_by_the_pods_that_spreads_by_it_count() {
    let team = "example.com/team";
    // In the second zone a pod runs; both teams have none.
    let plan = World::of(node_pool("default").requires(team, "In", &["t1", "t2"]))
        .with_types(four_cores("t", &[Z1, Z2], 1.0))
        .by_size()
        .with([node_in("n1", Z1), node_in("n2", Z2)])
        .with(member("running").on("n1"))
        .with([
            too_large().spread(ZONE, 1, APP),
            too_large().renamed("other").spread(team, 1, APP),
            member("first").cpu("2"),
        ])
        .plan();
    let labels = plan.new_node_claims[0].to_node_claim().metadata.labels;
    assert_eq!(labels.unwrap()[team], "t1");
}
