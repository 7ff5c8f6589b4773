//! Restarted controllers lack a part of the cluster at first: no drain ends too early (invariant I7). `karpenter-sim` kills them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::NodeClaim;
use karpenter_fixtures::pdb;
use karpenter_testbed::faults::{Fault, Rule};

use crate::world::{World, node_pool};

#[tokio::test(start_paused = true)]
async fn a_draining_instance_survives_a_restart_in_every_order_of_lists() {
    let mut world = World::new().await;
    world.run("app", 2).await;
    world.add(pdb("app").max_unavailable(0)).await;
    world.pass(5).await;
    let claim = world.claim().await;
    world.delete::<NodeClaim>(claim.name()).await;
    world.pass(60).await;
    let before = pods(&world).await;
    for late in ["nodes", "pods", "nodeclaims", "poddisruptionbudgets"] {
        world.cluster.stop_controllers().await;
        let slow = Rule::new(Fault::Latency(Duration::from_secs(60)));
        let slow = slow.verb("list").resource(late);
        world.cluster.testbed.faults().set(vec![slow]);
        world.cluster.start_controllers();
        world.pass(120).await;
        assert_eq!(pods(&world).await, before, "{late} are listed last");
        let instances = world.cluster.cloud.instances();
        let there = instances.iter().any(|m| m.claim_uid == claim.uid());
        assert!(there, "{late} are listed last");
    }
}

/// Returns name and node of every pod.
async fn pods(world: &World) -> Vec<(Option<String>, Option<String>)> {
    let all = world.pods().await;
    let of = |pod: k8s_openapi::api::core::v1::Pod| {
        (pod.metadata.name, pod.spec.and_then(|spec| spec.node_name))
    };
    all.into_iter().map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_pods_that_the_controllers_have_not_observed() {
    let mut world = World::with(node_pool("default").budgets(&["0"])).await;
    world.run("first", 1).await;
    world.scale("first", 0).await;
    world.pass(10).await;
    world.cluster.stop_controllers().await;
    let broken = Rule::new(Fault::Error(500));
    let broken = broken.verb("watch").resource("pods");
    world.cluster.testbed.faults().set(vec![broken]);
    world.cluster.start_controllers();
    world.pass(10).await;
    world.run("second", 1).await;
    let node = world.node_name().await;
    world.delete::<Node>(&node).await;
    world.pass(60).await;
    assert_eq!(world.progress().await.running, 1, "its instance is running");
    world.cluster.testbed.faults().clear();
    world.until_gone::<Node>(&node, 120).await;
    world.until_running(1, 120).await;
}
