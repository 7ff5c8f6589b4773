//! Custom and well-known label constraints between NodePools and pods.

use std::collections::BTreeMap;

use karpenter_core::fake;
use karpenter_core::requirements::{Operator, Requirement};
use karpenter_core::schedule::{Plan, PreferencePolicy, Unschedulable};
use serde_json::json;

use crate::fixture::*;

fn custom() -> World {
    World::of(node_pool("default").requires("custom", "In", &["v"]))
}

fn is_placed(pod: Object<Pod>) -> bool {
    custom().places(pod)
}

/// Returns the labels of the first planned node.
fn labels(plan: &Plan) -> BTreeMap<String, String> {
    let claim = plan.new_node_claims[0].to_node_claim();
    claim.metadata.labels.unwrap()
}

/// Conformance: SCH-018
#[test]
fn a_pod_may_require_only_labels_of_the_pool() {
    assert!(is_placed(pod("p").require("custom", "In", &["v"])));
    assert!(is_placed(pod("p").require("custom", "Exists", &[])));
    assert!(is_placed(pod("p").require("custom", "NotIn", &["other"])));
    assert!(!is_placed(pod("p").require("custom", "In", &["other"])));
    assert!(!is_placed(pod("p").require("custom", "NotIn", &["v"])));
    assert!(!is_placed(pod("p").require("custom", "DoesNotExist", &[])));
}

/// Conformance: SCH-019
#[test]
fn a_label_of_no_pool_can_only_be_required_to_be_absent() {
    let world = |pod: Object<Pod>| plan_of(pod);
    assert!(!all_placed(&world(pod("p").require(
        "custom",
        "In",
        &["v"]
    ))));
    assert!(!all_placed(&world(pod("p").require(
        "custom",
        "Exists",
        &[]
    ))));
    for (operator, values) in [("NotIn", &["v"][..]), ("DoesNotExist", &[])] {
        let plan = world(pod("p").require("custom", operator, values));
        assert!(all_placed(&plan));
        assert!(!labels(&plan).contains_key("custom"));
    }
}

/// Conformance: SCH-020
#[test]
fn compatible_pods_share_a_node_with_a_label_both_admit() {
    let world = || World::of(node_pool("default").requires("custom", "In", &["a", "b"]));
    let plan = world()
        .with([
            pod("p").require("custom", "In", &["a"]),
            pod("q").require("custom", "NotIn", &["b"]),
        ])
        .plan();
    assert_eq!(sizes(&plan), [2]);
    assert_eq!(labels(&plan)["custom"], "a");
    let plan = world()
        .with([
            pod("p").require("custom", "In", &["a"]),
            pod("q").require("custom", "In", &["b"]),
        ])
        .plan();
    assert_eq!(sizes(&plan), [1, 1]);
}

/// Conformance: SCH-021
#[test]
fn an_unknown_zone_stays_unknown_when_another_rule_admits_any() {
    let pod = pod("p").require_term(&[(ZONE, "In", &["nowhere"]), (ZONE, "Exists", &[])]);
    assert!(!World::new().places(pod));
}

/// Conformance: SCH-022
#[test]
fn a_well_known_integer_label_selects_instance_types() {
    let options = |operator: &str, values: &[&str]| {
        let plan = plan_of(pod("p").require("integer", operator, values));
        plan.new_node_claims
            .first()
            .map(|draft| draft.instance_types.to_vec())
            .unwrap_or_default()
    };
    assert_eq!(options("In", &["16"]), ["arm-instance-type"]);
    assert_eq!(options("Gt", &["8"]), ["arm-instance-type"]);
    assert_eq!(options("Lt", &["3"]), ["small-instance-type"]);
    assert!(!options("NotIn", &["16"]).contains(&"arm-instance-type".to_owned()));
    for (operator, value, found) in [
        ("Gte", "16", "arm-instance-type"),
        ("Lte", "2", "small-instance-type"),
    ] {
        let world = World::of(node_pool("default").requires("integer", operator, &[value]));
        assert_eq!(
            *world.with(pod("p")).plan().new_node_claims[0].instance_types,
            [found]
        );
    }
}

