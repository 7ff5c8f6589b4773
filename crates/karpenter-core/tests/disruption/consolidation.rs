//! When giving machines back pays.

use karpenter_core::fake;
use serde_json::json;

use crate::fixture::{CAPACITY_TYPE, World, Z1, Z2, now, pod, values};
use crate::fleet::{
    Fleet, Machine, ON_DEMAND, SPOT, commands, machine, on_demand_pool, open_pool, running, sizes,
    sold_as, verdict, world as fresh,
};

/// Conformance: DIS-096
#[test]
fn machines_are_deleted_replaced_and_merged() {
    let world = fresh()
        .run([machine("a", "huge")])
        .with([running("p", "a", "1")]);
    assert_eq!(
        world.decide(),
        ["replace a with small medium large on-demand (saves 1.40)"]
    );
    let world = fresh()
        .run([machine("a", "medium"), machine("b", "huge")])
        .with([running("p", "a", "1"), running("q", "b", "14")]);
    assert_eq!(world.decide(), ["delete a (saves 0.40)"]);
    let three = ["a", "b", "c"];
    let world = fresh()
        .run(three.map(|name| machine(name, "large")))
        .with(three.map(|name| running(&format!("p-{name}"), name, "3500m")));
    let plan = world.decide_with(|_| ());
    assert_eq!(
        plan.commands[0].candidates.len(),
        2,
        "two machines hold what three held: {:?}",
        commands(&plan)
    );
    // No machine holds the pods of two, and none is cheaper for one: only all three together pay.
    let three = |capacity_type: &str| {
        let b = machine("b", "medium").label(CAPACITY_TYPE, capacity_type);
        let world = World::empty().with_types(sizes());
        world
            .with_pool(if capacity_type == SPOT {
                open_pool("default")
            } else {
                on_demand_pool("default")
            })
            .run([machine("a", "medium"), b, machine("c", "medium")])
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
        "spot and on-demand machines together"
    );
}

#[test]
fn three_machines_become_one_smaller_than_any_two() {
    let three = ["a", "b", "c"];
    let world = fresh()
        .run(three.map(|name| machine(name, "large")))
        .with(three.map(|name| running(&format!("p-{name}"), name, "1")));
    // Not by way of a replacement: any of the three holds all pods.
    let saved: f64 = world
        .decide_with(|_| ())
        .commands
        .iter()
        .map(|command| command.savings)
        .sum();
    assert!(saved >= 1.6, "{saved}");
}

fn spot_types(count: usize) -> Vec<karpenter_core::instance_type::InstanceType> {
    // Not in the order of price.
    (0..count)
        .map(|index| {
            let place = (index * 11) % count;
            let price = 0.10 + 0.01 * place as f64;
            sold_as(
                &format!("spot-{place:02}"),
                2,
                vec![fake::offering(SPOT, Z1, price)],
            )
        })
        .collect()
}

fn spot_world(cheaper: usize, min_values: Option<u32>) -> World {
    let mut types = spot_types(cheaper);
    types.push(sold_as("huge", 16, vec![fake::offering(SPOT, Z1, 1.0)]));
    let pool = open_pool("default").needs(CAPACITY_TYPE, "In", &[SPOT]);
    let pool = match min_values {
        Some(least) => pool.needs_min("node.kubernetes.io/instance-type", "Exists", &[], least),
        None => pool,
    };
    World::empty()
        .with_types(types.into())
        .with_pool(pool)
        .run([machine("a", "huge").spot()])
        .with([running("p", "a", "1")])
}

