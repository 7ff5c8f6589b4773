//! How Machines and Nodes end: slowly, by a MachineHealthCheck, before the watch has them.

use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::provider::CloudProvider;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::UID;
use crate::world::{World, deployment};

/// Conformance: CAPI-15, CAPI-18, CAPI-20
#[tokio::test(start_paused = true)]
async fn a_machine_that_takes_an_hour_to_end_is_deleted_and_drained_once() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world.run_pods(2).await;
    world.capi.state.lock().holds_deletions = true;
    world.deploy(1).await;
    world.clock.sleep(Duration::from_secs(3600)).await;
    let (mut going, staying): (Vec<_>, Vec<_>) = world
        .machines()
        .await
        .into_iter()
        .partition(|machine| machine.metadata.deletion_timestamp.is_some());
    assert_eq!((going.len(), staying.len()), (1, 1));
    let going = going.remove(0);
    for key in [
        "exclude-node-draining",
        "exclude-wait-for-node-volume-detach",
    ] {
        let key = format!("machine.cluster.x-k8s.io/{key}");
        assert!(going.annotations().contains_key(&key), "{key}");
    }
    let claims = world.list::<NodeClaim>().await;
    let of_going = claims
        .iter()
        .find(|claim| claim.uid() == going.labels()[UID]);
    for _ in 0..10 {
        let provider = world.running_provider();
        provider.delete(of_going.unwrap()).await.unwrap();
    }
    world.capi.state.lock().holds_deletions = false;
    world
        .until("it is gone", async |w| {
            let machines = w.machines().await;
            machines.len() == 1 && machines[0].uid() == staying[0].uid()
        })
        .await;
    assert_eq!(world.running().await, 1);
}

/// Conformance: CAPI-19
#[tokio::test(start_paused = true)]
async fn a_machine_that_the_watch_does_not_have_is_deleted() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world.run_pods(1).await;
    world.capi.state.lock().holds_deletions = true;
    let claim = world.list::<NodeClaim>().await.remove(0);
    // It has no watch.
    let provider = world.provider().await;
    provider.delete(&claim).await.unwrap();
    let machine = world.machines().await.remove(0);
    assert!(machine.metadata.deletion_timestamp.is_some());
    let mut other = claim.clone();
    other.metadata.uid = Some("another".to_owned());
    let error = provider.delete(&other).await.unwrap_err();
    assert!(error.is_node_claim_not_found(), "{error}");
}

/// A MachineHealthCheck asks the owner of a Machine to replace it: its MachineSet, or Karpenter.
#[tokio::test(start_paused = true)]
async fn a_machine_that_its_health_check_wants_replaced_is_replaced() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world.run_pods(2).await;
    let machines = world.machines().await;
    for machine in &machines {
        let skipped = "cluster.x-k8s.io/skip-remediation";
        assert!(!machine.annotations().contains_key(skipped));
    }
    let asked = json!({ "status": { "conditions": [{
        "type": "OwnerRemediated", "status": "False", "reason": "WaitingForRemediation",
        "message": "Waiting for remediation", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } });
    let api = world.capi.machines();
    api.patch_status(
        &machines[0].name_any(),
        &PatchParams::default(),
        &Patch::Merge(asked),
    )
    .await
    .unwrap();
    world
        .until("it is replaced", async |w| {
            let now = w.machines().await;
            let has = |uid| now.iter().any(|machine| machine.uid() == uid);
            now.len() == 2
                && !has(machines[0].uid())
                && has(machines[1].uid())
                && w.running().await == 2
        })
        .await;
    world.deploy(0).await;
    world.nothing_lost_or_doubled().await;
}

/// Conformance: CAPI-43
#[tokio::test(start_paused = true)]
async fn a_node_is_initialized_once_cluster_api_has_removed_its_taint() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world.capi.state.lock().keeps_taint = true;
    world.deploy(1).await;
    let is_true = async |w: &World, condition: &str| {
        let claims = w.list::<NodeClaim>().await;
        claims.len() == 1 && claims[0].is_true(condition)
    };
    world
        .until("it is registered", async |w| {
            is_true(w, types::REGISTERED).await
        })
        .await;
    world.clock.sleep(Duration::from_secs(300)).await;
    assert!(!is_true(&world, types::INITIALIZED).await);
    world.capi.state.lock().keeps_taint = false;
    world.until_running(1).await;
    world
        .until("it is initialized", async |w| {
            is_true(w, types::INITIALIZED).await
        })
        .await;
}