/// Conformance: SCH-023
#[test]
fn contradictory_requirements_fail_and_contradictory_preferences_do_not() {
    let contradiction: &[(&str, &str, &[&str])] = &[(ZONE, "In", &[Z1]), (ZONE, "NotIn", &[Z1])];
    assert!(!World::new().places(pod("p").require_term(contradiction)));
    let at = "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";
    let preferring = pod("p").push(
        at,
        json!({ "weight": 1, "preference": term(contradiction) }),
    );
    assert!(World::new().places(preferring));
}

/// Conformance: SCH-024
#[test]
fn the_first_alternative_that_can_be_met_is_used() {
    let bad = |pod: Object<Pod>| pod.require(INSTANCE_TYPE, "In", &["nothing"]);
    let both = bad(bad(pod("p")))
        .require(ZONE, "In", &[Z1])
        .require(ZONE, "In", &[Z2]);
    let plan = plan_of(both);
    assert_eq!(first_values(&plan, ZONE), [Z1]);
    assert!(!World::new().places(bad(pod("p"))));
}

/// Conformance: SCH-025
#[test]
fn preferences_that_cannot_be_met_are_dropped() {
    let invalid =
        pod("p")
            .prefer(1, ZONE, "In", &["nowhere"])
            .prefer(2, INSTANCE_TYPE, "In", &["nothing"]);
    assert!(World::new().places(invalid));
    let conflicting = pod("p")
        .require(ZONE, "NotIn", &[Z1])
        .prefer(1, ZONE, "In", &[Z1]);
    assert!(World::new().places(conflicting));
}

/// Conformance: SCH-026
#[test]
fn the_heaviest_preference_that_can_be_met_wins() {
    let pod = pod("p")
        .prefer(100, ZONE, "In", &["nowhere"])
        .prefer(50, ZONE, "In", &[Z2])
        .prefer(1, ZONE, "In", &[Z1]);
    assert_eq!(values(&plan_of(pod).new_node_claims[0], ZONE), [Z2]);
}

/// Conformance: SCH-027
#[test]
fn a_requirement_beats_a_preference() {
    let pod = pod("p")
        .require(ZONE, "In", &[Z3])
        .prefer(1, ZONE, "NotIn", &[Z3]);
    assert_eq!(values(&plan_of(pod).new_node_claims[0], ZONE), [Z3]);
}

/// Conformance: SCH-028
#[test]
fn a_preference_that_cannot_be_met_does_not_launch_a_node() {
    for (key, value) in [(ZONE, "nowhere"), (HOSTNAME, "nowhere")] {
        let plan = plan_of([pod("p"), pod("q").prefer(1, key, "In", &[value])]);
        assert_eq!(sizes(&plan), [2]);
    }
}

/// Conformance: SCH-029
#[test]
fn a_prefer_no_schedule_taint_is_tolerated_last() {
    let tainted = node_pool("tainted")
        .taint("soft", "yes", "PreferNoSchedule")
        .weight(10);
    let pod = pod("p").prefer(1, ZONE, "In", &["nowhere"]);
    let plan = World::of(tainted.clone()).with(pod.clone()).plan();
    assert_eq!(plan.new_node_claims[0].node_pool, "tainted");
    let plan = World::of(tainted)
        .with_pool(node_pool("clean"))
        .with(pod)
        .plan();
    assert_eq!(plan.new_node_claims[0].node_pool, "clean");
}

fn ignoring() -> World {
    let mut world = World::new().with_types(fake::instance_types(5));
    world.policy.preference_policy = PreferencePolicy::Ignore;
    world
}

/// Conformance: SCH-030
#[test]
fn ignored_preferences_do_not_choose_a_node() {
    let first = pod("a").cpu("2").select(ZONE, Z1).label("app", "a");
    let second = pod("b").cpu("1").select(ZONE, Z2).label("app", "b");
    let third = pod("c").cpu("1").select(ZONE, Z2).label("app", "b");
    for last in [
        pod("d").prefer(1, ZONE, "In", &[Z2]),
        pod("d").prefer_affinity(1, ZONE, ("app", "b")),
    ] {
        let plan = ignoring()
            .with([first.clone(), second.clone(), third.clone(), last])
            .plan();
        let key = karpenter_core::pod::PodKey::new("default", "d", "d");
        assert_eq!(
            values(plan.claim_of(&key).unwrap(), ZONE),
            [Z1],
            "the node with fewer pods"
        );
    }
}

