//! The order in which pods, nodes, NodeClaims and NodePools are tried (section 12 of the reference), as first fit has it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use karpenter_core::fake::instance_type;
use karpenter_core::schedule::Packing;
use serde_json::json;

use crate::fixture::*;

fn first_fit(cores: i64, pods: i64, pool: Object<NodePool>) -> World {
    let types = [instance_type("t").cpu(cores).gib(64).pods(pods)];
    let mut world = World::of(pool).with_types(types);
    world.policy.packing = Packing::FewestNodes;
    world
}

/// Which of two pods gets the only place.
fn first(a: Object<Pod>, b: Object<Pod>) -> String {
    let world = first_fit(64, 1, node_pool("default").limit("nodes", "1")).with([a, b]);
    let plan = world.plan();
    assert_eq!((plan.new_node_claims.len(), plan.unplaced.len()), (1, 1));
    plan.new_node_claims[0].pods[0].name.clone()
}

/// Conformance: SCH-231
#[test]
fn pods_come_by_cpu_memory_age_and_uid_and_not_by_priority() {
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
    let pod = |name: &str, cpu: &str, memory: &str, time: &str| {
        let pod = crate::fixture::pod(name).cpu(cpu).memory(memory);
        pod.created(time)
    };
    let like = |name| pod(name, "1", "1Gi", early);
    for (second, first_by_name) in [
        (pod("b", "2", "1Gi", late), pod("a", "1", "8Gi", early)),
        (pod("b", "1", "2Gi", late), like("a")),
        (pod("b", "1", "1Gi", early), pod("a", "1", "1Gi", late)),
        (like("b").uid("1"), like("a").uid("2")),
        (pod("b", "2", "1Gi", late), like("a").priority(1_000_000)),
    ] {
        assert_eq!(first(first_by_name, second), "b");
    }
}

/// Conformance: SCH-232
#[test]
fn of_nodes_that_would_do_the_first_by_name_is_taken() {
    for names in [["a", "b"], ["b", "a"]] {
        let world = World::new().with(names.map(node)).with(pod("p").cpu("1"));
        assert_eq!(world.plan().existing[0].node, "a");
    }
}

/// Conformance: SCH-286
#[test]
fn existing_nodes_come_before_planned_ones_and_those_before_new_ones() {
    let plan = first_fit(8, 2, node_pool("default"))
        .with(node("n").cpu("8").pods("1"))
        .with(copies(&pod("p").cpu("1"), 4))
        .plan();
    assert_eq!((plan.existing.len(), sizes(&plan)), (1, vec![2, 1]));
}

/// Conformance: SCH-232
#[test]
fn a_pod_joins_the_planned_node_with_the_fewest_pods() {
    let apart = member("apart").cpu("2").anti_affinity(HOSTNAME, APP);
    let world = first_fit(8, 100, node_pool("default"))
        .with(copies(&apart, 2))
        .with([pod("b").cpu("1500m"), pod("c").cpu("1")]);
    assert_eq!(world.sizes(), [2, 2]);
}

/// Conformance: SCH-233
#[test]
fn what_was_placed_is_kept_at_the_deadline_and_the_rest_is_not_refused() {
    let plan = |asked_before: usize| {
        let pods = copies(&pod("p").cpu("10m"), 300);
        let mut world = first_fit(8, 1000, node_pool("default")).with(pods);
        let asked = AtomicUsize::new(0);
        let is_over = move || asked.fetch_add(1, Ordering::SeqCst) >= asked_before;
        world.query.cancel = Some(Arc::new(is_over));
        world.plan()
    };
    let none = plan(0);
    assert_eq!((none.new_node_claims.len(), none.unplaced.len()), (0, 0));
    assert_eq!(none.undecided.len(), 300);
    let some = plan(1);
    let placed = some.new_node_claims[0].pods.len();
    assert!((1..300).contains(&placed), "{placed}");
    assert_eq!(
        (placed + some.undecided.len(), some.unplaced.len()),
        (300, 0)
    );
    let last = some.new_node_claims[0].pods.iter().max();
    assert!(
        last < some.undecided.iter().min(),
        "in the order of the queue"
    );
    assert_eq!(sizes(&plan(usize::MAX)), [300]);
}

/// Conformance: SCH-205
#[test]
fn preferred_affinity_is_dropped_before_preferred_anti_affinity() {
    let neighbor = pod("neighbor").label("app", "loud").on("n");
    let asked = pod("p")
        .cpu("1")
        .prefer_anti_affinity(1, HOSTNAME, ("app", "loud"))
        .prefer_affinity(1, HOSTNAME, ("app", "absent"));
    let plan = plan_of((node("n"), neighbor.clone(), asked));
    assert_eq!(counts(&plan), (0, 1));
    let plan = plan_of((node("n"), neighbor, pod("p").cpu("1")));
    assert_eq!(plan.existing.len(), 1, "without preferences");
}

