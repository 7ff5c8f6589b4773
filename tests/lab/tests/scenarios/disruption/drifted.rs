//! Drifted nodes are replaced within disruption budgets.

use karpenter_api::v1::NodePool;
use karpenter_fixtures::Object;

use super::{count, drift, on_demand, tainted};

/// Conformance: API-172, API-173
#[tokio::test(start_paused = true)]
async fn drifted_nodes_are_replaced_within_the_budget() {
    let two = |pool: Object<NodePool>| pool.consolidate_after("Never").budgets(&["2"]);
    let world = on_demand(&["c-2x-amd64-linux"], two).await;
    world.deploy("app", 5).await;
    world.until_running(5, 60).await;
    let old: Vec<String> = world
        .claims()
        .await
        .iter()
        .map(|c| c.uid().to_owned())
        .collect();
    assert_eq!(old.len(), 5);
    drift(&world).await;
    let most = std::cell::Cell::new(0);
    world
        .until(900, "all nodes are new", async |w| {
            most.set(most.get().max(tainted(w).await));
            let claims = w.claims().await;
            claims.iter().all(|c| !old.iter().any(|uid| uid == c.uid()))
        })
        .await;
    assert_eq!(most.get(), 2, "as many at a time as the budget allows");
    let labels = "{reason=\"drifted\",nodepool=\"default\",capacity_type=\"on-demand\",consolidation_policy=\"\",termination_mode=\"graceful\"}";
    for metric in [
        "nodeclaims_disrupted_total",
        "pods_disruption_initiated_total",
    ] {
        assert_eq!(count(&world, &format!("karpenter_{metric}{labels}")), 5.0);
    }
    world.until_running(5, 60).await;
    assert_eq!(world.claims().await.len(), 5);
    world.assert_no_orphans().await;
}
