//! Termination of nodes: requested by users, blocked by budgets and annotations, limited by grace periods.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_fixtures::{Object, pdb};
use kube::api::DeleteParams;

use crate::world::{World, deployment, node_pool};

async fn running(deployment: Object<Deployment>, pool: Object<NodePool>) -> World {
    let world = World::with(pool).await;
    let pods = deployment.json()["spec"]["replicas"].as_u64().unwrap();
    world.add(deployment).await;
    world
        .until_running(usize::try_from(pods).unwrap(), 60)
        .await;
    world
}

async fn budget(world: &World, min_available: i32) {
    world.add(pdb("app").min_available(min_available)).await;
}

/// Conformance: DIS-153
#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_drained_replaced_and_terminated() {
    let world = running(deployment("app", 3), node_pool("default")).await;
    let node = world.node_name().await;
    world.delete::<Node>(&node).await;
    world.until_gone::<Node>(&node, 120).await;
    world.until_running(3, 120).await;
    world.assert_no_orphans().await;
    assert!(world.has_event("Evicted").await);
}

/// Conformance: DIS-150
#[tokio::test(start_paused = true)]
async fn a_deleted_nodeclaim_deletes_its_node_and_instance() {
    let world = running(deployment("app", 3), node_pool("default")).await;
    let claim = world.claim().await;
    world.delete::<NodeClaim>(claim.name()).await;
    world.until_gone::<NodeClaim>(claim.name(), 120).await;
    world.until_running(3, 120).await;
    world.assert_no_orphans().await;
}

/// Conformance: DIS-148
#[tokio::test(start_paused = true)]
async fn a_deleted_nodepool_deletes_all_its_nodes() {
    let world = running(deployment("app", 3), node_pool("default")).await;
    world.delete::<NodePool>("default").await;
    world.until_empty(300).await;
    assert_eq!(world.list::<NodePool>().await.len(), 0);
}

/// Conformance: DIS-068, DIS-157
#[tokio::test(start_paused = true)]
async fn a_pdb_that_allows_no_eviction_blocks_the_drain_until_it_does() {
    let world = running(deployment("app", 2), node_pool("default")).await;
    budget(&world, 2).await;
    world.pass(5).await;
    let node = world.node_name().await;
    world.delete::<Node>(&node).await;
    world.pass(600).await;
    assert!(
        world
            .nodes()
            .await
            .iter()
            .any(|n| n.metadata.name.as_ref() == Some(&node)),
        "{}",
        world.describe().await
    );
    assert_eq!(world.progress().await.running, 2);
    assert!(world.has_event("FailedDraining").await);
    let asked = world.cluster.registry.render();
    assert!(
        !asked.contains("karpenter_pods_eviction_requests_total"),
        "evictions that the budget is known to reject are not requested"
    );
    let budgets = world.namespaced::<PodDisruptionBudget>();
    budgets
        .delete("app", &DeleteParams::default())
        .await
        .unwrap();
    world.until_gone::<Node>(&node, 120).await;
}

/// Conformance: DIS-049, DIS-073
#[tokio::test(start_paused = true)]
async fn a_grace_period_overrides_do_not_disrupt_and_is_recorded() {
    let protected = deployment("app", 1).do_not_disrupt().grace_period(30);
    let grace = node_pool("default").termination_grace_period("300s");
    let world = running(protected, grace).await;
    let claim = world.claim().await;
    world.delete::<NodeClaim>(claim.name()).await;
    world.pass(200).await;
    let deleting = world
        .claims()
        .await
        .into_iter()
        .find(|c| c.uid() == claim.uid())
        .unwrap();
    let deadline = deleting
        .annotation("karpenter.sh/nodeclaim-termination-timestamp")
        .unwrap();
    assert!(deadline.ends_with('Z'));
    assert!(world.has_event("TerminationGracePeriodExpiring").await);
    world.until_gone::<NodeClaim>(claim.name(), 200).await;
    assert!(world.has_event("Disrupted").await);
    world.until_running(1, 120).await;
}

/// Conformance: DIS-070
#[tokio::test(start_paused = true)]
async fn a_node_without_an_instance_is_deleted_without_draining() {
    let world = running(deployment("app", 1).do_not_disrupt(), node_pool("default")).await;
    let node = world.nodes().await.remove(0);
    let name = node.metadata.name.clone().unwrap();
    world
        .cluster
        .cloud
        .kill(node.spec.unwrap().provider_id.as_deref().unwrap());
    world
        .cluster
        .node_faults
        .set(&name, karpenter_testbed::loops::node_agent::NodeFault::Dead);
    world.delete::<Node>(&name).await;
    world.pass(20).await;
    assert!(
        world
            .nodes()
            .await
            .iter()
            .any(|n| n.metadata.name.as_ref() == Some(&name)),
        "still Ready in the API server"
    );
    world.until_gone::<Node>(&name, 300).await;
}
