//! Which domains a topology spread constraint counts in.

use serde_json::json;

use super::{node_in, skew_of, spread, zone_skew, zones};
use crate::fixture::*;

/// Conformance: SCH-103
#[test]
fn an_unknown_topology_key_fails_that_pod_alone() {
    let plan = plan_of([spread("p", "unknown"), pod("q")]);
    assert_eq!(plan.unplaced.len(), 1);
    assert_why(
        &plan,
        "p",
        "unsatisfiable topology constraint for topology spread, key=unknown",
    );
}

/// Conformance: SCH-105
#[test]
fn the_pool_s_zones_are_the_domains() {
    assert_eq!(zone_skew(zones(&[Z1, Z2]), &spread("p", ZONE), 4), [2, 2]);
    let labeled = |name: &str, zone: &str| node_pool(name).node_label(ZONE, zone);
    assert_eq!(
        zone_skew(World::of(labeled("a", Z1)), &spread("p", ZONE), 4),
        [4]
    );
    let two = World::of(labeled("a", Z1)).with_pool(labeled("b", Z2));
    assert_eq!(zone_skew(two, &spread("p", ZONE), 4), [2, 2]);
}

/// Conformance: SCH-106
#[test]
fn a_zone_known_only_from_an_existing_pod_counts() {
    for existing in [spread("e", ZONE), member("e")] {
        let world = zones(&[Z1, Z2]).with((node_in("n", Z3), existing.on("n")));
        assert_eq!(zone_skew(world, &spread("p", ZONE).cpu("1"), 6), [2, 2, 1]);
    }
}

/// Conformance: SCH-111
#[test]
fn min_domains_leaves_pods_unplaced_until_there_are_enough_zones() {
    let least =
        |domains: i32| member("p").spread_with(ZONE, 1, APP, json!({ "minDomains": domains }));
    assert_eq!(zone_skew(zones(&[Z1, Z2]), &least(3), 3), [1, 1]);
    assert_eq!(zone_skew(zones(&[Z1, Z2, Z3]), &least(3), 11), [4, 4, 3]);
    assert_eq!(zone_skew(zones(&[Z1, Z2, Z3]), &least(2), 11), [4, 4, 3]);
}

/// Conformance: SCH-122
#[test]
fn the_taints_policy_decides_which_domains_count() {
    let part = "fake-label";
    for (policy, placed) in [("Ignore", 1), ("Honor", 5)] {
        let tainted = |name: &str| {
            node_in(name, Z1)
                .set("/metadata/labels/fake-label", json!(name))
                .set(
                    "/spec/taints",
                    json!([{ "key": "t", "value": "t", "effect": "NoSchedule" }]),
                )
        };
        let asked =
            member("p")
                .cpu("1")
                .spread_with(part, 1, APP, json!({ "nodeTaintsPolicy": policy }));
        let world = World::of(node_pool("default").requires(part, "In", &["baz"]))
            .with([tainted("foo"), tainted("bar")]);
        let plan = world.with(copies(&asked, 5)).plan();
        assert_eq!(5 - plan.unplaced.len(), placed, "{policy}");
        let by_pool = World::of(node_pool("default").requires(part, "In", &["baz"])).with_pool(
            node_pool("tainted")
                .requires(part, "In", &["foo", "bar"])
                .taint("t", "t", "NoSchedule"),
        );
        let plan = by_pool.with(copies(&asked, 5)).plan();
        assert_eq!(
            5 - plan.unplaced.len(),
            placed,
            "{policy}, discovered from pools"
        );
    }
}

/// Conformance: SCH-123
#[test]
fn domains_behind_a_taint_count_for_pods_that_tolerate_it() {
    let part = "fake-label";
    let tolerating = |name: &str, key: &str| {
        member(name)
            .spread_with(part, 1, APP, json!({ "nodeTaintsPolicy": "Honor" }))
            .tolerate(json!({ "key": key, "operator": "Exists" }))
    };
    let mut world = World::of(node_pool("a").requires(part, "In", &["foo", "bar"]).taint(
        "a",
        "a",
        "NoSchedule",
    ))
    .with_pool(
        node_pool("b")
            .requires(part, "In", &["foo", "baz"])
            .taint("b", "b", "NoSchedule"),
    )
    .with(copies(&tolerating("a", "a"), 2))
    .with(copies(&tolerating("b", "b"), 4));
    assert!(all_placed(&world.launch_and_bind()));
    assert_eq!(world.skew(part, APP), [3, 2, 1]);
}

