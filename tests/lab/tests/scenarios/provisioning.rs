//! From pending pods to running pods, and back to an empty cluster.

use std::sync::Arc;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels;
use karpenter_api::v1::NodePool;
use karpenter_fixtures::node_claim;
use karpenter_kube::provisioning::refresh_instance_types;
use karpenter_kwok::KWOKNodeClass;
use serde_json::json;

use crate::cloud::Scripted;
use crate::world::{World, node_pool, settings};

/// Conformance: DIS-034
#[tokio::test(start_paused = true)]
async fn pending_pods_get_nodes_and_run() {
    let world = World::new().await;
    world.deploy("inflate", 100).await;
    world.until_running(100, 60).await;
    for claim in world.claims().await {
        assert!(claim.is_true(types::READY), "{}", world.describe().await);
    }
    world.assert_no_orphans().await;
    assert!(world.has_event("Nominated").await);
    assert!(!world.has_event("UnregisteredTaintMissing").await);
    for node in world.nodes().await {
        let labels = node.metadata.labels.unwrap();
        assert_eq!(labels[labels::REGISTERED], "true");
        assert_eq!(labels[labels::INITIALIZED], "true");
        assert_eq!(labels[labels::NODE_POOL], "default");
        assert_eq!(
            node.metadata.finalizers.unwrap(),
            ["karpenter.sh/termination"]
        );
    }
    world.pass(5).await;
    let pool = &world.list::<NodePool>().await[0];
    assert_eq!(
        pool.status.nodes,
        i64::try_from(world.nodes().await.len()).unwrap()
    );
    assert!(pool.is_true(types::NODE_REGISTRATION_HEALTHY));
}

/// Conformance: SCH-006
#[tokio::test(start_paused = true)]
async fn a_nodepool_launches_no_nodes_until_its_node_class_is_created() {
    let world = World::bare(settings()).await;
    world.add(node_pool("default")).await;
    world.deploy("inflate", 1).await;
    world.until_event("FailedScheduling", 60).await;
    let pool = &world.list::<NodePool>().await[0];
    assert_eq!(
        pool.condition(types::NODE_CLASS_READY).unwrap().reason,
        "NodeClassNotFound"
    );
    assert_eq!(world.claims().await.len(), 0);
    world
        .create(&KWOKNodeClass::new("default", Default::default()))
        .await;
    world.until_running(1, 60).await;
}

/// Conformance: DIS-026
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_of_another_provider_is_ignored() {
    let world = World::new().await;
    world
        .add(node_claim("foreign").class("example.com", "Other", "x"))
        .await;
    world.pass(1200).await;
    let claims = world.claims().await;
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].metadata.finalizers, None);
    assert_eq!(claims[0].status.conditions, []);
}

/// Conformance: SCH-007
#[tokio::test(start_paused = true)]
async fn pod_waits_are_measured_from_when_nodes_are_known_to_register() {
    let world = World::bare(settings()).await;
    let class = json!({"metadata": {"name": "default"}, "spec": {"nodeRegistrationDelay": "60s"}});
    let class: KWOKNodeClass = serde_json::from_value(class).unwrap();
    world.create(&class).await;
    world.add(node_pool("default")).await;
    let waited = |world: &World, what: &str| {
        world.metric(&format!("karpenter_pods_{what}_duration_seconds_sum"))
    };
    world.deploy("first", 1).await;
    world.until_running(1, 120).await;
    assert!(waited(&world, "bound").unwrap() >= 60.0);
    let known = waited(&world, "provisioning_bound").unwrap_or_default();
    assert!(
        known < 30.0,
        "no node of the pool had registered for most of the time, {known}"
    );
    let pools = world.list::<NodePool>().await;
    assert!(pools[0].is_true(types::NODE_REGISTRATION_HEALTHY));
    world.deploy("second", 20).await;
    world.until_running(21, 120).await;
    let second = waited(&world, "provisioning_bound").unwrap() - known;
    assert!(second >= 20.0 * 55.0, "{second}");
}

/// Conformance: SCH-005
#[tokio::test(start_paused = true)]
async fn a_nodepool_being_deleted_launches_no_nodes_and_pods_have_a_decision() {
    let held = node_pool("default").finalizer("example.com/held");
    let world = World::with(held).await;
    world.pass(5).await;
    world.delete::<NodePool>("default").await;
    world.deploy("app", 1).await;
    world.pass(60).await;
    assert_eq!(world.claims().await.len(), 0);
    let decisions = "karpenter_pods_scheduling_decision_duration_seconds_count";
    assert_eq!(world.metric(decisions), Some(1.0));
    let text = world.cluster.registry.render();
    assert!(text.contains("karpenter_pods_unbound_time_seconds{"));
    assert!(
        !text.contains("karpenter_pods_provisioning_unbound_time_seconds{"),
        "the pod is unschedulable so far"
    );
}

#[tokio::test(start_paused = true)]
async fn the_model_has_a_nodepool_s_instance_types_or_the_last_error() {
    let mut world = World::new().await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    world.pass(5).await;
    let cx = Arc::clone(world.cluster.context().unwrap());
    let known = async |error| {
        *cloud.unlisted.lock() = error;
        refresh_instance_types(&cx).await.unwrap();
        let view = cx.view();
        let types = view.snapshot.instance_types("default").unwrap();
        types
            .as_ref()
            .map(|types| types.len())
            .map_err(String::clone)
    };
    let all = known(None).await.unwrap();
    assert!(all > 0);
    for error in ["throttled", "throttled", "forbidden"] {
        assert_eq!(known(Some(error)).await, Err(error.to_owned()));
    }
    assert_eq!(known(None).await, Ok(all));
}
