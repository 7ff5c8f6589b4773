//! Interactions of rules: spread and reservations, minValues and limits, volumes and existing nodes, daemons and startup
//! taints, resized pods, buffers, policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_api::v1::NodePool;
use karpenter_core::fake;
use karpenter_core::fake::{instance_type, offering, reserved};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::limits::LimitHeadroom;
use karpenter_core::requirements::{Operator, Requirement};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{
    DefaultSpread, ExceededLimit, Incompatibility, MinValuesPolicy, PodSet, PoolOutcome,
    PreferencePolicy, ReservedMode, Unschedulable,
};
use serde_json::{Value, json};

use crate::fixture::*;
use crate::volumes::bound;

/// Returns instance types with the given numbers of cores and as many GiB, at $0.1 per core.
fn types(cores: &[i64]) -> Arc<[InstanceType]> {
    let build = |cores: &i64| {
        let price = 0.1 * *cores as f64;
        let name = format!("c{cores}");
        instance_type(&name)
            .cpu(*cores)
            .gib(*cores)
            .pods(20)
            .price(price)
            .build()
    };
    cores.iter().map(build).collect()
}

fn reason(world: &World) -> Incompatibility {
    let plan = world.plan();
    match &plan.unplaced[0].why {
        Unschedulable::NoFit(reasons) => reasons[0].reason.clone(),
        other => panic!("{other}"),
    }
}

// Spread and reservations ----------------------------------------------------------------------------------------------

#[test]
fn a_spread_continues_in_zones_without_a_reservation() {
    let everywhere = |price: f64| [Z1, Z2, Z3].map(|zone| offering("on-demand", zone, price));
    let mut offerings = everywhere(1.0).to_vec();
    offerings.push(reserved("r", 1, Z1, 0.001));
    let types = [instance_type("t")
        .cpu(4)
        .gib(4)
        .offerings(offerings)
        .build()];
    let pool = node_pool("default").requires(CAPACITY_TYPE, "In", &["on-demand", "reserved"]);
    let spread = pod("p")
        .cpu("3")
        .label("app", "x")
        .spread(ZONE, 1, ("app", "x"));
    let world = World::empty()
        .with_types(types.into_iter().collect())
        .with_pool(pool)
        .with(copies(&spread, 3));
    let plan = world.plan();
    assert!(all_placed(&plan));
    let mut places: Vec<[String; 2]> = plan
        .new_node_claims
        .iter()
        .map(|draft| [ZONE, CAPACITY_TYPE].map(|key| values(draft, key).join(",")))
        .collect();
    places.sort();
    assert_eq!(
        places,
        [[Z1, "reserved"], [Z2, "on-demand"], [Z3, "on-demand"],]
    );
    // The fourth pod may be in any zone; it does not wait where there is no reservation.
    let four = world.with(copies(&spread.set("/metadata/name", json!("q")), 1));
    assert!(all_placed(&four.plan()));
}

/// Conformance: SCH-245
#[test]
fn reservations_that_are_not_tracked_are_used_like_any_offering() {
    let offerings = vec![offering("on-demand", Z1, 1.0), reserved("r", 1, Z1, 0.001)];
    let types: Arc<[InstanceType]> = [instance_type("t")
        .cpu(4)
        .gib(4)
        .offerings(offerings)
        .build()]
    .into_iter()
    .collect();
    let world = |mode: ReservedMode| {
        let mut world = World::empty()
            .with_types(types.clone())
            .with_pool(node_pool("default"))
            .with(copies(&pod("p").cpu("3"), 2));
        world.policy.reserved_mode = mode;
        world.plan()
    };
    assert_eq!(world(ReservedMode::Off).new_node_claims.len(), 2);
    assert_eq!(world(ReservedMode::Fallback).new_node_claims.len(), 2);
    let strict = world(ReservedMode::Strict);
    assert_eq!(
        (strict.new_node_claims.len(), strict.unplaced.len()),
        (1, 1)
    );
    assert!(strict.unplaced[0].why.is_deferred());
}

