//! Rules where they meet: spread and reservations, minValues and limits, volumes and machines that exist, daemons and startup
//! taints, resized pods, buffers, policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::fake::{self, instance_type, offering, reserved};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::limits::Room;
use karpenter_core::pod::Pod;
use karpenter_core::requirements::{Operator, Requirement};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{
    DefaultSpread, MinValuesPolicy, PodSet, PoolOutcome, PreferencePolicy, Reason, ReservedMode,
    WhyNot,
};
use serde_json::{Value, json};

use crate::fixture::*;
use crate::volumes::{bound, in_zone, volume};

/// Types of so many cores and as many GiB, at a tenth of a dollar a core.
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

fn reason(world: &World) -> Reason {
    let plan = world.plan();
    match &plan.unplaced[0].why {
        WhyNot::NoFit(reasons) => reasons[0].reason.clone(),
        other => panic!("{other}"),
    }
}

// Spread and reservations ----------------------------------------------------------------------------------------------

#[test]
fn a_spread_goes_on_where_a_reservation_has_no_zone() {
    let everywhere = |price: f64| [Z1, Z2, Z3].map(|zone| offering("on-demand", zone, price));
    let mut offerings = everywhere(1.0).to_vec();
    offerings.push(reserved("r", 1, Z1, 0.001));
    let types = [instance_type("t")
        .cpu(4)
        .gib(4)
        .offerings(offerings)
        .build()];
    let pool = pool("default").needs(CAPACITY_TYPE, "In", &["on-demand", "reserved"]);
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
    let mut places: Vec<(Vec<&str>, Vec<&str>)> = plan
        .new_claims
        .iter()
        .map(|draft| (values(draft, ZONE), values(draft, CAPACITY_TYPE)))
        .collect();
    places.sort();
    assert_eq!(
        places,
        [
            (vec![Z1], vec!["reserved"]),
            (vec![Z2], vec!["on-demand"]),
            (vec![Z3], vec!["on-demand"]),
        ]
    );
    // The fourth may go anywhere; it waits for nothing where there is no reservation.
    let four = world.with(copies(&spread.set("/metadata/name", json!("q")), 1));
    assert!(all_placed(&four.plan()));
}

#[test]
fn reservations_that_are_not_tracked_are_bought_like_anything_else() {
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
            .with_pool(pool("default"))
            .with(copies(&pod("p").cpu("3"), 2));
        world.request.reserved_mode = mode;
        world.plan()
    };
    assert_eq!(world(ReservedMode::Off).new_claims.len(), 2);
    assert_eq!(world(ReservedMode::Fallback).new_claims.len(), 2);
    let strict = world(ReservedMode::Strict);
    assert_eq!((strict.new_claims.len(), strict.unplaced.len()), (1, 1));
    assert!(strict.unplaced[0].why.is_deferred());
}

// minValues and limits -------------------------------------------------------------------------------------------------

