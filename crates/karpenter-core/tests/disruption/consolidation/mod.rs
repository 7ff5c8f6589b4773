//! When consolidation deletes or replaces nodes.

mod cheaper_types;
mod pods;
mod sets;
mod spot;

use karpenter_core::fake;

use crate::fixture::{CAPACITY_TYPE, NodePool, Object, World, Z1, now};
use crate::fleet::{
    Fleet, ON_DEMAND, SPOT, alone, commands, node, on_demand_pool, on_each, open_pool, priced_type,
    running, type_with_offerings, verdict, world as fresh, world_of, world_with,
};

/// Conformance: DIS-096
#[test]
fn nodes_are_deleted_replaced_and_merged() {
    let world = fresh()
        .run([node("a", "huge")])
        .with(running("p", "a", "1"));
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
        .with(on_each(three, "3500m"));
    // Two nodes hold the pods of three.
    let plan = world.decide_with(|_| ());
    assert_eq!(plan.commands[0].candidates.len(), 2);
    // No node holds the pods of two, and no cheaper type holds those of one: only replacing all three saves.
    let three = |capacity_type: &str, pool: Object<NodePool>| {
        let b = node("b", "medium").label(CAPACITY_TYPE, capacity_type);
        world_of(pool)
            .run([node("a", "medium"), b, node("c", "medium")])
            .with(on_each(["a", "b", "c"], "2500m"))
            .decide()
    };
    assert_eq!(
        three(ON_DEMAND, on_demand_pool("default")),
        ["replace a b c with large on-demand (saves 0.40)"]
    );
    assert_eq!(
        three(SPOT, open_pool("default")),
        ["replace a b c with large huge spot (saves 0.60)"],
        "spot and on-demand nodes together"
    );
}

#[test]
fn consolidating_three_nodes_saves_at_least_the_price_of_two() {
    let three = ["a", "b", "c"];
    let world = fresh()
        .run(three.map(|name| node(name, "large")))
        .with(on_each(three, "1"));
    // No replacement is needed: each of the three nodes holds all pods.
    let plan = world.decide_with(|_| ());
    let saved: f64 = plan.commands.iter().map(|command| command.savings).sum();
    assert!(saved >= 1.6, "{saved}");
}

/// Conformance: DIS-105
#[test]
fn a_pool_without_instance_types_does_not_block_other_pools() {
    for types in [Err("no answer".to_owned()), Ok([].into())] {
        let mut world = fresh().with_pool(open_pool("broken"));
        world.cluster.set_instance_types("broken", types);
        let world = world
            .run([node("a", "huge"), node("b", "huge").pool("broken")])
            .with(running("p", "a", "1"));
        let plan = world.decide_with(|_| ());
        assert_eq!(verdict(&plan, "b"), "NodePool not found (NodePool=broken)");
        assert_eq!(verdict(&plan, "a"), "deleted", "there is room on `b`");
    }
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
        let world = world_with(types(left));
        world
            .run([node("a", "large").label(CAPACITY_TYPE, capacity_type)])
            .with(running("p", "a", cpu))
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

/// Conformance: DIS-123
#[test]
fn a_price_that_is_not_a_number_counts_as_zero() {
    use karpenter_core::disruption::Candidates;
    let priced = |offering: karpenter_core::offering::Offering| {
        let world = World::of(open_pool("default"))
            .with_types(type_with_offerings("large", 8, vec![offering]))
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
        let name = |index: usize| format!("n{index:02}");
        let nodes = (0..12).map(|n| node(&name(n), ["small", "medium", "large"][n % 3]));
        let pods = (0..12).map(|n| running(&name(n), &name(n), ["500m", "1", "1500m"][n % 3]));
        let plan = fresh()
            .run(nodes)
            .with(pods)
            .decide_with(|request| request.threads = threads);
        commands(&plan)
    };
    assert_eq!(decided(1), decided(4));
    assert!(!decided(1).is_empty());
}

/// Three nodes of two cores; nodes of sixteen are cheaper. A node that is being deleted does not count against the limit.
#[test]
fn replacements_of_earlier_commands_count_against_the_limits_of_a_pool() {
    let apart = |node: &str| alone(&format!("p-{node}"), node, "1");
    let replaced = |cores: &str| {
        let types = [priced_type("small", 2, 0.4), priced_type("huge", 16, 0.2)];
        let nodes = ["a", "b", "c"];
        let world = World::of(on_demand_pool("default").limit("cpu", cores))
            .with_types(types)
            .run(nodes.map(|name| node(name, "small")))
            .with(nodes.map(apart));
        world.decide().len()
    };
    assert_eq!(["19", "20", "34", "48"].map(replaced), [0, 1, 2, 3]);
}
