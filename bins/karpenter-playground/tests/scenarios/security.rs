//! What somebody could try who can write some objects, and what stops it (`docs/SECURITY.md`).

use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_kwok::KwokNodeClass;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::world::{World, pool, settings};

async fn world(spec: Value) -> World {
    let world = World::bare(settings()).await;
    world.create(&KwokNodeClass::new("default")).await;
    world.create(&pool("default", spec)).await;
    world
}

async fn patch_node(world: &World, name: &str, patch: Value) {
    let nodes: Api<Node> = world.api();
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// The node of a pool with `expireAfter: 20m` is there until then, and not much longer.
async fn expires(world: &World, name: &str) {
    let is_there = async |world: &World| {
        let nodes = world.nodes().await;
        nodes
            .iter()
            .any(|node| node.metadata.name.as_deref() == Some(name))
    };
    world.pass(900).await;
    assert!(is_there(world).await, "nothing else ends it");
    world
        .until(600, "it is replaced", async |w| !is_there(w).await)
        .await;
}

/// Labels decide nothing about whose machine a node is: one that is no NodeClaim's is left as it is, whatever it says of itself.
#[tokio::test(start_paused = true)]
async fn a_foreign_node_that_carries_karpenters_labels_is_left_alone() {
    let world = world(json!({})).await;
    let foreign: Node = serde_json::from_value(json!({
        "metadata": { "name": "foreign", "labels": {
            "karpenter.sh/nodepool": "default", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
            "karpenter.sh/capacity-type": "on-demand", "node.kubernetes.io/instance-type": "c-4x-amd64-linux",
        } },
        "spec": { "providerID": "other:///foreign" },
        "status": {
            "capacity": { "cpu": "4", "memory": "8Gi", "pods": "110" },
            "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "110" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    }))
    .unwrap();
    world.create(&foreign).await;
    world.pass(1_800).await;
    let nodes = world.nodes().await;
    assert_eq!(nodes.len(), 1, "empty for half an hour, and still there");
    let spec = nodes[0].spec.as_ref().unwrap();
    let taints = spec.taints.iter().flatten();
    assert_eq!(
        taints
            .filter(|taint| taint.key.starts_with("karpenter.sh/"))
            .count(),
        0
    );
    assert!(nodes[0].metadata.deletion_timestamp.is_none());
}

/// A kubelet may write its own labels; its machine goes with its NodeClaim all the same.
#[tokio::test(start_paused = true)]
async fn a_node_that_hides_its_labels_still_expires() {
    let spec = json!({ "template": { "spec": { "expireAfter": "20m" } } });
    let world = world(spec).await;
    world.deploy("app", 1).await;
    world.until_running(1, 60).await;
    let node = world.nodes().await.remove(0).metadata.name.unwrap();
    let hidden = json!({ "metadata": { "labels": {
        "karpenter.sh/nodepool": null, "karpenter.sh/registered": null, "karpenter.sh/initialized": null,
    } } });
    patch_node(&world, &node, hidden).await;
    expires(&world, &node).await;
    world.until_running(1, 120).await;
    world.assert_no_orphans().await;
}

/// The annotation counts on the NodeClaim and the pods; what a node writes about itself keeps it from being consolidated, not from the
/// end that its owner gave it.
#[tokio::test(start_paused = true)]
async fn a_node_that_asks_not_to_be_disrupted_still_expires() {
    let spec = json!({ "template": { "spec": { "expireAfter": "20m" } } });
    let world = world(spec).await;
    world.deploy("app", 1).await;
    world.until_running(1, 60).await;
    let node = world.nodes().await.remove(0).metadata.name.unwrap();
    let keep = json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "true" } } });
    patch_node(&world, &node, keep).await;
    expires(&world, &node).await;
}

/// Pods cannot buy without end.
#[tokio::test(start_paused = true)]
async fn pods_buy_no_more_than_the_limits() {
    let world = world(json!({ "limits": { "cpu": "20" } })).await;
    world.deploy("app", 100).await;
    world.pass(300).await;
    let pool: NodePool = world.api().get("default").await.unwrap();
    let used = &pool.status.resources["cpu"].0;
    let used: f64 = used.parse().unwrap();
    assert!(used > 0.0 && used <= 20.0, "{used} CPUs of 20");
    let claims: Vec<NodeClaim> = world.claims().await;
    let waiting = world.pods().await.into_iter().filter(|pod| {
        let spec = pod.spec.as_ref().unwrap();
        spec.node_name.is_none()
    });
    assert!(!claims.is_empty() && waiting.count() >= 80);
}