#[test]
fn limits_may_leave_fewer_values_than_are_asked_for() {
    let world = |policy: MinValuesPolicy| {
        let pool = pool("default")
            .limit("cpu", "3")
            .needs_min(INSTANCE_TYPE, "Exists", &[], 2);
        let mut world = World::empty()
            .with_types(types(&[2, 4, 8]))
            .with_pool(pool)
            .with([pod("p").cpu("1")]);
        world.request.min_values_policy = policy;
        world
    };
    let strict = world(MinValuesPolicy::Strict);
    let Reason::MinValues {
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
    assert_eq!(*plan.new_claims[0].instance_types, ["c2"]);
    assert!(plan.new_claims[0].min_values_relaxed);
}

#[test]
fn a_limit_is_used_up_by_the_largest_machine_a_claim_may_become_and_no_more() {
    let world = World::empty()
        .with_types(types(&[2, 4, 8]))
        .with_pool(pool("default").limit("cpu", "12"))
        .with(copies(
            &pod("p")
                .cpu("1500m")
                .label("app", "x")
                .anti_affinity(HOSTNAME, ("app", "x")),
            3,
        ));
    // The first counts as eight cores; of the four that are left the second counts as four, and the third finds nothing.
    let plan = world.plan();
    assert_eq!((plan.new_claims.len(), plan.unplaced.len()), (2, 1));
    assert_eq!(*plan.new_claims[1].instance_types, ["c2", "c4"]);
    assert_eq!(reason(&world), Reason::Limits);
}

#[test]
fn a_limit_of_exactly_what_a_machine_has_is_enough() {
    let plan = |limit: &str| {
        World::empty()
            .with_types(types(&[2]))
            .with_pool(pool("default").limit("cpu", limit))
            .with([pod("p")])
            .plan()
    };
    assert!(all_placed(&plan("2")));
    assert!(!all_placed(&plan("1999m")));
    let none = World::empty()
        .with_pool(pool("default").limit("nodes", "0"))
        .with([pod("p")]);
    assert_eq!(reason(&none), Reason::NodeLimit);
}

#[test]
fn who_carries_out_a_plan_second_finds_the_room_that_is_left() {
    let apart = pod("p").cpu("1500m").label("app", "x");
    let apart = apart.anti_affinity(HOSTNAME, ("app", "x"));
    let mut world = World::empty()
        .with_types(types(&[2, 4, 8]))
        .with_pool(pool("default").limit("cpu", "12"))
        .with(copies(&apart, 2));
    let plan = world.plan();
    let [large, small] = &plan.new_claims[..] else {
        panic!("{plan:?}");
    };
    let snapshot = world.cluster.snapshot();
    let pool = snapshot.node_pools().next().unwrap();
    let nobody = BTreeSet::new();
    let mut room = Room::new(&snapshot, &nobody);
    assert_eq!(room.take(pool, large), Ok(()));
    assert_eq!(room.take(pool, small), Ok(()));
    let full = room.take(pool, small).unwrap_err();
    let message = "cpu resource usage of 16 exceeds limit of 12";
    assert_eq!(full.to_string(), message);
    let mut few = NodePool::clone(pool);
    few.spec.limits = read(json!({ "cpu": "8500m", "nodes": "1" }));
    let mut room = Room::new(&snapshot, &nobody);
    assert_eq!(room.take(&few, small), Ok(()));
    assert_eq!(
        room.take(&few, large).unwrap_err().to_string(),
        "cpu resource usage of 12 exceeds limit of 8500m"
    );
    assert_eq!(
        room.take(&few, small).unwrap_err().to_string(),
        "nodes resource usage of 2 exceeds limit of 1"
    );

    // Another plan was faster: its machine is not launched yet, and may become one of eight cores.
    let mut claim = NodeClaim::clone(&large.claim);
    claim.metadata.name = Some("other".into());
    claim.metadata.uid = Some("other".into());
    world.cluster.apply_node_claim(&claim);
    let snapshot = world.cluster.snapshot();
    let mut room = Room::new(&snapshot, &nobody);
    assert_eq!(room.take(pool, large).unwrap_err().to_string(), message);
    assert_eq!(room.take(pool, small), Ok(()));
    // Unless it is that one which is replaced.
    let replaced = BTreeSet::from(["other".to_owned()]);
    assert_eq!(Room::new(&snapshot, &replaced).take(pool, large), Ok(()));
    // Or it is being deleted.
    claim.metadata.deletion_timestamp = read(json!("2026-01-01T00:00:00Z"));
    world.cluster.apply_node_claim(&claim);
    let snapshot = world.cluster.snapshot();
    assert_eq!(Room::new(&snapshot, &nobody).take(pool, large), Ok(()));
}

// Volumes and machines that exist --------------------------------------------------------------------------------------

#[test]
fn a_volume_of_two_zones_takes_the_machine_that_is_there() {
    let world = |terms: Value| {
        let mut world = World::new();
        world.cluster.apply_volume_claim(&read(bound("c", "v")));
        world.cluster.apply_volume(&read(volume("v", terms)));
        world.with([
            node("n").set("/metadata/labels/topology.kubernetes.io~1zone", json!(Z2)),
            pod("p").cpu("1").volume("c"),
        ])
    };
    let plan = world(json!([in_zone(Z1), in_zone(Z2)])).plan();
    assert_eq!(plan.existing.len(), 1);
    let plan = world(json!([in_zone(Z1)])).plan();
    assert_eq!(values(&plan.new_claims[0], ZONE), [Z1]);
}

#[test]
fn a_volume_s_zone_does_not_shrink_the_spread() {
    // Two pods of z1 count; the volume forces a third there, beyond what the spread admits.
    let mut world = World::new();
    world.cluster.apply_volume_claim(&read(bound("c", "v")));
    world
        .cluster
        .apply_volume(&read(volume("v", json!([in_zone(Z1)]))));
    let spread = |name: &str| pod(name).label("app", "x").spread(ZONE, 1, ("app", "x"));
    let world = world.with([
        node("n"),
        spread("a").on("n"),
        spread("p").cpu("1").volume("c"),
    ]);
    assert!(!all_placed(&world.plan()));
    assert!(why(&world.plan(), "p").contains(
        "unsatisfiable topology constraint for topology spread, key=topology.kubernetes.io/zone"
    ));
}

// Machines that exist --------------------------------------------------------------------------------------------------

#[test]
fn what_a_node_does_not_list_is_of_no_account() {
    let bound = pod("b").request("ephemeral-storage", "1Gi").on("n");
    let world = World::new().with([node("n"), bound, pod("p").cpu("1")]);
    assert_eq!(
        world.plan().existing.len(),
        1,
        "what a bound pod has is not missing to others"
    );
    let mut world = World::new().with([node("n"), pod("p").cpu("1")]);
    world.cluster.apply_daemon_set(&read(json!({
        "metadata": { "name": "d", "namespace": "kube-system", "uid": "d" },
        "spec": { "selector": {}, "template": { "metadata": {}, "spec": { "containers": [
            { "name": "c", "resources": { "requests": { "example.com/plug": "1" } } },
        ] } } },
    })));
    assert_eq!(
        world.plan().existing.len(),
        1,
        "nor what a daemon will ask for"
    );
    let asking = World::new().with([node("n"), pod("p").request("ephemeral-storage", "1Gi")]);
    assert!(
        asking.plan().existing.is_empty(),
        "who asks for it goes elsewhere"
    );
}

#[test]
fn a_node_that_is_overdrawn_takes_nothing() {
    let allocatable = json!({ "cpu": "4", "memory": "4Gi", "pods": "5", "example.com/gpu": "0" });
    let holds = pod("b").request("example.com/gpu", "1").on("n");
    let world = World::new().with([
        node("n").set("/status/allocatable", allocatable),
        holds,
        pod("p"),
    ]);
    assert!(world.plan().existing.is_empty());
}

#[test]
fn overhead_of_what_a_machine_does_not_have_takes_nothing() {
    let mut machine = instance_type("t").cpu(4).gib(4).build();
    machine
        .overhead
        .kube_reserved
        .set("ephemeral-storage", 1 << 30);
    let world = World::empty()
        .with_types([machine].into_iter().collect())
        .with_pool(pool("default"))
        .with([pod("p").cpu("1")]);
    assert!(all_placed(&world.plan()));
}

#[test]
fn a_pod_that_was_given_more_in_place_takes_more() {
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
            .with([node("n"), big, pod("p").cpu("2")])
            .plan()
            .existing
            .len()
    };
    assert_eq!(resized(json!([])), 0, "what is asked for will be given");
    let infeasible =
        json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
    assert_eq!(
        resized(infeasible),
        1,
        "what cannot be given is not counted"
    );
}

