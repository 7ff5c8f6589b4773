//! The domain of a planned node: pinned once a pod counts there, open until the launch otherwise.

use serde_json::json;

use super::{spread, zones};
use crate::fixture::*;

/// Found by the differential test: pods on a planned node whose label was left to the launch were counted in no domain, and
/// the launch then set the value of a domain in which other pods had been counted.
///
/// Conformance: SCH-268
#[test]
fn an_open_label_is_pinned_once_a_spread_counts_by_it() {
    let team = "example.com/team";
    let plan = World::of(node_pool("default").requires(team, "In", &["t1", "t2"]))
        .with(copies(&member("anywhere").cpu("1500m"), 2))
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
    let plan = World::of(node_pool("default").requires(team, "In", &["t1", "t2"]))
        .with(member("p"))
        .plan();
    assert_eq!(first_values(&plan, team), ["t1", "t2"]);
}

/// Found by the differential test: a planned node with one possible zone did not list it, and did not count there.
#[test]
fn the_only_possible_zone_is_listed_once_a_pod_counts_there() {
    let left_over = member("p").require(ZONE, "NotIn", &[Z1, Z2]);
    let affine = pod("q").affinity(ZONE, APP);
    let plan = plan_of([left_over, affine]);
    assert!(all_placed(&plan));
    for draft in &plan.new_node_claims {
        assert_eq!(values(draft, ZONE), [Z3]);
    }
}

/// Found by the differential test: a zone without an offering that a pod listed stayed on the claim.
#[test]
fn zones_without_an_offering_are_dropped_once_anti_affinity_is_checked() {
    let held = pod("held").label("app", "y").anti_affinity(ZONE, APP);
    let plan = plan_of((
        node("n").zone(Z3),
        held.on("n"),
        member("p").cpu("1").require(ZONE, "In", &[Z1, "nowhere"]),
    ));
    assert_eq!(first_values(&plan, ZONE), [Z1]);
}

#[test]
fn pods_of_a_planned_node_count_once_the_node_filter_matches_it() {
    // For `picky` only amd64 nodes count. The planned node of `first` becomes one, with two pods, if `picky` is placed on it.
    let member = |name: &str, cpu: &str| member(name).cpu(cpu);
    let spread = |pod: Object<Pod>, key: &str| pod.spread(key, 1, APP);
    for key in [ZONE, HOSTNAME] {
        let plan = World::of(node_pool("default").requires(ZONE, "In", &[Z1, Z2]))
            .with([
                member("first", "2"),
                spread(member("picky", "1").select(ARCH, "amd64"), key),
            ])
            .by_size()
            .plan();
        assert!(all_placed(&plan));
        assert_eq!(sizes(&plan), [1, 1], "{key}");
        // Until its zone is decided `first` is not counted, whatever the filter: its architecture stays open, too.
        let first = (plan.new_node_claims.iter()).find(|draft| draft.pods[0].name == "first");
        let first = first.unwrap();
        assert_eq!(values(first, ZONE), [Z1, Z2], "{key}");
        let arm = "arm-instance-type".to_owned();
        assert!(first.instance_types.contains(&arm), "{key}");
    }
}

#[test]
fn a_planned_node_with_one_possible_domain_counts_there() {
    // The pool admits spot, but there is no spot offering: `plain` is on demand, whatever its claim leaves open.
    let offerings = vec![karpenter_core::fake::offering("on-demand", Z1, 1.0)];
    let on_demand = karpenter_core::fake::instance_type("t")
        .cpu(4)
        .offerings(offerings);
    let plan =
        World::of(node_pool("default").requires(CAPACITY_TYPE, "In", &["on-demand", "spot"]))
            .with_types(on_demand)
            .with([
                member("plain").cpu("2"),
                member("spread").cpu("1").spread(CAPACITY_TYPE, 1, APP),
            ])
            .by_size()
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
        member(name)
            .cpu("1")
            .require("team", "NotIn", &["a"])
            .spread(ZONE, 1, APP)
    };
    let plan = World::of(node_pool("default").requires("team", "In", &["a", "b"]))
        .with([member("first").cpu("2"), spread("picky")])
        .by_size()
        .plan();
    assert!(all_placed(&plan));
    let team = |pod: &str| {
        let claim = claim_with(&plan, pod).unwrap().to_node_claim();
        claim.metadata.labels.unwrap()["team"].clone()
    };
    assert_eq!((team("first").as_str(), team("picky").as_str()), ("a", "b"));
}

