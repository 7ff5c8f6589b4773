//! The controller or the API server is killed in the middle of a burst.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::case::{Case, SOON};
use crate::cluster::{Cluster, claims_and_nodes_belong_together};
use crate::objects::NODE_CLAIMS;
use crate::wait::until;

/// Pods of a burst.
const PODS: usize = 400;

/// Starts a burst, and returns when some nodes are launched and others are not.
async fn burst(case: &Case) -> Result<()> {
    // One node for eight pods: enough nodes to interrupt their launches.
    let small = json!([
        { "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] },
        { "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] },
        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
        { "key": "karpenter.kwok.sh/instance-cpu", "operator": "In", "values": ["8"] },
    ]);
    case.pool(json!({ "template": { "spec": { "requirements": small } } }))
        .await?;
    case.deploy("work", u32::try_from(PODS)?, "900m", json!({}))
        .await?;
    let claims = NODE_CLAIMS.all(&case.client);
    until("ten NodeClaims", &claims, &case.selector(), SOON, |seen| {
        Ok((seen.len() >= 10).then_some(()))
    })
    .await
}

/// Every pod runs, every node has a NodeClaim, and there are no more of them than the pods need.
async fn nothing_is_lost_or_doubled(case: &Case) -> Result<()> {
    case.until_running(PODS, Duration::from_secs(180)).await?;
    let selector = case.selector();
    let claims = NODE_CLAIMS.all(&case.client);
    until(
        "every NodeClaim is initialized",
        &claims,
        &selector,
        SOON,
        |seen| {
            let good = |claim| crate::objects::condition(claim, "Initialized") == "True";
            Ok(seen.values().all(good).then_some(()))
        },
    )
    .await?;
    let nodes = claims_and_nodes_belong_together(&case.client, &selector).await?;
    // Eight pods of 900 millicores fit in 7.9 CPUs; some nodes are planned while pods are bound elsewhere.
    ensure!(
        (PODS / 8..=PODS / 8 * 5 / 4).contains(&nodes),
        "{nodes} nodes for {PODS} pods"
    );
    Ok(())
}

/// No object is lost and no node launched twice when the controller is killed in a burst.
pub(super) async fn killed_in_a_burst(cluster: &mut Cluster, case: Case) -> Result<()> {
    burst(&case).await?;
    let controller = cluster.controller()?;
    controller.kill();
    controller.start_again()?;
    nothing_is_lost_or_doubled(&case).await
}

/// No object is lost and no node launched twice when the API server is down for twenty seconds. As Karpenter in Go, the
/// controller may then lose its lease and exit, and is restarted.
pub(super) async fn api_server_gone(cluster: &mut Cluster, case: Case) -> Result<()> {
    burst(&case).await?;
    without_api_server(cluster).await?;
    nothing_is_lost_or_doubled(&case).await?;
    cluster.controller()?.is_running()
}

/// Kills the API server for twenty seconds, and starts the controller again if it has exited.
pub(super) async fn without_api_server(cluster: &mut Cluster) -> Result<()> {
    cluster.plane.kill_api_server();
    tokio::time::sleep(Duration::from_secs(20)).await;
    cluster.plane.start_api_server().await?;
    let controller = cluster.controller()?;
    if controller.has_ended()? {
        controller.start_again()?;
    }
    Ok(())
}