/// Conformance: SCH-277
#[test]
fn a_pod_that_is_tried_again_has_all_its_preferences_again() {
    // The larger pod comes first and fails, whatever it does without, because the pod it follows has no place yet.
    let plan = plan_of([
        pod("follower")
            .cpu("2")
            .affinity(HOSTNAME, ("app", "leader"))
            .prefer(1, ZONE, "In", &[Z2]),
        pod("leader").cpu("1").label("app", "leader"),
    ]);
    assert_eq!(sizes(&plan), [2]);
    assert_eq!(first_values(&plan, ZONE), [Z2]);
}

/// Conformance: SCH-213
#[test]
fn pools_of_equal_weight_are_tried_in_descending_order_of_names() {
    let chosen = |pools: Vec<Object<NodePool>>| {
        let world = pools.into_iter().fold(World::empty(), World::with_pool);
        world.with(pod("p")).plan().new_node_claims[0]
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

#[test]
fn an_order_in_which_more_pods_fit_is_found() {
    // By size, `target` comes first and may end up in any zone.
    let pods = || {
        let target = member("target").cpu("2");
        [target, pod("away").cpu("1").anti_affinity(ZONE, APP)]
    };
    let by_size = World::new().with(pods()).by_size().plan();
    assert_eq!(by_size.unplaced[0].pod.name, "away");
    assert!(World::new().places(pods()));
}

/// No planned node can add a zone to those whose lowest count bounds the skew, if each zone has a node.
#[test]
fn pods_that_count_zones_they_cannot_use_keep_their_turn() {
    let app = || member("first").select(ZONE, Z1);
    let ignore = json!({ "nodeAffinityPolicy": "Ignore" });
    let spread = app().cpu("2").spread_with(ZONE, 1, APP, ignore);
    let other = member("other").select(ZONE, Z1).cpu("1");
    let unplaced = |zones: &[&str]| {
        let full = json!({ "cpu": "0", "memory": "0", "pods": "0" });
        let nodes = zones.iter().map(|zone| {
            let node = node(&format!("in-{zone}")).label(ZONE, zone);
            node.set("/status/allocatable", full.clone())
        });
        let mut world = World::new().with([spread.clone(), other.clone()]).by_size();
        nodes.for_each(|node| world.add(node));
        for zone in zones {
            let bound = member(&format!("bound-in-{zone}"));
            world.add(bound.on(&format!("in-{zone}")));
        }
        world.plan().unplaced.len()
    };
    assert_eq!(unplaced(&[Z1, Z2, Z3]), 0);
    // A node in the third zone would lower the count.
    assert_eq!(unplaced(&[Z1, Z2]), 1);
}

/// Pods that are placed after others, and the pods of capacity buffers, count from the start.
#[test]
fn progress_counts_all_pods_that_are_not_tried_yet() {
    let last = member("last").select(ZONE, Z1).spread_with(
        ZONE,
        1,
        APP,
        json!({ "nodeAffinityPolicy": "Ignore" }),
    );
    let buffer = |name: &str| {
        let buffer = pod(name).annotation("karpenter.sh/capacity-buffer-fake-pod", "true");
        Arc::new(karpenter_core::pod::Pod::parse(&buffer.build()))
    };
    let seen = |mut world: World, buffers: &[&str]| {
        world.query.buffer_pods = buffers.iter().map(|name| buffer(name)).collect();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let progress = {
            let seen = seen.clone();
            Arc::new(move |left: usize| seen.lock().unwrap().push(left))
        };
        world.query.progress = Some(progress);
        world.by_size().plan();
        let seen = seen.lock().unwrap();
        seen.clone()
    };
    let world = World::new()
        .with(copies(&pod("p"), 3))
        .with(copies(&last, 2));
    // The first of the two is placed at its turn.
    assert_eq!(seen(world, &["b-0", "b-1", "b-2", "b-3"]), [9, 5, 4]);
    // It is told after each 128 pods. These wait for the last one, and are tried again.
    let followers = copies(&pod("p").cpu("100m").affinity(ZONE, ("app", "target")), 129);
    let target = pod("target")
        .cpu("50m")
        .label("app", "target")
        .select(ZONE, Z1);
    let world = World::new().with(followers).with(target);
    assert_eq!(seen(world, &[]), [130, 130, 129, 1]);
}
