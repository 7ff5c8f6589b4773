//! The kwok provider alone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::provider::CloudProvider;
use karpenter_kwok::catalogue::{INSTANCE_CPU, INSTANCE_FAMILY, INSTANCE_MEMORY, INSTANCE_SIZE};
use karpenter_kwok::{CapacityPool, KWOKNodeClass, KwokProvider};
use serde_json::{Value, json};

use crate::world::{World, settings};

/// A cluster without Karpenter, and the provider.
async fn provider() -> (World, Arc<KwokProvider>) {
    alone(World::bare(settings()).await).await
}

async fn alone(mut world: World) -> (World, Arc<KwokProvider>) {
    world.cluster.stop_controllers().await;
    let (client, clock) = (world.client.clone(), world.cluster.clock);
    let cloud = world.cluster.cloud.clone();
    let provider = KwokProvider::new(client, clock, settings().instance_types, cloud);
    (world, Arc::new(provider))
}

async fn listed(provider: &KwokProvider) -> Vec<String> {
    let all = provider.list().await.unwrap();
    let ids = all.iter().filter_map(|c| c.status.provider_id.clone());
    ids.collect()
}

async fn add_node(world: &World, name: &str, id: &str) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"providerID": id}});
    world.create_json::<Node>(node).await;
}

fn claim(name: &str, requirements: Value) -> NodeClaim {
    let class = json!({"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"});
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name, "labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {"nodeClassRef": class, "requirements": requirements, "resources": {"requests": {"cpu": "1"}}},
    }))
    .unwrap()
}

fn linux() -> Value {
    json!([
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["c-2x-amd64-linux", "s-1x-amd64-linux"]},
    ])
}

/// Conformance: API-123
#[tokio::test(start_paused = true)]
async fn sizes_are_labels_of_the_providers_own_domain() {
    let (_world, provider) = provider().await;
    let names = &provider.profile().well_known;
    for label in [
        INSTANCE_SIZE,
        INSTANCE_FAMILY,
        INSTANCE_CPU,
        INSTANCE_MEMORY,
    ] {
        assert!(label.starts_with("karpenter.kwok.sh/"));
        assert!(
            names.contains(label) && !names.is_restricted(label),
            "{label}"
        );
    }
    assert!(names.is_restricted("karpenter.kwok.sh/own"));
    assert!(names.is_restricted("sub.karpenter.kwok.sh/own"));
}

/// Conformance: API-125
#[tokio::test(start_paused = true)]
async fn the_cheapest_offering_is_launched_if_the_node_class_is_ready() {
    let (world, provider) = provider().await;
    let missing = provider.create(&claim("a", linux())).await.unwrap_err();
    assert!(missing.is_insufficient_capacity(), "{missing}");
    world
        .create(&KWOKNodeClass::new("default", Default::default()))
        .await;
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "No", "message": "not yet",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    world
        .patch_status::<KWOKNodeClass>("default", unready)
        .await;
    let not_ready = provider.create(&claim("a", linux())).await.unwrap_err();
    assert!(not_ready.is_node_class_not_ready(), "{not_ready}");
    let ready = json!({"status": {"conditions": null}});
    world.patch_status::<KWOKNodeClass>("default", ready).await;
    let launched = provider.create(&claim("a", linux())).await.unwrap();
    let is_of = |claim: &NodeClaim, capacity_type: &str| {
        let instance_type = claim.label("node.kubernetes.io/instance-type");
        assert_eq!(instance_type, Some("s-1x-amd64-linux"));
        assert_eq!(
            claim.label("karpenter.sh/capacity-type"),
            Some(capacity_type)
        );
    };
    is_of(&launched, "spot");
    world.cluster.cloud.exhaust(CapacityPool {
        capacity_type: Some("spot".into()),
        ..CapacityPool::default()
    });
    let dearer = provider.create(&claim("b", linux())).await.unwrap();
    is_of(&dearer, "on-demand");
}

/// Conformance: API-124, API-126
#[tokio::test(start_paused = true)]
async fn a_node_joins_after_the_delay_of_its_node_class() {
    let world = World::bare(settings()).await;
    let class: KWOKNodeClass = serde_json::from_value(json!({
        "metadata": {"name": "default"}, "spec": {"nodeRegistrationDelay": "30s"}}))
    .unwrap();
    world.create(&class).await;
    until!(world, 10, "the class is ready", |w| {
        w.list::<KWOKNodeClass>().await[0].is_true(types::READY)
    });
    let (world, provider) = alone(world).await;
    let answer = provider.create(&claim("a", linux())).await.unwrap();
    world.pass(29).await;
    assert_eq!(world.nodes().await.len(), 0);
    world.pass(2).await;
    let node: Node = world.nodes().await.remove(0);
    let name = node.metadata.name.clone().unwrap();
    assert_eq!(answer.status.provider_id, Some(format!("kwok://{name}")));
    assert!(name.starts_with("kwok-a-"), "{name}");
    let spec = node.spec.unwrap();
    assert_eq!(spec.provider_id, answer.status.provider_id);
    assert!(
        spec.taints
            .unwrap()
            .iter()
            .any(|t| t.key == "karpenter.sh/unregistered" && t.effect == "NoExecute")
    );
    let labels = node.metadata.labels.unwrap();
    for (key, value) in [
        ("team", "a"),
        ("kubernetes.io/arch", "amd64"),
        ("node.kubernetes.io/instance-type", "s-1x-amd64-linux"),
        ("karpenter.sh/capacity-type", "spot"),
        ("karpenter.kwok.sh/instance-family", "s"),
        ("kubernetes.io/hostname", "a"),
        ("kwok.x-k8s.io/node", "fake"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let zone = "topology.kubernetes.io/zone";
    assert_eq!(labels.get(zone).map(String::as_str), answer.label(zone));
}

/// Conformance: API-128, API-129
#[tokio::test(start_paused = true)]
async fn a_deleted_instance_is_terminated_at_once() {
    let (world, provider) = provider().await;
    world
        .create(&KWOKNodeClass::new("default", Default::default()))
        .await;
    add_node(&world, "x", "other://x").await;
    let claim = provider.create(&claim("a", linux())).await.unwrap();
    let id = claim.status.provider_id.clone().unwrap();
    world.pass(2).await;
    assert_eq!(listed(&provider).await.join(" "), id);
    let found = provider.get(&id).await.unwrap();
    assert_eq!(found.status.provider_id, claim.status.provider_id);
    assert_eq!(provider.is_drifted(&claim).await.unwrap(), None);
    let gone = [
        provider.delete(&claim).await.unwrap_err(),
        provider.get(&id).await.unwrap_err(),
    ];
    assert!(gone.iter().all(|error| error.is_node_claim_not_found()));
    assert!(listed(&provider).await.is_empty());
    world.pass(2).await;
    let left = world.nodes().await.len();
    assert_eq!(left, 1, "only the unmanaged node is left");
    let policies = provider.profile().repair_policies.iter();
    let said = policies.map(|p| {
        (
            &*p.condition_type,
            &*p.condition_status,
            p.toleration.as_mins(),
        )
    });
    let expected = [("Ready", "False", 10), ("Ready", "Unknown", 10)];
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn instances_of_an_earlier_process_are_found_by_their_nodes() {
    let (world, provider) = provider().await;
    add_node(&world, "old", "kwok://old").await;
    for time in ["first", "second"] {
        assert_eq!(listed(&provider).await, ["kwok://old"], "the {time} list");
    }
    world.delete::<Node>("old").await;
    assert!(listed(&provider).await.is_empty());
}
