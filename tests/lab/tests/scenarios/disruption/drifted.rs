//! Drifted nodes are replaced within disruption budgets and PodDisruptionBudgets.

use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_fixtures::{Object, pdb};
use karpenter_testbed::faults::{Fault, Rule};

use super::{count, drift, on_demand, running_pods, tainted};
use crate::world::World;

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

#[tokio::test(start_paused = true)]
async fn a_pdb_holds_while_a_drifted_node_is_drained() {
    let world = on_demand(&["c-4x-amd64-linux"], |pool| {
        pool.consolidate_after("Never")
    })
    .await;
    world.deploy("app", 3).await;
    world.add(pdb("app").min_available(2)).await;
    world.until_running(3, 60).await;
    world.pass(5).await;
    let old = world.claims().await.remove(0);
    drift(&world).await;
    world
        .until(600, "the drifted node is deleted", async |w| {
            let ready = running_pods(w).await;
            assert!(ready >= 2, "{ready} pods run; {}", w.describe().await);
            w.get::<NodeClaim>(old.name()).await.is_none()
        })
        .await;
    world.until_running(3, 60).await;
    assert_eq!(world.claims().await.len(), 1);
    assert!(world.has_event("Evicted").await);
}

/// Asserts that no node is launched for half a minute, and one soon after: cool-downs differ by NodePool.
async fn assert_cooling_down(world: &World, launched: u64) {
    world.pass(28).await;
    assert_eq!(
        world.cluster.cloud.launched(),
        launched,
        "{}",
        world.describe().await
    );
    world
        .until(60, "the next attempt", async |w| {
            w.cluster.cloud.launched() == launched + 1
        })
        .await;
}

async fn one_node_that_never_consolidates() -> World {
    let never = |pool: Object<NodePool>| pool.consolidate_after("Never");
    let world = on_demand(&["c-4x-amd64-linux"], never).await;
    world.deploy("app", 3).await;
    world.until_running(3, 60).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_nodepool_cools_down_after_a_replacement_could_not_be_created() {
    let world = one_node_that_never_consolidates().await;
    let refused = Fault::Error(403);
    let rule = Rule::new(refused).verb("create").resource("nodeclaims");
    world.cluster.testbed.faults().add(rule.times(1));
    drift(&world).await;
    assert_cooling_down(&world, 1).await;
}
