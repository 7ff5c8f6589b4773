//! When consolidation is evaluated: after a change, every five minutes, and when a protection or a closed budget ends.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{on_demand, oversized, tainted};
use crate::world::{World, epoch};

async fn protect_pods(world: &World, value: &str) {
    let annotation = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": value}}});
    world.patch_pods(annotation).await;
}

/// No object of the cluster changes when the protection of a pod ends.
#[tokio::test(start_paused = true)]
async fn a_node_is_consolidated_as_soon_as_the_protection_of_its_pods_ends() {
    let (world, _) = oversized().await;
    let started = |pod: &Pod| pod.status.as_ref()?.start_time.as_ref().map(|t| t.0);
    let last = world.pods().await.iter().filter_map(started).max().unwrap();
    protect_pods(&world, "33m").await;
    world.scale("app", 2).await;
    let ends = last.saturating_add(jiff::SignedDuration::from_mins(33));
    let wait = ends.unwrap().duration_since(world.cluster.clock.now());
    world.pass(u64::try_from(wait.as_secs()).unwrap() - 5).await;
    assert_eq!(tainted(&world).await, 0, "{}", world.describe().await);
    // One pass of ten seconds, and fifteen seconds until validation.
    world.pass(5 + 30).await;
    assert_eq!(tainted(&world).await, 1, "{}", world.describe().await);
}

/// No object of the cluster changes when a budget opens, only time passes.
///
/// Conformance: DIS-192
#[tokio::test(start_paused = true)]
async fn a_budget_that_opens_is_detected_at_once_in_an_unchanged_cluster() {
    // Closed for the first hour of every day, which is when test clusters start.
    let shut = json!([{"nodes": "0", "schedule": "0 0 * * *", "duration": "1h"}]);
    let world = on_demand(&[], |pool| pool.set("/spec/disruption/budgets", shut)).await;
    world.run("app", 12).await;
    world.scale("app", 0).await;
    let opens = epoch().saturating_add(jiff::SignedDuration::from_hours(1));
    let wait = opens.unwrap().duration_since(world.cluster.clock.now());
    world.pass(u64::try_from(wait.as_secs()).unwrap() - 5).await;
    assert_eq!(world.claims().await.len(), 1, "{}", world.describe().await);
    assert_eq!(tainted(&world).await, 0);
    // One pass of ten seconds, and fifteen seconds until validation.
    world.pass(5 + 30).await;
    assert_eq!(tainted(&world).await, world.nodes().await.len());
    world.until_empty(60).await;
}
