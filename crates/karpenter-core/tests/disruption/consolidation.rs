//! When consolidation deletes or replaces nodes.

use karpenter_core::fake;
use serde_json::json;

use crate::fixture::{CAPACITY_TYPE, World, Z1, Z2, now, pod, values};
use crate::fleet::{
    Fleet, FleetNode, ON_DEMAND, SPOT, commands, node, on_demand_pool, open_pool, running, sizes,
    type_with_offerings, verdict, world as fresh,
};

/// Conformance: DIS-096
#[test]
fn nodes_are_deleted_replaced_and_merged() {
    let world = fresh()
        .run([node("a", "huge")])
        .with([running("p", "a", "1")]);
    assert_eq!(
        world.decide(),
        ["replace a with small medium large on-demand (saves 1.40)"]
    );
    let world = fresh()
        .run([node("a", "medium"), node("b", "huge")])
        .with([running("p", "a", "1"), running("q", "b", "14")]);
    assert_eq!(world.decide(), ["delete a (saves 0.40)"]);
    let three = ["a", "b", "c"];
    let world = fresh()
        .run(three.map(|name| node(name, "large")))
        .with(three.map(|name| running(&format!("p-{name}"), name, "3500m")));
    let plan = world.decide_with(|_| ());
    assert_eq!(
        plan.commands[0].candidates.len(),
        2,
        "two nodes hold the pods of three: {:?}",
        commands(&plan)
    );
    // No node holds the pods of two, and no cheaper type holds those of one: only replacing all three saves.
    let three = |capacity_type: &str| {
        let b = node("b", "medium").label(CAPACITY_TYPE, capacity_type);
        let world = World::empty().with_types(sizes());
        world
            .with_pool(if capacity_type == SPOT {
                open_pool("default")
            } else {
                on_demand_pool("default")
            })
            .run([node("a", "medium"), b, node("c", "medium")])
            .with(["a", "b", "c"].map(|name| running(&format!("p-{name}"), name, "2500m")))
            .decide()
    };
    assert_eq!(
        three(ON_DEMAND),
        ["replace a b c with large on-demand (saves 0.40)"]
    );
    assert_eq!(
        three(SPOT),
        ["replace a b c with large huge spot (saves 0.60)"],
        "spot and on-demand nodes together"
    );
}

#[test]
fn consolidating_three_nodes_saves_at_least_the_price_of_two() {
    let three = ["a", "b", "c"];
    let world = fresh()
        .run(three.map(|name| node(name, "large")))
        .with(three.map(|name| running(&format!("p-{name}"), name, "1")));
    // No replacement is needed: each of the three nodes holds all pods.
    let saved: f64 = world
        .decide_with(|_| ())
        .commands
        .iter()
        .map(|command| command.savings)
        .sum();
    assert!(saved >= 1.6, "{saved}");
}

fn spot_types(count: usize) -> Vec<karpenter_core::instance_type::InstanceType> {
    // The types are not in the order of price.
    (0..count)
        .map(|index| {
            let place = (index * 11) % count;
            let price = 0.10 + 0.01 * place as f64;
            type_with_offerings(
                &format!("spot-{place:02}"),
                2,
                vec![fake::offering(SPOT, Z1, price)],
            )
        })
        .collect()
}

fn spot_world(cheaper: usize, min_values: Option<u32>) -> World {
    let mut types = spot_types(cheaper);
    types.push(type_with_offerings(
        "huge",
        16,
        vec![fake::offering(SPOT, Z1, 1.0)],
    ));
    let pool = open_pool("default").requires(CAPACITY_TYPE, "In", &[SPOT]);
    let pool = match min_values {
        Some(least) => pool.requires_min("node.kubernetes.io/instance-type", "Exists", &[], least),
        None => pool,
    };
    World::empty()
        .with_types(types.into())
        .with_pool(pool)
        .run([node("a", "huge").spot()])
        .with([running("p", "a", "1")])
}

/// Conformance: DIS-097
#[test]
fn spot_replaces_spot_only_with_the_feature_gate_and_fifteen_cheaper_types() {
    let world = spot_world(20, None);
    let plan = world.decide_with(|_| ());
    assert_eq!(
        verdict(&plan, "a"),
        "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"
    );
    let few = spot_world(14, None).decide_with(|request| request.spot_to_spot = true);
    assert_eq!(
        verdict(&few, "a"),
        "SpotToSpotConsolidation requires 15 cheaper instance type options than the current candidate to consolidate, got 14"
    );
    // A node whose type is among the fifteen cheapest has fewer than fifteen cheaper types.
    let world = World::empty()
        .with_types(spot_types(20).into())
        .with_pool(open_pool("default"));
    let world = world
        .run([node("a", "spot-14").spot()])
        .with([running("p", "a", "1")]);
    assert!(commands(&world.decide_with(|request| request.spot_to_spot = true)).is_empty());
}

