//! Termination: Nodes first, then volumes and the instance, also with mismatched or missing objects and failing calls.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_api::v1::NodePool;
use karpenter_core::provider::CloudProviderError;
use karpenter_fixtures::{Object, node_claim, pod};
use karpenter_kube::controller::{Controller, Next, ObjectKey, Queue};
use karpenter_kube::node::eviction::EvictionQueue;
use karpenter_kube::node::termination::Termination;
use serde_json::json;

use crate::cloud::Scripted;
use crate::world::{World, node_pool};

/// A cluster with this many pods on one node that is not consolidated.
async fn running(pods: i32, pool: Object<NodePool>) -> World {
    let world = World::with(pool.consolidate_after("Never")).await;
    world.run("app", pods).await;
    world
}

/// A Node as a kubelet would create it; managed by Karpenter if it has a finalizer.
fn by_hand(name: &str, provider_id: Option<&str>, finalizers: &[&str]) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "finalizers": finalizers, "labels": {
            "karpenter.kwok.sh/kwoknodeclass": "default", "kwok.x-k8s.io/node": "fake", "karpenter.sh/registered": "true"}},
        "spec": {"providerID": provider_id, "taints": [{"key": "example.com/kept-free", "effect": "NoSchedule"}]},
    }))
    .unwrap()
}

/// Conformance: DIS-045
#[tokio::test(start_paused = true)]
async fn deletion_of_an_instance_is_retried_and_polled_every_five_seconds() {
    let mut world = running(1, node_pool("default")).await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    world.pass(5).await;
    cloud.deletions.lock().extend([
        Err(CloudProviderError::other("the cloud is away")),
        Ok(()),
        Ok(()),
        Ok(()),
        Ok(()),
    ]);
    let name = world.claim().await.name().to_owned();
    let on = world.node_name().await;
    world.delete::<NodeClaim>(&name).await;
    until!(world, 60, "the instance terminates, by its claim", |w| {
        let claim = w.get::<NodeClaim>(&name).await;
        claim.is_some_and(|claim| claim.is_true(types::INSTANCE_TERMINATING))
    });
    let asked = cloud.calls("delete").len();
    assert!(asked >= 2, "the deletion that failed is not recorded");
    assert!(
        world.get::<Node>(&on).await.is_some(),
        "its instance is not terminated"
    );
    world.until_gone::<NodeClaim>(&name, 120).await;
    let gaps = cloud.gaps("delete");
    assert!(gaps.len() >= 5, "{gaps:?}");
    assert!(gaps[0] < 2.0, "a failure is retried soon, {gaps:?}");
    assert!(
        gaps[2..4].iter().all(|gap| (4.9..5.5).contains(gap)),
        "{gaps:?}"
    );
    let measured =
        "karpenter_nodeclaims_instance_termination_duration_seconds_count{nodepool=\"default\"}";
    assert_eq!(world.metric(measured), Some(1.0));
    world.until_running(1, 60).await;
    world.assert_no_orphans().await;
}