// minValues and limits -------------------------------------------------------------------------------------------------

/// Conformance: SCH-242
#[test]
fn limits_may_leave_fewer_values_than_min_values() {
    let world = |policy: MinValuesPolicy| {
        let pool =
            node_pool("default")
                .limit("cpu", "3")
                .requires_min(INSTANCE_TYPE, "Exists", &[], 2);
        let mut world = World::empty()
            .with_types(types(&[2, 4, 8]))
            .with_pool(pool)
            .with([pod("p").cpu("1")]);
        world.policy.min_values_policy = policy;
        world
    };
    let strict = world(MinValuesPolicy::Strict);
    let Incompatibility::MinValues {
        key,
        min_values,
        found,
        ..
    } = reason(&strict)
    else {
        panic!("{:?}", reason(&strict));
    };
    assert_eq!((key.as_str(), min_values, found), (INSTANCE_TYPE, 2, 1));
    let text = why(&strict.plan(), "p");
    assert!(
        text.contains("minValues requirement is not met for label(s) (label(s)=[node.kubernetes.io/instance-type])"),
        "{text}"
    );
    assert!(
        text.contains(", requirements=") && text.contains(", resources={"),
        "{text}"
    );
    let plan = world(MinValuesPolicy::BestEffort).plan();
    assert_eq!(*plan.new_node_claims[0].instance_types, ["c2"]);
    assert!(plan.new_node_claims[0].min_values_relaxed);
}

/// Conformance: SCH-215, SCH-263
#[test]
fn a_claim_counts_against_a_limit_as_its_largest_instance_type() {
    let world = World::empty()
        .with_types(types(&[2, 4, 8]))
        .with_pool(node_pool("default").limit("cpu", "12"))
        .with(copies(
            &pod("p")
                .cpu("1500m")
                .label("app", "x")
                .anti_affinity(HOSTNAME, ("app", "x")),
            3,
        ));
    // The first counts as eight cores; of the four that are left the second counts as four, and none are left for the third.
    let plan = world.plan();
    assert_eq!((plan.new_node_claims.len(), plan.unplaced.len()), (2, 1));
    assert_eq!(*plan.new_node_claims[1].instance_types, ["c2", "c4"]);
    let exceeded = ExceededLimit {
        resource: "cpu".to_owned(),
        limit: 12_000,
        used: 12_000,
        needed: 2_000,
    };
    assert_eq!(reason(&world), Incompatibility::Limits(vec![exceeded]));
}

/// Conformance: SCH-215
#[test]
fn a_limit_equal_to_the_capacity_of_a_type_admits_it() {
    let plan = |limit: &str| {
        World::empty()
            .with_types(types(&[2]))
            .with_pool(node_pool("default").limit("cpu", limit))
            .with([pod("p")])
            .plan()
    };
    assert!(all_placed(&plan("2")));
    assert!(!all_placed(&plan("1999m")));
    let none = World::empty()
        .with_pool(node_pool("default").limit("nodes", "0"))
        .with([pod("p")]);
    assert_eq!(
        reason(&none),
        Incompatibility::NodeLimit { limit: 0, used: 0 }
    );
}