#[test]
fn a_daemon_that_waits_for_a_startup_taint_counts_on_a_node_that_starts() {
    let taint = json!({ "key": "warming", "effect": "NoSchedule" });
    let world = |initialized: &str| {
        let claim = json!({
            "metadata": { "name": "c", "uid": "c", "labels": { POOL: "default" } },
            "spec": {
                "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
                "requirements": [], "startupTaints": [taint],
            },
            "status": { "providerID": "fake://n" },
        });
        let mut world = World::new();
        world.cluster.apply_node_claim(&read(claim));
        world.cluster.apply_daemon_set(&read(json!({
            "metadata": { "name": "d", "namespace": "kube-system", "uid": "d" },
            "spec": { "selector": {}, "template": { "metadata": {}, "spec": { "containers": [
                { "name": "c", "resources": { "requests": { "cpu": "3" } } },
            ] } } },
        })));
        world
            .with([
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
            ])
            .plan()
    };
    // Three of four cores are the daemon's: one pod fits beside it.
    assert_eq!(world("false").existing.len(), 1);
    // Once initialised the taint is as good as any other, and keeps the daemon off.
    assert_eq!(world("true").existing.len(), 2);
}

#[test]
fn a_failed_pod_of_a_stateful_set_that_goes_with_its_node_is_replaced() {
    let gone = node("n").set("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    let unmanaged = ["karpenter.sh~1nodepool", "karpenter.test.sh~1testnodeclass"];
    let gone = unmanaged.iter().fold(gone, |node, label| {
        let mut node = node;
        let labels = node.0["metadata"]["labels"].as_object_mut();
        labels.unwrap().remove(&label.replace("~1", "/"));
        node
    });
    let ending = |kind: &str| {
        pod("p")
            .cpu("1")
            .owned_by("apps/v1", kind, "o")
            .on("n")
            .set("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))
            .set("/status/phase", json!("Failed"))
    };
    let claims = |kind: &str| {
        World::new()
            .with([gone.clone(), ending(kind)])
            .plan()
            .new_claims
            .len()
    };
    assert_eq!((claims("StatefulSet"), claims("ReplicaSet")), (1, 0));
}

#[test]
fn no_machine_is_bought_for_a_pod_that_stays_where_it_is() {
    let kept = |change: fn(Object) -> Object, budgets: &[Value]| {
        let mut world = World::new().with([
            node("n"),
            change(
                pod("p")
                    .cpu("1")
                    .label("app", "x")
                    .owned_by("apps/v1", "ReplicaSet", "o")
                    .on("n"),
            ),
        ]);
        for budget in budgets {
            world.cluster.apply_pdb(&read(budget.clone()));
        }
        world.cluster.mark_for_deletion(&["fake://n"]);
        world.plan().new_claims.is_empty()
    };
    let budget = |name: &str, limit: &str, value: Value| {
        json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": { limit: value, "selector": { "matchLabels": { "app": "x" } } },
        })
    };
    let as_is = |pod: Object| pod;
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
        "means nothing"
    );
    assert!(kept(as_is, &[budget("b", "maxUnavailable", json!(0))]));
    assert!(kept(as_is, &[budget("b", "maxUnavailable", json!("0%"))]));
    assert!(kept(as_is, &[budget("b", "minAvailable", json!("100%"))]));
    assert!(
        !kept(as_is, &[budget("b", "minAvailable", json!(1))]),
        "may change"
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

// What pods ask for ----------------------------------------------------------------------------------------------------

#[test]
fn one_of_several_alternatives_may_exclude_node_pools() {
    let either = pod("p")
        .cpu("1")
        .require_term(&[(POOL, "DoesNotExist", &[])])
        .require_term(&[(ZONE, "In", &[Z2])]);
    let plan = World::new().with([either.clone()]).plan();
    assert_eq!(values(&plan.new_claims[0], ZONE), [Z2]);
    let mut foreign = node("n");
    foreign.0["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove(POOL);
    let plan = World::new().with([foreign, either]).plan();
    assert_eq!(
        plan.existing.len(),
        1,
        "the other alternative is a node of nobody's"
    );
}

#[test]
fn preferences_are_dropped_one_by_one_until_the_one_in_the_way_is_gone() {
    let absent = ("app", "nobody");
    // No pool gives z3, so only the preference for it must go; what comes after it in the order stays.
    let zones = || pool("default").needs(ZONE, "In", &[Z1, Z2]);
    let world = |pod: Object| World::empty().with_pool(zones()).with([pod]).plan();
    let pod = || pod("p").label("app", "x").cpu("1");
    // Pod affinity goes first: the node preference behind it is kept.
    let plan = world(
        pod()
            .prefer_affinity(1, HOSTNAME, absent)
            .prefer(100, ZONE, "In", &[Z2]),
    );
    assert_eq!(values(&plan.new_claims[0], ZONE), [Z2]);
    // The heavier node preference goes before the lighter one.
    let plan = world(
        pod()
            .prefer(2, ZONE, "In", &[Z3])
            .prefer(1, ZONE, "In", &[Z2]),
    );
    assert_eq!(values(&plan.new_claims[0], ZONE), [Z2]);
    // Node preferences go before soft spread constraints: the spread still settles the zone.
    let soft = json!({ "whenUnsatisfiable": "ScheduleAnyway" });
    let plan = world(
        pod()
            .prefer(1, ZONE, "In", &[Z3])
            .spread_with(ZONE, 1, ("app", "x"), soft),
    );
    assert_eq!(values(&plan.new_claims[0], ZONE).len(), 1);
}

#[test]
fn ignored_preferences_include_soft_defaults() {
    let mut world = World::new();
    world.cluster.apply_service(&read(json!({
        "metadata": { "name": "s", "namespace": "default" }, "spec": { "selector": { "app": "x" } },
    })));
    world.request.default_spread = vec![DefaultSpread {
        topology_key: HOSTNAME.into(),
        max_skew: 1,
        min_domains: None,
        hard: false,
        honor_affinity: true,
        honor_taints: false,
    }];
    let mut world = world.with(copies(&pod("p").label("app", "x"), 3));
    assert_eq!(sizes(&world.plan()), [1, 1, 1]);
    world.request.preference_policy = PreferencePolicy::Ignore;
    assert_eq!(sizes(&world.plan()), [3]);
}

#[test]
fn the_selector_of_a_controller_of_another_api_group_is_not_taken() {
    let spread = |api_version: &str| {
        let mut world = World::new();
        world.cluster.apply_stateful_set(&read(json!({
            "metadata": { "name": "o", "namespace": "default" }, "spec": { "serviceName": "s", "selector": { "matchLabels": { "app": "x" } }, "template": {} },
        })));
        world.request.default_spread = vec![DefaultSpread {
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

#[test]
fn bounds_admit_what_they_name_or_not() {
    let listed = |key: &str, operator: &str, value: &str, on_pool: bool| {
        let (mut own, mut asked) = (pool("default"), pod("p"));
        if on_pool {
            own = own.needs(key, operator, &[value]);
        } else {
            asked = asked.require(key, operator, &[value]);
        }
        let plan = World::empty()
            .with_types(fake::instance_types(4))
            .with_pool(own)
            .with([asked])
            .plan();
        let names = plan
            .new_claims
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

#[test]
fn requirements_are_normalised_on_both_sides() {
    let plan = World::empty()
        .with_pool(pool("default").needs("failure-domain.beta.kubernetes.io/zone", "In", &[Z1, Z2]))
        .with([pod("p")
            .select("failure-domain.beta.kubernetes.io/zone", Z2)
            .select("beta.kubernetes.io/arch", "amd64")])
        .plan();
    assert_eq!(values(&plan.new_claims[0], ZONE), [Z2]);
    assert!(
        values(
            &plan.new_claims[0],
            "failure-domain.beta.kubernetes.io/zone"
        )
        .is_empty()
    );
}

// Pools ----------------------------------------------------------------------------------------------------------------

#[test]
fn pools_of_equal_weight_go_by_name_from_the_end() {
    let chosen = |pools: Vec<Object>| {
        let world = pools.into_iter().fold(World::empty(), World::with_pool);
        world.with([pod("p")]).plan().new_claims[0]
            .node_pool
            .clone()
    };
    assert_eq!(chosen(vec![pool("a"), pool("c"), pool("b")]), "c");
    assert_eq!(chosen(vec![pool("a").weight(1), pool("c"), pool("b")]), "a");
    assert_eq!(
        chosen(vec![
            pool("a").weight(1),
            pool("c").weight(1),
            pool("b").weight(2)
        ]),
        "b"
    );
}

#[test]
fn a_pool_whose_machines_are_not_known_is_passed_by() {
    let mut world = World::empty()
        .with_pool(pool("heavy").weight(9))
        .with_pool(pool("light"))
        .with([pod("p")]);
    world
        .cluster
        .set_instance_types("heavy", Err("throttled".to_owned()));
    let plan = world.plan();
    assert_eq!(plan.new_claims[0].node_pool, "light");
    assert_eq!(
        plan.pools[0].outcome,
        PoolOutcome::Unknown("throttled".to_owned())
    );
    world.cluster.forget_instance_types("heavy");
    let plan = world.plan();
    assert_eq!(plan.new_claims[0].node_pool, "light");
    assert_eq!(plan.pools[0].outcome, PoolOutcome::Unevaluated);
    // None that is known at all is no lack of NodePools.
    world.cluster.set_instance_types("light", Ok(Arc::new([])));
    assert_eq!(
        why(&world.plan(), "p"),
        "nodepool requirements filtered out all available instance types"
    );
}

// Buffers and given pods -----------------------------------------------------------------------------------------------

#[test]
fn buffers_come_after_smaller_pods_and_follow_their_own_rules() {
    let buffer = |name: &str, change: fn(Object) -> Object| {
        let pod = change(
            pod(name)
                .cpu("3")
                .annotation("karpenter.sh/capacity-buffer-fake-pod", "true"),
        );
        Arc::new(Pod::parse(&read(pod.0)))
    };
    let mut world = World::new().with([node("n"), pod("p").cpu("2")]);
    world.request.buffer_pods = vec![
        buffer("near", |pod| pod.select(ZONE, Z3)),
        buffer("nowhere", |pod| pod.select(ZONE, "mars")),
    ];
    let plan = world.plan();
    assert_eq!(plan.existing[0].pod.name, "p");
    assert_eq!(values(&plan.new_claims[0], ZONE), [Z3]);
    assert_eq!(plan.new_claims[0].buffer_pods.len(), 1);
    assert!(plan.new_claims[0].pods.is_empty());
    assert!(plan.unplaced[0].buffer);
}

#[test]
fn a_given_pod_no_longer_counts_where_it_was() {
    let member = |name: &str| {
        pod(name)
            .cpu("1")
            .label("app", "x")
            .anti_affinity(HOSTNAME, ("app", "x"))
    };
    let mut world = World::new().with([
        node("n"),
        node("other"),
        member("p").on("n"),
        member("q").on("other"),
    ]);
    let given = world
        .cluster
        .snapshot()
        .pod("default", "p")
        .cloned()
        .unwrap();
    world.request.pods = PodSet::Given(vec![given]);
    world.request.without = vec!["n".to_owned()];
    let plan = world.plan();
    assert_eq!(
        (plan.new_claims.len(), plan.existing.len()),
        (1, 0),
        "alone on its host, and not on the one that goes"
    );
}

// Requirement algebra at its edges -------------------------------------------------------------------------------------

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
fn amounts_at_the_limits_of_integers_fit_nowhere_and_break_nothing() {
    let plan = World::new()
        .with([
            pod("p").cpu("9223372036854775807"),
            pod("q").memory("9223372036854775807"),
            pod("r").cpu("1"),
        ])
        .plan();
    assert_eq!((plan.new_claims.len(), plan.unplaced.len()), (1, 2));
    let full = Resources::new().with("cpu", i64::MAX);
    let mut twice = full.clone();
    twice.add_assign(&full);
    assert_eq!(twice.get("cpu"), i64::MAX);
}