/// Conformance: DIS-098
#[test]
fn of_eighteen_cheaper_spot_types_the_fifteen_cheapest_are_launched() {
    let plan = spot_world(18, None).decide_with(|request| request.spot_to_spot = true);
    let expected: Vec<String> = (0..15).map(|index| format!("spot-{index:02}")).collect();
    assert_eq!(
        plan.commands[0].replacements[0].instance_types.to_vec(),
        expected
    );
}

/// Conformance: DIS-099
#[test]
fn min_values_keep_more_than_fifteen() {
    let plan = spot_world(18, Some(17)).decide_with(|request| request.spot_to_spot = true);
    assert_eq!(plan.commands[0].replacements[0].instance_types.len(), 17);
}

/// Conformance: DIS-100
#[test]
fn fewer_cheaper_types_than_min_values_do_not_replace_a_node() {
    use karpenter_core::schedule::MinValuesPolicy;
    for policy in [MinValuesPolicy::Strict, MinValuesPolicy::BestEffort] {
        few_cheaper_types(policy);
    }
}

fn few_cheaper_types(policy: karpenter_core::schedule::MinValuesPolicy) {
    let pool = open_pool("default")
        .requires(CAPACITY_TYPE, "In", &[ON_DEMAND])
        .requires_min("node.kubernetes.io/instance-type", "Exists", &[], 3);
    let world = World::empty().with_types(sizes()).with_pool(pool);
    // Two types are cheaper than `large`; the pool's minValues is three.
    let mut world = world
        .run([node("a", "large")])
        .with([running("p", "a", "1")]);
    world.policy.min_values_policy = policy;
    let plan = world.decide_with(|_| ());
    assert!(commands(&plan).is_empty());
    assert!(
        verdict(&plan, "a").starts_with("Filtering by price: minValues requirement is not met"),
        "{}",
        verdict(&plan, "a")
    );
}

/// Conformance: DIS-101
#[test]
fn one_of_two_nodes_is_deleted_if_their_replacement_needs_their_own_type_for_min_values() {
    // `medium`, `large` and `huge` could replace both nodes. Without `large`, their own type, and the more expensive `huge`
    // one type is left, and the pool's minValues is two.
    let pool = on_demand_pool("default").requires_min(
        "node.kubernetes.io/instance-type",
        "Exists",
        &[],
        2,
    );
    let world = World::empty().with_types(sizes()).with_pool(pool);
    let world = world
        .run([node("a", "large"), node("b", "large")])
        .with([running("p", "a", "1500m"), running("q", "b", "1500m")]);
    assert_eq!(world.decide(), ["delete a (saves 0.80)"]);
}

/// Conformance: DIS-102
#[test]
fn the_most_expensive_spot_zone_decides_and_more_expensive_on_demand_does_not_replace() {
    let types = [
        type_with_offerings("now", 4, vec![fake::offering(ON_DEMAND, Z1, 0.5)]),
        type_with_offerings(
            "other",
            4,
            vec![
                fake::offering(SPOT, Z1, 0.2),
                fake::offering(SPOT, Z2, 0.6),
                fake::offering(ON_DEMAND, Z1, 0.9),
            ],
        ),
    ];
    let world = World::empty()
        .with_types(types.into())
        .with_pool(open_pool("default"));
    let world = world.run([node("a", "now")]).with([running("p", "a", "1")]);
    assert_eq!(
        verdict(&world.decide_with(|_| ()), "a"),
        "Can't replace with a cheaper node"
    );
}