/// Conformance: DIS-064
#[tokio::test(start_paused = true)]
async fn a_node_is_deleted_without_a_nodeclaim_and_with_two() {
    let world = running(1, node_pool("default")).await;
    let held = ["karpenter.sh/termination"];
    let orphan = by_hand("orphan", Some("kwok://orphan"), &held);
    world.create(&orphan).await;
    world.pass(5).await;
    world.delete::<Node>("orphan").await;
    world.until_gone::<Node>("orphan", 60).await;

    // Two NodeClaims with the same provider id.
    world.cluster.cloud.fail_launches(u32::MAX);
    let class = json!({"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"});
    for name in ["one", "two"] {
        world
            .add(node_claim(name).set("/spec/nodeClassRef", class.clone()))
            .await;
        let launched = json!({"status": {"providerID": "kwok://shared"}});
        world.patch_status::<NodeClaim>(name, launched).await;
    }
    let shared = by_hand("shared", Some("kwok://shared"), &held);
    world.create(&shared).await;
    world.pass(5).await;
    world.delete::<Node>("shared").await;
    world.until_gone::<Node>("shared", 60).await;
    for name in ["one", "two"] {
        let twin = world.get::<NodeClaim>(name).await.unwrap();
        assert!(
            twin.metadata.deletion_timestamp.is_none(),
            "the owner of the Node is ambiguous"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn only_deleted_nodes_with_our_finalizer_and_class_are_terminated() {
    let world = running(1, node_pool("default")).await;
    let ours = "karpenter.sh/termination";
    let staying = by_hand("staying", Some("kwok://staying"), &[ours]);
    let held_by_another = by_hand("held", Some("kwok://held"), &["example.com/held"]);
    let mut without_class = by_hand("classless", Some("kwok://classless"), &[ours]);
    let labels = without_class.metadata.labels.as_mut().unwrap();
    labels.remove("karpenter.kwok.sh/kwoknodeclass").unwrap();
    for node in [staying, held_by_another, without_class] {
        world.create(&node).await;
    }
    world.pass(5).await;
    for name in ["held", "classless"] {
        world.delete::<Node>(name).await;
    }
    world.pass(30).await;
    let cx = Arc::clone(world.cluster.context().unwrap());
    let evictions = EvictionQueue::new(Arc::clone(&cx), Queue::new());
    let termination = Termination::new(cx, Arc::new(evictions));
    for name in ["staying", "held", "classless"] {
        let next = termination.reconcile(ObjectKey::cluster(name)).await;
        assert_eq!(next.unwrap(), Next::Wait, "{name}");
        let taints = world.get::<Node>(name).await.unwrap().spec.unwrap().taints;
        let keys: Vec<_> = taints.iter().flatten().map(|t| &*t.key).collect();
        assert!(
            !keys.contains(&"karpenter.sh/disrupted"),
            "{name}: {keys:?}"
        );
    }
}

async fn attach(world: &World, name: &str, node: &str) {
    let attachment = json!({
        "metadata": {"name": format!("attachment-{name}")},
        "spec": {"attacher": "csi.example.com", "nodeName": node, "source": {"persistentVolumeName": name}},
    });
    world.create_json::<VolumeAttachment>(attachment).await;
}

/// Conformance: DIS-077, DIS-207
#[tokio::test(start_paused = true)]
async fn termination_waits_for_volumes_of_pods_that_are_drained() {
    let world = running(1, node_pool("default")).await;
    let name = world.node_name().await;
    let owner = world.claim().await.name().to_owned();
    // A pod that tolerates the disruption taint keeps its volume attached.
    let volume = json!({
        "metadata": {"name": "kept"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "csi.example.com", "volumeHandle": "kept"}, "claimRef": {"namespace": "default", "name": "kept"}}});
    world.create_json::<PersistentVolume>(volume).await;
    let wanted = json!({
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"volumeName": "kept", "storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    world.create_json::<PersistentVolumeClaim>(wanted).await;
    let staying = pod("staying").tolerate(json!({"operator": "Exists"}));
    let staying = staying.volume("kept").set("/spec/nodeName", name.as_str());
    world.add(staying).await;
    attach(&world, "kept", &name).await;
    attach(&world, "moving", &name).await;
    world.pass(5).await;
    world.delete::<Node>(&name).await;
    world.pass(120).await;
    assert!(world.get::<Node>(&name).await.is_some());
    let waiting = world.get::<NodeClaim>(&owner).await.unwrap();
    let condition = waiting.condition(types::VOLUMES_DETACHED).unwrap();
    assert_eq!(
        (&*condition.status, &*condition.reason),
        ("Unknown", "AwaitingVolumeDetachment")
    );
    let event = world.events_of("AwaitingVolumeDetachment").await.remove(0);
    let message = event.message.unwrap();
    assert!(
        message.contains("attachment-moving") && !message.contains("attachment-kept"),
        "{message}"
    );
    world.delete::<VolumeAttachment>("attachment-moving").await;
    world.until_gone::<Node>(&name, 30).await;
}
