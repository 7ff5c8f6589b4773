//! Which pods are scheduled, and which NodePools and capacity they may use (sections 2 and 6 of the reference).

use std::sync::Arc;

use karpenter_core::schedule::{Incompatibility, PoolOutcome, Unschedulable};
use serde_json::{Value, json};

use crate::fixture::*;

/// Whether the pod's node selector or affinity is refused before anything is tried.
fn is_invalid(pod: Object<Pod>) -> bool {
    let plan = plan_of(pod);
    let why = plan.unplaced.first().map(|unplaced| &unplaced.why);
    matches!(why, Some(Unschedulable::Invalid(_)))
}

/// Conformance: SCH-190
#[test]
fn required_node_requirements_that_cannot_be_right_make_a_pod_invalid() {
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let field = json!({ "key": "metadata.name", "operator": "In", "values": ["n"] });
    let fields = json!([{ "matchFields": [field] }]);
    assert!(is_invalid(pod("p").set(terms, fields)), "matchFields");
    for (key, operator, values) in [
        ("team", "Like", &["a"][..]),
        ("kubernetes.io/hostname", "In", &["n"]),
        ("karpenter.sh/other", "Exists", &[]),
        ("sub.karpenter.sh/other", "Exists", &[]),
        ("a/b/c", "Exists", &[]),
        ("team", "In", &["-a"]),
        ("team", "In", &[]),
        ("integer", "Gt", &[]),
        ("integer", "Gt", &["1", "2"]),
        ("integer", "Lt", &["many"]),
        ("integer", "Lt", &["-1"]),
        (CAPACITY_TYPE, "In", &["cheap"]),
    ] {
        let required = pod("p").require(key, operator, values);
        assert!(is_invalid(required), "{key} {operator} {values:?}");
        let preferred = pod("p").prefer(1, key, operator, values);
        assert!(
            !is_invalid(preferred),
            "preferred {key} {operator} {values:?}"
        );
    }
    for (key, value) in [
        ("kubernetes.io/hostname", "n"),
        ("karpenter.sh/other", "x"),
        ("a/b/c", "x"),
        ("team", "-a"),
        (CAPACITY_TYPE, "cheap"),
    ] {
        assert!(is_invalid(pod("p").select(key, value)), "{key}={value}");
    }
    let one_known = pod("p").require(CAPACITY_TYPE, "In", &["cheap", "on-demand"]);
    assert!(!is_invalid(one_known.clone()));
    assert!(World::new().places(one_known));
}

/// Conformance: SCH-184
#[test]
fn scheduler_priority_and_phase_do_not_decide_about_provisioning() {
    for change in [
        ("/spec/schedulerName", json!("other")),
        ("/spec/priority", json!(-1)),
        ("/status/phase", json!("Unknown")),
    ] {
        let plan = plan_of(pod("p").set(change.0, change.1));
        assert_eq!(plan.new_node_claims.len(), 1, "{}", change.0);
    }
}

/// Conformance: SCH-187
#[test]
fn an_unhealthy_pod_that_its_budget_always_allows_to_evict_is_replaced() {
    let replaced = |policy: &str, ready: &str| {
        let pod = member("p")
            .cpu("1")
            .owned_by("apps/v1", "ReplicaSet", "o")
            .on("n")
            .set(
                "/status/conditions",
                json!([{ "type": "Ready", "status": ready }]),
            );
        let mut world = World::new().with((node("n"), pod));
        let never = pdb("b").of(APP).max_unavailable(0);
        world.add(never.set("/spec/unhealthyPodEvictionPolicy", policy));
        world.cluster.mark_for_deletion(&["fake://n"]);
        world.plan().new_node_claims.len()
    };
    assert_eq!(replaced("AlwaysAllow", "False"), 1);
    assert_eq!(replaced("AlwaysAllow", "True"), 0);
    assert_eq!(replaced("IfHealthyBudget", "False"), 0);
}

