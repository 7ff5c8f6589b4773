//! Nodes are disrupted for each reason, within budgets.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::case::{Case, SOON, is_leaving, one_on_each_node, running};
use crate::objects::{EVENTS, merge, merge_status, name};
use crate::wait::{FOREVER, Seen, until};

fn uids<'a>(nodes: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    let uid = |node: &Value| node["metadata"]["uid"].as_str().map(str::to_owned);
    nodes.into_iter().filter_map(uid).collect()
}

/// Whether there are this many nodes, all of them new.
fn replaced(seen: &Seen, old: &BTreeSet<String>, count: usize) -> Option<()> {
    let ready = seen.values().filter(|node| {
        node["metadata"]["labels"]["karpenter.sh/initialized"] == "true" && !is_leaving(node)
    });
    (seen.len() == count && ready.count() == count && uids(seen.values()).is_disjoint(old))
        .then_some(())
}

/// Makes every node of a NodePool drift.
fn drifting() -> Value {
    json!({ "template": { "metadata": { "labels": { "generation": "2" } } } })
}

/// No more nodes are disrupted at a time than the budget allows.
pub(super) async fn drift_within_the_budget(case: Case) -> Result<()> {
    let one = json!({ "budgets": [{ "nodes": "1" }] });
    case.pool(json!({ "disruption": one })).await?;
    case.deploy("work", 4, "500m", one_on_each_node("work"))
        .await?;
    case.until_running(4, SOON).await?;
    let old = uids(&case.until_node_count(4, SOON).await?);
    let mut drifted = drifting();
    drifted["disruption"] = one;
    case.pool(drifted).await?;
    let within = Duration::from_secs(240);
    case.until_nodes("four nodes are replaced", within, |seen| {
        let leaving = seen.values().filter(|node| is_leaving(node)).count();
        ensure!(leaving <= 1, "{leaving} nodes are disrupted at a time");
        Ok(replaced(seen, &old, 4))
    })
    .await
}

/// A PodDisruptionBudget blocks drift, and an event names it; one that allows a pod at a time is never exceeded.
pub(super) async fn drift_within_the_pdb(case: Case) -> Result<()> {
    case.pool(json!({})).await?;
    let budget = |unavailable: u32| {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "work" },
            "spec": { "maxUnavailable": unavailable, "selector": { "matchLabels": { "app": "work" } } },
        })
    };
    case.apply(budget(0)).await?;
    case.deploy("work", 4, "500m", one_on_each_node("work"))
        .await?;
    case.until_running(4, SOON).await?;
    let old = uids(&case.until_node_count(4, SOON).await?);
    case.pool(drifting()).await?;
    let events = EVENTS.all(&case.client);
    until(
        "DisruptionBlocked names the PDB",
        &events,
        "",
        SOON,
        |seen| {
            let named = format!("{}/work", case.name);
            let blocked = seen.values().any(|event| {
                let message = event["message"].as_str().unwrap_or_default();
                event["reason"] == "DisruptionBlocked" && message.contains(&named)
            });
            Ok(blocked.then_some(()))
        },
    )
    .await?;
    let leaving = case.until_node_count(4, Duration::from_secs(5)).await?;
    ensure!(uids(&leaving) == old, "a blocked node was replaced");

    case.apply(budget(1)).await?;
    let pods = case.pods();
    let never = until::<()>("", &pods, "", FOREVER, |seen| {
        let running = running(seen);
        ensure!(running >= 3, "{running} of 4 pods run");
        Ok(None)
    });
    let within = Duration::from_secs(240);
    let replaced = case.until_nodes("four nodes are replaced", within, |seen| {
        Ok(replaced(seen, &old, 4))
    });
    tokio::select! {
        budget = never => budget,
        replaced = replaced => replaced,
    }
}

/// Nodes expire, and their pods get other nodes.
pub(super) async fn expiry(case: Case) -> Result<()> {
    case.pool(json!({ "template": { "spec": { "expireAfter": "30s" } } }))
        .await?;
    case.deploy("work", 1, "500m", json!({})).await?;
    case.until_running(1, SOON).await?;
    let old = uids([&case.only_node().await?]);
    case.until_nodes("the expired node is deleted", SOON, |seen| {
        Ok(uids(seen.values()).is_disjoint(&old).then_some(()))
    })
    .await?;
    case.until_running(1, SOON).await
}

/// A node that is not ready for longer than the repair policy tolerates is replaced.
pub(super) async fn repair(case: Case) -> Result<()> {
    case.pool(json!({})).await?;
    case.deploy("work", 1, "500m", json!({})).await?;
    case.until_running(1, SOON).await?;
    case.until_node_count(1, SOON).await?;
    let node = case.only_node().await?;
    let broken = json!({ "metadata": { "annotations": { "real-cluster/broken": "true" } } });
    merge(&case.nodes(), name(&node), broken).await?;
    let since = Timestamp::now() - SignedDuration::from_mins(11);
    let mut conditions = node["status"]["conditions"].clone();
    for condition in conditions.as_array_mut().into_iter().flatten() {
        if condition["type"] == "Ready" {
            condition["status"] = "False".into();
            condition["lastTransitionTime"] =
                since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
        }
    }
    merge_status(
        &case.nodes(),
        name(&node),
        json!({ "status": { "conditions": conditions } }),
    )
    .await?;
    let old = uids([&node]);
    case.until_nodes("the unhealthy node is replaced", SOON, |seen| {
        Ok(replaced(seen, &old, 1))
    })
    .await
}

/// An empty node with do-not-disrupt is kept, another is deleted.
pub(super) async fn do_not_disrupt(case: Case) -> Result<()> {
    case.pool(json!({ "disruption": { "consolidateAfter": "5s" } }))
        .await?;
    case.deploy("work", 2, "500m", one_on_each_node("work"))
        .await?;
    case.until_running(2, SOON).await?;
    let nodes = case.until_node_count(2, SOON).await?;
    let kept = name(&nodes[0]).to_owned();
    let annotate = |value: Value| json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": value } } });
    merge(&case.nodes(), &kept, annotate("true".into())).await?;
    case.scale("work", 0).await?;
    case.until_nodes("the other node is deleted", SOON, |seen| {
        let still = seen
            .values()
            .any(|node| name(node) == kept && !is_leaving(node));
        ensure!(still, "the node with do-not-disrupt is deleted");
        Ok((seen.len() == 1).then_some(()))
    })
    .await?;
    // Two disruption passes of the controller.
    case.nodes_stay(Duration::from_secs(25), |seen| {
        ensure!(
            seen.values()
                .any(|node| name(node) == kept && !is_leaving(node)),
            "the node with do-not-disrupt is deleted"
        );
        Ok(())
    })
    .await?;
    merge(&case.nodes(), &kept, annotate(Value::Null)).await?;
    case.until_nodes("the node is deleted, too", SOON, |seen| {
        Ok(seen.is_empty().then_some(()))
    })
    .await
}
