//! Disruption of drifted nodes.

use karpenter_core::disruption::{NotDisruptable, VerdictKind};
use serde_json::json;

use crate::fixture::{EPOCH, World};
use crate::fleet::{
    Fleet, commands, node, on_demand_pool, on_each, open_pool, running, verdict, world, world_of,
    world_with,
};

/// Conformance: DIS-090
#[test]
fn a_termination_grace_period_overrides_blocking_pods_for_drift_alone() {
    let pod = || running("p", "a", "15");
    let refusing = |world: World| world.with(pod().do_not_disrupt());
    let guarded = |world: World| world.with(pod().label("app", "guarded"));
    let one = |world| {
        let never = json!({ "maxUnavailable": 0 });
        guarded(world).pdb("pdb", "default", never, 0)
    };
    let two = |world| {
        guarded(world)
            .pdb("one", "default", json!({}), 1)
            .pdb("two", "default", json!({}), 1)
    };
    let cases: [(&str, &dyn Fn(World) -> World); 3] = [
        ("do-not-disrupt", &refusing),
        ("one PodDisruptionBudget", &one),
        ("two PodDisruptionBudgets", &two),
    ];
    for (kind, blocked) in cases {
        let with = |grace: bool, drifted: bool| {
            let mut a = node("a", "huge");
            if grace {
                a = a.claim("/spec/terminationGracePeriod", json!("10m"));
            }
            if drifted {
                a = a.drifted(EPOCH);
            }
            commands(&blocked(world().run([a])).decide_with(|_| ()))
        };
        // The pod is not moved before the end of the grace period, so nothing is launched for it.
        assert_eq!(with(true, true), ["delete a (saves 1.60)"], "{kind}");
        assert!(with(false, true).is_empty(), "{kind}");
        assert!(with(true, false).is_empty(), "{kind}");
    }
}

/// Conformance: DIS-130
#[test]
fn drifted_nodes_without_pods_come_first_then_the_longest_drifted() {
    let drifted =
        |name: &str, day: u32| node(name, "large").drifted(&format!("2025-12-{day:02}T00:00:00Z"));
    let world = world()
        .run([
            drifted("new", 20),
            drifted("old", 10),
            drifted("empty", 30).without("Consolidatable"),
        ])
        .with([running("p", "new", "7"), running("q", "old", "7")]);
    let plan = world.decide_with(|request| request.max_commands = 2);
    let order: Vec<&str> = plan
        .commands
        .iter()
        .map(|command| command.candidates[0].name())
        .collect();
    assert_eq!(order, ["empty", "old"]);
    assert_eq!(plan.commands[1].replacements.len(), 1);
    let savings: Vec<f64> = plan
        .commands
        .iter()
        .map(|command| command.savings)
        .collect();
    assert_eq!(
        savings,
        [0.8, 0.0],
        "a replacement costs as much as the node"
    );
}

/// Conformance: DIS-186
#[test]
fn a_node_whose_pods_need_two_nodes_is_replaced_by_two() {
    let types = [
        crate::fleet::priced_type("small", 2, 0.2),
        crate::fleet::priced_type("medium", 4, 0.4),
    ];
    let world = world_with(types);
    let world = world.run([node("a", "huge").drifted(EPOCH)]);
    let world = world.with([running("p", "a", "3"), running("q", "a", "3")]);
    assert_eq!(world.decide_with(|_| ()).commands[0].replacements.len(), 2);
}

/// Conformance: DIS-210
#[test]
fn pods_of_drifted_nodes_may_move_to_nodes_within_consolidate_after() {
    // Consolidation would leave the node alone that has just got a pod.
    let recent = node("b", "huge")
        .pool("busy")
        .without("Consolidatable")
        .claim("/status/lastPodEventTime", json!("2025-12-31T23:59:30Z"));
    let world = world()
        .with_pool(on_demand_pool("busy").consolidate_after("5m"))
        .run([node("a", "large").drifted("2025-12-10T00:00:00Z"), recent])
        .with([running("p", "a", "1"), running("q", "b", "1")]);
    let plan = world.decide_with(|_| ());
    let [command] = &plan.commands[..] else {
        panic!("{:?}", commands(&plan))
    };
    assert_eq!(command.candidates[0].name(), "a");
    assert!(command.replacements.is_empty());
}

