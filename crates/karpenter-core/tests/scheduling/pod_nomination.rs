//! Nomination of pods to nodes (feature gate `PodNomination`): what is written into `status.nominatedNodeName`, and when.

use karpenter_api::k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::labels::{self, taints};
use karpenter_core::lifecycle::provisioning::Event;
use karpenter_fixtures::{Object, bare_node, claim_of, node};
use serde_json::json;

use crate::fixture::World;
use crate::process::Stage;

fn pod(name: &str) -> Object<Pod> {
    crate::fixture::pod(name).cpu("1")
}

/// Returns a stage with the gate on, after these pods have been planned onto the NodeClaim `new-1`.
fn planned(pods: &[&str]) -> Stage {
    let pods: Vec<_> = pods.iter().map(|name| pod(name)).collect();
    let mut stage = Stage::new(World::new().with(pods)).nominating();
    stage.plan();
    stage
}

fn registering(stage: &mut Stage) -> Vec<String> {
    stage.on(Event::Registering {
        claim: "new-1".into(),
        node: "node-1".into(),
    })
}

/// The Node of `new-1`, which is registered and initialized.
fn joined() -> Object<Node> {
    node("node-1")
        .cpu("64")
        .memory("64Gi")
        .pods("100")
        .label(labels::REGISTERED, "true")
        .label(labels::INITIALIZED, "true")
}

fn join(stage: &mut Stage) {
    let node = joined();
    let claim = claim_of(&node).renamed("new-1");
    stage.world.cluster.apply_node(&node.build());
    stage.world.cluster.apply_node_claim(&claim.build());
}

/// A pod as the API server has it once its nominated node was written by `manager`.
fn nominated(stage: &mut Stage, name: &str, node: &str, manager: &str) {
    let fields = json!({ "f:status": { "f:nominatedNodeName": {} } });
    let written = pod(name).set("/status/nominatedNodeName", node).push(
        "/metadata/managedFields",
        json!({ "manager": manager, "fieldsV1": fields }),
    );
    stage.world.cluster.apply_pod(&written.build());
}

#[test]
fn pods_are_nominated_in_the_order_of_the_plan_when_their_node_registers() {
    let mut stage = planned(&["b", "c", "a"]);
    assert_eq!(
        stage.on(Event::Check),
        ["nominate new-1"],
        "there is no Node yet"
    );
    let order: Vec<&str> = stage.order.iter().map(String::as_str).collect();
    let expected = order.iter().map(|pod| format!(" {pod} to node-1"));
    let expected: String = expected.collect();
    assert_eq!(order.len(), 3);
    assert_eq!(registering(&mut stage), [format!("write{expected}")]);
}

#[test]
fn without_the_gate_no_pod_is_nominated() {
    let mut stage = Stage::new(World::new().with(pod("p")));
    stage.plan();
    assert_eq!(registering(&mut stage), [""; 0]);
    join(&mut stage);
    assert_eq!(stage.on(Event::Check), ["nominate new-1"]);
}

#[test]
fn a_pod_planned_onto_an_existing_node_is_nominated_at_once() {
    let mut stage = Stage::new(World::new().with(pod("p"))).nominating();
    join(&mut stage);
    let effects = stage.plan();
    assert_eq!(effects.last().unwrap(), "write p to node-1");
}

#[test]
fn a_nomination_that_stands_is_not_written_again() {
    let mut stage = planned(&["p"]);
    join(&mut stage);
    nominated(&mut stage, "p", "node-1", "karpenter");
    assert_eq!(registering(&mut stage), [""; 0]);
    assert_eq!(stage.on(Event::Check), ["nominate new-1"]);
}

#[test]
fn a_nomination_that_kube_scheduler_removed_is_written_with_growing_delay() {
    let mut stage = planned(&["p"]);
    registering(&mut stage);
    join(&mut stage);
    let mut waits = Vec::new();
    for _ in 0..4 {
        stage.process.denominated(stage.now);
        let began = stage.now;
        loop {
            stage.now = stage.process.checks(stage.now);
            if stage
                .on(Event::Check)
                .contains(&"write p to node-1".to_owned())
            {
                break;
            }
        }
        waits.push(stage.now.duration_since(began).as_secs());
    }
    // While the place holds for ten seconds: afterwards the pod is planned again.
    assert_eq!(waits, [1, 2, 4, 8]);
}

#[test]
fn a_nomination_whose_plan_has_changed_is_removed() {
    let mut stage = planned(&["p"]);
    join(&mut stage);
    nominated(&mut stage, "p", "node-1", "karpenter");
    // Pods that kube-scheduler bound use the node.
    let other = pod("other").cpu("64").on("node-1");
    stage.world.cluster.apply_pod(&other.build());
    let effects = stage.on(Event::Check);
    assert!(
        effects.contains(&"write p to none".to_owned()),
        "{effects:?}"
    );
}

