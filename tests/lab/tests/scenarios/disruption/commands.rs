//! How a command is executed: validated, its replacements launched, its nodes deleted, or rolled back.

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_fixtures::Object;
use karpenter_kwok::CapacityPool;
use karpenter_testbed::faults::{Fault, Rule};
use serde_json::json;

use super::{on_demand, oversized, running_pods, tainted};

/// Conformance: DIS-125
#[tokio::test(start_paused = true)]
async fn an_oversized_node_is_deleted_once_its_replacement_is_initialized() {
    let (world, old) = oversized().await;
    world.scale("app", 2).await;
    world
        .until(300, "the old node is deleted", async |w| {
            let claims = w.claims().await;
            let Some(current) = claims.iter().find(|c| c.uid() == old.uid()) else {
                return true;
            };
            let replaced = claims
                .iter()
                .any(|c| c.uid() != old.uid() && c.is_true(types::INITIALIZED));
            assert!(
                current.metadata.deletion_timestamp.is_none() || replaced,
                "deleted before its replacement was initialized; {}",
                w.describe().await
            );
            false
        })
        .await;
    assert!(world.has_event("DisruptionTerminating").await);
    world.until_running(2, 60).await;
    let claims = world.claims().await;
    assert_eq!(claims.len(), 1, "{}", world.describe().await);
    assert!(world.has_event("ConsolidationCandidate").await);
    let metrics = world.cluster.registry.render();
    assert!(metrics.contains("karpenter_voluntary_disruption_decisions_total{decision=\"replace\",reason=\"underutilized\",consolidation_type=\"single\"} 1"));
    assert!(metrics.contains("karpenter_nodeclaims_created_total{reason=\"underutilized\""));
    world.assert_no_orphans().await;
}

/// Conformance: DIS-126, API-185
#[tokio::test(start_paused = true)]
async fn a_command_whose_replacement_cannot_be_launched_is_rolled_back() {
    let (world, old) = oversized().await;
    world.cluster.cloud.exhaust(CapacityPool::default());
    world.scale("app", 2).await;
    world
        .until(120, "the command fails", async |w| {
            w.metric("karpenter_voluntary_disruption_queue_failures_total{decision=\"replace\",reason=\"underutilized\",consolidation_type=\"single\"}") == Some(1.0)
        })
        .await;
    world
        .until(10, "the node is untainted", async |w| {
            let claims = w.claims().await;
            tainted(w).await == 0
                && claims.len() == 1
                && claims[0].uid() == old.uid()
                && claims[0].condition(types::DISRUPTION_REASON).is_none()
        })
        .await;
    assert_eq!(running_pods(&world).await, 2);
}

/// Conformance: DIS-128
#[tokio::test(start_paused = true)]
async fn while_the_creation_of_a_replacement_hangs_no_other_is_launched() {
    let (world, _) = oversized().await;
    let hangs = Fault::Latency(std::time::Duration::from_secs(120));
    let rule = Rule::new(hangs)
        .verb("create")
        .resource("nodeclaims")
        .times(1);
    world.cluster.testbed.faults().add(rule);
    world.scale("app", 2).await;
    world
        .until(60, "the node is tainted", async |w| tainted(w).await == 1)
        .await;
    world.pass(100).await;
    assert_eq!(tainted(&world).await, 1, "the command is still starting");
    assert_eq!(
        world.cluster.cloud.launched(),
        1,
        "{}",
        world.describe().await
    );
    world
        .until(300, "one small node is left", async |w| {
            w.claims().await.len() == 1 && w.cluster.cloud.launched() == 2
        })
        .await;
    world.until_running(2, 60).await;
}

/// The replacement is initialized: a rollback would leave two nodes instead of one.
///
/// Conformance: DIS-191
#[tokio::test(start_paused = true)]
async fn replaced_nodes_are_deleted_once_the_api_server_accepts_it() {
    let (world, old) = oversized().await;
    let fails = Fault::Error(500);
    let rule = Rule::new(fails).verb("delete").resource("nodeclaims");
    world.cluster.testbed.faults().add(rule);
    world.scale("app", 2).await;
    world
        .until(300, "the replacement is initialized", async |w| {
            let claims = w.claims().await;
            let is_new = |c: &NodeClaim| c.uid() != old.uid() && c.is_true(types::INITIALIZED);
            claims.iter().any(is_new)
        })
        .await;
    world.pass(180).await;
    assert_eq!(tainted(&world).await, 1, "{}", world.describe().await);
    world.cluster.testbed.faults().clear();
    world.until_gone::<NodeClaim>(old.name(), 60).await;
    assert_eq!(world.cluster.cloud.launched(), 2);
    world.until_running(2, 60).await;
}

/// Found by the simulation, seed 5040: a node whose taint was written while the response was lost was dropped from its command
/// and stayed tainted, and the next command used the whole budget.
///
/// Conformance: DIS-190
#[tokio::test(start_paused = true)]
async fn a_node_whose_taint_has_no_response_counts_until_it_is_untainted() {
    let shut = |pool: Object<NodePool>| pool.budgets(&["0"]);
    let world = on_demand(&["c-2x-amd64-linux"], shut).await;
    world.deploy("app", 5).await;
    world.until_running(5, 60).await;
    world.scale("app", 0).await;
    world.pass(60).await;
    assert_eq!(world.claims().await.len(), 5);
    // The first patch of a NodeClaim from now on marks it for disruption.
    let lost = Rule::new(Fault::LostAnswer).verb("patch");
    let faults = world.cluster.testbed.faults();
    faults.add(lost.resource("nodeclaims/status").times(1));
    let open = json!({"spec": {"disruption": {"budgets": [{"nodes": "2"}]}}});
    world.patch::<NodePool>("default", open).await;
    let most = std::cell::Cell::new(0);
    world
        .until(300, "all nodes are deleted", async |w| {
            most.set(most.get().max(tainted(w).await));
            w.claims().await.is_empty()
        })
        .await;
    assert_eq!(most.get(), 2, "as many at a time as the budget allows");
}