/// Conformance: SCH-124
#[test]
fn the_affinity_policy_decides_which_domains_count() {
    let part = "fake-label";
    for (policy, placed) in [("Ignore", 1), ("Honor", 5)] {
        let other = |name: &str| {
            node_in(name, Z1)
                .set("/metadata/labels/fake-label", json!(name))
                .set("/metadata/labels/selector", json!("other"))
        };
        let asked = member("p").cpu("1").select("selector", "mine").spread_with(
            part,
            1,
            APP,
            json!({ "nodeAffinityPolicy": policy }),
        );
        let pool = node_pool("default")
            .requires(part, "In", &["baz"])
            .requires("selector", "In", &["mine"]);
        let plan = World::of(pool)
            .with([other("foo"), other("bar")])
            .with(copies(&asked, 5))
            .plan();
        assert_eq!(5 - plan.unplaced.len(), placed, "{policy}");
    }
}

#[test]
fn the_zone_of_a_planned_node_counts_if_affinity_is_ignored() {
    for (policy, placed) in [("Ignore", 1), ("Honor", 3)] {
        let asked = member("p").cpu("1").select(ZONE, Z1).spread_with(
            ZONE,
            1,
            APP,
            json!({ "nodeAffinityPolicy": policy }),
        );
        let plan = World::new()
            .with(pod("other").cpu("1").select(ZONE, Z2))
            .with(copies(&asked, 3))
            .plan();
        assert_eq!(3 - plan.unplaced.len(), placed, "{policy}");
    }
}

#[test]
fn the_zone_of_a_tainted_node_does_not_count_if_taints_are_honored() {
    let policies =
        |taints: &str| json!({ "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": taints });
    for (policy, placed) in [("Ignore", 1), ("Honor", 3)] {
        let asked =
            member("p")
                .cpu("1")
                .select(ZONE, Z1)
                .spread_with(ZONE, 1, APP, policies(policy));
        let other = pod("other")
            .cpu("1")
            .select(ZONE, Z2)
            .select(NODE_POOL, "tainted")
            .tolerate(json!({ "key": "t", "operator": "Exists" }));
        let plan = World::new()
            .with_pool(node_pool("tainted").taint("t", "t", "NoSchedule"))
            .with(other)
            .with(copies(&asked, 3))
            .plan();
        assert_eq!(3 - plan.unplaced.len(), placed, "{policy}");
    }
}

/// Conformance: SCH-125
#[test]
fn a_pod_s_own_choice_of_zone_limits_its_spread() {
    let mut world = World::new()
        .with(copies(&spread("a", ZONE).select(ZONE, Z1), 5))
        .with(copies(&spread("b", ZONE).select(ZONE, Z2), 10));
    assert!(all_placed(&world.launch_and_bind()));
    assert_eq!(world.skew(ZONE, APP), [10, 5]);
    assert_eq!(
        zone_skew(
            World::new(),
            &spread("p", ZONE).require(ZONE, "In", &[Z1, Z2]),
            10
        ),
        [5, 5]
    );
}

/// Conformance: SCH-127
#[test]
fn preferred_zones_do_not_limit_a_spread() {
    let asked = spread("p", ZONE).prefer(1, ZONE, "In", &[Z1, Z2]);
    assert_eq!(zone_skew(World::new(), &asked, 6), [2, 2, 2]);
}

/// Conformance: SCH-266
#[test]
fn a_domain_without_an_offering_is_passed_over_for_an_equal_one() {
    let types = vec![
        karpenter_core::fake::instance_type("a")
            .offerings(vec![karpenter_core::fake::offering("spot", Z2, 1.0)]),
        karpenter_core::fake::instance_type("b")
            .cpu(1)
            .offerings(vec![karpenter_core::fake::offering("spot", Z1, 0.1)]),
    ];
    let asked = spread("p", ZONE).cpu("2");
    let plan = World::new().with_types(types).with(asked).plan();
    assert_eq!(first_values(&plan, ZONE), [Z2]);
}

/// Conformance: SCH-115
#[test]
fn a_pod_s_node_selector_decides_which_capacity_types_count() {
    let world =
        |pool: Object<NodePool>| World::of(pool).with((node_in("n", Z1), member("e").on("n")));
    let asked = member("p").cpu("1").spread(CAPACITY_TYPE, 1, APP);
    let restricted = asked.clone().select(ZONE, Z2).select(CAPACITY_TYPE, "spot");
    assert_eq!(
        skew_of(CAPACITY_TYPE, world(node_pool("default")), &restricted, 5),
        [5, 1]
    );
    let spot = node_pool("default").requires(CAPACITY_TYPE, "In", &["spot"]);
    assert_eq!(skew_of(CAPACITY_TYPE, world(spot), &asked, 5), [2, 1]);
    let by_arch = member("p").cpu("1").spread(ARCH, 1, APP);
    let arm = by_arch.clone().select(ZONE, Z2).select(ARCH, "arm64");
    assert_eq!(skew_of(ARCH, world(node_pool("default")), &arm, 5), [5, 1]);
    let only_arm = node_pool("default").requires(ARCH, "In", &["arm64"]);
    assert_eq!(skew_of(ARCH, world(only_arm), &by_arch, 5), [2, 1]);
}