/// Conformance: SCH-217
#[test]
fn launching_a_plan_checks_the_limits_left_by_other_plans() {
    let apart = pod("p").cpu("1500m").label("app", "x");
    let apart = apart.anti_affinity(HOSTNAME, ("app", "x"));
    let mut world = World::empty()
        .with_types(types(&[2, 4, 8]))
        .with_pool(node_pool("default").limit("cpu", "12"))
        .with(copies(&apart, 2));
    let plan = world.plan();
    let [large, small] = &plan.new_node_claims[..] else {
        panic!("{plan:?}");
    };
    let snapshot = world.cluster.snapshot();
    let pool = snapshot.node_pools().next().unwrap();
    let nothing_replaced = BTreeSet::new();
    let mut room = LimitHeadroom::new(&snapshot, &nothing_replaced);
    assert_eq!(room.take(pool, large), Ok(()));
    assert_eq!(room.take(pool, small), Ok(()));
    let full = room.take(pool, small).unwrap_err();
    let message = "cpu resource usage of 16 exceeds limit of 12";
    assert_eq!(full.to_string(), message);
    let mut few = NodePool::clone(pool);
    few.spec.limits = read(json!({ "cpu": "8500m", "nodes": "1" }));
    let mut room = LimitHeadroom::new(&snapshot, &nothing_replaced);
    assert_eq!(room.take(&few, small), Ok(()));
    assert_eq!(
        room.take(&few, large).unwrap_err().to_string(),
        "cpu resource usage of 12 exceeds limit of 8500m"
    );
    assert_eq!(
        room.take(&few, small).unwrap_err().to_string(),
        "nodes resource usage of 2 exceeds limit of 1"
    );

    // Another plan came first: its NodeClaim is not launched yet and may become a node of eight cores.
    let mut claim = large.to_node_claim();
    claim.metadata.name = Some("other".into());
    claim.metadata.uid = Some("other".into());
    world.cluster.apply_node_claim(&claim);
    let snapshot = world.cluster.snapshot();
    let mut room = LimitHeadroom::new(&snapshot, &nothing_replaced);
    assert_eq!(room.take(pool, large).unwrap_err().to_string(), message);
    assert_eq!(room.take(pool, small), Ok(()));
    // Unless its requirements allow smaller types only: types that they exclude do not count.
    let mut narrow = claim.clone();
    narrow.spec.requirements = read(json!([
        { "key": INSTANCE_TYPE, "operator": "In", "values": &*small.instance_types },
        { "key": INSTANCE_TYPE, "operator": "NotIn", "values": &*large.instance_types },
    ]));
    world.cluster.apply_node_claim(&narrow);
    let snapshot = world.cluster.snapshot();
    let mut room = LimitHeadroom::new(&snapshot, &nothing_replaced);
    assert_eq!(room.take(pool, large), Ok(()));
    world.cluster.apply_node_claim(&claim);
    let snapshot = world.cluster.snapshot();
    // Unless that NodeClaim is the one being replaced.
    let replaced = BTreeSet::from(["other".to_owned()]);
    assert_eq!(
        LimitHeadroom::new(&snapshot, &replaced).take(pool, large),
        Ok(())
    );
    // Or that NodeClaim is being deleted.
    claim.metadata.deletion_timestamp = read(json!("2026-01-01T00:00:00Z"));
    world.cluster.apply_node_claim(&claim);
    let snapshot = world.cluster.snapshot();
    assert_eq!(
        LimitHeadroom::new(&snapshot, &nothing_replaced).take(pool, large),
        Ok(())
    );
}

// Volumes and existing nodes -------------------------------------------------------------------------------------------

/// Conformance: SCH-223
#[test]
fn a_volume_of_two_zones_is_placed_on_the_existing_node() {
    let world = |volume: Object<PersistentVolume>| {
        let world = World::new().with((bound("c", "v"), volume));
        world.with((node("n").zone(Z2), pod("p").cpu("1").volume("c")))
    };
    let plan = world(persistent_volume("v").zone(Z1).zone(Z2)).plan();
    assert_eq!(plan.existing.len(), 1);
    let plan = world(persistent_volume("v").zone(Z1)).plan();
    assert_eq!(values(&plan.new_node_claims[0], ZONE), [Z1]);
}