/// Conformance: SCH-031
#[test]
fn ignored_soft_constraints_do_not_spread() {
    let soft = json!({ "whenUnsatisfiable": "ScheduleAnyway" });
    let spread = member("s").spread_with(HOSTNAME, 1, APP, soft);
    let apart = member("a").prefer_anti_affinity(1, HOSTNAME, APP);
    for pods in [copies(&spread, 5), copies(&apart, 5)] {
        assert_eq!(ignoring().with(pods).sizes(), [5]);
    }
}

/// Conformance: SCH-032
#[test]
fn pools_are_chosen_by_name_by_label_and_by_weight() {
    let world = || {
        World::of(node_pool("light").weight(1).node_label("team", "a"))
            .with_pool(node_pool("heavy").weight(100))
            .with_pool(node_pool("none"))
    };
    let chosen = |pod: Object<Pod>| {
        world().with(pod).plan().new_node_claims[0]
            .node_pool
            .clone()
    };
    assert_eq!(chosen(pod("p")), "heavy");
    assert_eq!(chosen(pod("p").select(NODE_POOL, "none")), "none");
    assert_eq!(chosen(pod("p").select("team", "a")), "light");
}

/// Conformance: SCH-010
#[test]
fn a_restricted_label_makes_a_pod_invalid() {
    for (key, value) in [
        (HOSTNAME, "x"),
        ("karpenter.sh/test", "x"),
        ("karpenter.test.sh/other", "x"),
    ] {
        let plan = plan_of(pod("p").select(key, value));
        let why = &plan.unplaced[0].why;
        assert!(matches!(why, Unschedulable::Invalid(_)), "{key}");
    }
}

/// Conformance: SCH-011
#[test]
fn kubernetes_domains_are_ordinary_labels() {
    let keys = [
        "kubernetes.io/test",
        "k8s.io/test",
        "subdomain.kubernetes.io/test",
        "subdomain.k8s.io/test",
    ];
    let pool = keys.iter().fold(node_pool("default"), |pool, key| {
        pool.requires(key, "In", &["v"])
    });
    let plan = World::of(pool).with(pod("p")).plan();
    let labels = labels(&plan);
    assert!(keys.iter().all(|key| labels[*key] == "v"));
}

/// Conformance: SCH-191
#[test]
fn a_pod_that_excludes_node_pools_is_ignored_without_an_event() {
    let plan = plan_of(pod("p").require(NODE_POOL, "DoesNotExist", &[]));
    assert!(plan.unplaced[0].why.is_silent());
}

/// Conformance: SCH-196
#[test]
fn a_label_with_a_typo_gets_a_hint() {
    let plan = plan_of(pod("p").select("topology.kubernetes.io/zon", "x"));
    let text = why(&plan, "p");
    assert!(
        text.starts_with("incompatible with nodepool \"default\", daemonset overhead="),
        "{text}"
    );
    assert!(text.contains("label \"topology.kubernetes.io/zon\" does not have known values (typo of \"topology.kubernetes.io/zone\"?)"), "{text}");
}

#[test]
fn a_planned_claim_has_the_hash_of_its_pool() {
    for team in ["a", "b"] {
        let pool = node_pool("default").node_label("team", team);
        let expected = karpenter_api::hash::node_pool(&pool.clone().build());
        let plan = World::of(pool).with(pod("p")).plan();
        let annotations = plan.new_node_claims[0].to_node_claim().metadata.annotations;
        assert_eq!(annotations.unwrap()["karpenter.sh/nodepool-hash"], expected);
    }
}

/// Conformance: SCH-192
#[test]
fn one_of_several_alternatives_may_exclude_node_pools() {
    let either = pod("p")
        .cpu("1")
        .require_term(&[(NODE_POOL, "DoesNotExist", &[])])
        .require_term(&[(ZONE, "In", &[Z2])]);
    let plan = plan_of(either.clone());
    assert_eq!(first_values(&plan, ZONE), [Z2]);
    let foreign = node("n").without_label(NODE_POOL);
    let plan = plan_of((foreign, either));
    assert_eq!(
        plan.existing.len(),
        1,
        "the other alternative is a node without a NodePool"
    );
}

