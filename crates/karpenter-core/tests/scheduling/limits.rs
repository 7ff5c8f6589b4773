//! Limits of NodePools: what a planned node counts as, what minValues leave, and the last check before the launch.

use std::collections::BTreeSet;

use karpenter_api::v1::NodePool;
use karpenter_core::fake::{TypeBuilder, instance_type};
use karpenter_core::limits::LimitHeadroom;
use karpenter_core::schedule::{ExceededLimit, Incompatibility, MinValuesPolicy, Unschedulable};
use serde_json::json;

use crate::fixture::*;

/// Returns instance types with the given numbers of cores and as many GiB, at $0.1 per core.
fn types(cores: &[i64]) -> Vec<TypeBuilder> {
    let build = |cores: &i64| {
        let price = 0.1 * *cores as f64;
        let name = format!("c{cores}");
        instance_type(&name)
            .cpu(*cores)
            .gib(*cores)
            .pods(20)
            .price(price)
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

/// Conformance: SCH-242
#[test]
fn limits_may_leave_fewer_values_than_min_values() {
    let world = |policy: MinValuesPolicy| {
        let pool =
            node_pool("default")
                .limit("cpu", "3")
                .requires_min(INSTANCE_TYPE, "Exists", &[], 2);
        let mut world = World::of(pool)
            .with_types(types(&[2, 4, 8]))
            .with(pod("p").cpu("1"));
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

/// Conformance: SCH-060, SCH-215, SCH-263
#[test]
fn a_claim_counts_against_a_limit_as_its_largest_instance_type() {
    let world = World::of(node_pool("default").limit("cpu", "12"))
        .with_types(types(&[2, 4, 8]))
        .with(copies(
            &member("p").cpu("1500m").anti_affinity(HOSTNAME, APP),
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

#[test]
fn a_limit_that_a_type_would_just_reach_is_not_among_the_exceeded_ones() {
    let pool = node_pool("default")
        .limit("cpu", "2")
        .limit("memory", "4Gi");
    let world = World::of(pool)
        .with_types(types(&[4]))
        .with(pod("p").cpu("3"));
    let exceeded = ExceededLimit {
        resource: "cpu".to_owned(),
        limit: 2_000,
        used: 0,
        needed: 4_000,
    };
    assert_eq!(reason(&world), Incompatibility::Limits(vec![exceeded]));
}

#[test]
fn a_claim_counts_less_once_its_pods_do_not_fit_on_the_largest_type() {
    let sized = |name: &str, cores: i64, gib: i64, price: f64| {
        instance_type(name)
            .cpu(cores)
            .gib(gib)
            .pods(20)
            .price(price)
    };
    let types = [sized("wide", 8, 2, 0.8), sized("tall", 4, 32, 0.4)];
    let apart = |pod: Object<Pod>| pod.anti_affinity(HOSTNAME, APP);
    let plan = World::of(node_pool("default").limit("cpu", "12"))
        .with_types(types)
        .with([
            member("first").cpu("3").memory("1Gi"),
            pod("large").cpu("200m").memory("16Gi"),
            apart(pod("last").cpu("100m").memory("1Gi")),
        ])
        .by_size()
        .plan();
    // With `large` the first claim is of four cores, which leaves eight for the other one.
    assert_eq!(sizes(&plan), [2, 1]);
    assert_eq!(*plan.new_node_claims[0].instance_types, ["tall"]);
    assert_eq!(*plan.new_node_claims[1].instance_types, ["tall", "wide"]);
}

#[test]
fn a_pod_refused_for_a_limit_is_retried_once_another_claim_counts_less() {
    let wide = instance_type("wide").cpu(8).gib(2).pods(20).price(0.8);
    let wide = wide.resource("example.com/fpga", 1).build();
    let tall = instance_type("tall").cpu(4).gib(32).pods(20).price(0.4);
    let refused_first = pod("refused-first")
        .cpu("2")
        .request("example.com/fpga", "1")
        .anti_affinity(HOSTNAME, APP);
    let plan = World::of(node_pool("default").limit("cpu", "12"))
        .with_types([wide, tall.build()])
        .with([
            member("first").cpu("3").memory("1Gi"),
            refused_first,
            pod("large").cpu("200m").memory("16Gi"),
        ])
        .by_size()
        .plan();
    assert_eq!((sizes(&plan), plan.unplaced.len()), (vec![2, 1], 0));
}

/// Conformance: SCH-215
#[test]
fn a_limit_equal_to_the_capacity_of_a_type_admits_it() {
    let plan = |limit: &str| {
        World::of(node_pool("default").limit("cpu", limit))
            .with_types(types(&[2]))
            .with(pod("p"))
            .plan()
    };
    assert!(all_placed(&plan("2")));
    assert!(!all_placed(&plan("1999m")));
    let none = World::of(node_pool("default").limit("nodes", "0")).with(pod("p"));
    assert_eq!(
        reason(&none),
        Incompatibility::NodeLimit { limit: 0, used: 0 }
    );
}

/// Conformance: SCH-217
#[test]
fn launching_a_plan_checks_the_limits_left_by_other_plans() {
    let apart = member("p").cpu("1500m");
    let apart = apart.anti_affinity(HOSTNAME, APP);
    let mut world = World::of(node_pool("default").limit("cpu", "12"))
        .with_types(types(&[2, 4, 8]))
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
