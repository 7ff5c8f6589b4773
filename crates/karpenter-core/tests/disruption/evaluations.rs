//! Which changes of a cluster alter the evaluation of a node, so that a later pass does not carry it over.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use karpenter_core::disruption::{
    DisruptionPlan, DisruptionRequest, NotConsolidatable, Planner, VerdictKind, plan,
};
use serde_json::json;

use crate::carried::{apply_pool, text};
use crate::fixture::{
    HOSTNAME, Object, Pod, World, Z1, Z2, ZONE, now, pdb, persistent_volume_claim, pod,
    storage_class,
};
use crate::fleet::{node, running, verdict};

/// Returns nodes that cannot be deleted, each with a large pod and a small one.
fn kept_fleet() -> World {
    let mut world = crate::fleet::world();
    for number in 0..6 {
        let name = format!("node-{number}");
        let node = node(&name, "medium");
        world.add((node.claim, node.node));
        world.add([
            running(&format!("large-{number}"), &name, "2500m"),
            running(&format!("small-{number}"), &name, "500m"),
        ]);
    }
    world
}

fn request() -> DisruptionRequest {
    let mut request = DisruptionRequest::at(now());
    request.multi_node.cancel = Some(Arc::new(|| true));
    request
}

#[test]
fn without_a_change_every_evaluation_is_carried_over() {
    let world = kept_fleet();
    let snapshot = world.cluster.snapshot();
    let mut planner = Planner::default();
    let first = planner.plan(&snapshot, &request());
    assert_eq!((first.carried_over, first.evaluated), (0, 6));
    assert_eq!(
        verdict(&first, "node-3"),
        NotConsolidatable::NotCheaper.to_string()
    );
    let again = planner.plan(&snapshot, &request());
    assert_eq!((again.carried_over, again.evaluated), (6, 0));
    assert_eq!(text(&again), text(&first));
}

#[test]
fn a_pod_that_leaves_the_last_node_alters_that_node_alone() {
    let mut world = kept_fleet();
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    world.cluster.remove_pod("default", "small-5");
    let next = planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!((next.carried_over, next.evaluated), (5, 1));
}

#[test]
fn room_for_a_large_pod_alters_every_node() {
    let mut world = kept_fleet();
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    world.cluster.remove_pod("default", "large-5");
    let next = planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!(next.carried_over, 0);
    assert!(!next.commands.is_empty(), "a large pod fits on node-5 now");
}

#[test]
fn the_passage_of_time_alone_alters_nothing() {
    let world = kept_fleet();
    let snapshot = world.cluster.snapshot();
    let mut planner = Planner::default();
    planner.plan(&snapshot, &request());
    let mut later = request();
    later.policy.now += SignedDuration::try_from(Duration::from_secs(3600)).unwrap();
    assert_eq!(planner.plan(&snapshot, &later).carried_over, 6);
}

#[test]
fn another_limit_of_a_node_pool_alters_every_node() {
    let mut world = kept_fleet();
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    let limited = crate::fleet::on_demand_pool("default").limit("cpu", "100");
    apply_pool(&mut world.cluster, &limited);
    let next = planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!((next.carried_over, next.evaluated), (0, 6));
}

#[test]
fn a_resource_that_no_pod_requested_before_alters_every_node() {
    let mut world = kept_fleet();
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    let on_node_5 = running("tuned", "node-5", "100m").request("example.com/fpga", "1");
    world.add([on_node_5]);
    let snapshot = world.cluster.snapshot();
    let next = planner.plan(&snapshot, &request());
    assert_eq!(text(&next), text(&plan(&snapshot, &request())));
    assert_eq!(next.carried_over, 0);
}

/// Returns a request whose passes place these many pods of capacity buffers.
fn with_buffer_pods(number: usize, cpu: &str) -> DisruptionRequest {
    let mut request = request();
    request.query.buffer_pods = (0..number)
        .map(|index| {
            let buffer = pod(&format!("buffer-{index}"))
                .cpu(cpu)
                .annotation("karpenter.sh/capacity-buffer-fake-pod", "true");
            Arc::new(karpenter_core::pod::Pod::parse(&buffer.build()))
        })
        .collect();
    request
}