/// Conformance: DIS-193
#[test]
fn many_drifted_nodes_get_their_own_replacements_in_one_pass() {
    let world = world()
        .run(["a", "b", "c"].map(|name| node(name, "large").drifted(EPOCH)))
        .with(on_each(["a", "b", "c"], "7"));
    let plan = world.decide_with(|_| ());
    let counts: Vec<usize> = plan
        .commands
        .iter()
        .map(|command| command.replacements.len())
        .collect();
    assert_eq!(counts, [1, 1, 1]);
}

/// Conformance: DIS-186
#[test]
fn a_drifted_node_whose_pods_fit_nowhere_is_kept_and_others_replaced() {
    let types = [crate::fleet::priced_type("small", 2, 0.2)];
    let world = world_with(types);
    let nodes = ["a", "b"].map(|name| node(name, "huge").drifted(EPOCH));
    let world = world
        .run(nodes)
        .with([running("p", "a", "15500m"), running("q", "b", "1")]);
    let plan = world.decide_with(|_| ());
    assert!(
        verdict(&plan, "a").starts_with("Not all pods would schedule, default/p => "),
        "{}",
        verdict(&plan, "a")
    );
    assert_eq!(commands(&plan).len(), 1);
}

/// The verdict of drift counts, not that of consolidation: users search for the event reason `DisruptionBlocked`.
///
/// Conformance: DIS-186
#[test]
fn pods_that_fit_nowhere_block_the_disruption_of_a_drifted_node() {
    let types = [crate::fleet::priced_type("small", 2, 0.2)];
    let world = world_with(types)
        .run([node("a", "huge").drifted(EPOCH)])
        .with(running("p", "a", "15500m"));
    let plan = world.decide_with(|_| ());
    let [verdict] = plan.verdicts.as_slice() else {
        panic!("{:?}", plan.verdicts);
    };
    let VerdictKind::NotDisruptable(why) = &verdict.kind else {
        panic!("{:?}", verdict.kind);
    };
    assert!(why.is_reported());
    assert!(matches!(why, NotDisruptable::PodsStay { pods } if pods.len() == 1));
}

/// Conformance: DIS-194
#[test]
fn only_the_pool_whose_replacements_fail_is_in_cool_down() {
    let world = world_of(open_pool("default")).with_pool(open_pool("other"));
    let drifted = |name: &str| node(name, "large").drifted(EPOCH);
    let world = world
        .run([drifted("a"), drifted("b").pool("other")])
        .with([running("p", "a", "7"), running("q", "b", "7")]);
    let plan = world.decide_with(|request| {
        request.cooling_down_pools.insert("default".to_owned());
    });
    let names: Vec<&str> = plan
        .commands
        .iter()
        .map(|command| command.candidates[0].name())
        .collect();
    assert_eq!(names, ["b"]);
}

/// Conformance: DIS-187
#[test]
fn static_nodes_are_replaced_one_for_one_within_the_headroom_of_the_limit() {
    let fixed = |name: &str| open_pool(name).replicas(3);
    let world = world_of(fixed("default")).with_pool(fixed("other"));
    let drifted = |name: &str| node(name, "large").drifted(EPOCH);
    let world = world.run([
        drifted("a"),
        drifted("b"),
        drifted("c"),
        drifted("d").pool("other"),
    ]);
    let with_headroom = |headroom: &[(&str, u32)]| {
        let plan = world.decide_with(|request| {
            request.static_headroom = headroom
                .iter()
                .map(|(pool, headroom)| ((*pool).to_owned(), *headroom))
                .collect();
        });
        plan.commands
            .iter()
            .map(|command| {
                (
                    command.candidates[0].name().to_owned(),
                    command.replacements.len(),
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(with_headroom(&[("default", 0), ("other", 0)]), []);
    assert_eq!(
        with_headroom(&[("default", 2)]),
        [("a".to_owned(), 1), ("b".to_owned(), 1)]
    );
    assert_eq!(with_headroom(&[("other", 1)]), [("d".to_owned(), 1)]);
}