/// Conformance: DIS-184
#[test]
fn a_replacement_of_either_capacity_type_is_pinned_to_spot() {
    let world = World::empty()
        .with_types(sizes())
        .with_pool(open_pool("default"));
    let world = world
        .run([node("a", "huge")])
        .with([running("p", "a", "1")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(
        values(&plan.commands[0].replacements[0], CAPACITY_TYPE),
        [SPOT]
    );
}

/// Conformance: DIS-103
#[test]
fn of_two_nodes_of_the_cheapest_type_one_is_deleted_rather_than_both_replaced_by_it() {
    let types = [type_with_offerings(
        "cheap",
        4,
        vec![fake::offering(ON_DEMAND, Z1, 0.4)],
    )];
    let world = World::empty()
        .with_types(types.into())
        .with_pool(open_pool("default"));
    let cheap = |name: &str| node(name, "cheap").node("/status/allocatable/cpu", json!("4"));
    let world = world
        .run([cheap("a"), cheap("b")])
        .with([running("p", "a", "1"), running("q", "b", "1")]);
    let decided = world.decide();
    assert_eq!(decided.len(), 1);
    assert!(decided[0].starts_with("delete "), "{decided:?}");
}

/// Nodes of four cores of which two are allocatable, with a pod of 1.5 cores on each.
fn half_used(
    types: &[karpenter_core::instance_type::InstanceType],
    nodes: Vec<FleetNode>,
) -> World {
    let pods: Vec<_> = nodes
        .iter()
        .map(|node| running(&format!("on-{}", node.name()), node.name(), "1500m"))
        .collect();
    let nodes = nodes
        .into_iter()
        .map(|node| node.node("/status/allocatable/cpu", json!("2")));
    World::empty()
        .with_types(types.into())
        .with_pool(open_pool("default"))
        .run(nodes)
        .with(pods)
}

/// Conformance: DIS-103
#[test]
fn two_nodes_are_not_replaced_by_one_of_their_type_spot_or_not() {
    for capacity_type in [ON_DEMAND, SPOT] {
        let types = [type_with_offerings(
            "same",
            4,
            vec![fake::offering(capacity_type, Z1, 0.4)],
        )];
        let of_type = |name| node(name, "same").label(CAPACITY_TYPE, capacity_type);
        let world = half_used(&types, vec![of_type("a"), of_type("b")]);
        let plan = world.decide_with(|request| request.spot_to_spot = true);
        assert_eq!(commands(&plan), Vec::<String>::new(), "{capacity_type}");
    }
}

/// Conformance: DIS-103
#[test]
fn a_replacement_of_two_nodes_is_cheaper_than_the_cheaper_of_them_if_their_type_fits_too() {
    let in_zone =
        |name: &str, zone: &str| node(name, "same").label("topology.kubernetes.io/zone", zone);
    let decide = |other: f64| {
        let types = [
            type_with_offerings(
                "same",
                4,
                vec![
                    fake::offering(ON_DEMAND, Z1, 0.3),
                    fake::offering(ON_DEMAND, Z2, 0.4),
                ],
            ),
            type_with_offerings("other", 4, vec![fake::offering(ON_DEMAND, Z1, other)]),
        ];
        half_used(&types, vec![in_zone("a", Z1), in_zone("b", Z2)]).decide()
    };
    assert_eq!(
        decide(0.25),
        ["replace a b with other on-demand (saves 0.45)"]
    );
    // Alone, the node at 0.4 may be replaced at 0.35.
    assert_eq!(
        decide(0.35),
        ["replace b with other on-demand (saves 0.05)"]
    );
}

/// Conformance: DIS-105
#[test]
fn a_pool_without_instance_types_does_not_block_other_pools() {
    let mut world = fresh().with_pool(open_pool("broken"));
    world
        .cluster
        .set_instance_types("broken", Err("no answer".to_owned()));
    let world = world
        .run([node("a", "huge"), node("b", "huge").pool("broken")])
        .with([running("p", "a", "1")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(verdict(&plan, "b"), "NodePool not found (NodePool=broken)");
    assert_eq!(verdict(&plan, "a"), "deleted", "there is room on `b`");
}

/// Conformance: DIS-106
#[test]
fn a_node_whose_pods_fit_an_unmanaged_node_is_deleted() {
    let mut world = fresh()
        .run([node("a", "small")])
        .with([running("p", "a", "1")]);
    world.add(
        crate::fixture::node("foreign")
            .set("/metadata/labels", json!({ "kubernetes.io/arch": "amd64" })),
    );
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
}

/// Conformance: DIS-107
#[test]
fn pods_are_not_moved_to_an_uninitialized_node() {
    let starting =
        node("b", "huge").node("/metadata/labels/karpenter.sh~1initialized", json!("false"));
    let world = fresh()
        .run([node("a", "small"), starting])
        .with([running("p", "a", "1")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(
        verdict(&plan, "a"),
        "Not all pods would schedule, default/p => would schedule against uninitialized node \"b\""
    );
    let ready =
        fresh()
            .run([node("a", "small"), node("c", "huge")])
            .run([node("b", "huge")
                .node("/metadata/labels/karpenter.sh~1initialized", json!("false"))])
            .with([running("p", "a", "1"), running("q", "c", "14")]);
    assert_eq!(
        ready.decide(),
        ["delete a (saves 0.20)"],
        "initialized nodes come first"
    );
}

/// Conformance: DIS-108
#[test]
fn nodes_within_consolidate_after_receive_no_pods_from_consolidation() {
    let with = |after: &str, instance_type: &str| {
        let pool = on_demand_pool("target").consolidate_after(after);
        let recently = (now() - jiff::SignedDuration::from_mins(1)).to_string();
        let target = node("b", "huge")
            .pool("target")
            .without("Consolidatable")
            .claim("/status/lastPodEventTime", json!(recently));
        let world = fresh()
            .with_pool(pool)
            .run([node("a", instance_type), target]);
        world
            .with([running("p", "a", "1"), running("q", "b", "14")])
            .decide()
    };
    assert_eq!(with("5m", "small"), Vec::<String>::new());
    assert_eq!(with("30s", "small"), ["delete a (saves 0.20)"]);
    assert_eq!(with("Never", "small"), ["delete a (saves 0.20)"]);
    assert_eq!(
        with("5m", "medium"),
        ["replace a with small on-demand (saves 0.20)"],
        "a planned node may hold them"
    );
}

/// Conformance: DIS-109
#[test]
fn a_pod_that_fits_nowhere_does_not_block_but_one_that_would_fit_nowhere_after_the_move_does() {
    let unschedulable = pod("unschedulable").cpu("1000");
    let world = fresh().run([node("a", "small"), node("b", "huge")]);
    let world = world.with([
        running("p", "a", "1"),
        running("q", "b", "14"),
        unschedulable,
    ]);
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
    // Only `b` has the label that its pod selects.
    let labeled = node("b", "large").label("team", "x");
    let world = fresh().run([labeled, node("c", "huge")]);
    let world = world.with([
        running("p", "b", "1").select("team", "x"),
        running("q", "c", "8"),
    ]);
    let plan = world.decide_with(|_| ());
    assert!(
        verdict(&plan, "b").starts_with("Not all pods would schedule, default/p => "),
        "{}",
        verdict(&plan, "b")
    );
}

/// Conformance: DIS-110
#[test]
fn a_pending_pod_that_fits_only_a_large_node_blocks_its_replacement() {
    let world = fresh()
        .run([node("a", "huge")])
        .with([running("p", "a", "1"), pod("huge").cpu("14")]);
    assert_eq!(world.decide(), Vec::<String>::new());
}

/// Conformance: DIS-114
#[test]
fn consolidation_keeps_zonal_spread_and_anti_affinity_and_ignores_the_host_of_a_local_volume() {
    let spread = |name: &str, node: &str| {
        running(name, node, "1").label("app", "x").spread(
            "topology.kubernetes.io/zone",
            1,
            ("app", "x"),
        )
    };
    let in_zone =
        |name: &str, zone: &str| node(name, "small").label("topology.kubernetes.io/zone", zone);
    let world = fresh()
        .run([
            in_zone("a", Z1),
            in_zone("b", Z2),
            in_zone("c", crate::fixture::Z3),
        ])
        .with([spread("p", "a"), spread("q", "b"), spread("r", "c")]);
    assert_eq!(world.decide(), Vec::<String>::new());
    let apart = |name: &str, node: &str| {
        running(name, node, "100m")
            .label("app", "y")
            .anti_affinity(crate::fixture::HOSTNAME, ("app", "y"))
    };
    let world = fresh()
        .run([node("a", "small"), node("b", "small")])
        .with([apart("p", "a"), apart("q", "b")]);
    assert_eq!(world.decide(), Vec::<String>::new());
    let mut world = fresh().run([node("a", "small"), node("b", "large")]).with([
        running("p", "a", "100m").volume("c"),
        running("q", "b", "6"),
    ]);
    let on_host = json!([{ "matchExpressions": [
        { "key": crate::fixture::HOSTNAME, "operator": "In", "values": ["a"] },
    ] }]);
    world.cluster.apply_volume(&crate::fixture::read(json!({
        "metadata": { "name": "v" },
        "spec": { "local": { "path": "/data" }, "nodeAffinity": { "required": { "nodeSelectorTerms": on_host } } },
    })));
    world.cluster.apply_volume_claim(&crate::fixture::read(json!({
        "metadata": {
            "name": "c", "namespace": "default", "uid": "c", "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
        },
        "spec": { "volumeName": "v", "storageClassName": "local" }, "status": { "phase": "Bound" },
    })));
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
}

/// Conformance: DIS-115
#[test]
fn preferences_block_consolidation_unless_they_are_ignored() {
    use karpenter_core::schedule::PreferencePolicy;
    let apart = |name: &str, node: &str| {
        running(name, node, "100m")
            .label("app", "y")
            .prefer_anti_affinity(1, crate::fixture::HOSTNAME, ("app", "y"))
    };
    let mut world = fresh()
        .run([node("a", "small"), node("b", "small")])
        .with([apart("p", "a"), apart("q", "b")]);
    assert_eq!(world.decide(), Vec::<String>::new());
    world.policy.preference_policy = PreferencePolicy::Ignore;
    assert_eq!(world.decide().len(), 1);
}

/// Conformance: DIS-116
#[test]
fn nodes_are_replaced_by_reserved_capacity_even_of_their_own_type() {
    let types = |left: u32| {
        [
            type_with_offerings(
                "large",
                8,
                vec![
                    fake::offering(ON_DEMAND, Z1, 0.8),
                    fake::offering(SPOT, Z1, 0.4),
                    fake::reserved("r-1", left, Z1, 0.002),
                ],
            ),
            type_with_offerings("medium", 4, vec![fake::reserved("r-2", 1, Z1, 0.001)]),
        ]
    };
    let decide = |left: u32, capacity_type: &str, cpu: &str| {
        let world = World::empty()
            .with_types(types(left).into())
            .with_pool(open_pool("default"));
        world
            .run([node("a", "large").label(CAPACITY_TYPE, capacity_type)])
            .with([running("p", "a", cpu)])
            .decide()
    };
    assert_eq!(
        decide(1, ON_DEMAND, "7"),
        ["replace a with large reserved (saves 0.80)"]
    );
    assert_eq!(
        decide(1, SPOT, "7"),
        ["replace a with large reserved (saves 0.40)"],
        "the spot-to-spot rules do not apply"
    );
    assert_eq!(
        decide(0, "reserved", "3"),
        ["replace a with medium reserved (saves 0.00)"]
    );
    assert!(decide(0, "reserved", "7").is_empty(), "nothing is cheaper");
}

/// Conformance: DIS-129
#[test]
fn pods_of_deleting_nodes_may_wait_for_an_uninitialized_node() {
    // `b` has room for the pod of `a`; the pod of the deleting node `c` fits only on the uninitialized one.
    let starting =
        node("d", "huge").node("/metadata/labels/karpenter.sh~1initialized", json!("false"));
    let mut world = fresh()
        .run([
            node("a", "small"),
            node("b", "huge"),
            node("c", "huge"),
            starting,
        ])
        .with([
            running("p", "a", "1"),
            running("q", "b", "14"),
            running("r", "c", "12"),
        ]);
    world.cluster.mark_for_deletion(&["fake://c"]);
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
}

/// Conformance: DIS-123
#[test]
fn a_price_that_is_not_a_number_counts_as_zero_and_that_of_an_unavailable_offering_counts() {
    use karpenter_core::disruption::Candidates;
    let priced = |offering: karpenter_core::offering::Offering| {
        let world = World::empty()
            .with_types([type_with_offerings("large", 8, vec![offering])].into())
            .with_pool(open_pool("default"))
            .run([node("a", "large")]);
        Candidates::new(&world.cluster.snapshot(), &<_>::default(), now()).candidates[0].price
    };
    assert_eq!(priced(fake::offering(ON_DEMAND, Z1, f64::NAN)), 0.0);
    let mut unavailable = fake::offering(ON_DEMAND, Z1, 0.8);
    unavailable.available = false;
    assert_eq!(priced(unavailable), 0.8);
}

/// Conformance: DIS-119
#[test]
fn pools_that_an_interrupted_pass_did_not_evaluate_come_first_next_time() {
    // Both nodes can be replaced; replacing that of `default` saves more.
    let world = fresh().with_pool(on_demand_pool("late"));
    let world = world
        .run([node("a", "huge"), node("b", "large").pool("late")])
        .with([
            running("p", "a", "1").select("karpenter.sh/nodepool", "default"),
            running("q", "b", "1").select("karpenter.sh/nodepool", "late"),
        ]);
    let interrupted = world
        .decide_with(|request| request.single_node_cancel = Some(std::sync::Arc::new(|| true)));
    assert!(commands(&interrupted).is_empty());
    assert!(interrupted.unseen_pools.contains("late"));
    let first = |unseen: &[&str]| {
        let plan = world.decide_with(|request| {
            request.unseen_pools = unseen.iter().map(|pool| (*pool).to_owned()).collect();
            request.max_commands = 1;
        });
        plan.commands[0].candidates[0].name().to_owned()
    };
    assert_eq!((first(&[]), first(&["late"])), ("a".into(), "b".into()));
}

#[test]
fn the_best_set_need_not_be_a_prefix() {
    // `pinned` is second in the order, and its pod cannot move.
    let pinned = node("b", "large").label("team", "x");
    let world = fresh()
        .run([
            node("a", "large"),
            pinned,
            node("c", "large"),
            node("d", "large"),
        ])
        .with([
            running("p", "a", "100m"),
            running("q", "b", "200m").select("team", "x"),
            running("r", "c", "300m"),
            running("s", "d", "400m"),
        ]);
    assert_eq!(world.decide(), ["delete a c d (saves 2.40)"]);
}

/// Conformance: SCH-234
#[test]
fn a_plan_does_not_depend_on_the_number_of_threads() {
    let decided = |threads: usize| {
        let nodes = (0..12).map(|index| {
            node(
                &format!("n{index:02}"),
                ["small", "medium", "large"][index % 3],
            )
        });
        let pods = (0..12).map(|index| {
            running(
                &format!("p{index:02}"),
                &format!("n{index:02}"),
                ["500m", "1", "1500m"][index % 3],
            )
        });
        let plan = fresh()
            .run(nodes)
            .with(pods)
            .decide_with(|request| request.threads = threads);
        commands(&plan)
    };
    assert_eq!(decided(1), decided(4));
    assert!(!decided(1).is_empty());
}

#[test]
fn every_node_gets_a_verdict() {
    let world = fresh()
        .run([node("a", "huge"), node("b", "small")])
        .with([running("p", "a", "15"), running("q", "b", "2")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(plan.verdicts.len(), 2);
    assert!(
        plan.verdicts
            .iter()
            .all(|verdict| !format!("{:?}", verdict.kind).is_empty())
    );
}

/// Conformance: DIS-180
#[test]
fn a_pod_with_a_device_moves_if_another_node_has_a_matching_device() {
    const DRIVER: &str = "gpu.example.com";
    let decide = |elsewhere: bool| {
        let mut world = fresh().run([node("a", "small"), node("b", "huge")]);
        world.policy.ignore_dra_requests = false;
        let cluster = &mut world.cluster;
        cluster.apply_device_class(&crate::fixture::read(json!({
            "metadata": { "name": "gpu" },
            "spec": { "selectors": [{ "cel": { "expression": format!("device.driver == '{DRIVER}'") } }] },
        })));
        for node in ["a", "b"].iter().take(1 + usize::from(elsewhere)) {
            cluster.apply_resource_slice(&crate::fixture::read(json!({
                "metadata": { "name": node, "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node }] },
                "spec": {
                    "driver": DRIVER, "nodeName": node, "devices": [{ "name": "gpu-0" }],
                    "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
                },
            })));
        }
        cluster.apply_resource_claim(&crate::fixture::read(json!({
            "metadata": { "name": "c", "namespace": "default", "uid": "c" },
            "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": { "deviceClassName": "gpu" } }] } },
            "status": {
                "allocation": {
                    "devices": { "results": [{ "request": "gpu", "driver": DRIVER, "pool": "a", "device": "gpu-0" }] },
                    "nodeSelector": { "nodeSelectorTerms": [{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["a"] }] }] },
                },
                "reservedFor": [{ "resource": "pods", "name": "p", "uid": "p" }],
            },
        })));
        let using = running("p", "a", "1").push(
            "/spec/resourceClaims",
            json!({ "name": "gpu", "resourceClaimName": "c" }),
        );
        world.with([using, running("q", "b", "14")]).decide()
    };
    assert_eq!(decide(true), ["delete a (saves 0.20)"]);
    assert_eq!(decide(false), Vec::<String>::new());
}
