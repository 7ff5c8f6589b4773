//! Taints and conditions of disruption that belong to no command: they are removed, and other commands wait for that.

use karpenter_fixtures::Object;

use super::*;
use crate::world::deployment;

const DISRUPTED: &str = "karpenter.sh/disrupted";

async fn taint(world: &World, node: &str, key: &str) {
    let taints = json!([{"key": key, "effect": "NoSchedule"}]);
    world
        .patch::<Node>(node, json!({"spec": {"taints": taints}}))
        .await;
}

/// Two nodes with one pod each, of the Deployments `one` and `two`; returns their names.
async fn two_nodes(
    change: impl FnOnce(Object<NodePool>) -> Object<NodePool>,
) -> (World, [String; 2]) {
    let world = on_demand(&["c-2x-amd64-linux"], change).await;
    for name in ["one", "two"] {
        world.add(deployment(name, 1)).await;
    }
    world.until_running(2, 60).await;
    world.pass(20).await;
    let pods = world.pods().await;
    let node_of = |name: &str| {
        let of = |pod: &&k8s_openapi::api::core::v1::Pod| {
            pod.metadata.name.as_deref().unwrap().starts_with(name)
        };
        let pod = pods.iter().find(of).unwrap();
        pod.spec.as_ref().unwrap().node_name.clone().unwrap()
    };
    let nodes = ["one", "two"].map(node_of);
    assert_ne!(nodes[0], nodes[1]);
    (world, nodes)
}

async fn claim_on(world: &World, node: &str) -> NodeClaim {
    let claims = world.claims().await.into_iter();
    let mut own = claims.filter(|claim| claim.status.node_name.as_deref() == Some(node));
    own.next().unwrap()
}

#[tokio::test(start_paused = true)]
async fn taint_and_condition_of_no_command_are_removed_and_others_stay() {
    let never = |pool: Object<NodePool>| pool.consolidate_after("Never");
    let (world, [one, two]) = two_nodes(never).await;
    let mut marked = claim_on(&world, &two).await;
    let now = world.cluster.clock.now();
    marked.set_true_with_reason(types::DISRUPTION_REASON, "Drifted", "Drifted", now);
    let conditions = json!({"status": {"conditions": marked.status.conditions}});
    world
        .patch_status::<NodeClaim>(marked.name(), conditions)
        .await;
    taint(&world, &one, DISRUPTED).await;
    taint(&world, &two, "example.com/kept").await;
    until!(world, 30, "the taint and the condition are removed", |w| {
        let marked = w.get::<NodeClaim>(marked.name()).await.unwrap();
        tainted(w).await == 0 && marked.condition(types::DISRUPTION_REASON).is_none()
    });
    let other = world.api::<Node>().get(&two).await.unwrap();
    let taints = other.spec.unwrap().taints.unwrap_or_default();
    let keys: Vec<_> = taints.iter().map(|taint| &*taint.key).collect();
    assert_eq!(keys, ["example.com/kept"]);
}

#[tokio::test(start_paused = true)]
async fn a_pool_s_taint_and_a_terminating_node_keep_no_other_from_disruption() {
    let own = |pool: Object<NodePool>| {
        let pool = pool.consolidation_policy("WhenEmpty");
        pool.taint("example.com/team", "a", "PreferNoSchedule")
    };
    let (world, [one, two]) = two_nodes(own).await;
    let protected = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    world.patch_pods(protected).await;
    world.pass(5).await;
    world.delete::<Node>(&one).await;
    world.pass(10).await;
    world.delete_deployments(&["two"]).await;
    until!(world, 90, "the empty node is deleted", |w| {
        let nodes = w.nodes().await;
        nodes.iter().all(|n| n.metadata.name.as_ref() != Some(&two))
    });
    let terminating = world.api::<Node>().get(&one).await.unwrap();
    assert!(is_tainted(&terminating));
}
