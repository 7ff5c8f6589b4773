//! Nodes are launched for pods, static NodePools and buffers, and terminated when they are empty.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::case::{Case, SOON, is_leaving};
use crate::cluster::claims_and_nodes_belong_together;
use crate::objects::{BUFFERS, NODE_CLAIMS, NODE_POOLS, condition, merge};
use crate::wait::until;

/// Nodes for a hundred pods are launched, and terminated without the pods.
pub(super) async fn out_and_in(case: Case) -> Result<()> {
    case.pool(json!({ "disruption": { "consolidateAfter": "5s" } }))
        .await?;
    case.deploy("work", 100, "1", json!({})).await?;
    case.until_running(100, SOON).await?;
    let nodes = claims_and_nodes_belong_together(&case.client, &case.selector()).await?;
    ensure!(nodes <= 20, "{nodes} nodes for 100 pods of a CPU");
    case.scale("work", 0).await?;
    let gone = |seen: &crate::wait::Seen| Ok(seen.is_empty().then_some(()));
    case.until_nodes("empty nodes are deleted", SOON, gone)
        .await
}

/// A static NodePool keeps its number of nodes, regardless of pods.
pub(super) async fn static_pool(case: Case) -> Result<()> {
    case.pool(json!({ "replicas": 3, "disruption": null, "limits": { "nodes": "6" } }))
        .await?;
    case.until_node_count(3, SOON).await?;
    let pools = NODE_POOLS.all(&case.client);
    for replicas in [5, 1] {
        merge(
            &pools,
            case.name,
            json!({ "spec": { "replicas": replicas } }),
        )
        .await?;
        case.until_node_count(replicas, SOON).await?;
    }
    let claims = NODE_CLAIMS.all(&case.client);
    until(
        "one NodeClaim is left",
        &claims,
        &case.selector(),
        SOON,
        |seen| Ok((seen.len() == 1).then_some(())),
    )
    .await?;
    claims_and_nodes_belong_together(&case.client, &case.selector()).await?;
    Ok(())
}

/// The instance type that a NodeOverlay makes the cheapest is launched.
pub(super) async fn overlay(case: Case) -> Result<()> {
    let overlay = json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": case.name },
        "spec": {
            "requirements": [{ "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m-8x-arm64-linux"] }],
            "price": "0.0001",
        },
    });
    crate::objects::apply(&case.client, &overlay).await?;
    let overlays = crate::objects::api_of(&case.client, &overlay)?;
    until("the overlay is ready", &overlays, "", SOON, |seen| {
        Ok(seen
            .values()
            .any(|o| condition(o, "Ready") == "True")
            .then_some(()))
    })
    .await?;
    // The only NodePool with nodes of this architecture.
    let requirements = json!([
        { "key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"] },
        { "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] },
        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
    ]);
    case.pool(json!({ "template": { "spec": { "requirements": requirements } } }))
        .await?;
    case.deploy("work", 1, "500m", json!({})).await?;
    case.until_running(1, SOON).await?;
    let node = case.only_node().await?;
    let launched = &node["metadata"]["labels"]["node.kubernetes.io/instance-type"];
    ensure!(launched == "m-8x-arm64-linux", "{launched} was launched");
    crate::objects::delete(&overlays, case.name).await
}

/// A CapacityBuffer launches spare nodes, and keeps them.
pub(super) async fn buffer(case: Case) -> Result<()> {
    let small = json!([
        { "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] },
        { "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] },
        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
        { "key": "karpenter.kwok.sh/instance-cpu", "operator": "In", "values": ["2"] },
    ]);
    case.pool(json!({
        "template": { "spec": { "requirements": small } },
        "disruption": { "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s" },
    }))
    .await?;
    case.apply(json!({
        "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": "spare" },
        "template": { "spec": {
            "nodeSelector": { "real-cluster": case.name },
            "containers": [{ "name": "pause", "image": "pause", "resources": { "requests": { "cpu": "1" } } }],
        } },
    }))
    .await?;
    case.apply(json!({
        "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": { "name": "spare" },
        "spec": { "podTemplateRef": { "name": "spare" }, "replicas": 2 },
    }))
    .await?;
    let nodes = case.until_node_count(2, SOON).await?;
    let buffers = BUFFERS.of_namespace(&case.client, case.name);
    until("the buffer is provisioned", &buffers, "", SOON, |seen| {
        let held = |b: &Value| condition(b, "Provisioning") == "True";
        Ok(seen.values().any(held).then_some(()))
    })
    .await?;
    // Empty nodes are consolidated 20 seconds after their launch.
    case.nodes_stay(Duration::from_secs(45), |seen| {
        let same = nodes.iter().all(|node| {
            let mut now = seen
                .values()
                .filter(|n| n["metadata"]["uid"] == node["metadata"]["uid"]);
            now.any(|n| !is_leaving(n))
        });
        ensure!(
            same && seen.len() == 2,
            "the nodes of the buffer are not kept"
        );
        Ok(())
    })
    .await
}
