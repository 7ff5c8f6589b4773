//! Attacks by users with permission to write some objects, and their mitigations (`docs/SECURITY.md`).

use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::world::{World, node_pool};

/// The node of a NodePool with `expireAfter: 20m` exists until then, and not much longer.
async fn expires(world: &World, name: &str) {
    let is_there = async |world: &World| {
        let nodes = world.nodes().await;
        nodes
            .iter()
            .any(|node| node.metadata.name.as_deref() == Some(name))
    };
    world.pass(900).await;
    assert!(is_there(world).await, "nothing else deletes it");
    until!(world, 600, "it is replaced", |w| !is_there(w).await);
}

/// Nodes are not matched to NodeClaims by labels: a node without a NodeClaim is not changed, whatever its labels are.
#[tokio::test(start_paused = true)]
async fn an_unmanaged_node_with_karpenters_labels_is_not_changed() {
    let world = World::with(node_pool("default")).await;
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
    assert_eq!(nodes.len(), 1, "empty for half an hour, and not deleted");
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

/// A kubelet may write the labels of its own Node; its node is still deleted with its NodeClaim.
#[tokio::test(start_paused = true)]
async fn a_node_that_hides_its_labels_still_expires() {
    let world = World::with(node_pool("default").expire_after("20m")).await;
    world.run("app", 1).await;
    let node = world.node_name().await;
    let hidden = json!({ "metadata": { "labels": {
        "karpenter.sh/nodepool": null, "karpenter.sh/registered": null, "karpenter.sh/initialized": null,
    } } });
    world.patch::<Node>(&node, hidden).await;
    expires(&world, &node).await;
    world.until_running(1, 120).await;
    world.assert_no_orphans().await;
}

/// Conformance: DIS-206
/// The annotation counts on the NodeClaim and on pods; on a Node, which its kubelet may annotate, it blocks consolidation, but
/// not the expiration that the NodePool's owner has set.
#[tokio::test(start_paused = true)]
async fn a_node_with_do_not_disrupt_still_expires() {
    let world = World::with(node_pool("default").expire_after("20m")).await;
    world.run("app", 1).await;
    let node = world.node_name().await;
    let keep = json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "true" } } });
    world.patch::<Node>(&node, keep).await;
    expires(&world, &node).await;
}
