//! Another component of the cluster works against the controller.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, pin_mut};
use kube::runtime::{WatchStreamExt as _, watcher};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::case::Case;
use crate::objects::{merge, name};

/// How long nodes are tainted.
const LONG: Duration = Duration::from_secs(100);

/// A controller taints every new node, so that its pod never fits: at most one new node every ten seconds, as with Karpenter in
/// Go.
pub(super) async fn every_node_is_tainted(case: Case) -> Result<()> {
    case.pool(json!({ "disruption": { "consolidateAfter": "30s" } }))
        .await?;
    let nodes = case.nodes();
    let selector = case.selector();
    let tainted: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let seen = Arc::clone(&tainted);
    let taints = async move {
        let config = watcher::Config::default().labels(&selector);
        let objects = watcher::watcher(nodes.clone(), config)
            .default_backoff()
            .applied_objects();
        pin_mut!(objects);
        while let Some(node) = objects.next().await {
            let Ok(node) = node else { continue };
            let node = serde_json::to_value(node)?;
            let mut taints = node["spec"]["taints"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            if taints
                .iter()
                .any(|taint| taint["key"] == "real-cluster/chaos")
            {
                continue;
            }
            seen.lock().insert(name(&node).to_owned());
            taints.push(json!({ "key": "real-cluster/chaos", "effect": "NoExecute" }));
            // A node may be deleted by now, or have another taint; its next change is handled, too.
            let version: &Value = &node["metadata"]["resourceVersion"];
            let patch =
                json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
            let _ = merge(&nodes, name(&node), patch).await;
        }
        anyhow::bail!("the watch has ended")
    };
    case.deploy("work", 1, "500m", json!({})).await?;
    let most = async {
        let mut most = 0;
        case.nodes_stay(LONG, |seen| {
            most = most.max(seen.len());
            ensure!(most < 35, "{most} nodes at a time");
            Ok(())
        })
        .await?;
        Ok::<_, anyhow::Error>(most)
    };
    let most = tokio::select! {
        ended = taints => ended?,
        most = most => most?,
    };
    let made = tainted.lock().len();
    let allowed = usize::try_from(LONG.as_secs() / 10)? + 2;
    ensure!(
        (2..=allowed).contains(&made),
        "{made} nodes in {} s, {most} at a time",
        LONG.as_secs()
    );
    Ok(())
}