/// Conformance: SCH-224, SCH-226
#[test]
fn a_volume_s_zone_does_not_shrink_the_spread() {
    // One pod counts in z1; the volume forces a second one there, which the spread does not admit.
    let world = World::new().with((bound("c", "v"), persistent_volume("v").zone(Z1)));
    let spread = |name: &str| pod(name).label("app", "x").spread(ZONE, 1, ("app", "x"));
    let world = world.with((
        node("n"),
        spread("a").on("n"),
        spread("p").cpu("1").volume("c"),
    ));
    assert!(!all_placed(&world.plan()));
    assert!(why(&world.plan(), "p").contains(
        "unsatisfiable topology constraint for topology spread, key=topology.kubernetes.io/zone"
    ));
}

// Existing nodes -------------------------------------------------------------------------------------------------------

#[test]
fn resources_a_node_does_not_list_matter_only_to_pods_that_request_them() {
    let bound = pod("b").request("ephemeral-storage", "1Gi").on("n");
    let world = World::new().with((node("n"), bound, pod("p").cpu("1")));
    assert_eq!(
        world.plan().existing.len(),
        1,
        "what a bound pod uses does not matter to other pods"
    );
    let mut world = World::new().with((node("n"), pod("p").cpu("1")));
    world.add(daemon_set("d").request("example.com/plug", "1"));
    assert_eq!(
        world.plan().existing.len(),
        1,
        "nor does what a daemon will request"
    );
    let asking = World::new().with((node("n"), pod("p").request("ephemeral-storage", "1Gi")));
    assert!(
        asking.plan().existing.is_empty(),
        "a pod that requests it does not fit"
    );
}

/// Conformance: SCH-211
#[test]
fn an_overcommitted_node_gets_no_pods() {
    let allocatable = json!({ "cpu": "4", "memory": "4Gi", "pods": "5", "example.com/gpu": "0" });
    let holds = pod("b").request("example.com/gpu", "1").on("n");
    let world = World::new().with((
        node("n").set("/status/allocatable", allocatable),
        holds,
        pod("p"),
    ));
    assert!(world.plan().existing.is_empty());
}

#[test]
fn overhead_of_a_resource_that_a_type_lacks_reduces_nothing() {
    let mut small = instance_type("t").cpu(4).gib(4).build();
    small
        .overhead
        .kube_reserved
        .set("ephemeral-storage", 1 << 30);
    let world = World::empty()
        .with_types([small].into_iter().collect())
        .with_pool(node_pool("default"))
        .with([pod("p").cpu("1")]);
    assert!(all_placed(&world.plan()));
}

/// Conformance: SCH-209
#[test]
fn a_pod_resized_in_place_counts_with_its_new_requests() {
    let resized = |conditions: Value| {
        let status = json!({
            "phase": "Running", "conditions": conditions,
            "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": { "requests": { "cpu": "1" } }, "allocatedResources": { "cpu": "1" },
            }],
        });
        let big = pod("b").cpu("3500m").on("n").set("/status", status);
        World::new()
            .with((node("n"), big, pod("p").cpu("2")))
            .plan()
            .existing
            .len()
    };
    assert_eq!(resized(json!([])), 0, "what is requested will be allocated");
    let infeasible =
        json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
    assert_eq!(
        resized(infeasible),
        1,
        "an infeasible resize is not counted"
    );
}

#[test]
fn a_daemon_that_waits_for_a_startup_taint_counts_on_an_uninitialized_node() {
    let taint = json!({ "key": "warming", "effect": "NoSchedule" });
    let world = |initialized: &str| {
        let claim = node_claim("c")
            .pool("default")
            .startup_taint("warming", "NoSchedule")
            .launched("fake://n");
        World::new()
            .with((claim, daemon_set("d").cpu("3")))
            .with((
                node("n")
                    .set(
                        "/metadata/labels/karpenter.sh~1initialized",
                        json!(initialized),
                    )
                    .push("/spec/taints", taint.clone()),
                pod("p").cpu("2").tolerate(json!({ "operator": "Exists" })),
                pod("q")
                    .cpu("500m")
                    .tolerate(json!({ "operator": "Exists" })),
            ))
            .plan()
    };
    // Three of four cores are reserved for the daemon: one pod fits.
    assert_eq!(world("false").existing.len(), 1);
    // Once the node is initialized, the taint is like any other and keeps the daemon off.
    assert_eq!(world("true").existing.len(), 2);
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
        World::new()
            .with((deleting.clone(), ending(kind)))
            .plan()
            .new_node_claims
            .len()
    };
    assert_eq!((claims("StatefulSet"), claims("ReplicaSet")), (1, 0));
}