#[test]
fn a_nomination_to_a_deleted_or_tainted_node_is_removed() {
    let deleted = joined().set("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z");
    let tainted = joined().taint(taints::DISRUPTED, "", "NoSchedule");
    for leaving in [deleted, tainted] {
        let mut stage = planned(&["p"]);
        join(&mut stage);
        nominated(&mut stage, "p", "node-1", "karpenter");
        // The deletion of its NodeClaim is not reported yet.
        stage.world.cluster.apply_node(&leaving.build());
        let effects = stage.on(Event::Check);
        assert!(
            effects.contains(&"write p to none".to_owned()),
            "{effects:?}"
        );
    }
}

#[test]
fn no_pod_is_nominated_to_a_registering_node_that_a_user_deletes() {
    let mut stage = planned(&["p"]);
    let deleted = bare_node("node-1").set("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z");
    stage.world.cluster.apply_node(&deleted.build());
    assert_eq!(registering(&mut stage), [""; 0]);
}

#[test]
fn a_pod_that_preemption_nominated_is_left_alone() {
    let mut stage = planned(&["p"]);
    join(&mut stage);
    nominated(&mut stage, "p", "elsewhere", "kube-scheduler");
    assert_eq!(registering(&mut stage), [""; 0]);
    assert_eq!(stage.on(Event::Check), ["idle"]);
}

#[test]
fn pods_that_are_gone_gated_or_of_another_scheduler_are_left_alone() {
    for change in ["gone", "bound", "gated", "scheduler"] {
        let mut stage = planned(&["p"]);
        let cluster = &mut stage.world.cluster;
        match change {
            "gone" => drop(cluster.remove_pod("default", "p")),
            "bound" => drop(cluster.apply_pod(&pod("p").on("elsewhere").build())),
            "gated" => drop(
                cluster.apply_pod(
                    &pod("p")
                        .set("/status/conditions/0/reason", "SchedulingGated")
                        .build(),
                ),
            ),
            _ => drop(cluster.apply_pod(&pod("p").set("/spec/schedulerName", "other").build())),
        }
        assert_eq!(registering(&mut stage), [""; 0], "{change}");
    }
}

#[test]
fn a_pod_of_the_same_name_that_was_created_meanwhile_is_left_alone() {
    let mut stage = planned(&["p"]);
    stage
        .world
        .cluster
        .apply_pod(&pod("p").uid("another").build());
    assert_eq!(registering(&mut stage), [""; 0]);
}

#[test]
fn without_permission_no_more_pods_are_nominated() {
    let mut stage = planned(&["p"]);
    stage.process.end_pod_nomination();
    assert_eq!(registering(&mut stage), [""; 0]);
}

#[test]
fn a_pod_bound_elsewhere_makes_the_others_be_checked_within_a_second() {
    let bound = |node: &str| {
        let pod = pod("p").on(node).build();
        karpenter_core::pod::Pod::parse(&pod)
    };
    for (node, as_planned, wait) in [("node-1", true, 10), ("elsewhere", false, 1)] {
        let mut stage = planned(&["p"]);
        join(&mut stage);
        stage
            .world
            .cluster
            .apply_node(&bare_node("elsewhere").build());
        let snapshot = stage.world.cluster.snapshot();
        let compared = stage.process.bound(&bound(node), &snapshot, stage.now);
        assert_eq!(
            compared.map(|it| (it.as_planned, it.plans)),
            Some((as_planned, 1))
        );
        let checks = stage.process.checks(stage.now);
        assert_eq!(checks.duration_since(stage.now).as_secs(), wait, "{node}");
    }
}

#[test]
fn a_pod_that_kube_scheduler_has_not_tried_waits_for_a_minute() {
    for (manager, seconds) in [(None, 10), (Some("karpenter"), 60)] {
        let mut stage = planned(&["p"]);
        join(&mut stage);
        let began = stage.now;
        // The batch that was opened while the pod was planned.
        assert_eq!(stage.plan(), [""; 0]);
        loop {
            // A nominated node that kube-scheduler clears is written again; here it stands, or is never seen.
            if let Some(manager) = manager {
                nominated(&mut stage, "p", "node-1", manager);
            }
            stage.now = stage.process.checks(stage.now);
            stage.on(Event::Check);
            if stage.process.closes(stage.now).is_some() {
                break;
            }
        }
        assert_eq!(stage.now.duration_since(began).as_secs(), seconds);
    }
}