#[test]
fn other_pods_of_capacity_buffers_alter_every_node_and_the_same_ones_none() {
    let world = kept_fleet();
    let snapshot = world.cluster.snapshot();
    let mut planner = Planner::default();
    planner.plan(&snapshot, &request());
    for (request, carried_over) in [
        (with_buffer_pods(1, "500m"), 0),
        (with_buffer_pods(1, "500m"), 6),
        (with_buffer_pods(1, "600m"), 0),
        (with_buffer_pods(2, "600m"), 0),
        (request(), 0),
    ] {
        let next = planner.plan(&snapshot, &request);
        assert_eq!(next.carried_over, carried_over);
        assert_eq!(text(&next), text(&plan(&snapshot, &request)));
    }
}

#[test]
fn nothing_is_carried_over_while_more_than_64_buffer_pods_wait() {
    let world = kept_fleet();
    let snapshot = world.cluster.snapshot();
    for (waiting, carried_over) in [(64, 6), (65, 0)] {
        let mut planner = Planner::default();
        planner.plan(&snapshot, &with_buffer_pods(waiting, "100m"));
        let next = planner.plan(&snapshot, &with_buffer_pods(waiting, "100m"));
        assert_eq!(next.carried_over, carried_over, "{waiting} pods");
    }
}

#[test]
fn verdicts_other_than_simulations_are_decided_again() {
    let mut world = kept_fleet();
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    apply_pool(
        &mut world.cluster,
        &crate::fleet::on_demand_pool("default").budget("0"),
    );
    let next = planner.plan(&world.cluster.snapshot(), &request());
    let kept = next.verdicts.iter().map(|verdict| &verdict.kind);
    let is_for_budget =
        |kind: &VerdictKind| matches!(kind, VerdictKind::Kept(NotConsolidatable::Budget { .. }));
    assert_eq!(kept.filter(|kind| is_for_budget(kind)).count(), 6);
}

#[test]
fn room_on_a_preferred_node_alters_nodes_whose_pods_went_elsewhere() {
    let mut world = crate::fleet::world();
    let ssd = node("node-z", "medium").label("disk", "ssd");
    for node in [node("node-a", "medium"), node("node-b", "medium"), ssd] {
        world.add((node.claim, node.node));
    }
    world.add([
        running("picky", "node-a", "500m").prefer(5, "disk", "In", &["ssd"]),
        running("other", "node-b", "2500m"),
        running("large", "node-z", "2500m"),
        running("leaving", "node-z", "1500m"),
    ]);
    let places = |plan: &DisruptionPlan| -> Vec<String> {
        let moved = plan.commands[0].placements.iter();
        moved.map(|placement| placement.node.clone()).collect()
    };
    let mut planner = Planner::default();
    let first = planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!(first.commands[0].candidates[0].name(), "node-a");
    assert_eq!(places(&first), ["node-b"]);
    world.cluster.remove_pod("default", "leaving");
    let next = planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!(places(&next), ["node-z"]);
}

/// `a` cannot be deleted while its pod has no other place than `b`, which changed recently.
#[test]
fn a_node_that_receives_pods_again_alters_the_nodes_whose_pods_fit_there() {
    let pool = crate::fleet::on_demand_pool("target").consolidate_after("5m");
    let changed = node("b", "huge")
        .pool("target")
        .without("Consolidatable")
        .claim("/status/lastPodEventTime", json!(now().to_string()));
    let mut world = crate::fleet::world().with_pool(pool);
    for node in [node("a", "small"), changed] {
        world.add((node.claim, node.node));
    }
    world.add([running("p", "a", "1"), running("q", "b", "14")]);
    let snapshot = world.cluster.snapshot();
    let mut planner = Planner::default();
    assert!(planner.plan(&snapshot, &request()).commands.is_empty());
    let mut later = request();
    later.policy.now += SignedDuration::from_mins(6);
    let next = planner.plan(&snapshot, &later);
    assert_eq!(crate::fleet::commands(&next), ["delete a (saves 0.20)"]);
    assert_eq!(text(&next), text(&plan(&snapshot, &later)));
}

/// Where a volume can be attached depends on more than the nodes and pods.
#[test]
fn a_change_of_storage_alters_the_nodes_whose_pods_have_volumes() {
    let mut world = kept_fleet();
    world.add([storage_class("fast"), storage_class("slow")]);
    let volume =
        |class: &str| persistent_volume_claim("data-0").set("/spec/storageClassName", class);
    world.add([volume("fast")]);
    world.add([running("stateful", "node-2", "100m").volume("data-0")]);
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    world.add([volume("slow")]);
    let snapshot = world.cluster.snapshot();
    let next = planner.plan(&snapshot, &request());
    assert_eq!((next.carried_over, next.evaluated), (5, 1));
    assert_eq!(text(&next), text(&plan(&snapshot, &request())));
}

