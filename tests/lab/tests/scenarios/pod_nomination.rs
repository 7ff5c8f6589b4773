//! Pods are bound where they were planned (feature gate `PodNomination`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_fixtures::Object;
use karpenter_lab::local_cluster::LocalClusterSettings;
use karpenter_testbed::faults::{Fault, Rule};
use serde_json::json;

use crate::world::{World, node_pool, settings};

fn nominating() -> LocalClusterSettings {
    let mut settings = settings();
    settings.options.feature_gates.pod_nomination = true;
    settings
}

/// Returns the nominated nodes of pods by the names of the pods.
async fn nominated(world: &World) -> BTreeMap<String, String> {
    let pods = world.pods().await.into_iter();
    let nominated = pods.filter_map(|pod| {
        let node = pod.status?.nominated_node_name?;
        Some((pod.metadata.name?, node))
    });
    nominated.collect()
}

/// Returns a NodePool whose nodes have room for three pods at most.
fn small_nodes() -> Object<NodePool> {
    node_pool("default").requires("karpenter.kwok.sh/instance-cpu", "In", &["4"])
}

/// Returns a NodePool onto whose nodes kube-scheduler binds no pod: what was written stays.
fn never_ready() -> Object<NodePool> {
    small_nodes().startup_taint("example.com/agent", "NoSchedule")
}

#[tokio::test(start_paused = true)]
async fn every_pod_is_bound_to_the_node_of_its_nodeclaim_after_one_plan() {
    let world = World::with_settings(nominating(), small_nodes()).await;
    for (name, cpu) in [("small", "500m"), ("medium", "1"), ("large", "3")] {
        let container =
            json!({"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu}}});
        world
            .deploy_with(name, 6, json!({ "containers": [container] }))
            .await;
    }
    world.until_running(18, 120).await;
    let metric = "karpenter_pods_nominations_bound_total{as_planned=\"true\",plans=\"one\"}";
    assert_eq!(
        world.metric(metric),
        Some(18.0),
        "{}",
        world.describe().await
    );
}

#[tokio::test(start_paused = true)]
async fn pods_are_nominated_before_the_unregistered_taint_is_removed() {
    let world = World::with_settings(nominating(), never_ready()).await;
    world.deploy("app", 2).await;
    let registered = async |world: &World| {
        let claims = world.claims().await;
        claims.iter().any(|claim| claim.is_true(types::REGISTERED))
    };
    world.until(120, "a registered node", registered).await;
    let node = world.node_name().await;
    let nodes: Vec<String> = nominated(&world).await.into_values().collect();
    assert_eq!(nodes, [node.clone(), node]);
}

#[tokio::test(start_paused = true)]
async fn a_nomination_to_a_node_that_is_deleted_is_replaced() {
    let world = World::with_settings(nominating(), never_ready()).await;
    world.deploy("app", 1).await;
    let is_nominated = async |world: &World| !nominated(world).await.is_empty();
    world.until(120, "a nominated pod", is_nominated).await;
    let before = nominated(&world).await;
    let claim = &world.claims().await[0];
    world.delete::<NodeClaim>(claim.name()).await;
    let is_other = async |world: &World| {
        let now = nominated(world).await;
        !now.is_empty() && now != before
    };
    world.until(300, "another nominated node", is_other).await;
    assert_eq!(world.list::<Pod>().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_permission_nodepools_say_so_and_no_more_pods_are_nominated() {
    let world = World::with_settings(nominating(), never_ready()).await;
    world.deploy("app", 1).await;
    world.until_claims(1, 60).await;
    let once = Rule::new(Fault::Error(403)).times(1);
    let rule = once.verb("patch").resource("pods/status");
    world.cluster.testbed.faults().add(rule);
    let is_said = async |world: &World| {
        let pool = &world.list::<NodePool>().await[0];
        let condition = pool.condition(types::POD_NOMINATION);
        condition.is_some_and(|it| it.status == "False" && it.reason == "Forbidden")
    };
    world
        .until(120, "a condition of the NodePool", is_said)
        .await;
    world.pass(60).await;
    assert_eq!(nominated(&world).await, BTreeMap::new());
}
