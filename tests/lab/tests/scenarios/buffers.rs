//! Capacity buffers (feature gate CapacityBuffer).

use k8s_openapi::api::core::v1::PodTemplate;
use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::autoscaling::conditions::{PROVISIONING, READY_FOR_PROVISIONING};
use karpenter_kwok::CapacityPool;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::world::{World, node_pool, settings};

async fn world() -> World {
    let mut settings = settings();
    settings.options.feature_gates.capacity_buffer = true;
    World::with_settings(settings, node_pool("default")).await
}

async fn spare(world: &World) -> CapacityBuffer {
    world.namespaced().get("spare").await.unwrap()
}

async fn delete(world: &World) {
    let buffers = world.namespaced::<CapacityBuffer>();
    let params = DeleteParams::default();
    buffers.delete("spare", &params).await.unwrap();
}

async fn buffer(world: &World, spec: Value) {
    let object = json!({"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": {"name": "spare", "namespace": "default"}, "spec": spec});
    world.create_json::<CapacityBuffer>(object).await;
}

async fn template(world: &World, cpu: &str) {
    let object = json!({"metadata": {"name": "chunk", "namespace": "default"}, "template": {"metadata": {"labels": {"app": "chunk"}},
        "spec": {"containers": [{"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu}}}]}}});
    world.create_json::<PodTemplate>(object).await;
}

/// Status and reason of a condition.
async fn condition(world: &World, condition_type: &str) -> Option<(String, String)> {
    let conditions = spare(world).await.status.conditions;
    let found = conditions.iter().find(|c| c.type_ == condition_type)?;
    Some((found.status.clone(), found.reason.clone()))
}

/// Waits until conditions have this status and reason.
async fn until(world: &World, wanted: &[(&str, &str, &str)]) {
    for (kind, status, reason) in wanted {
        let is = Some(((*status).to_owned(), (*reason).to_owned()));
        until!(world, 120, &format!("{kind} is {is:?}"), |w| {
            condition(w, kind).await == is
        });
    }
}

/// Conformance: API-108
#[tokio::test(start_paused = true)]
async fn a_buffer_of_a_template_gets_its_capacity_until_it_is_deleted() {
    let world = world().await;
    let of_template = json!({"podTemplateRef": {"name": "chunk"}, "replicas": 3});
    buffer(&world, of_template).await;
    let wanted = [
        (READY_FOR_PROVISIONING, "False", "PodTemplateNotFound"),
        (PROVISIONING, "False", "NotReadyForProvisioning"),
    ];
    until(&world, &wanted).await;
    let everything = CapacityPool::default();
    world.cluster.cloud.exhaust(everything);
    template(&world, "1").await;
    let wanted = [
        (READY_FOR_PROVISIONING, "True", "Resolved"),
        (PROVISIONING, "False", "RequiresNewCapacity"),
    ];
    until(&world, &wanted).await;
    world.pass(60).await;
    let wanted = [(PROVISIONING, "False", "RequiresNewCapacity")];
    until(&world, &wanted).await;
    world.cluster.cloud.restock();
    let wanted = [(PROVISIONING, "True", "FitsExistingCapacity")];
    until(&world, &wanted).await;
    let status = spare(&world).await.status;
    assert_eq!(
        (status.replicas, status.pod_template_ref.unwrap().name),
        (Some(3), "chunk".to_owned())
    );
    assert!(status.conditions.iter().all(|c| c.type_ != "Ready"));
    assert!(world.pods().await.is_empty(), "chunks are never written");
    let launched = world.cluster.cloud.launched();
    world.pass(300).await;
    assert!(
        !world.claims().await.is_empty(),
        "a node with a buffer is not empty"
    );
    assert_eq!(world.cluster.cloud.launched(), launched, "the nodes stay");
    let wanted = [(PROVISIONING, "True", "FitsExistingCapacity")];
    until(&world, &wanted).await;
    delete(&world).await;
    world.until_empty(300).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_is_empty_at_once_when_its_buffer_is_deleted() {
    let world = world().await;
    template(&world, "1").await;
    let of_template = json!({"podTemplateRef": {"name": "chunk"}, "replicas": 1});
    buffer(&world, of_template).await;
    let wanted = [(PROVISIONING, "True", "FitsExistingCapacity")];
    until(&world, &wanted).await;
    // The last disruption pass found nothing to do, and the next one is minutes away.
    world.pass(400).await;
    delete(&world).await;
    world.until_empty(60).await;
}

#[tokio::test(start_paused = true)]
async fn a_buffer_follows_the_scale_of_its_workload() {
    let world = world().await;
    world.run("app", 4).await;
    let target = json!({"apiGroup": "apps", "kind": "Deployment", "name": "app"});
    buffer(&world, json!({"scalableRef": target, "percentage": 50})).await;
    let replicas = async |w: &World| spare(w).await.status.replicas;
    until!(world, 60, "half of four", |w| replicas(w).await == Some(2));
    world.scale("app", 10).await;
    // Without waiting for the next poll.
    until!(world, 5, "half of ten", |w| replicas(w).await == Some(5));
    world.scale("app", 0).await;
    until!(world, 5, "nothing of nothing", |w| {
        replicas(w).await == Some(0)
    });
    let wanted = [(PROVISIONING, "False", "BufferEmpty")];
    until(&world, &wanted).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_unsupported_workload_is_reported() {
    let world = world().await;
    for (group, kind, reason) in [
        ("apps", "Deployment", "ScalableRefNotFound"),
        ("batch", "Job", "ResolutionFailed"),
    ] {
        let gone = json!({"apiGroup": group, "kind": kind, "name": "gone"});
        buffer(&world, json!({"scalableRef": gone, "replicas": 1})).await;
        until(&world, &[(READY_FOR_PROVISIONING, "False", reason)]).await;
        delete(&world).await;
    }
}