/// Conformance: SCH-186
#[test]
fn no_node_is_launched_for_a_pod_that_cannot_be_evicted() {
    let kept = |change: fn(Object<Pod>) -> Object<Pod>, budgets: &[Object<PodDisruptionBudget>]| {
        let mut world = World::new().with((
            node("n"),
            change(
                pod("p")
                    .cpu("1")
                    .label("app", "x")
                    .owned_by("apps/v1", "ReplicaSet", "o")
                    .on("n"),
            ),
        ));
        for budget in budgets {
            world.add(budget.clone());
        }
        world.cluster.mark_for_deletion(&["fake://n"]);
        world.plan().new_node_claims.is_empty()
    };
    let budget = |name: &str, limit: &str, value: Value| {
        pdb(name)
            .of(("app", "x"))
            .set(&format!("/spec/{limit}"), value)
    };
    let as_is = |pod: Object<Pod>| pod;
    assert!(!kept(as_is, &[]));
    assert!(kept(
        |pod| pod.annotation("karpenter.sh/do-not-disrupt", "true"),
        &[]
    ));
    assert!(
        !kept(
            |pod| pod.annotation("karpenter.sh/do-not-disrupt", "soon"),
            &[]
        ),
        "invalid value"
    );
    assert!(kept(as_is, &[budget("b", "maxUnavailable", json!(0))]));
    assert!(kept(as_is, &[budget("b", "maxUnavailable", json!("0%"))]));
    assert!(kept(as_is, &[budget("b", "minAvailable", json!("100%"))]));
    assert!(
        !kept(as_is, &[budget("b", "minAvailable", json!(1))]),
        "may allow an eviction later"
    );
    let two = [
        budget("b", "maxUnavailable", json!(1)),
        budget("c", "maxUnavailable", json!(1)),
    ];
    assert!(
        kept(as_is, &two),
        "the eviction API refuses pods of two budgets"
    );
}

// Pod constraints ------------------------------------------------------------------------------------------------------

/// Conformance: SCH-192
#[test]
fn one_of_several_alternatives_may_exclude_node_pools() {
    let either = pod("p")
        .cpu("1")
        .require_term(&[(NODE_POOL, "DoesNotExist", &[])])
        .require_term(&[(ZONE, "In", &[Z2])]);
    let plan = World::new().with([either.clone()]).plan();
    assert_eq!(values(&plan.new_node_claims[0], ZONE), [Z2]);
    let foreign = node("n").without_label(NODE_POOL);
    let plan = World::new().with((foreign, either)).plan();
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
    let world = |pod: Object<Pod>| World::empty().with_pool(zones()).with([pod]).plan();
    let pod = || pod("p").label("app", "x").cpu("1");
    // Pod affinity is dropped first: the node preference after it is kept.
    let plan = world(
        pod()
            .prefer_affinity(1, HOSTNAME, absent)
            .prefer(100, ZONE, "In", &[Z2]),
    );
    assert_eq!(values(&plan.new_node_claims[0], ZONE), [Z2]);
    // The heavier node preference is dropped before the lighter one.
    let plan = world(
        pod()
            .prefer(2, ZONE, "In", &[Z3])
            .prefer(1, ZONE, "In", &[Z2]),
    );
    assert_eq!(values(&plan.new_node_claims[0], ZONE), [Z2]);
    // Node preferences are dropped before soft spread constraints: the spread still decides the zone.
    let soft = json!({ "whenUnsatisfiable": "ScheduleAnyway" });
    let plan = world(
        pod()
            .prefer(1, ZONE, "In", &[Z3])
            .spread_with(ZONE, 1, ("app", "x"), soft),
    );
    assert_eq!(values(&plan.new_node_claims[0], ZONE).len(), 1);
}