/// Devices are allocated again in every simulation.
#[test]
fn pods_with_resource_claims_are_evaluated_in_every_pass() {
    let mut world = kept_fleet();
    let claim = json!({ "name": "gpu", "resourceClaimName": "c" });
    world.add([running("device", "node-2", "100m").push("/spec/resourceClaims", claim)]);
    let snapshot = world.cluster.snapshot();
    let mut planner = Planner::default();
    planner.plan(&snapshot, &request());
    let next = planner.plan(&snapshot, &request());
    assert_eq!((next.carried_over, next.evaluated), (5, 1));
}

/// A terminating pod of a StatefulSet comes back, and needs a place. It does not move while a budget allows no eviction at all.
#[test]
fn a_budget_that_no_longer_keeps_a_terminating_pod_alters_its_node() {
    let mut world = crate::fleet::world();
    let only = node("a", "small");
    world.add((only.claim, only.node));
    let terminating = pod("q")
        .cpu("1")
        .label("app", "db")
        .controlled_by("StatefulSet", "db")
        .on("a")
        .deleted("2026-01-01T00:00:00Z");
    world.add([terminating]);
    world.add([pdb("db").of(("app", "db")).set("/spec/maxUnavailable", 0)]);
    let mut planner = Planner::default();
    let decide = |planner: &mut Planner, world: &World| {
        let snapshot = world.cluster.snapshot();
        let next = planner.plan(&snapshot, &request());
        assert_eq!(text(&next), text(&plan(&snapshot, &request())));
        crate::fleet::commands(&next)
    };
    assert_eq!(decide(&mut planner, &world), ["delete a (saves 0.20)"]);
    world.cluster.remove_pdb("default", "db");
    assert_eq!(decide(&mut planner, &world), [""; 0]);
}

/// Returns full nodes with spread pods, and one with other pods.
fn spread_fleet() -> World {
    let mut world = crate::fleet::world();
    for number in 0..6 {
        let name = format!("node-{number}");
        let node = node(&name, "medium");
        world.add((node.claim, node.node));
        let large = running(&format!("large-{number}"), &name, "2500m");
        let spread = |pod: crate::fixture::Object<crate::fixture::Pod>| {
            pod.label("app", "x").spread(ZONE, 9, ("app", "x"))
        };
        world.add([if number == 5 { large } else { spread(large) }]);
        world.add([running(&format!("small-{number}"), &name, "500m")]);
    }
    world
}

#[test]
fn a_pod_that_a_spread_does_not_count_alters_no_spread_pods_by_leaving() {
    let mut world = spread_fleet();
    // Beside the pod that leaves one stays that the spread counts.
    world.add([running("stays", "node-5", "100m").label("app", "x")]);
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    world.cluster.remove_pod("default", "small-5");
    let next = planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!((next.carried_over, next.evaluated), (5, 1));
}

#[test]
fn a_label_of_one_of_several_nodes_in_a_zone_alters_no_spread_elsewhere() {
    let mut world = spread_fleet();
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    let relabeled = node("node-5", "medium").label("disk", "ssd");
    world.add((relabeled.claim, relabeled.node));
    let next = planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!((next.carried_over, next.evaluated), (5, 1));
}

#[test]
fn pods_that_block_the_deletion_of_a_node_alter_every_node_by_leaving() {
    let mut world = spread_fleet();
    world.add([crate::fixture::node("gone")
        .zone(Z1)
        .set("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z")]);
    world.add(["a", "b"].map(|name| running(name, "gone", "100m").do_not_disrupt()));
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!(
        planner
            .plan(&world.cluster.snapshot(), &request())
            .carried_over,
        6
    );
    world.cluster.remove_pod("default", "b");
    let next = planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!(next.carried_over, 0);
}

#[test]
fn new_nodes_are_tried_in_the_order_of_their_names() {
    let mut world = kept_fleet();
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    for name in ["node-9", "node-00", "node-33"] {
        let new = node(name, "medium").without("Consolidatable");
        world.add((new.claim, new.node));
    }
    let snapshot = world.cluster.snapshot();
    let next = planner.plan(&snapshot, &request());
    assert_eq!(text(&next), text(&plan(&snapshot, &request())));
}

