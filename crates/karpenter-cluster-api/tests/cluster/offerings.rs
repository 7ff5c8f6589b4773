//! What MachineDeployments offer, and how it follows their changes.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::v1::NodePool;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::CloudProvider;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::annotated;
use crate::world::{World, deployment};

const LABELS: &str = "capacity.cluster-autoscaler.kubernetes.io/labels";

async fn types(world: &World) -> Arc<[InstanceType]> {
    let pool = world.api::<NodePool>().get("default").await.unwrap();
    let provider = world.running_provider();
    provider.instance_types(&pool).await.unwrap()
}

/// Waits for the next update of the status of node classes, too.
async fn types_soon(world: &World) -> Arc<[InstanceType]> {
    world.clock.sleep(Duration::from_secs(6)).await;
    types(world).await
}

/// Conformance: CAPI-32, CAPI-34
#[tokio::test(start_paused = true)]
async fn machine_deployments_of_one_instance_type_are_its_offerings() {
    let labelled = |name: &str, zone: &str, more: &str| {
        let labels = format!("node.kubernetes.io/instance-type=t2,{more}");
        annotated(deployment(name, 2, zone), LABELS, &labels)
    };
    let world = World::start([
        deployment("small-a", 2, "a"),
        labelled("small-b", "x", "topology.kubernetes.io/zone=b"),
        labelled("spot-b", "b", "karpenter.sh/capacity-type=spot"),
    ])
    .await;
    let types = types_soon(&world).await;
    assert_eq!(types.len(), 1);
    let mut offerings: Vec<_> = types[0]
        .offerings
        .iter()
        .map(|offering| (offering.zone().unwrap(), offering.capacity_type().unwrap()))
        .collect();
    offerings.sort_unstable();
    let expected = [("a", "on-demand"), ("b", "on-demand"), ("b", "spot")];
    assert_eq!(offerings, expected);
}

/// Conformance: CAPI-35, CAPI-37, CAPI-38
#[tokio::test(start_paused = true)]
async fn instance_types_are_the_same_value_until_a_machine_deployment_changes() {
    let world = World::start([deployment("small", 2, "a")]).await;
    let first = types_soon(&world).await;
    assert!(Arc::ptr_eq(&first, &types_soon(&world).await));
    let annotate = async |key: &str, value: Value| {
        let change = json!({ "metadata": { "annotations": { (key): value } } });
        world.change_deployment("small", change).await;
        types_soon(&world).await
    };
    let priced = annotate("karpenter.cluster.x-k8s.io/price", json!("0.5")).await;
    assert_eq!(priced[0].offerings[0].price, 0.5);
    let paused = annotate("cluster.x-k8s.io/paused", json!("")).await;
    assert!(!paused[0].offerings[0].available);
    let resumed = annotate("cluster.x-k8s.io/paused", Value::Null).await;
    assert!(resumed[0].offerings[0].available);

    let rows = async |w: &World| w.class().await.status.unwrap().machine_deployments.len();
    let large = deployment("large", 8, "a");
    world
        .add("cluster.x-k8s.io", "MachineDeployment", large)
        .await;
    assert_eq!((types_soon(&world).await.len(), rows(&world).await), (2, 2));
    let deployments = world.capi.api("cluster.x-k8s.io", "MachineDeployment");
    deployments
        .delete("large", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!((types_soon(&world).await.len(), rows(&world).await), (1, 1));
}