/// Conformance: SCH-207
#[test]
fn ignored_preferences_include_soft_defaults() {
    let mut world = World::new();
    world.cluster.apply_service(&read(json!({
        "metadata": { "name": "s", "namespace": "default" }, "spec": { "selector": { "app": "x" } },
    })));
    world.policy.default_spread = vec![DefaultSpread {
        topology_key: HOSTNAME.into(),
        max_skew: 1,
        min_domains: None,
        hard: false,
        honor_affinity: true,
        honor_taints: false,
    }];
    let mut world = world.with(copies(&pod("p").label("app", "x"), 3));
    assert_eq!(sizes(&world.plan()), [1, 1, 1]);
    world.policy.preference_policy = PreferencePolicy::Ignore;
    assert_eq!(sizes(&world.plan()), [3]);
}

/// Conformance: SCH-230
#[test]
fn the_selector_of_a_controller_of_another_api_group_is_not_used() {
    let spread = |api_version: &str| {
        let mut world = World::new();
        world.cluster.apply_stateful_set(&read(json!({
            "metadata": { "name": "o", "namespace": "default" }, "spec": { "serviceName": "s", "selector": { "matchLabels": { "app": "x" } }, "template": {} },
        })));
        world.policy.default_spread = vec![DefaultSpread {
            topology_key: HOSTNAME.into(),
            max_skew: 1,
            min_domains: None,
            hard: true,
            honor_affinity: true,
            honor_taints: false,
        }];
        let owned = pod("p")
            .label("app", "x")
            .owned_by(api_version, "StatefulSet", "o");
        sizes(&world.with(copies(&owned, 2)).plan())
    };
    assert_eq!(spread("apps/v1"), [1, 1]);
    assert_eq!(spread("apps.kruise.io/v1beta1"), [2]);
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
        let plan = World::empty()
            .with_types(fake::instance_types(4))
            .with_pool(own)
            .with([asked])
            .plan();
        let names = plan
            .new_node_claims
            .first()
            .map(|draft| draft.instance_types.join(" "));
        names.unwrap_or_default()
    };
    // The label `integer` of fake-it-n is n + 1.
    for (operator, value, expected) in [
        ("Gt", "2", "fake-it-2 fake-it-3"),
        ("Lt", "2", "fake-it-0"),
        ("Gt", "4", ""),
        ("Lt", "1", ""),
        ("Lt", "0", ""),
    ] {
        assert_eq!(
            listed("integer", operator, value, false),
            expected,
            "{operator} {value}"
        );
        assert_eq!(
            listed("integer", operator, value, true),
            expected,
            "{operator} {value}"
        );
    }
    assert_eq!(listed("integer", "Gte", "3", true), "fake-it-2 fake-it-3");
    assert_eq!(listed("integer", "Lte", "2", true), "fake-it-0 fake-it-1");
    assert_eq!(listed("integer", "Gt", &i64::MAX.to_string(), true), "");
}

/// Conformance: SCH-198
#[test]
fn requirements_are_normalized_on_both_sides() {
    let plan = World::empty()
        .with_pool(node_pool("default").requires(
            "failure-domain.beta.kubernetes.io/zone",
            "In",
            &[Z1, Z2],
        ))
        .with([pod("p")
            .select("failure-domain.beta.kubernetes.io/zone", Z2)
            .select("beta.kubernetes.io/arch", "amd64")])
        .plan();
    assert_eq!(values(&plan.new_node_claims[0], ZONE), [Z2]);
    assert!(
        values(
            &plan.new_node_claims[0],
            "failure-domain.beta.kubernetes.io/zone"
        )
        .is_empty()
    );
}

