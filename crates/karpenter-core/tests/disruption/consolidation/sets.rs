//! Which sets of nodes are consolidated together, and with how many replacements.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use karpenter_core::disruption::{DisruptionPlan, DisruptionRequest, Method};

use crate::fixture::World;
use crate::fleet::{Fleet, alone, commands, node, running, world as fresh};

fn with_replacements(number: usize) -> impl Fn(&mut DisruptionRequest) {
    move |request| request.multi_node.max_replacements = number
}

/// Two nodes of sixteen cores whose pods must not share a node.
fn apart() -> World {
    fresh()
        .run([node("a", "huge"), node("b", "huge")])
        .with([alone("p", "a", "1"), alone("q", "b", "1")])
}

#[test]
fn several_nodes_are_replaced_by_as_many_as_the_request_allows() {
    assert_eq!(
        commands(&apart().decide_with(with_replacements(2))),
        [
            "replace a b with small medium large on-demand with small medium large on-demand (saves 2.80)"
        ]
    );
    assert_eq!(
        commands(&apart().decide_with(with_replacements(1))),
        [
            "replace a with small medium large on-demand (saves 1.40)",
            "replace b with small medium large on-demand (saves 1.40)",
        ]
    );
}

#[test]
fn more_nodes_than_before_must_save_the_price_of_their_own_too() {
    let world = fresh().run([node("a", "large"), node("b", "large")]).with([
        alone("p", "a", "1"),
        alone("q", "a", "1"),
        alone("r", "b", "1"),
    ]);
    // Three `small` cost a dollar less than the two nodes.
    let replacements = |node_overhead_price| {
        let plan = world.decide_with(|request| {
            with_replacements(3)(request);
            request.policy = (request.policy.clone()).with_node_overhead_price(node_overhead_price);
        });
        let first = plan.commands.first();
        first.map_or(0, |command| command.replacements.len())
    };
    assert_eq!([0.0, 0.9, 1.1].map(replacements), [3, 3, 1]);
}

/// Returns a world of nodes, each with its instance type and the CPU of its pods.
fn fleet(nodes: &[(&str, &str, &[&str])]) -> World {
    let mut world = fresh();
    for (name, instance_type, pods) in nodes {
        world = world.run([node(name, instance_type)]);
        let pods = pods.iter().enumerate();
        world = world.with(
            pods.map(|(index, cpu)| running(&format!("{name}{index}"), name, cpu))
                .collect::<Vec<_>>(),
        );
    }
    world
}

fn first(world: &World, replacements: usize) -> Vec<String> {
    let plan = world.decide_with(|request| {
        with_replacements(replacements)(request);
        request.max_commands = 1;
    });
    commands(&plan)
}

#[test]
fn nodes_whose_pods_fit_elsewhere_are_tried_first_and_together() {
    let world = fleet(&[
        ("a", "large", &["3"]),
        ("b", "small", &["300m"]),
        ("c", "small", &["800m"]),
        ("d", "huge", &["300m", "2", "2500m"]),
    ])
    .run([node("e", "medium").spot()])
    .with([
        running("e0", "e", "100m"),
        running("e1", "e", "300m").select("team", "x"),
    ]);
    assert_eq!(first(&world, 2), ["delete b c d (saves 2.00)"]);
}

#[test]
fn of_a_group_that_saves_nothing_the_first_half_is_tried() {
    let world = fleet(&[
        ("a", "small", &["800m", "500m"]),
        ("b", "huge", &["1"]),
        ("e", "huge", &["2500m"]),
    ])
    .run([node("c", "medium"), node("d", "small").spot()])
    .with([
        alone("b1", "b", "500m"),
        alone("c0", "c", "2500m"),
        running("d0", "d", "300m"),
        running("d1", "d", "800m").select("team", "x"),
    ]);
    assert_eq!(
        first(&world, 2),
        ["replace a b e with medium large on-demand (saves 3.00)"]
    );
}

#[test]
fn a_cheap_member_of_a_set_is_exchanged_for_a_more_expensive_node() {
    let world = fleet(&[
        ("a", "small", &["100m"]),
        ("e", "medium", &["1500m", "1500m", "800m"]),
        ("f", "large", &["3", "2500m"]),
    ])
    .run([
        node("b", "medium"),
        node("c", "medium").label("team", "x"),
        node("d", "huge").label("team", "x"),
    ])
    .with([
        running("b0", "b", "800m"),
        running("b1", "b", "1").do_not_disrupt(),
        running("b2", "b", "1"),
        running("c0", "c", "1500m"),
        running("d0", "d", "3"),
        running("d1", "d", "800m").select("team", "x"),
        running("d2", "d", "2500m"),
    ]);
    assert_eq!(first(&world, 1), ["delete c e f (saves 1.60)"]);
}