/// A node of four cores that a pod of a DaemonSet fills.
fn full(change: impl FnOnce(Object<Node>) -> Object<Node>) -> impl Applied {
    let daemon = pod("d")
        .cpu("4")
        .owned_by("apps/v1", "DaemonSet", "d")
        .on("n");
    (change(node("n")), daemon)
}

/// Conformance: SCH-189
#[test]
fn nodes_that_are_being_deleted_are_no_targets_and_do_not_count_in_limits() {
    let claims = |change: fn(Object<Node>) -> Object<Node>, mark: bool| {
        let mut world = World::of(node_pool("default").limit("cpu", "4"))
            .with(full(change))
            .with(pod("p").cpu("1"));
        if mark {
            world.cluster.mark_for_deletion(&["fake://n"]);
        }
        let plan = world.plan();
        assert!(plan.existing.is_empty());
        plan.new_node_claims.len()
    };
    let live_node = claims(|node| node, false);
    assert_eq!(live_node, 0, "its four cores are the limit");
    assert_eq!(claims(|node| node, true), 1);

    let live = || {
        let claim = node_claim("c").pool("default");
        claim.launched("fake://n").set("/status/capacity/cpu", "4")
    };
    let with_claim = |condition: Option<&str>, deleted: bool| {
        let mut claim = live();
        if deleted {
            claim = claim.deleted("2026-01-01T00:00:00Z");
        }
        if let Some(condition) = condition {
            claim = claim.is(condition);
        }
        World::of(node_pool("default").limit("cpu", "4"))
            .with(full(|node| node))
            .with((pod("p").cpu("1"), claim))
            .plan()
            .new_node_claims
            .len()
    };
    assert_eq!(with_claim(None, false), 0);
    assert_eq!(with_claim(None, true), 1);
    assert_eq!(with_claim(Some("InstanceTerminating"), false), 1);

    // A deleting Node whose NodeClaim is still live counts.
    let deleting = |node: Object<Node>| node.deleted("2026-01-01T00:00:00Z");
    let mut world = World::of(node_pool("default").limit("cpu", "4"))
        .with(full(deleting))
        .with(pod("p").cpu("1"));
    world.add(live());
    assert_eq!(world.plan().new_node_claims.len(), 0);
}

/// Conformance: SCH-181, SCH-213
#[test]
fn a_static_pool_takes_no_pods() {
    let fixed = node_pool("fixed").replicas(1);
    let plan = World::of(fixed.clone()).with(pod("p")).plan();
    assert_eq!(why(&plan, "p"), "no dynamic nodepools found");
    let world = World::of(fixed).with_pool(node_pool("a"));
    assert_eq!(
        world.with(pod("p")).plan().new_node_claims[0].node_pool,
        "a"
    );
}

/// Conformance: SCH-216
#[test]
fn an_exhausted_node_limit_is_said_before_other_limits() {
    let pool = node_pool("default").limit("nodes", "1").limit("cpu", "1");
    let plan = World::of(pool)
        .with(full(|node| node))
        .with(pod("p").cpu("1"))
        .plan();
    let Unschedulable::NoFit(reasons) = &plan.unplaced[0].why else {
        panic!("{:?}", plan.unplaced);
    };
    assert_eq!(
        reasons[0].reason,
        Incompatibility::NodeLimit { limit: 1, used: 1 }
    );
    let text = why(&plan, "p");
    assert!(
        text.ends_with("node limits have been exhausted for nodepool"),
        "{text}"
    );
}

/// Conformance: SCH-210
#[test]
fn limits_of_containers_are_no_requests() {
    let limited = pod("p").set(
        "/spec/containers",
        json!([{ "name": "c", "resources": { "limits": { "cpu": "1000" } } }]),
    );
    assert!(World::new().places(limited));
}