// Pools ----------------------------------------------------------------------------------------------------------------

/// Conformance: SCH-213
#[test]
fn pools_of_equal_weight_are_tried_in_descending_order_of_names() {
    let chosen = |pools: Vec<Object<NodePool>>| {
        let world = pools.into_iter().fold(World::empty(), World::with_pool);
        world.with([pod("p")]).plan().new_node_claims[0]
            .node_pool
            .clone()
    };
    assert_eq!(
        chosen(vec![node_pool("a"), node_pool("c"), node_pool("b")]),
        "c"
    );
    assert_eq!(
        chosen(vec![
            node_pool("a").weight(1),
            node_pool("c"),
            node_pool("b")
        ]),
        "a"
    );
    assert_eq!(
        chosen(vec![
            node_pool("a").weight(1),
            node_pool("c").weight(1),
            node_pool("b").weight(2)
        ]),
        "b"
    );
}

/// Conformance: SCH-214
#[test]
fn a_pool_whose_instance_types_are_unknown_is_skipped() {
    let mut world = World::empty()
        .with_pool(node_pool("heavy").weight(9))
        .with_pool(node_pool("light"))
        .with([pod("p")]);
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

// Buffers and given pods -----------------------------------------------------------------------------------------------

/// Conformance: SCH-257
#[test]
fn buffers_come_after_smaller_pods_and_follow_their_own_rules() {
    let buffer = |name: &str, change: fn(Object<Pod>) -> Object<Pod>| {
        let pod = change(
            pod(name)
                .cpu("3")
                .annotation("karpenter.sh/capacity-buffer-fake-pod", "true"),
        );
        Arc::new(karpenter_core::pod::Pod::parse(&pod.build()))
    };
    let mut world = World::new().with((node("n"), pod("p").cpu("2")));
    world.query.buffer_pods = vec![
        buffer("near", |pod| pod.select(ZONE, Z3)),
        buffer("nowhere", |pod| pod.select(ZONE, "mars")),
    ];
    let plan = world.plan();
    assert_eq!(plan.existing[0].pod.name, "p");
    assert_eq!(values(&plan.new_node_claims[0], ZONE), [Z3]);
    assert_eq!(plan.new_node_claims[0].buffer_pods.len(), 1);
    assert!(plan.new_node_claims[0].pods.is_empty());
    assert!(plan.unplaced[0].buffer);
}

#[test]
fn a_given_pod_no_longer_counts_on_its_old_node() {
    let member = |name: &str| {
        pod(name)
            .cpu("1")
            .label("app", "x")
            .anti_affinity(HOSTNAME, ("app", "x"))
    };
    let mut world = World::new().with((
        node("n"),
        node("other"),
        member("p").on("n"),
        member("q").on("other"),
    ));
    let given = world
        .cluster
        .snapshot()
        .pod("default", "p")
        .cloned()
        .unwrap();
    world.query.pods = PodSet::Given(vec![given]);
    world.query.without = vec!["n".to_owned()];
    let plan = world.plan();
    assert_eq!(
        (plan.new_node_claims.len(), plan.existing.len()),
        (1, 0),
        "alone on its host, and not on the one being deleted"
    );
}

// Requirement algebra at its edges -------------------------------------------------------------------------------------

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

#[test]
fn amounts_at_the_limits_of_integers_fit_nowhere_and_do_not_overflow() {
    let plan = World::new()
        .with([
            pod("p").cpu("9223372036854775807"),
            pod("q").memory("9223372036854775807"),
            pod("r").cpu("1"),
        ])
        .plan();
    assert_eq!((plan.new_node_claims.len(), plan.unplaced.len()), (1, 2));
    let full = Resources::new().with("cpu", i64::MAX);
    let mut twice = full.clone();
    twice.add_assign(&full);
    assert_eq!(twice.get("cpu"), i64::MAX);
}
