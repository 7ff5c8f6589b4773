//! Pod affinity and anti-affinity.

use karpenter_core::fake::instance_type;
use serde_json::json;

use crate::fixture::*;

const DB: (&str, &str) = ("role", "db");
const WEB: (&str, &str) = ("app", "web");

/// Conformance: SCH-128
#[test]
fn empty_affinity_constrains_nothing() {
    let empty = pod("p").set(
        "/spec/affinity",
        json!({ "podAffinity": {}, "podAntiAffinity": {}, "nodeAffinity": {} }),
    );
    assert!(World::new().places(empty));
}

/// Conformance: SCH-129
#[test]
fn an_affine_pod_finds_its_target_among_others() {
    let others = copies(&member("other").spread(HOSTNAME, 1, APP), 10);
    let target = pod("target")
        .label("app", "web")
        .label("team", "a")
        .spread(HOSTNAME, 1, WEB);
    let follower = pod("follower").affinity(HOSTNAME, WEB);
    let plan = World::new().with(others).with([target, follower]).plan();
    assert_eq!(claim_with(&plan, "target"), claim_with(&plan, "follower"));
    let spread = pod("p")
        .label("app", "web")
        .affinity(ARCH, WEB)
        .spread(HOSTNAME, 1, WEB)
        .cpu("1");
    let plan = plan_of(copies(&spread, 2));
    assert_eq!(sizes(&plan), [1, 1]);
    assert_eq!(
        first_values(&plan, ARCH),
        values(&plan.new_node_claims[1], ARCH)
    );
}

fn small() -> World {
    World::of(node_pool("default").requires(INSTANCE_TYPE, "In", &["small-instance-type"]))
}

/// Conformance: SCH-130
#[test]
fn pods_affine_to_themselves_share_one_host() {
    let own = pod("p").label("app", "web").affinity(HOSTNAME, WEB);
    assert_eq!(small().with(copies(&own, 3)).sizes(), [3]);
    let mut world = small().with(copies(&own, 10));
    let plan = world.launch_and_bind();
    assert_eq!((sizes(&plan), plan.unplaced.len()), (vec![5], 5));
    assert_eq!(world.plan().unplaced.len(), 5);
}

/// Conformance: SCH-131
#[test]
fn pods_affine_to_themselves_do_not_leave_the_host_of_a_match() {
    let own = pod("p").label("app", "web").affinity(HOSTNAME, WEB);
    let existing = pod("e").label("app", "web").on("n");
    let plan = World::new()
        .with((node("n"), existing))
        .with(copies(&own.require(ZONE, "In", &[Z2, Z3]), 3))
        .plan();
    assert_eq!(plan.unplaced.len(), 3);
}

/// Conformance: SCH-132
#[test]
fn pods_affine_to_themselves_share_one_zone() {
    let own = pod("p").label("app", "web").affinity(ZONE, WEB);
    assert_eq!(small().with(copies(&own, 3)).sizes(), [3]);
    let plan = small()
        .with(copies(&own.clone().require(ZONE, "In", &[Z3]), 3))
        .plan();
    assert_eq!(first_values(&plan, ZONE), [Z3]);
    let apart = |name: &str, zone: &str| {
        pod(name)
            .label("app", "web")
            .affinity(ZONE, WEB)
            .require(ZONE, "In", &[zone])
    };
    // DIFFERS: kube-scheduler would never bind the second pod: the first one matches its term and is in another zone.
    let plan = plan_of([apart("a", Z2), apart("b", Z3)]);
    assert_eq!((sizes(&plan), plan.unplaced.len()), (vec![1], 1));
}