/// What the NodeClaim of a plan asks for of a resource.
fn asked(world: &World, resource: &str) -> Value {
    let plan = world.plan();
    let claim = plan.new_node_claims[0].to_node_claim();
    json!(
        claim
            .spec
            .resources
            .requests
            .get(resource)
            .map(|quantity| quantity.0.clone())
    )
}

/// Conformance: SCH-218
#[test]
fn a_claim_asks_for_the_least_that_daemons_take_of_any_of_its_types() {
    let types = [("a", "500m"), ("b", "1")];
    let build = |(name, _): (&str, &str)| karpenter_core::fake::instance_type(name).cpu(4).gib(4);
    let mut world = World::new()
        .with_types(types.map(build))
        .with(pod("p").cpu("1"));
    for (name, cpu) in types {
        world.add(daemon_set(name).cpu(cpu).select(INSTANCE_TYPE, name));
    }
    assert_eq!(world.plan().new_node_claims[0].instance_types.len(), 2);
    assert_eq!(asked(&world, "cpu"), json!("1500m"));
    assert_eq!(asked(&world, "pods"), json!("2"));
}

/// Conformance: SCH-182
#[test]
fn nodes_that_exist_are_tried_though_there_is_no_pool() {
    let plan = World::empty()
        .with((node("n"), pod("p").cpu("1"), pod("q").cpu("100")))
        .plan();
    assert_eq!(plan.existing.len(), 1);
    assert_eq!(why(&plan, "q"), "no dynamic nodepools found");
}

/// Conformance: SCH-221
#[test]
fn a_soft_taint_on_a_node_is_tolerated_as_a_last_resort() {
    let soft = || {
        let taint = json!({ "key": "soft", "value": "", "effect": "PreferNoSchedule" });
        node("a").push("/spec/taints", taint)
    };
    let alone = World::empty().with((soft(), pod("p").cpu("1"))).plan();
    assert_eq!(alone.existing.len(), 1);
    let both = World::empty()
        .with((soft(), node("b"), pod("p").cpu("1")))
        .plan();
    assert_eq!(both.existing[0].node, "b");
}

/// Conformance: SCH-206
#[test]
fn an_alternative_that_failed_with_a_preference_is_tried_again_without_it() {
    let asked = pod("p")
        .require(ZONE, "In", &[Z1])
        .require(ZONE, "In", &["nowhere"])
        .prefer(1, ZONE, "In", &[Z2]);
    let plan = plan_of(asked);
    assert_eq!(first_values(&plan, ZONE), [Z1]);
    let second = pod("p")
        .require(ZONE, "In", &[Z1])
        .require(ZONE, "In", &[Z2])
        .prefer(1, ZONE, "In", &[Z2]);
    let plan = plan_of(second);
    assert_eq!(
        first_values(&plan, ZONE),
        [Z2],
        "rather than drop the preference"
    );
}

/// Conformance: SCH-219
#[test]
fn alternatives_of_a_daemon_are_tried_afresh_for_each_type() {
    let types = ["a", "b", "c"];
    let build = |name: &str| karpenter_core::fake::instance_type(name).cpu(2).gib(4);
    let mut world = World::new()
        .with_types(types.map(build))
        .with(pod("p").cpu("1"));
    let on_a_or_b = daemon_set("d")
        .cpu("1")
        .require(INSTANCE_TYPE, "In", &["a"])
        .require(INSTANCE_TYPE, "In", &["b"]);
    world.add(on_a_or_b);
    assert_eq!(*world.plan().new_node_claims[0].instance_types, ["c"]);
}

/// Conformance: SCH-185
#[test]
fn a_failed_stateful_set_pod_of_a_deleting_node_is_replaced() {
    let deleting = node("n").deleted("2026-01-01T00:00:00Z");
    let deleting = deleting
        .without_label(NODE_POOL)
        .without_label("karpenter.test.sh/testnodeclass");
    let ending = |kind: &str| {
        pod("p")
            .cpu("1")
            .owned_by("apps/v1", kind, "o")
            .on("n")
            .deleted("2026-01-01T00:00:00Z")
            .set("/status/phase", json!("Failed"))
    };
    let claims = |kind: &str| {
        plan_of((deleting.clone(), ending(kind)))
            .new_node_claims
            .len()
    };
    assert_eq!((claims("StatefulSet"), claims("ReplicaSet")), (1, 0));
}