#[test]
fn anti_affinity_of_a_leaving_pod_alters_nodes_whose_pods_it_kept_away() {
    let mut world = kept_fleet();
    let selected = ("app", "y");
    world.add([running("kept-away", "node-0", "100m").label("app", "y")]);
    world.add([running("guard", "node-5", "100m").anti_affinity(ZONE, selected)]);
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    world.cluster.remove_pod("default", "guard");
    let snapshot = world.cluster.snapshot();
    let next = planner.plan(&snapshot, &request());
    assert_eq!((next.carried_over, next.evaluated), (4, 2));
    assert_eq!(text(&next), text(&plan(&snapshot, &request())));
}

#[test]
fn another_annotation_of_a_node_alters_no_evaluation() {
    let mut world = kept_fleet();
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    let annotated = node("node-0", "medium").node("/metadata/annotations", json!({ "a": "b" }));
    world.add((annotated.claim, annotated.node));
    let next = planner.plan(&world.cluster.snapshot(), &request());
    assert_eq!((next.carried_over, next.evaluated), (6, 0));
}

/// Plans for a fleet, changes it, plans again; returns how many evaluations were carried over and how many were made.
fn after(world: &mut World, change: impl FnOnce(&mut World)) -> (usize, usize) {
    let mut planner = Planner::default();
    planner.plan(&world.cluster.snapshot(), &request());
    change(world);
    let snapshot = world.cluster.snapshot();
    let next = planner.plan(&snapshot, &request());
    assert_eq!(text(&next), text(&plan(&snapshot, &request())));
    (next.carried_over, next.evaluated)
}

#[test]
fn a_new_node_without_room_alters_no_evaluation() {
    for name in ["a", "node-33", "z"] {
        let mut world = kept_fleet();
        let add_full_node = |world: &mut World| {
            let full = node(name, "medium").without("Consolidatable");
            world.add((full.claim, full.node));
            world.add([running("full", name, "3900m")]);
        };
        assert_eq!(after(&mut world, add_full_node), (6, 0), "{name}");
    }
}

#[test]
fn a_pod_that_a_spread_counts_alters_the_spread_pods_elsewhere_by_leaving() {
    let mut world = spread_fleet();
    world.add([running("counted", "node-5", "100m").label("app", "x")]);
    let leave = |world: &mut World| {
        world.cluster.remove_pod("default", "counted");
    };
    assert_eq!(after(&mut world, leave), (0, 6));
}

#[test]
fn a_replaced_pod_with_other_labels_alters_the_spread_pods_elsewhere() {
    let mut world = spread_fleet();
    let replace = |world: &mut World| {
        world.cluster.remove_pod("default", "small-5");
        world.add([running("other", "node-5", "500m").label("app", "x")]);
    };
    assert_eq!(after(&mut world, replace), (0, 6));
}

/// Returns the same fleet, of which these nodes are in zone 2.
fn in_two_zones(second: &[usize]) -> World {
    let mut world = spread_fleet();
    for number in second {
        let moved = node(&format!("node-{number}"), "medium").label(ZONE, Z2);
        world.add((moved.claim, moved.node));
    }
    world
}

#[test]
fn a_node_that_takes_pods_to_another_zone_alters_spread_pods_elsewhere() {
    // Both zones have two other nodes.
    let mut world = in_two_zones(&[3, 4]);
    world.add([running("counted", "node-5", "100m").label("app", "x")]);
    let move_to_second_zone = |world: &mut World| {
        let moved = node("node-5", "medium").label(ZONE, Z2);
        world.add((moved.claim, moved.node));
    };
    assert_eq!(after(&mut world, move_to_second_zone), (0, 6));
}

#[test]
fn a_label_of_one_of_two_nodes_in_a_zone_alters_the_spread_elsewhere() {
    let relabel = |world: &mut World| {
        let relabeled = node("node-5", "medium")
            .label(ZONE, Z2)
            .label("disk", "ssd");
        world.add((relabeled.claim, relabeled.node));
    };
    assert_eq!(after(&mut in_two_zones(&[4, 5]), relabel), (0, 6));
    // A deletion of one of the two other nodes leaves the zone a node.
    assert_eq!(after(&mut in_two_zones(&[3, 4, 5]), relabel), (5, 1));
}

#[test]
fn a_pod_that_waits_alters_every_node() {
    let mut world = kept_fleet();
    let add_waiting = |world: &mut World| {
        world.add([pod("waiting").cpu("100m").condition(
            "PodScheduled",
            "False",
            "Unschedulable",
            "2025-12-31T00:00:00Z",
        )]);
    };
    assert_eq!(after(&mut world, add_waiting), (0, 6));
}