#[test]
fn a_pod_counts_for_affinity_only_if_it_matches_all_terms() {
    let web = pod("web").label("app", "web").cpu("1").select(ZONE, Z1);
    let fast = |name: &str| pod(name).label("app", "web").label("tier", "fast").cpu("1");
    let both = pod("both")
        .affinity(ZONE, WEB)
        .affinity(ZONE, ("tier", "fast"));
    let plan = World::new()
        .with([
            web.clone(),
            pod("x").label("tier", "fast").cpu("1").select(ZONE, Z1),
        ])
        .with(both.clone())
        .plan();
    assert_eq!(plan.unplaced.len(), 1, "neither is web and fast");
    let plan = World::new()
        .with([web, fast("f").select(ZONE, Z2)])
        .with(both)
        .plan();
    assert!(all_placed(&plan));
    assert_eq!(values_with(&plan, "both", ZONE), [Z2]);
}

#[test]
fn preferred_zonal_anti_affinity_does_not_launch_a_node_per_pod() {
    let shy = pod("p")
        .label("app", "web")
        .cpu("100m")
        .prefer_anti_affinity(50, ZONE, WEB);
    let plan = plan_of(copies(&shy, 3));
    assert!(all_placed(&plan));
    assert_eq!(sizes(&plan), [3]);
}

/// Conformance: SCH-133
#[test]
fn preferred_affinity_that_cannot_be_met_is_dropped() {
    let absent = pod("p").prefer_affinity(50, HOSTNAME, WEB);
    assert!(World::new().places(absent));
    let in_each_zone =
        [Z1, Z2, Z3].map(|zone| pod(zone).label("app", "web").select(ZONE, zone).cpu("2"));
    let away = copies(&pod("p").prefer_anti_affinity(50, ZONE, WEB), 3);
    assert!(World::new().with(in_each_zone).places(away));
}

#[test]
fn preferred_affinity_does_not_keep_a_pod_from_starting_a_required_group() {
    let full = json!({ "cpu": "0", "pods": "5" });
    let own = pod("p")
        .cpu("1")
        .label("app", "web")
        .affinity(ZONE, WEB)
        .prefer_affinity(50, ZONE, DB);
    let plan = plan_of((
        node("n").zone(Z3).set("/status/allocatable", full),
        pod("db").label("role", "db").on("n"),
        own,
    ));
    assert_eq!(first_values(&plan, ZONE), [Z3]);
}

/// Two nodes cost a quarter less than one, but then `p` would not be near `x`.
#[test]
fn a_pod_is_near_another_one_on_its_planned_node() {
    let types = [(2, 0.23), (4, 0.6)].map(|(cpu, price)| {
        let name = format!("t{cpu}");
        instance_type(&name).cpu(cpu).gib(16).pods(20).price(price)
    });
    let planned = |p: Object<Pod>| {
        let x = pod("x").label("app", "web").cpu("1500m").memory("1Gi");
        let world = World::new()
            .with_types(types.clone())
            .with([x, p.cpu("1").memory("4Gi")]);
        world.sizes()
    };
    assert_eq!(planned(pod("p")), [1, 1]);
    for key in [ZONE, HOSTNAME] {
        let near = pod("p").prefer_affinity(50, key, WEB);
        assert_eq!(planned(near), [2], "{key}");
    }
}

/// By memory `p` comes first, and `x` joins its node: that is cheaper, but `p` prefers to be apart.
#[test]
fn pods_that_come_near_later_do_not_meet_a_preference_to_be_apart() {
    let types = [(2, 0.23), (4, 0.3)].map(|(cpu, price)| {
        let name = format!("t{cpu}");
        let sized = instance_type(&name).cpu(cpu).gib(16).pods(20);
        sized.price(price).build()
    });
    let planned = |p: Object<Pod>| {
        let x = pod("x").label("app", "web").cpu("1500m").memory("1Gi");
        let world = World::new()
            .with_types(types.clone())
            .with([x, p.cpu("1").memory("4Gi")]);
        world.sizes()
    };
    assert_eq!(planned(pod("p")), [2]);
    let apart = pod("p").prefer_anti_affinity(50, HOSTNAME, WEB);
    assert_eq!(planned(apart), [1, 1]);
}

