//! Topology spread constraints.

use serde_json::json;

use crate::fixture::*;

const APP: (&str, &str) = ("app", "x");

fn spread(name: &str, key: &str) -> Object<Pod> {
    pod(name).label("app", "x").spread(key, 1, APP)
}

/// Returns the numbers of labeled pods per value of the key after all pods are launched and bound.
fn skew_after_binding(mut world: World, pods: Vec<Object<Pod>>, key: &str) -> Vec<usize> {
    world.add(pods);
    world.launch_and_bind();
    world.skew(key, APP)
}

fn zones(zones: &[&str]) -> World {
    World::empty().with_pool(node_pool("default").requires(ZONE, "In", zones))
}

/// Conformance: SCH-103
#[test]
fn an_unknown_topology_key_fails_that_pod_alone() {
    let plan = World::new().with([spread("p", "unknown"), pod("q")]).plan();
    assert_eq!(plan.unplaced.len(), 1);
    assert!(
        why(&plan, "p")
            .contains("unsatisfiable topology constraint for topology spread, key=unknown"),
        "{}",
        why(&plan, "p")
    );
}

/// Conformance: SCH-104
#[test]
fn pods_are_spread_over_zones() {
    assert_eq!(
        skew_after_binding(World::new(), copies(&spread("p", ZONE), 4), ZONE),
        [2, 1, 1]
    );
    let expressions = json!({ "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["x"] }] } });
    let by_expression = pod("p")
        .label("app", "x")
        .spread_with(ZONE, 1, APP, expressions);
    assert_eq!(
        skew_after_binding(World::new(), copies(&by_expression, 4), ZONE),
        [2, 1, 1]
    );
}

/// Conformance: SCH-105
#[test]
fn the_pool_s_zones_are_the_domains() {
    assert_eq!(
        skew_after_binding(zones(&[Z1, Z2]), copies(&spread("p", ZONE), 4), ZONE),
        [2, 2]
    );
    let labeled = |name: &str, zone: &str| node_pool(name).node_label(ZONE, zone);
    assert_eq!(
        skew_after_binding(
            World::empty().with_pool(labeled("a", Z1)),
            copies(&spread("p", ZONE), 4),
            ZONE
        ),
        [4]
    );
    let two = World::empty()
        .with_pool(labeled("a", Z1))
        .with_pool(labeled("b", Z2));
    assert_eq!(
        skew_after_binding(two, copies(&spread("p", ZONE), 4), ZONE),
        [2, 2]
    );
}

fn node_in(name: &str, zone: &str) -> Object<Node> {
    node(name)
        .zone(zone)
        .set("/status/allocatable", json!({ "cpu": "0", "pods": "5" }))
}

/// Conformance: SCH-106
#[test]
fn a_zone_known_only_from_an_existing_pod_counts() {
    for existing in [spread("e", ZONE), pod("e").label("app", "x")] {
        let world = zones(&[Z1, Z2]).with((node_in("n", Z3), existing.on("n")));
        assert_eq!(
            skew_after_binding(world, copies(&spread("p", ZONE).cpu("1"), 6), ZONE),
            [2, 2, 1]
        );
    }
}

/// Returns a world in which two do-not-disrupt pods in zone 1 block the deletion of their node.
fn with_blocked_deletion(change: impl Fn(Object<Pod>) -> Object<Pod>) -> World {
    let deleted = json!("2026-01-01T00:00:00Z");
    let kept = |name: &str| {
        let pod = pod(name).label("app", "x").on("n");
        change(pod.annotation("karpenter.sh/do-not-disrupt", "true"))
    };
    zones(&[Z1, Z2]).with((
        node_in("n", Z1).set("/metadata/deletionTimestamp", deleted),
        kept("a"),
        kept("b"),
    ))
}

#[test]
fn pods_that_block_the_deletion_of_a_node_count_in_its_zone() {
    let plan = with_blocked_deletion(|pod| pod)
        .with(copies(&spread("p", ZONE).cpu("1"), 2))
        .plan();
    for draft in &plan.new_node_claims {
        assert_eq!(values(draft, ZONE), [Z2], "the other zone has two");
    }
    assert!(all_placed(&plan));
}

#[test]
fn anti_affinity_of_pods_that_block_the_deletion_of_a_node_counts_in_its_zone() {
    let next = pod("p").label("app", "x").select(ZONE, Z1);
    let plan = with_blocked_deletion(|pod| pod).with([next.clone()]).plan();
    assert!(all_placed(&plan));
    let plan = with_blocked_deletion(|pod| pod.anti_affinity(ZONE, APP))
        .with([next])
        .plan();
    assert!(!all_placed(&plan));
}

/// Conformance: SCH-107
#[test]
fn pods_are_placed_in_one_zone_up_to_the_skew() {
    let five = pod("p").label("app", "x").spread(ZONE, 5, APP).cpu("1");
    let existing = |name: &str, node: &str| pod(name).label("app", "x").on(node);
    let world = zones(&[Z3]).with((
        node_in("n1", Z1),
        node_in("n2", Z2),
        existing("e1", "n1"),
        existing("e2", "n2"),
    ));
    assert_eq!(
        skew_after_binding(world, copies(&five, 10), ZONE),
        [6, 1, 1]
    );
}

/// Returns the zones of two pods with skew 1 in a cluster of two zones with these pods.
///
/// If no pod counts, the two get one zone each. If two pods count in zone 1, both get zone 2.
fn zones_with(existing: Vec<Object<Pod>>) -> Vec<String> {
    let without_zone = node("zoneless").without_label(ZONE);
    let no_room = json!({ "cpu": "0", "pods": "9" });
    let plan = zones(&[Z1, Z2])
        .with([
            node_in("n", Z1),
            without_zone.set("/status/allocatable", no_room),
        ])
        .with(existing)
        .with(copies(&spread("p", ZONE).cpu("3"), 2))
        .plan();
    assert!(all_placed(&plan));
    let mut chosen: Vec<String> = plan
        .new_node_claims
        .iter()
        .flat_map(|draft| vec![values(draft, ZONE).join("/"); draft.pods.len()])
        .collect();
    chosen.sort_unstable();
    chosen
}

/// Conformance: SCH-109
#[test]
fn only_running_pods_of_the_namespace_on_known_nodes_count() {
    let existing = || pod("existing").label("app", "x");
    let deleted = json!("2026-01-01T00:00:00Z");
    let two = |pod: Object<Pod>| zones_with(copies(&pod, 2));
    assert_eq!(two(existing().on("n")), [Z2, Z2], "running pods count");
    for (kind, uncounted) in [
        ("other label", pod("existing").label("app", "y").on("n")),
        ("other namespace", existing().namespace("other").on("n")),
        ("pending", {
            let waiting = existing().select(ZONE, Z1);
            waiting.set("/status/conditions", json!([]))
        }),
        ("node without zone", existing().on("zoneless")),
        ("unknown node", existing().on("no-such-node")),
        (
            "terminating",
            existing()
                .on("n")
                .set("/metadata/deletionTimestamp", deleted),
        ),
        (
            "failed",
            existing().on("n").set("/status/phase", json!("Failed")),
        ),
        (
            "succeeded",
            existing().on("n").set("/status/phase", json!("Succeeded")),
        ),
    ] {
        assert_eq!(two(uncounted), [Z1, Z2], "{kind}");
    }
}

/// Conformance: SCH-110
#[test]
fn pods_that_do_not_count_themselves_are_not_spread() {
    let other = pod("p").label("app", "y").spread(HOSTNAME, 1, APP);
    assert_eq!(sizes(&World::new().with(copies(&other, 4)).plan()), [4]);
}

/// Conformance: SCH-111
#[test]
fn min_domains_leaves_pods_unplaced_until_there_are_enough_zones() {
    let least = |domains: i32| {
        pod("p")
            .label("app", "x")
            .spread_with(ZONE, 1, APP, json!({ "minDomains": domains }))
    };
    assert_eq!(
        skew_after_binding(zones(&[Z1, Z2]), copies(&least(3), 3), ZONE),
        [1, 1]
    );
    assert_eq!(
        skew_after_binding(zones(&[Z1, Z2, Z3]), copies(&least(3), 11), ZONE),
        [4, 4, 3]
    );
    assert_eq!(
        skew_after_binding(zones(&[Z1, Z2, Z3]), copies(&least(2), 11), ZONE),
        [4, 4, 3]
    );
}

/// Conformance: SCH-112
#[test]
fn pods_are_spread_over_hosts() {
    assert_eq!(
        sizes(&World::new().with(copies(&spread("p", HOSTNAME), 4)).plan()),
        [1, 1, 1, 1]
    );
    let four = pod("p").label("app", "x").spread(HOSTNAME, 4, APP);
    assert_eq!(sizes(&World::new().with(copies(&four, 4)).plan()), [4]);
    let other = pod("q").label("app", "y").spread(HOSTNAME, 1, ("app", "y"));
    assert_eq!(
        sizes(
            &World::new()
                .with(copies(&spread("p", HOSTNAME), 2))
                .with(copies(&other, 2))
                .plan()
        ),
        [2, 2]
    );
    let arch = |name: &str, arch: &str| spread(name, HOSTNAME).select(ARCH, arch);
    let plan = World::new()
        .with(copies(&arch("a", "amd64"), 2))
        .with(copies(&arch("b", "arm64"), 2))
        .plan();
    assert_eq!(sizes(&plan), [1, 1, 1, 1]);
}

/// Conformance: SCH-113
#[test]
fn later_pods_continue_the_spread() {
    let mut world = World::new().with(copies(&spread("a", HOSTNAME), 4));
    world.launch_and_bind();
    let world_after = skew_after_binding(world, copies(&spread("b", HOSTNAME), 5), HOSTNAME);
    assert_eq!(world_after, [1; 9]);
    let roomy = spread("a", ZONE).cpu("100m");
    let mut world = World::new()
        .with_types(karpenter_core::fake::instance_types(5))
        .with(copies(&roomy, 4));
    world.launch_and_bind();
    copies(&spread("b", ZONE).cpu("100m"), 5)
        .into_iter()
        .for_each(|pod| world.add(pod));
    world.launch_and_bind();
    assert_eq!(world.skew(ZONE, APP), [3, 3, 3]);
}

/// Conformance: SCH-114
#[test]
fn pods_are_spread_over_capacity_types() {
    let both = || {
        World::empty().with_pool(node_pool("default").requires(
            CAPACITY_TYPE,
            "In",
            &["spot", "on-demand"],
        ))
    };
    assert_eq!(
        skew_after_binding(
            both(),
            copies(&spread("p", CAPACITY_TYPE), 4),
            CAPACITY_TYPE
        ),
        [2, 2]
    );
    for (policy, expected) in [
        ("DoNotSchedule", vec![2, 1]),
        ("ScheduleAnyway", vec![5, 1]),
    ] {
        let on_demand = World::empty().with_pool(node_pool("default").requires(
            CAPACITY_TYPE,
            "In",
            &["on-demand"],
        ));
        let spot = node_in("n", Z1).set(
            "/metadata/labels/karpenter.sh~1capacity-type",
            json!("spot"),
        );
        let world = on_demand.with((spot, pod("e").label("app", "x").on("n")));
        let asked = pod("p").label("app", "x").cpu("1").spread_with(
            CAPACITY_TYPE,
            1,
            APP,
            json!({ "whenUnsatisfiable": policy }),
        );
        assert_eq!(
            skew_after_binding(world, copies(&asked, 5), CAPACITY_TYPE),
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
    let mut number = 0;
    for (more, expected) in [
        (2, vec![1, 1]),
        (3, vec![2, 2, 1]),
        (5, vec![4, 3, 3]),
        (11, vec![7, 7, 7]),
    ] {
        for _ in 0..more {
            let name = format!("p-{number:02}");
            world.add(both.clone().renamed(&name));
            number += 1;
        }
        assert!(all_placed(&world.launch_and_bind()));
        assert_eq!(world.skew(ZONE, APP), expected);
        assert!(world.skew(HOSTNAME, APP).iter().all(|count| *count <= 3));
    }
}

/// Conformance: SCH-117
#[test]
fn a_zone_without_room_stops_a_hard_spread() {
    let soft = json!({ "whenUnsatisfiable": "ScheduleAnyway" });
    let asked = spread("p", ZONE).spread_with(HOSTNAME, 1, APP, soft);
    let world = World::empty()
        .with_pool(node_pool("a").requires(ZONE, "In", &[Z1, Z2]))
        .with_pool(node_pool("b").requires(ZONE, "In", &[Z3]).limit("cpu", "0"));
    assert_eq!(skew_after_binding(world, copies(&asked, 10), ZONE), [1, 1]);
}

/// Conformance: SCH-118
#[test]
fn capacity_type_and_host_are_spread_together() {
    let both = pod("p")
        .label("app", "x")
        .spread(CAPACITY_TYPE, 1, APP)
        .spread(HOSTNAME, 3, APP);
    let mut world = World::new();
    let mut number = 0;
    for (more, expected) in [
        (2, vec![1, 1]),
        (3, vec![3, 2]),
        (5, vec![5, 5]),
        (11, vec![11, 10]),
    ] {
        for _ in 0..more {
            let name = format!("p-{number:02}");
            world.add(both.clone().renamed(&name));
            number += 1;
        }
        world.launch_and_bind();
        assert_eq!(world.skew(CAPACITY_TYPE, APP), expected);
        assert!(world.skew(HOSTNAME, APP).iter().all(|count| *count <= 3));
    }
}

/// Conformance: SCH-119
#[test]
fn a_custom_label_spreads_capacity_types_in_proportion() {
    let part = "capacity.spread.4-1";
    let world = || {
        World::empty()
            .with_pool(
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
    let asked = pod("p")
        .label("app", "x")
        .spread(CAPACITY_TYPE, 1, APP)
        .spread(ZONE, 2, APP)
        .spread(HOSTNAME, 3, APP);
    let mut world = World::new();
    let mut number = 0;
    for batch in 1..7 {
        for _ in 0..batch {
            let name = format!("p-{number:02}");
            world.add(asked.clone().renamed(&name));
            number += 1;
        }
        world.launch_and_bind();
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

/// Conformance: SCH-121
#[test]
fn match_label_keys_spread_each_revision_separately() {
    let keys = json!({ "matchLabelKeys": ["revision"] });
    let of = |name: &str| {
        pod(name)
            .label("app", "x")
            .label("revision", name)
            .spread_with(HOSTNAME, 1, APP, keys.clone())
    };
    assert_eq!(
        sizes(
            &World::new()
                .with(copies(&of("a"), 2))
                .with(copies(&of("b"), 2))
                .plan()
        ),
        [2, 2]
    );
    let unknown = pod("p").label("app", "x").spread_with(
        HOSTNAME,
        1,
        APP,
        json!({ "matchLabelKeys": ["unknown"] }),
    );
    assert_eq!(
        sizes(&World::new().with(copies(&unknown, 4)).plan()),
        [1, 1, 1, 1]
    );
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
        let asked = pod("p").label("app", "x").cpu("1").spread_with(
            part,
            1,
            APP,
            json!({ "nodeTaintsPolicy": policy }),
        );
        let world = World::empty()
            .with_pool(node_pool("default").requires(part, "In", &["baz"]))
            .with([tainted("foo"), tainted("bar")]);
        let plan = world.with(copies(&asked, 5)).plan();
        assert_eq!(5 - plan.unplaced.len(), placed, "{policy}");
        let by_pool = World::empty()
            .with_pool(node_pool("default").requires(part, "In", &["baz"]))
            .with_pool(
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
        pod(name)
            .label("app", "x")
            .spread_with(part, 1, APP, json!({ "nodeTaintsPolicy": "Honor" }))
            .tolerate(json!({ "key": key, "operator": "Exists" }))
    };
    let mut world = World::empty()
        .with_pool(node_pool("a").requires(part, "In", &["foo", "bar"]).taint(
            "a",
            "a",
            "NoSchedule",
        ))
        .with_pool(node_pool("b").requires(part, "In", &["foo", "baz"]).taint(
            "b",
            "b",
            "NoSchedule",
        ))
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
        let asked = pod("p")
            .label("app", "x")
            .cpu("1")
            .select("selector", "mine")
            .spread_with(part, 1, APP, json!({ "nodeAffinityPolicy": policy }));
        let pool = node_pool("default")
            .requires(part, "In", &["baz"])
            .requires("selector", "In", &["mine"]);
        let plan = World::empty()
            .with_pool(pool)
            .with([other("foo"), other("bar")])
            .with(copies(&asked, 5))
            .plan();
        assert_eq!(5 - plan.unplaced.len(), placed, "{policy}");
    }
}

/// Conformance: SCH-228
#[test]
fn pods_on_nodes_that_the_node_filter_excludes_do_not_count_for_a_spread() {
    // Zone 1 has two pods on a node that the spread pods do not select.
    let placed = |policy: &str, on_selected: bool| {
        let existing = node_in("n", Z1).set(
            "/metadata/labels/team",
            json!(if on_selected { "mine" } else { "other" }),
        );
        let asked = pod("p")
            .label("app", "x")
            .cpu("3")
            .select("team", "mine")
            .spread_with(ZONE, 1, APP, json!({ "nodeAffinityPolicy": policy }));
        let pool = node_pool("default")
            .requires(ZONE, "In", &[Z1, Z2])
            .node_label("team", "mine");
        let plan = World::empty()
            .with_pool(pool)
            .with([existing])
            .with(copies(&pod("existing").label("app", "x").on("n"), 2))
            .with(copies(&asked, 2))
            .plan();
        assert!(all_placed(&plan), "{policy}");
        let mut chosen: Vec<String> = plan
            .new_node_claims
            .iter()
            .flat_map(|draft| vec![values(draft, ZONE).join("/"); draft.pods.len()])
            .collect();
        chosen.sort_unstable();
        chosen
    };
    assert_eq!(placed("Honor", false), [Z1, Z2]);
    assert_eq!(placed("Honor", true), [Z2, Z2]);
    assert_eq!(placed("Ignore", false), [Z2, Z2]);
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
        skew_after_binding(
            World::new(),
            copies(&spread("p", ZONE).require(ZONE, "In", &[Z1, Z2]), 10),
            ZONE
        ),
        [5, 5]
    );
}

/// Conformance: SCH-126
#[test]
fn an_empty_zone_is_filled_first() {
    let mut world = World::new().with(copies(&spread("a", ZONE).require(ZONE, "In", &[Z1, Z2]), 6));
    world.launch_and_bind();
    world.add(spread("b", ZONE).require(ZONE, "In", &[Z2, Z3]));
    world.launch_and_bind();
    assert_eq!(world.skew(ZONE, APP), [3, 3, 1]);
    assert_eq!(
        skew_after_binding(world, copies(&spread("c", ZONE), 5), ZONE),
        [4, 4, 4]
    );
}

/// Conformance: SCH-127
#[test]
fn preferred_zones_do_not_limit_a_spread() {
    let asked = spread("p", ZONE).prefer(1, ZONE, "In", &[Z1, Z2]);
    assert_eq!(
        skew_after_binding(World::new(), copies(&asked, 6), ZONE),
        [2, 2, 2]
    );
}

/// Conformance: SCH-266
#[test]
fn a_domain_without_an_offering_is_passed_over_for_an_equal_one() {
    let types = vec![
        karpenter_core::fake::instance_type("a")
            .offerings(vec![karpenter_core::fake::offering("spot", Z2, 1.0)])
            .build(),
        karpenter_core::fake::instance_type("b")
            .cpu(1)
            .offerings(vec![karpenter_core::fake::offering("spot", Z1, 0.1)])
            .build(),
    ];
    let asked = spread("p", ZONE).cpu("2");
    let plan = World::new().with_types(types.into()).with([asked]).plan();
    assert_eq!(values(&plan.new_node_claims[0], ZONE), [Z2]);
}

/// Conformance: SCH-108
#[test]
fn emptied_zones_are_filled_again() {
    let asked = spread("p", ZONE).cpu("1100m");
    let mut world = World::new().with(copies(&asked, 9));
    world.launch_and_bind();
    assert_eq!(world.skew(ZONE, APP), [3, 3, 3]);
    let snapshot = world.cluster.snapshot();
    for node in snapshot.nodes().filter(|node| node.labels()[ZONE] != Z1) {
        for pod in snapshot.pods_on(node.name()) {
            world.cluster.remove_pod(&pod.key.namespace, &pod.key.name);
        }
    }
    copies(&spread("q", ZONE).cpu("1100m"), 3)
        .into_iter()
        .for_each(|pod| world.add(pod));
    world.launch_and_bind();
    assert_eq!(world.skew(ZONE, APP), [3, 2, 1]);
}

/// Conformance: SCH-115
#[test]
fn a_pod_s_node_selector_decides_which_capacity_types_count() {
    let world = |pool: Object<NodePool>| {
        World::empty()
            .with_pool(pool)
            .with((node_in("n", Z1), pod("e").label("app", "x").on("n")))
    };
    let asked = pod("p")
        .label("app", "x")
        .cpu("1")
        .spread(CAPACITY_TYPE, 1, APP);
    let restricted = asked.clone().select(ZONE, Z2).select(CAPACITY_TYPE, "spot");
    assert_eq!(
        skew_after_binding(
            world(node_pool("default")),
            copies(&restricted, 5),
            CAPACITY_TYPE
        ),
        [5, 1]
    );
    let spot = node_pool("default").requires(CAPACITY_TYPE, "In", &["spot"]);
    assert_eq!(
        skew_after_binding(world(spot), copies(&asked, 5), CAPACITY_TYPE),
        [2, 1]
    );
    let by_arch = pod("p").label("app", "x").cpu("1").spread(ARCH, 1, APP);
    let arm = by_arch.clone().select(ZONE, Z2).select(ARCH, "arm64");
    assert_eq!(
        skew_after_binding(world(node_pool("default")), copies(&arm, 5), ARCH),
        [5, 1]
    );
    let only_arm = node_pool("default").requires(ARCH, "In", &["arm64"]);
    assert_eq!(
        skew_after_binding(world(only_arm), copies(&by_arch, 5), ARCH),
        [2, 1]
    );
}

/// Found by the differential test: pods on a planned node whose label was left to the launch were counted in no domain, and
/// the launch then set the value of a domain in which other pods had been counted.
///
/// Conformance: SCH-268
#[test]
fn an_open_label_is_pinned_once_a_spread_counts_by_it() {
    let team = "example.com/team";
    let plan = World::empty()
        .with_pool(node_pool("default").requires(team, "In", &["t1", "t2"]))
        .with(copies(&pod("anywhere").label("app", "x").cpu("1500m"), 2))
        .with(copies(&spread("spread", team).cpu("1"), 4))
        .plan();
    assert!(all_placed(&plan));
    let mut counts = [("t1", 0), ("t2", 0)];
    for draft in &plan.new_node_claims {
        let label = &draft.to_node_claim().metadata.labels.unwrap()[team];
        assert_eq!(values(draft, team), [label.as_str()]);
        let count = counts.iter_mut().find(|(team, _)| team == label).unwrap();
        count.1 += draft.pods.len();
    }
    assert_eq!(counts, [("t1", 3), ("t2", 3)]);
}

/// Conformance: SCH-268
#[test]
fn a_label_that_no_spread_counts_by_stays_open_until_the_launch() {
    let team = "example.com/team";
    let plan = World::empty()
        .with_pool(node_pool("default").requires(team, "In", &["t1", "t2"]))
        .with([pod("p").label("app", "x")])
        .plan();
    assert_eq!(values(&plan.new_node_claims[0], team), ["t1", "t2"]);
}

/// Found by the differential test: a planned node with one possible zone did not list it, and did not count there.
#[test]
fn the_only_possible_zone_is_listed_once_a_pod_counts_there() {
    let left_over = pod("p").label("app", "x").require(ZONE, "NotIn", &[Z1, Z2]);
    let affine = pod("q").affinity(ZONE, APP);
    let plan = World::new().with([left_over, affine]).plan();
    assert!(all_placed(&plan));
    for draft in &plan.new_node_claims {
        assert_eq!(values(draft, ZONE), [Z3]);
    }
}

/// Found by the differential test: a zone without an offering that a pod listed stayed on the claim.
#[test]
fn zones_without_an_offering_are_dropped_once_anti_affinity_is_checked() {
    let held = pod("held").label("app", "y").anti_affinity(ZONE, APP);
    let plan = World::new()
        .with((
            node("n").zone(Z3),
            held.on("n"),
            pod("p")
                .label("app", "x")
                .cpu("1")
                .require(ZONE, "In", &[Z1, "nowhere"]),
        ))
        .plan();
    assert_eq!(values(&plan.new_node_claims[0], ZONE), [Z1]);
}

#[test]
fn pods_of_a_planned_node_count_once_the_node_filter_matches_it() {
    // For `picky` only amd64 nodes count. The planned node of `first` becomes one, with two pods, if `picky` is placed on it.
    let member = |name: &str, cpu: &str| pod(name).cpu(cpu).label("app", "x");
    let spread = |pod: Object<Pod>, key: &str| pod.spread(key, 1, ("app", "x"));
    for key in [ZONE, HOSTNAME] {
        let plan = World::empty()
            .with_pool(node_pool("default").requires(ZONE, "In", &[Z1, Z2]))
            .with([
                member("first", "2"),
                spread(member("picky", "1").select(ARCH, "amd64"), key),
            ])
            .plan();
        assert!(all_placed(&plan));
        assert_eq!(sizes(&plan), [1, 1], "{key}");
    }
}

#[test]
fn a_planned_node_with_one_possible_domain_counts_there() {
    // The pool admits spot, but there is no spot offering: `plain` is on demand, whatever its claim leaves open.
    let offerings = vec![karpenter_core::fake::offering("on-demand", Z1, 1.0)];
    let on_demand = karpenter_core::fake::instance_type("t")
        .cpu(4)
        .offerings(offerings)
        .build();
    let plan = World::empty()
        .with_types([on_demand].into_iter().collect())
        .with_pool(node_pool("default").requires(CAPACITY_TYPE, "In", &["on-demand", "spot"]))
        .with([
            pod("plain").cpu("2").label("app", "x"),
            pod("spread")
                .cpu("1")
                .label("app", "x")
                .spread(CAPACITY_TYPE, 1, ("app", "x")),
        ])
        .plan();
    assert_eq!(
        plan.unplaced[0].pod.name, "spread",
        "a second on-demand pod exceeds the skew"
    );
}

#[test]
fn a_label_of_a_node_filter_is_pinned() {
    // For `picky` nodes of team a do not count, so the team of the planned node of `first` must be known.
    let spread = |name: &str| {
        pod(name)
            .cpu("1")
            .label("app", "x")
            .require("team", "NotIn", &["a"])
            .spread(ZONE, 1, ("app", "x"))
    };
    let plan = World::empty()
        .with_pool(node_pool("default").requires("team", "In", &["a", "b"]))
        .with([pod("first").cpu("2").label("app", "x"), spread("picky")])
        .plan();
    assert!(all_placed(&plan));
    let team = |pod: &str| {
        let mut drafts = plan.new_node_claims.iter();
        let draft = drafts.find(|draft| draft.pods.iter().any(|other| other.name == pod));
        draft.unwrap().to_node_claim().metadata.labels.unwrap()["team"].clone()
    };
    assert_eq!((team("first").as_str(), team("picky").as_str()), ("a", "b"));
}