#[test]
fn nodes_with_a_high_price_for_the_requests_of_their_pods_are_tried_first() {
    let in_team = |name: &str, node: &str, cpu: &str| running(name, node, cpu).select("team", "x");
    let world = fleet(&[
        ("b", "huge", &["2500m", "300m"]),
        ("c", "large", &["2"]),
        ("d", "small", &["800m", "300m"]),
    ])
    .run([node("a", "huge").label("team", "x")])
    .with([
        running("a0", "a", "2500m"),
        running("a1", "a", "2"),
        running("a2", "a", "100m"),
        in_team("b2", "b", "1500m"),
        in_team("c1", "c", "5"),
    ]);
    assert_eq!(first(&world, 1), ["delete b c (saves 2.40)"]);
}

#[test]
fn a_group_that_saves_nothing_is_divided_until_one_candidate_is_left() {
    let world = fleet(&[
        ("a", "small", &["300m", "800m"]),
        ("b", "huge", &["5"]),
        ("c", "large", &["500m", "300m"]),
    ]);
    assert_eq!(first(&world, 2), ["delete a b (saves 1.80)"]);
}

#[test]
fn members_that_cause_a_replacement_are_dropped_if_it_costs_more() {
    let world = fleet(&[
        ("a", "medium", &["2500m", "2500m"]),
        ("d", "small", &["300m"]),
        ("e", "small", &["500m", "800m", "300m"]),
    ])
    .run([
        node("b", "medium"),
        node("c", "large"),
        node("f", "medium").spot(),
    ])
    .with([
        running("b0", "b", "2").do_not_disrupt(),
        running("c0", "c", "5").do_not_disrupt(),
        running("c1", "c", "1500m").select("team", "x"),
    ])
    .with([alone("f0", "f", "300m"), alone("f1", "f", "800m")]);
    assert_eq!(first(&world, 2), ["delete d e f (saves 0.60)"]);
}

#[test]
fn a_member_is_exchanged_for_each_candidate_that_saves_more() {
    let world = fleet(&[
        ("a", "small", &["800m"]),
        ("b", "large", &["5", "2500m"]),
        ("c", "small", &["100m", "500m"]),
        ("d", "large", &["300m", "300m"]),
    ])
    .with([
        running("a1", "a", "500m").select("team", "x"),
        alone("c2", "c", "800m"),
    ]);
    assert_eq!(
        first(&world, 1),
        ["replace b c with medium on-demand (saves 0.60)"]
    );
}

/// Ends the search for a set at its check number `checks + 1`.
fn ends_after(checks: usize) -> impl Fn(&mut DisruptionRequest) {
    move |request| {
        let made = AtomicUsize::new(0);
        let is_over = move || made.fetch_add(1, Ordering::Relaxed) >= checks;
        request.multi_node.cancel = Some(Arc::new(is_over));
    }
}

/// Returns how many nodes multi-node consolidation takes.
fn deleted_together(plan: &DisruptionPlan) -> usize {
    let commands = plan.commands.iter();
    let multi_node = commands.filter(|it| it.method == Method::MultiNode);
    multi_node.map(|it| it.candidates.len()).sum()
}

#[test]
fn a_search_that_ends_before_a_set_was_tried_finds_none_and_says_so() {
    let world = fleet(&[
        ("a", "large", &["1"]),
        ("b", "large", &["1"]),
        ("c", "large", &["1"]),
    ]);
    let methods = |checks: usize| {
        let plan = world.decide_with(ends_after(checks));
        let is_over = plan.timed_out.contains(&Method::MultiNode);
        (deleted_together(&plan), is_over)
    };
    assert_eq!(methods(1), (0, true));
    assert_eq!(methods(1000), (3, false));
}

/// Time is checked before the search, and before each set.
#[test]
fn the_longest_prefix_is_found_by_binary_search_up_to_upstreams_length() {
    let deleted = |number: usize, sets: usize| {
        let small = |index: usize| format!("n{index:03}");
        let world = fresh()
            .run((0..number).map(|index| node(&small(index), "small")))
            .run(["room-1", "room-2"].map(|name| node(name, "huge")))
            .with(["room-1", "room-2"].map(|room| running(room, room, "1").do_not_disrupt()))
            .with(
                (0..number)
                    .map(|index| running(&small(index), &small(index), "100m"))
                    .collect::<Vec<_>>(),
            );
        deleted_together(&world.decide_with(ends_after(1 + sets)))
    };
    // Of eight, 5, 7 and 8 are tried.
    assert_eq!([0, 1, 2, 3].map(|sets| deleted(8, sets)), [0, 5, 7, 8]);
    // Of 102, 51, 76, 89, 95, 98, 100 and 101 are tried, and then 102.
    assert_eq!([6, 7, 8].map(|sets| deleted(102, sets)), [100, 101, 102]);
}