/// Returns the fleet with a pod on `node-0` that anti-affinity by this label of a pod on `node-4` keeps from other nodes. `node-5` has
/// no room for it.
fn with_guard(key: &str) -> World {
    let mut world = kept_fleet();
    let selected = ("app", "y");
    world.add([
        running("kept-away", "node-0", "100m").label("app", "y"),
        running("guard", "node-4", "100m").anti_affinity(key, selected),
        running("filler", "node-5", "1000m"),
    ]);
    world
}

#[test]
fn anti_affinity_that_is_gone_alters_the_pods_it_kept_away() {
    let mut world = with_guard(ZONE);
    world.add([running("other-guard", "node-5", "100m").anti_affinity(ZONE, ("app", "z"))]);
    let replace = |world: &mut World| {
        world.cluster.remove_pod("default", "filler");
        world.add([running("filler-2", "node-5", "1000m").anti_affinity(ZONE, ("app", "y"))]);
    };
    // Only the pod that is kept away is selected by the new term.
    assert_eq!(after(&mut world, replace), (4, 2));
}

#[test]
fn a_node_that_leaves_its_zone_alters_pods_kept_from_it_by_anti_affinity() {
    let moved = |world: &mut World| {
        let moved = node("node-5", "medium").label(ZONE, Z2);
        world.add((moved.claim, moved.node));
    };
    // The guard itself is under a constraint by that label.
    assert_eq!(after(&mut with_guard(ZONE), moved), (3, 3));
    assert_eq!(after(&mut with_guard(HOSTNAME), moved), (5, 1));
}

#[test]
fn a_pod_that_a_preference_counts_alters_the_pods_that_have_it_by_leaving() {
    let preferring = [
        |pod: Object<Pod>| pod.prefer_affinity(1, ZONE, ("app", "x")),
        |pod: Object<Pod>| {
            let soft = json!({ "whenUnsatisfiable": "ScheduleAnyway" });
            pod.spread_with(ZONE, 1, ("app", "x"), soft)
        },
    ];
    for prefers in preferring {
        let mut world = kept_fleet();
        world.add([
            prefers(running("prefers", "node-0", "100m")),
            running("counted", "node-5", "100m").label("app", "x"),
            running("filler", "node-5", "900m"),
        ]);
        let replace = |world: &mut World| {
            world.cluster.remove_pod("default", "counted");
            world.add([running("other", "node-5", "100m")]);
        };
        assert_eq!(after(&mut world, replace), (4, 2));
    }
}

#[test]
fn nothing_is_carried_over_while_more_than_64_pods_are_pending() {
    for (pending, carried_over) in [(64, 6), (65, 0)] {
        let mut world = kept_fleet();
        let unschedulable = |pod: Object<Pod>| {
            pod.condition(
                "PodScheduled",
                "False",
                "Unschedulable",
                "2025-12-31T00:00:00Z",
            )
        };
        world.add(
            (0..pending)
                .map(|index| unschedulable(pod(&format!("pending-{index}")).cpu("100")))
                .collect::<Vec<_>>(),
        );
        assert_eq!(after(&mut world, |_| ()).0, carried_over, "{pending} pods");
    }
}

#[test]
fn another_rule_for_spot_nodes_alters_every_node() {
    let snapshot = kept_fleet().cluster.snapshot();
    let mut planner = Planner::default();
    planner.plan(&snapshot, &request());
    let next = planner.plan(&snapshot, &request().with_spot_to_spot(true));
    assert_eq!((next.carried_over, next.evaluated), (0, 6));
}

/// A terminating pod of a StatefulSet comes back, and needs a place. It does not move while its annotation protects it.
#[test]
fn an_annotation_that_no_longer_protects_a_pod_alters_its_node() {
    let mut world = crate::fleet::world();
    let only = node("a", "small");
    world.add((only.claim, only.node));
    world.add([pod("q")
        .cpu("1")
        .controlled_by("StatefulSet", "db")
        .on("a")
        .deleted("2026-01-01T00:00:00Z")
        .set("/status/startTime", "2025-12-31T23:59:00Z")
        .annotation("karpenter.sh/do-not-disrupt", "5m")]);
    let snapshot = world.cluster.snapshot();
    let mut planner = Planner::default();
    let first = planner.plan(&snapshot, &request());
    assert_eq!(crate::fleet::commands(&first), ["delete a (saves 0.20)"]);
    let mut later = request();
    later.policy.now += SignedDuration::from_mins(10);
    let next = planner.plan(&snapshot, &later);
    assert_eq!(text(&next), text(&plan(&snapshot, &later)));
    assert_eq!(crate::fleet::commands(&next), [""; 0]);
}