#[test]
fn an_open_label_gets_the_value_with_the_fewest_counted_pods() {
    let team = "example.com/team";
    let full = json!({ "cpu": "0", "pods": "5" });
    let plan = World::of(node_pool("default").requires(team, "In", &["t1", "t2"]))
        .with((
            node("n").label(team, "t1").set("/status/allocatable", full),
            member("e").on("n"),
            member("anywhere").cpu("3"),
            spread("spread", team).cpu("2"),
        ))
        .by_size()
        .plan();
    assert_eq!(values_with(&plan, "anywhere", team), ["t2"]);
}

/// A node that could be launched in the zone of `last` would have to hold it.
#[test]
fn an_open_zone_becomes_the_cheapest_before_pods_that_count_it_are_placed() {
    let offerings = [(Z1, 1.0), (Z2, 0.9), (Z3, 2.0)]
        .map(|(zone, price)| karpenter_core::fake::offering("on-demand", zone, price));
    let type_of_both = karpenter_core::fake::instance_type("t")
        .cpu(4)
        .offerings(offerings.into());
    // A third zone, without a node, keeps `last` from its turn.
    let full = |name: &str, zone: &str| {
        let none = json!({ "cpu": "0", "memory": "0", "pods": "0" });
        node(name).zone(zone).set("/status/allocatable", none)
    };
    let last = member("last").cpu("1").select(ZONE, Z1).spread_with(
        ZONE,
        1,
        APP,
        json!({ "nodeAffinityPolicy": "Ignore" }),
    );
    let plan = World::new()
        .with_types(type_of_both)
        .with([pod("first").cpu("1"), last])
        .with([full("in-1", Z1), full("in-2", Z2)])
        .with(["in-1", "in-2"].map(|node| member(node).on(node)))
        .by_size()
        .plan();
    assert_eq!(all_zones(&plan), [[Z2], [Z1]]);
}

#[test]
fn whether_a_counted_node_passes_a_node_filter_is_decided_with_its_domain() {
    // `picky`, which fits the existing node, counts only amd64 nodes. For `first` these are the cheaper ones.
    let picky = pod("picky")
        .cpu("1")
        .label("app", "y")
        .select(ARCH, "amd64");
    let pool = node_pool("default").requires(CAPACITY_TYPE, "In", &["on-demand"]);
    let small = node("n")
        .label(CAPACITY_TYPE, "on-demand")
        .cpu("2")
        .pods("9");
    let plan = World::of(pool)
        .with((
            small,
            member("first").cpu("3"),
            picky.spread(CAPACITY_TYPE, 1, APP),
        ))
        .by_size()
        .plan();
    assert_eq!((plan.existing.len(), sizes(&plan)), (1, vec![1]));
    assert_eq!(first_values(&plan, ARCH), ["amd64"]);
}

/// A pod that starts an affinity group by host cannot be bound after the others of its group, so the spread must count it at once.
#[test]
fn a_zone_is_decided_for_pods_that_may_be_bound_before_a_spread() {
    let zones = |counted: Object<Pod>| {
        let plan = World::new()
            .with([
                spread("second", ZONE)
                    .cpu("1")
                    .select(CAPACITY_TYPE, "on-demand"),
                counted
                    .label("app", "x")
                    .cpu("3")
                    .select(CAPACITY_TYPE, "spot"),
            ])
            .by_size()
            .plan();
        assert_eq!(sizes(&plan), [1, 1]);
        first_values(&plan, ZONE).len()
    };
    assert_eq!(zones(pod("counted").affinity(HOSTNAME, APP)), 1);
    assert_eq!(zones(pod("counted")), 0, "it can be bound last");
}

/// Both pods that count are in the only zone it can use. Without them it has the same count as zone 2, where nothing counts and which
/// has a node in the end.
#[test]
fn a_pod_whose_spread_counts_other_zones_keeps_its_turn() {
    let ignoring = json!({ "nodeAffinityPolicy": "Ignore" });
    let counted = |name: &str| member(name).cpu("2").select(ZONE, Z1);
    let plan = zones(&[Z1, Z2])
        .with([counted("a"), counted("b")])
        .with(pod("elsewhere").cpu("1").select(ZONE, Z2))
        .with(
            pod("picky")
                .cpu("3")
                .select(ZONE, Z1)
                .spread_with(ZONE, 1, APP, ignoring),
        )
        .plan();
    assert!(all_placed(&plan), "{}", why(&plan, "picky"));
}
