//! The management cluster: it does not answer yet, it has several Clusters, namespaces and node classes, it refuses requests.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_cluster_api::node_class::{
    CLUSTER_REACHABLE, ClusterAPINodeClass, MACHINE_DEPLOYMENTS_EXCLUSIVE,
};
use karpenter_testbed::faults::{Fault, Rule};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::json;

use crate::capi::NAMESPACE;
use crate::world::{World, deployment};

async fn message(world: &World, condition: &str) -> String {
    let class = world.class().await;
    let condition = class.condition(condition);
    condition.map_or_else(String::new, |condition| condition.message.clone())
}

/// Conformance: CAPI-11
#[tokio::test(start_paused = true)]
async fn karpenter_may_start_before_the_management_cluster_answers() {
    let mut world = World::start([deployment("small", 2, "a")]).await;
    world.kill();
    world.hub.faults().add(Rule::new(Fault::Error(503)));
    world.run().await;
    world.deploy(2).await;
    world
        .until("the class says so", async |w| {
            message(w, CLUSTER_REACHABLE)
                .await
                .starts_with("cannot use the management cluster: ")
        })
        .await;
    world.clock.sleep(Duration::from_secs(600)).await;
    assert!(world.machines().await.is_empty());
    world.hub.faults().clear();
    world.until_running(2).await;
    world.deploy(0).await;
    world.nothing_lost_or_doubled().await;
}

/// Conformance: CAPI-23
#[tokio::test(start_paused = true)]
async fn with_two_clusters_nothing_is_launched_until_one_is_named() {
    let mut world = World::start([deployment("small", 2, "a")]).await;
    let second = json!({ "metadata": { "name": "c2", "namespace": NAMESPACE }, "spec": {} });
    world.add("cluster.x-k8s.io", "Cluster", second).await;
    world.kill();
    world.run().await;
    world.deploy(1).await;
    world
        .until("the class says what to name", async |w| {
            message(w, CLUSTER_REACHABLE).await
                == "the management cluster has 2 Clusters: name this one in --cluster-api-cluster"
        })
        .await;
    world.clock.sleep(Duration::from_secs(600)).await;
    assert!(world.machines().await.is_empty());
}

/// Conformance: CAPI-25
#[tokio::test(start_paused = true)]
async fn no_launch_is_lost_if_the_watches_expire() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world
        .hub
        .faults()
        .add(Rule::new(Fault::DropWatch { after: 3 }).verb("watch"));
    world.deploy(10).await;
    for _ in 0..20 {
        world.hub.compact();
        world.clock.sleep(Duration::from_secs(5)).await;
    }
    world.until_running(10).await;
    assert_eq!(world.machines().await.len(), 10, "a pod fits on each");
    world.deploy(0).await;
    world.nothing_lost_or_doubled().await;
}

/// Conformance: CAPI-13
#[tokio::test(start_paused = true)]
async fn machine_deployments_of_other_namespaces_are_not_offered() {
    let world = World::start([deployment("small", 2, "a")]).await;
    let namespace: Namespace =
        serde_json::from_value(json!({ "metadata": { "name": "other" } })).unwrap();
    Api::all(world.capi.hub.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let mut twin = deployment("small", 8, "a");
    twin["apiVersion"] = json!("cluster.x-k8s.io/v1beta2");
    twin["metadata"]["namespace"] = json!("other");
    let twin: DynamicObject = serde_json::from_value(twin).unwrap();
    let kind = GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "MachineDeployment");
    let others: Api<DynamicObject> = Api::namespaced_with(
        world.capi.hub.clone(),
        "other",
        &ApiResource::from_gvk(&kind),
    );
    others.create(&PostParams::default(), &twin).await.unwrap();
    world.run_pods(4).await;
    let machines = world.machines().await;
    assert_eq!(machines.len(), 4, "on nodes of two cores");
    let rows = world.class().await.status.unwrap().machine_deployments;
    assert_eq!(rows.len(), 1);
}

/// Conformance: CAPI-48
#[tokio::test(start_paused = true)]
async fn a_launch_without_permission_says_so_and_creates_nothing() {
    let world = World::start([deployment("small", 2, "a")]).await;
    let refused = Rule::new(Fault::Error(403));
    world
        .hub
        .faults()
        .add(refused.verb("create").resource("machines"));
    world.deploy(1).await;
    world
        .until("the claim says why", async |w| {
            let claims = w.list::<NodeClaim>().await;
            let launched = claims
                .iter()
                .filter_map(|claim| claim.condition(types::LAUNCHED));
            launched
                .into_iter()
                .any(|launched| launched.reason == "Unauthorized")
        })
        .await;
    assert!(world.machines().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn classes_that_select_one_machine_deployment_name_each_other() {
    let world = World::start([deployment("small", 2, "a"), deployment("large", 8, "a")]).await;
    world.clock.sleep(Duration::from_secs(10)).await;
    assert_eq!(message(&world, MACHINE_DEPLOYMENTS_EXCLUSIVE).await, "");
    let labelled = json!({ "metadata": { "labels": { "team": "web" } } });
    world.change_deployment("small", labelled).await;
    let selector = json!({ "matchLabels": { "team": "web" } });
    world
        .create::<ClusterAPINodeClass>(json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": { "name": "web" }, "spec": { "scalableResourceSelector": selector },
        }))
        .await;
    world.clock.sleep(Duration::from_secs(10)).await;
    let shared = message(&world, MACHINE_DEPLOYMENTS_EXCLUSIVE).await;
    assert!(
        shared.contains("`small` by web") && !shared.contains("`large`"),
        "{shared}"
    );
    let classes = world.list::<ClusterAPINodeClass>().await;
    assert!(classes.iter().all(|class| class.is_true(types::READY)));
    let other = classes
        .iter()
        .find(|class| class.name_any() == "web")
        .unwrap();
    let shared = &other
        .condition(MACHINE_DEPLOYMENTS_EXCLUSIVE)
        .unwrap()
        .message;
    assert!(shared.contains("`small` by default"), "{shared}");
}