/// Conformance: SCH-134
#[test]
fn anti_affinity_to_pods_everywhere_fails() {
    let in_each_zone =
        [Z1, Z2, Z3].map(|zone| pod(zone).label("app", "web").select(ZONE, zone).cpu("2"));
    let away = pod("p").cpu("100m").anti_affinity(ZONE, WEB);
    let plan = World::new().with(in_each_zone).with(away.clone()).plan();
    assert_why(
        &plan,
        "p",
        "unsatisfiable topology constraint for pod anti-affinity",
    );
    let undecided = pod("target").label("app", "web").cpu("2");
    let plan = World::new().with([undecided, away]).by_size().plan();
    assert_eq!(plan.unplaced.len(), 1, "the target may end up in any zone");
}

/// Conformance: SCH-135
#[test]
fn required_and_not_preferred_anti_affinity_of_others_keeps_a_pod_away() {
    let owner = |zone: &str| {
        pod(zone)
            .label("owner", "yes")
            .select(ZONE, zone)
            .cpu("2")
            .anti_affinity(ZONE, WEB)
    };
    let owners = [Z1, Z2, Z3].map(owner);
    let plain = pod("p").label("app", "web").cpu("100m");
    assert_eq!(
        World::new()
            .with(owners.clone())
            .with(plain.clone())
            .plan()
            .unplaced
            .len(),
        1
    );
    let mut world = World::new().with(owners);
    world.launch_and_bind();
    world.add(plain.clone());
    assert_eq!(world.plan().unplaced.len(), 1);
    let preferring = |zone: &str| {
        pod(zone)
            .select(ZONE, zone)
            .cpu("2")
            .prefer_anti_affinity(10, ZONE, WEB)
    };
    let mut world = World::new().with([Z1, Z2, Z3].map(preferring));
    world.launch_and_bind();
    world.add(plain);
    assert!(world.is_placed());
}

/// Upstream places one such pod per pass, because it leaves the zone open; see docs/DIFFERENCES.md.
#[test]
fn mutually_exclusive_pods_take_one_zone_each_within_a_pass() {
    let apart = pod("p").label("app", "web").anti_affinity(ZONE, WEB);
    let mut world = World::new().with(copies(&apart, 4));
    let plan = world.launch_and_bind();
    assert_eq!((plan.new_node_claims.len(), plan.unplaced.len()), (3, 1));
    assert_eq!(world.skew(ZONE, WEB), [1, 1, 1]);
    assert_eq!(world.plan().unplaced.len(), 1);
}

/// Conformance: SCH-138
#[test]
fn affinity_to_a_pod_that_does_not_exist_fails() {
    let plan = plan_of(copies(&pod("p").affinity(HOSTNAME, WEB), 10));
    assert_eq!(plan.unplaced.len(), 10);
}

/// Conformance: SCH-139
#[test]
fn followers_wait_until_the_zone_of_their_target_is_decided() {
    let follower = pod("follower").label("app", "web").affinity(ZONE, DB);
    let followers = || copies(&follower.clone().cpu("3"), 10);
    // Followers without the affinity would be launched in zone 1.
    let target = pod("a-target").label("app", "web").label("role", "db");
    let target = target.cpu("3").require(ZONE, "In", &[Z2, Z3]);
    let mut world = World::new().with(target.clone()).with(followers());
    let plan = world.launch_and_bind();
    assert_eq!(plan.unplaced.len(), 10);
    let plan = world.launch_and_bind();
    assert!(all_placed(&plan));
    assert_eq!(world.skew(ZONE, WEB), [11], "all in one zone");
    let mut decided = World::new().with(target.select(ZONE, Z2)).with(followers());
    assert!(all_placed(&decided.launch_and_bind()));
    assert_eq!(decided.skew(ZONE, WEB), [11]);
}