/// Conformance: SCH-205
#[test]
fn preferences_are_dropped_one_by_one_until_the_pod_fits() {
    let absent = ("app", "absent");
    // No pool has z3, so only that preference is dropped; those after it in the order are kept.
    let zones = || node_pool("default").requires(ZONE, "In", &[Z1, Z2]);
    let world = |pod: Object<Pod>| World::of(zones()).with(pod).plan();
    let pod = || member("p").cpu("1");
    // Pod affinity is dropped first: the node preference after it is kept.
    let plan = world(
        pod()
            .prefer_affinity(1, HOSTNAME, absent)
            .prefer(100, ZONE, "In", &[Z2]),
    );
    assert_eq!(first_values(&plan, ZONE), [Z2]);
    // The heavier node preference is dropped before the lighter one.
    let plan = world(
        pod()
            .prefer(2, ZONE, "In", &[Z3])
            .prefer(1, ZONE, "In", &[Z2]),
    );
    assert_eq!(first_values(&plan, ZONE), [Z2]);
    // Node preferences are dropped before soft spread constraints: the spread still decides the zone.
    let soft = json!({ "whenUnsatisfiable": "ScheduleAnyway" });
    let plan = world(
        pod()
            .prefer(1, ZONE, "In", &[Z3])
            .spread_with(ZONE, 1, APP, soft),
    );
    assert_eq!(first_values(&plan, ZONE).len(), 1);
}

/// Conformance: SCH-200
#[test]
fn bounds_are_inclusive_or_exclusive() {
    let listed = |key: &str, operator: &str, value: &str, on_pool: bool| {
        let (mut own, mut asked) = (node_pool("default"), pod("p"));
        if on_pool {
            own = own.requires(key, operator, &[value]);
        } else {
            asked = asked.require(key, operator, &[value]);
        }
        let plan = World::of(own)
            .with_types(fake::instance_types(4))
            .with(asked)
            .plan();
        let claims = plan.new_node_claims.first();
        claims.map_or_else(String::new, |draft| draft.instance_types.join(" "))
    };
    // The label `integer` of fake-it-n is n + 1.
    for (operator, value, expected) in [
        ("Gt", "2", "fake-it-2 fake-it-3"),
        ("Lt", "2", "fake-it-0"),
        ("Gt", "4", ""),
        ("Lt", "1", ""),
        ("Lt", "0", ""),
    ] {
        for on_pool in [false, true] {
            let listed = listed("integer", operator, value, on_pool);
            assert_eq!(listed, expected, "{operator} {value}");
        }
    }
    assert_eq!(listed("integer", "Gte", "3", true), "fake-it-2 fake-it-3");
    assert_eq!(listed("integer", "Lte", "2", true), "fake-it-0 fake-it-1");
    assert_eq!(listed("integer", "Gt", &i64::MAX.to_string(), true), "");
}

/// Conformance: SCH-198
#[test]
fn requirements_are_normalized_on_both_sides() {
    let plan = World::of(node_pool("default").requires(
        "failure-domain.beta.kubernetes.io/zone",
        "In",
        &[Z1, Z2],
    ))
    .with(
        pod("p")
            .select("failure-domain.beta.kubernetes.io/zone", Z2)
            .select("beta.kubernetes.io/arch", "amd64"),
    )
    .plan();
    assert_eq!(first_values(&plan, ZONE), [Z2]);
    assert!(first_values(&plan, "failure-domain.beta.kubernetes.io/zone").is_empty());
}

/// Conformance: SCH-203
#[test]
fn a_narrowed_range_keeps_its_exclusions() {
    let range = Requirement::new("k", Operator::Gte, ["1"])
        .intersection(&Requirement::new("k", Operator::Lte, ["3"]))
        .intersection(&Requirement::new("k", Operator::NotIn, ["2", "9"]));
    assert_eq!(range.to_string(), "k NotIn [2] >=1 <=3");
    assert_eq!(range.any().as_deref(), Some("1"));
    let written = range.to_node_selector_requirements();
    let read_back = written
        .iter()
        .map(|entry| Requirement::from_api(entry).unwrap())
        .reduce(|all, next| all.intersection(&next));
    assert_eq!(read_back, Some(range));
}