/// Conformance: SCH-186
#[test]
fn no_node_is_launched_for_a_pod_that_cannot_be_evicted() {
    let kept = |change: fn(Object<Pod>) -> Object<Pod>, budgets: &[Object<PodDisruptionBudget>]| {
        let owned = member("p").cpu("1").owned_by("apps/v1", "ReplicaSet", "o");
        let mut world = World::new().with((node("n"), change(owned.on("n")), budgets.to_vec()));
        world.cluster.mark_for_deletion(&["fake://n"]);
        world.plan().new_node_claims.is_empty()
    };
    let budget = |name: &str, limit: &str, value: Value| {
        pdb(name).of(APP).set(&format!("/spec/{limit}"), value)
    };
    let as_is = |pod: Object<Pod>| pod;
    assert!(!kept(as_is, &[]));
    assert!(kept(|pod| pod.do_not_disrupt(), &[]));
    let invalid = |pod: Object<Pod>| pod.annotation("karpenter.sh/do-not-disrupt", "soon");
    assert!(!kept(invalid, &[]));
    for (limit, value, expected) in [
        ("maxUnavailable", json!(0), true),
        ("maxUnavailable", json!("0%"), true),
        ("minAvailable", json!("100%"), true),
        // It may allow an eviction later.
        ("minAvailable", json!(1), false),
    ] {
        let text = format!("{limit} {value}");
        assert_eq!(
            kept(as_is, &[budget("b", limit, value)]),
            expected,
            "{text}"
        );
    }
    // The eviction API refuses pods of two budgets.
    let two = ["b", "c"].map(|name| budget(name, "maxUnavailable", json!(1)));
    assert!(kept(as_is, &two));
}

/// Conformance: SCH-214
#[test]
fn a_pool_whose_instance_types_are_unknown_is_skipped() {
    let mut world = World::of(node_pool("heavy").weight(9))
        .with_pool(node_pool("light"))
        .with(pod("p"));
    world
        .cluster
        .set_instance_types("heavy", Err("throttled".to_owned()));
    let plan = world.plan();
    assert_eq!(plan.new_node_claims[0].node_pool, "light");
    assert_eq!(
        plan.pools[0].outcome,
        PoolOutcome::Unknown("throttled".to_owned())
    );
    world.cluster.forget_instance_types("heavy");
    let plan = world.plan();
    assert_eq!(plan.new_node_claims[0].node_pool, "light");
    assert_eq!(plan.pools[0].outcome, PoolOutcome::Unevaluated);
    // A pool without instance types is reported differently from a cluster without pools.
    world.cluster.set_instance_types("light", Ok(Arc::new([])));
    assert_eq!(
        why(&world.plan(), "p"),
        "nodepool requirements filtered out all available instance types"
    );
}

#[test]
fn a_node_for_a_later_term_comes_before_a_new_node_for_an_earlier_one() {
    let either = pod("p")
        .cpu("1")
        .require(ZONE, "In", &[Z1])
        .require(ZONE, "In", &[Z2]);
    let plan = plan_of((node("n").zone(Z2), either));
    assert_eq!(counts(&plan), (1, 0));
}

#[test]
fn a_pod_with_ten_thousand_labels_is_left_with_a_reason() {
    let labels: serde_json::Map<String, Value> = (0..10_000)
        .map(|index| (format!("key-{index}"), json!("v")))
        .collect();
    let labelled = pod("p")
        .set("/metadata/labels", labels.clone())
        .set("/spec/nodeSelector", labels);
    assert!(!why(&plan_of(labelled), "p").is_empty());
}