/// Conformance: SCH-140
#[test]
fn a_chain_of_affinities_is_resolved_in_any_order() {
    let link = |name: &str, to: &str| {
        pod(name)
            .label("role", name)
            .affinity(HOSTNAME, ("role", to))
    };
    let chain = [
        pod("db")
            .label("role", "db")
            .spread(HOSTNAME, 1, ("role", "db")),
        link("web", "db"),
        link("cache", "web"),
        link("ui", "cache"),
    ];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let sized = order.iter().enumerate().map(|(place, index)| {
            chain[*index]
                .clone()
                .cpu(&format!("{}m", 500 - 100 * place))
        });
        let plan = plan_of(sized);
        assert!(all_placed(&plan));
        assert_eq!(sizes(&plan), [4]);
    }
}

/// Conformance: SCH-141
#[test]
fn an_affinity_term_selects_namespaces_by_name_or_label() {
    let target = pod("target")
        .namespace("other")
        .label("app", "web")
        .select(ZONE, Z1);
    let follower = |namespaces: serde_json::Value| {
        let mut term = affinity_term(ZONE, WEB);
        for (field, value) in namespaces.as_object().unwrap() {
            term[field] = value.clone();
        }
        pod("p").cpu("1").push(
            "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution",
            term,
        )
    };
    let world = |asked: Object<Pod>| {
        let mut world = World::new().with([target.clone().cpu("2"), asked]);
        world.cluster.apply_namespace(&read(
            json!({ "metadata": { "name": "other", "labels": { "team": "a" } } }),
        ));
        world.plan()
    };
    assert!(!all_placed(&world(follower(json!({})))));
    assert!(all_placed(&world(follower(
        json!({ "namespaces": ["other"] })
    ))));
    assert!(all_placed(&world(follower(
        json!({ "namespaceSelector": {} })
    ))));
    assert!(all_placed(&world(follower(
        json!({ "namespaceSelector": { "matchLabels": { "team": "a" } } })
    ))));
    assert!(!all_placed(&world(follower(
        json!({ "namespaceSelector": { "matchLabels": { "team": "b" } } })
    ))));
}

/// Conformance: SCH-142
#[test]
fn a_spread_overrides_a_preferred_affinity() {
    let asked = pod("p")
        .label("app", "web")
        .prefer_affinity(50, HOSTNAME, WEB)
        .spread(HOSTNAME, 1, WEB);
    let plan = plan_of(copies(&asked, 3));
    assert_eq!(sizes(&plan), [1, 1, 1]);
}

/// Conformance: SCH-229
#[test]
fn the_first_pod_of_an_affinity_group_goes_to_the_zone_of_earlier_pods() {
    // `together` leaves its zone open, and `near`, the first pod of its zonal group, does not fit on the same node. If the zone
    // stayed open, `pinned` could move `together` to another zone.
    let together = member("together").cpu("2").affinity(HOSTNAME, APP);
    let near = member("near")
        .cpu("1500m")
        .memory("3Gi")
        .affinity(ZONE, APP);
    let pinned = pod("pinned").cpu("1").select(ZONE, Z2);
    let mut world = World::new()
        .with_types(instance_type("t").cpu(4).gib(4).pods(10))
        .with([together.memory("2Gi"), near, pinned]);
    let plan = world.launch_and_bind();
    assert!(all_placed(&plan));
    assert_ne!(claim_with(&plan, "together"), claim_with(&plan, "near"));
    assert_eq!(world.skew(ZONE, APP).len(), 1, "one zone");
}

/// Only a required spread needs to know the zone of the pods that it counts before they are bound.
#[test]
fn affinity_of_other_pods_does_not_decide_the_zone_of_a_planned_node() {
    let own = pod("own")
        .label("app", "web")
        .cpu("1")
        .affinity(CAPACITY_TYPE, WEB);
    let follower = pod("follower").cpu("100m").affinity(ZONE, WEB);
    let plan = World::new()
        .with([own, pod("web").label("app", "web").cpu("500m"), follower])
        .by_size()
        .plan();
    assert_eq!(sizes(&plan), [2]);
    assert_eq!(
        plan.unplaced[0].pod.name, "follower",
        "until the zone is known"
    );
}