/// `a` has room for the pods of `b` and `c`; no cheaper node has room for those of all three.
#[test]
fn a_set_is_extended_by_nodes_whose_pods_fit_after_it_is_deleted() {
    let world = fleet(&[
        ("a", "large", &["1500m"]),
        ("b", "huge", &["5", "300m", "1"]),
        ("c", "small", &["100m"]),
    ]);
    assert_eq!(first(&world, 1), ["delete b c (saves 1.80)"]);
}

/// Alone, `b` saves 1.60 in the first cluster, and 1.20 in the second.
#[test]
fn a_set_of_two_nodes_is_not_reduced_to_one_that_saves_more() {
    let replaced = |a: &str, b: &str| {
        let world = fleet(&[("a", "small", &[a]), ("b", "huge", &[b])]);
        first(&world, 1)
    };
    assert_eq!(
        replaced("1500m", "500m"),
        ["replace a b with medium large on-demand (saves 1.40)"]
    );
    assert_eq!(
        replaced("2", "2500m"),
        ["replace a b with large on-demand (saves 1.00)"]
    );
}

/// The pods of `a` and `b` fit on `c`, which needs a replacement itself.
#[test]
fn a_node_that_needs_a_replacement_does_not_displace_deletable_nodes() {
    let world = fleet(&[
        ("a", "small", &["1"]),
        ("b", "small", &["1500m"]),
        ("c", "medium", &["1500m"]),
    ]);
    assert_eq!(first(&world, 1), ["delete a b (saves 0.40)"]);
}

/// By price alone `b` comes before `f`, whose pod is small.
#[test]
fn nodes_whose_pods_request_little_for_their_price_are_deleted_together() {
    let world = fleet(&[
        ("a", "small", &["1500m"]),
        ("b", "large", &["1500m"]),
        ("c", "small", &["1"]),
        ("d", "huge", &["1500m"]),
        ("e", "huge", &["2"]),
        ("f", "medium", &["100m"]),
    ]);
    assert_eq!(first(&world, 1), ["delete a c d e f (saves 4.00)"]);
}

/// `a` and `c` would save 2.20.
#[test]
fn a_member_is_not_exchanged_for_a_node_of_the_same_price() {
    let world = fleet(&[
        ("a", "huge", &["2"]),
        ("b", "large", &["2"]),
        ("c", "large", &["1500m", "1", "2500m"]),
    ]);
    assert_eq!(
        first(&world, 1),
        ["replace a b with medium on-demand (saves 2.00)"]
    );
}

/// `room` is the only place for the pods of `a` and `b`, and has room for one of them.
#[test]
fn after_a_group_that_fits_one_of_twice_its_size_is_tried() {
    let names: Vec<String> = (1..=15).map(|index| format!("c{index:02}")).collect();
    let blocked = |name: &str| running(name, name, "600m").select("team", "x");
    let small = |name: &str| running(name, name, "10m");
    let world = fleet(&[])
        .run(["a", "b"].map(|name| node(name, "small")))
        .run(names.iter().map(|name| node(name, "small")))
        .run([node("room", "small").label("team", "x")])
        .with(["a", "b"].map(blocked))
        .with(names.iter().map(|name| small(name)).collect::<Vec<_>>())
        .with(running("stays", "room", "1").do_not_disrupt());
    let deleted = |checks| deleted_together(&world.decide_with(ends_after(checks)));
    let mut sizes: Vec<usize> = (1..40).map(deleted).collect();
    sizes.dedup();
    assert_eq!(sizes, [0, 2, 4, 8, 16]);
}

/// Each of these nodes needs a replacement that is not cheaper, so that it neither joins `a` and `b` nor replaces one of them.
#[test]
fn eight_nodes_in_a_row_that_improve_no_set_end_the_search_for_others() {
    let checks = |others: usize| {
        let names: Vec<String> = (0..others).map(|index| format!("n{index:02}")).collect();
        let world = fleet(&[("a", "small", &["100m"]), ("b", "small", &["100m"])])
            .run(names.iter().map(|name| node(name, "medium")))
            .run([node("room", "small")])
            .with(
                names
                    .iter()
                    .map(|name| alone(name, name, "3"))
                    .collect::<Vec<_>>(),
            )
            .with(running("stays", "room", "1").do_not_disrupt());
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let plan = world.decide_with(|request| {
            request.multi_node.cancel = Some(Arc::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
                false
            }));
        });
        assert_eq!(commands(&plan), ["delete a b (saves 0.40)"]);
        made.load(Ordering::Relaxed)
    };
    assert!(checks(7) < checks(8));
    assert_eq!(checks(8), checks(9));
}