/// Conformance: DIS-097
#[test]
fn spot_is_exchanged_for_spot_only_with_the_gate_and_fifteen_cheaper_types() {
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
    // A machine among the fifteen cheapest finds fewer than fifteen cheaper ones.
    let world = World::empty()
        .with_types(spot_types(20).into())
        .with_pool(open_pool("default"));
    let world = world
        .run([machine("a", "spot-14").spot()])
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
fn cheaper_types_that_are_fewer_than_min_values_ask_for_do_not_replace() {
    use karpenter_core::schedule::MinValuesPolicy;
    for policy in [MinValuesPolicy::Strict, MinValuesPolicy::BestEffort] {
        few_cheaper_types(policy);
    }
}

fn few_cheaper_types(policy: karpenter_core::schedule::MinValuesPolicy) {
    let pool = open_pool("default")
        .needs(CAPACITY_TYPE, "In", &[ON_DEMAND])
        .needs_min("node.kubernetes.io/instance-type", "Exists", &[], 3);
    let world = World::empty().with_types(sizes()).with_pool(pool);
    // Below `large` there are two types; the pool wants three to choose from.
    let mut world = world
        .run([machine("a", "large")])
        .with([running("p", "a", "1")]);
    world.request.min_values_policy = policy;
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
fn two_machines_that_only_their_own_type_could_replace_with_enough_choice_lose_one() {
    // For both together `medium`, `large` and `huge` would do. Without `large`, which is what they are, and the dearer `huge`
    // there is one type left to choose from, and the pool wants two.
    let pool =
        on_demand_pool("default").needs_min("node.kubernetes.io/instance-type", "Exists", &[], 2);
    let world = World::empty().with_types(sizes()).with_pool(pool);
    let world = world
        .run([machine("a", "large"), machine("b", "large")])
        .with([running("p", "a", "1500m"), running("q", "b", "1500m")]);
    assert_eq!(world.decide(), ["delete a (saves 0.80)"]);
}

/// Conformance: DIS-102
#[test]
fn the_dearest_zone_of_spot_decides_and_dearer_on_demand_does_not_replace() {
    let types = [
        sold_as("now", 4, vec![fake::offering(ON_DEMAND, Z1, 0.5)]),
        sold_as(
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
    let world = world
        .run([machine("a", "now")])
        .with([running("p", "a", "1")]);
    assert_eq!(
        verdict(&world.decide_with(|_| ()), "a"),
        "Can't replace with a cheaper node"
    );
}

#[test]
fn a_replacement_that_could_be_either_is_pinned_to_spot() {
    let world = World::empty()
        .with_types(sizes())
        .with_pool(open_pool("default"));
    let world = world
        .run([machine("a", "huge")])
        .with([running("p", "a", "1")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(
        values(&plan.commands[0].replacements[0], CAPACITY_TYPE),
        [SPOT]
    );
}

/// Conformance: DIS-103
#[test]
fn of_two_machines_of_the_cheapest_type_one_is_deleted_rather_than_both_replaced_by_it() {
    let types = [sold_as(
        "cheap",
        4,
        vec![fake::offering(ON_DEMAND, Z1, 0.4)],
    )];
    let world = World::empty()
        .with_types(types.into())
        .with_pool(open_pool("default"));
    let cheap = |name: &str| machine(name, "cheap").node("/status/allocatable/cpu", json!("4"));
    let world = world
        .run([cheap("a"), cheap("b")])
        .with([running("p", "a", "1"), running("q", "b", "1")]);
    let decided = world.decide();
    assert_eq!(decided.len(), 1);
    assert!(decided[0].starts_with("delete "), "{decided:?}");
}

/// Nodes of four cores with room for two, as others than pods use the rest, and a pod of 1.5 on each.
fn half_used(types: &[karpenter_core::instance_type::InstanceType], nodes: Vec<Machine>) -> World {
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
        let types = [sold_as(
            "same",
            4,
            vec![fake::offering(capacity_type, Z1, 0.4)],
        )];
        let node = |name| machine(name, "same").label(CAPACITY_TYPE, capacity_type);
        let world = half_used(&types, vec![node("a"), node("b")]);
        let plan = world.decide_with(|request| request.spot_to_spot = true);
        assert_eq!(commands(&plan), Vec::<String>::new(), "{capacity_type}");
    }
}

/// Conformance: DIS-103
#[test]
fn one_node_for_two_is_cheaper_than_the_cheaper_of_those_of_a_type_that_would_do() {
    let in_zone =
        |name: &str, zone: &str| machine(name, "same").label("topology.kubernetes.io/zone", zone);
    let decide = |other: f64| {
        let types = [
            sold_as(
                "same",
                4,
                vec![
                    fake::offering(ON_DEMAND, Z1, 0.3),
                    fake::offering(ON_DEMAND, Z2, 0.4),
                ],
            ),
            sold_as("other", 4, vec![fake::offering(ON_DEMAND, Z1, other)]),
        ];
        half_used(&types, vec![in_zone("a", Z1), in_zone("b", Z2)]).decide()
    };
    assert_eq!(
        decide(0.25),
        ["replace a b with other on-demand (saves 0.45)"]
    );
    // Alone, the node of 0.4 may be replaced at 0.35.
    assert_eq!(
        decide(0.35),
        ["replace b with other on-demand (saves 0.05)"]
    );
}

/// Conformance: DIS-105
#[test]
fn a_pool_without_instance_types_holds_up_nobody_else() {
    let mut world = fresh().with_pool(open_pool("broken"));
    world
        .cluster
        .set_instance_types("broken", Err("no answer".to_owned()));
    let world = world
        .run([machine("a", "huge"), machine("b", "huge").pool("broken")])
        .with([running("p", "a", "1")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(verdict(&plan, "b"), "NodePool not found (NodePool=broken)");
    assert_eq!(verdict(&plan, "a"), "deleted", "there is room on `b`");
}

/// Conformance: DIS-106
#[test]
fn pods_that_fit_nodes_of_others_free_theirs() {
    let mut world = fresh()
        .run([machine("a", "small")])
        .with([running("p", "a", "1")]);
    world.add(
        crate::fixture::node("foreign")
            .set("/metadata/labels", json!({ "kubernetes.io/arch": "amd64" })),
    );
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
}

/// Conformance: DIS-107
#[test]
fn pods_are_not_moved_to_a_machine_that_is_still_starting() {
    let starting =
        machine("b", "huge").node("/metadata/labels/karpenter.sh~1initialized", json!("false"));
    let world = fresh()
        .run([machine("a", "small"), starting])
        .with([running("p", "a", "1")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(
        verdict(&plan, "a"),
        "Not all pods would schedule, default/p => would schedule against uninitialized node \"b\""
    );
    let ready = fresh()
        .run([machine("a", "small"), machine("c", "huge")])
        .run([
            machine("b", "huge").node("/metadata/labels/karpenter.sh~1initialized", json!("false"))
        ])
        .with([running("p", "a", "1"), running("q", "c", "14")]);
    assert_eq!(
        ready.decide(),
        ["delete a (saves 0.20)"],
        "initialised machines come first"
    );
}

/// Conformance: DIS-108
#[test]
fn machines_that_changed_recently_take_no_pods_from_consolidation() {
    let with = |after: &str, instance_type: &str| {
        let pool = on_demand_pool("target").set("/spec/disruption/consolidateAfter", json!(after));
        let recently = (now() - jiff::SignedDuration::from_mins(1)).to_string();
        let target = machine("b", "huge")
            .pool("target")
            .without("Consolidatable")
            .claim("/status/lastPodEventTime", json!(recently));
        let world = fresh()
            .with_pool(pool)
            .run([machine("a", instance_type), target]);
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
        "a new machine may take them"
    );
}

/// Conformance: DIS-109
#[test]
fn a_pod_that_can_never_run_does_not_block_but_one_that_would_lose_its_place_does() {
    let hopeless = pod("hopeless").cpu("1000");
    let world = fresh().run([machine("a", "small"), machine("b", "huge")]);
    let world = world.with([running("p", "a", "1"), running("q", "b", "14"), hopeless]);
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
    // Only `b` carries the label its pod selects by.
    let labelled = machine("b", "large").label("team", "x");
    let world = fresh().run([labelled, machine("c", "huge")]);
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
fn a_large_pod_that_waits_keeps_the_large_node_it_will_go_to() {
    let world = fresh()
        .run([machine("a", "huge")])
        .with([running("p", "a", "1"), pod("huge").cpu("14")]);
    assert_eq!(world.decide(), Vec::<String>::new());
}

/// Conformance: DIS-114
#[test]
fn zonal_spread_and_anti_affinity_outlive_consolidation_and_a_local_volume_s_host_does_not_hold() {
    let spread = |name: &str, node: &str| {
        running(name, node, "1").label("app", "x").spread(
            "topology.kubernetes.io/zone",
            1,
            ("app", "x"),
        )
    };
    let in_zone =
        |name: &str, zone: &str| machine(name, "small").label("topology.kubernetes.io/zone", zone);
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
        .run([machine("a", "small"), machine("b", "small")])
        .with([apart("p", "a"), apart("q", "b")]);
    assert_eq!(world.decide(), Vec::<String>::new());
    let mut world = fresh()
        .run([machine("a", "small"), machine("b", "large")])
        .with([
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
fn preferences_keep_a_node_unless_they_are_ignored() {
    use karpenter_core::schedule::PreferencePolicy;
    let apart = |name: &str, node: &str| {
        running(name, node, "100m")
            .label("app", "y")
            .prefer_anti_affinity(1, crate::fixture::HOSTNAME, ("app", "y"))
    };
    let mut world = fresh()
        .run([machine("a", "small"), machine("b", "small")])
        .with([apart("p", "a"), apart("q", "b")]);
    assert_eq!(world.decide(), Vec::<String>::new());
    world.request.preference_policy = PreferencePolicy::Ignore;
    assert_eq!(world.decide().len(), 1);
}

/// Conformance: DIS-116
#[test]
fn machines_move_into_reserved_capacity_even_of_their_own_type() {
    let types = |left: u32| {
        [
            sold_as(
                "large",
                8,
                vec![
                    fake::offering(ON_DEMAND, Z1, 0.8),
                    fake::offering(SPOT, Z1, 0.4),
                    fake::reserved("r-1", left, Z1, 0.002),
                ],
            ),
            sold_as("medium", 4, vec![fake::reserved("r-2", 1, Z1, 0.001)]),
        ]
    };
    let decide = |left: u32, capacity_type: &str, cpu: &str| {
        let world = World::empty()
            .with_types(types(left).into())
            .with_pool(open_pool("default"));
        world
            .run([machine("a", "large").label(CAPACITY_TYPE, capacity_type)])
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
        "without the rules for spot"
    );
    assert_eq!(
        decide(0, "reserved", "3"),
        ["replace a with medium reserved (saves 0.00)"]
    );
    assert!(decide(0, "reserved", "7").is_empty(), "nothing is cheaper");
}

/// Conformance: DIS-129
#[test]
fn pods_of_machines_on_their_way_out_may_wait_for_one_that_is_starting() {
    // `b` has room for the pod of `a`; the pod of the leaving machine fits only on the one that is starting.
    let starting =
        machine("d", "huge").node("/metadata/labels/karpenter.sh~1initialized", json!("false"));
    let mut world = fresh()
        .run([
            machine("a", "small"),
            machine("b", "huge"),
            machine("c", "huge"),
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
fn a_price_that_is_no_number_counts_as_nothing_and_one_sold_out_counts() {
    use karpenter_core::disruption::Candidates;
    let priced = |offering: karpenter_core::offering::Offering| {
        let world = World::empty()
            .with_types([sold_as("large", 8, vec![offering])].into())
            .with_pool(open_pool("default"))
            .run([machine("a", "large")]);
        Candidates::new(&world.cluster.snapshot(), &<_>::default(), now()).candidates[0].price
    };
    assert_eq!(priced(fake::offering(ON_DEMAND, Z1, f64::NAN)), 0.0);
    let mut sold_out = fake::offering(ON_DEMAND, Z1, 0.8);
    sold_out.available = false;
    assert_eq!(priced(sold_out), 0.8);
}

/// Conformance: DIS-119
#[test]
fn pools_that_a_cut_pass_did_not_reach_come_first_next_time() {
    // Both nodes can be replaced, that of `default` at the larger gain.
    let world = fresh().with_pool(on_demand_pool("late"));
    let world = world
        .run([machine("a", "huge"), machine("b", "large").pool("late")])
        .with([
            running("p", "a", "1").select("karpenter.sh/nodepool", "default"),
            running("q", "b", "1").select("karpenter.sh/nodepool", "late"),
        ]);
    let cut = world
        .decide_with(|request| request.single_node_cancel = Some(std::sync::Arc::new(|| true)));
    assert!(commands(&cut).is_empty());
    assert!(cut.unseen_pools.contains("late"));
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
    // `pinned` comes second in the order, and its pod cannot move.
    let pinned = machine("b", "large").label("team", "x");
    let world = fresh()
        .run([
            machine("a", "large"),
            pinned,
            machine("c", "large"),
            machine("d", "large"),
        ])
        .with([
            running("p", "a", "100m"),
            running("q", "b", "200m").select("team", "x"),
            running("r", "c", "300m"),
            running("s", "d", "400m"),
        ]);
    assert_eq!(world.decide(), ["delete a c d (saves 2.40)"]);
}

#[test]
fn a_plan_does_not_depend_on_the_number_of_threads() {
    let decided = |threads: usize| {
        let machines = (0..12).map(|index| {
            machine(
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
            .run(machines)
            .with(pods)
            .decide_with(|request| request.threads = threads);
        commands(&plan)
    };
    assert_eq!(decided(1), decided(4));
    assert!(!decided(1).is_empty());
}

#[test]
fn every_machine_gets_a_verdict() {
    let world = fresh()
        .run([machine("a", "huge"), machine("b", "small")])
        .with([running("p", "a", "15"), running("q", "b", "2")]);
    let plan = world.decide_with(|_| ());
    assert_eq!(plan.verdicts.len(), 2);
    assert!(
        plan.verdicts
            .iter()
            .all(|verdict| !format!("{:?}", verdict.kind).is_empty())
    );
}

#[test]
fn a_pod_takes_its_claim_along_if_another_machine_has_such_a_device() {
    const DRIVER: &str = "gpu.example.com";
    let decide = |elsewhere: bool| {
        let mut world = fresh().run([machine("a", "small"), machine("b", "huge")]);
        world.request.ignore_dra_requests = false;
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
