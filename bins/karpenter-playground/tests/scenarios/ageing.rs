//! What happens to machines that stay: drift, expiry, loss, and the checks that find it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, Status, types};
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_kube::operator::Operator;
use karpenter_kwok::{KwokNodeClass, KwokProvider};
use karpenter_testbed::loops::node_agent::NodeFault;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::world::{World, pool, settings};

/// A world with pods on one machine of a pool that never consolidates.
async fn settled(pods: i32, spec: Value) -> World {
    let world = World::bare(settings()).await;
    world.create(&KwokNodeClass::new("default")).await;
    let mut quiet =
        json!({"disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]}});
    if let Some(own) = spec.as_object() {
        quiet.as_object_mut().unwrap().extend(own.clone());
    }
    world.create(&pool("default", quiet)).await;
    world.deploy("app", pods).await;
    let pods = usize::try_from(pods).unwrap();
    world.until_running(pods, 60).await;
    world
        .until(60, "machines are initialised", async |w| {
            let claims = w.claims().await;
            claims.iter().all(|c| c.is_true(types::INITIALIZED))
        })
        .await;
    world
}

async fn patch<K>(world: &World, name: &str, patch: Value)
where
    K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    let api: Api<K> = world.api();
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

async fn drifted(world: &World) -> Option<String> {
    let claims = world.claims().await;
    let condition = claims[0].condition(types::DRIFTED)?;
    assert_eq!(condition.reason, condition.message);
    Some(condition.reason.clone())
}

async fn until_drifted(world: &World, reason: Option<&str>) {
    let what = format!("drift is {reason:?}");
    world
        .until(30, &what, async |w| drifted(w).await.as_deref() == reason)
        .await;
}

/// Conformance: DIS-056
#[tokio::test(start_paused = true)]
async fn the_first_reason_to_drift_counts_and_a_change_taken_back_ends_it() {
    let world = settled(1, json!({})).await;
    assert_eq!(drifted(&world).await, None);
    let zone =
        json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["nowhere"]}]);
    patch::<NodePool>(
        &world,
        "default",
        json!({"spec": {"template": {"spec": {"requirements": zone}}}}),
    )
    .await;
    until_drifted(&world, Some("RequirementsDrifted")).await;
    let label = json!({"spec": {"template": {"metadata": {"labels": {"team": "a"}}}}});
    patch::<NodePool>(&world, "default", label).await;
    until_drifted(&world, Some("NodePoolDrifted")).await;
    let back = json!({"spec": {"template": {"metadata": {"labels": {"team": null}}, "spec": {"requirements": []}}}});
    patch::<NodePool>(&world, "default", back).await;
    // An empty map of labels is not the same as none to upstream's hash.
    let none = json!({"spec": {"template": {"metadata": null}}});
    patch::<NodePool>(&world, "default", none).await;
    until_drifted(&world, None).await;
}

/// Conformance: DIS-057
#[tokio::test(start_paused = true)]
async fn every_static_field_of_the_template_drifts_the_machines() {
    let world = settled(1, json!({})).await;
    let original: NodePool = world.api().get("default").await.unwrap();
    let taint = json!([{"key": "example.com/t", "effect": "NoSchedule"}]);
    let changes = [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"annotations": {"a": "b"}}}),
        json!({"spec": {"taints": taint}}),
        json!({"spec": {"startupTaints": taint}}),
        json!({"spec": {"expireAfter": "100h"}}),
        json!({"spec": {"terminationGracePeriod": "1h"}}),
        json!({"spec": {"nodeClassRef": {"name": "other"}}}),
    ];
    for change in changes {
        patch::<NodePool>(&world, "default", json!({"spec": {"template": change}})).await;
        until_drifted(&world, Some("NodePoolDrifted")).await;
        let mut back: NodePool = world.api().get("default").await.unwrap();
        back.spec.template = original.spec.template.clone();
        let api: Api<NodePool> = world.api();
        api.replace("default", &Default::default(), &back)
            .await
            .unwrap();
        until_drifted(&world, None).await;
    }
}

/// Conformance: DIS-063
#[tokio::test(start_paused = true)]
async fn claims_with_another_hash_version_are_rewritten_before_they_can_drift() {
    let world = settled(1, json!({})).await;
    let claim = world.claims().await.remove(0);
    let old = json!({"metadata": {"annotations": {
        annotations::NODE_POOL_HASH: "1", annotations::NODE_POOL_HASH_VERSION: "v0"}}});
    patch::<NodeClaim>(&world, claim.name(), old.clone()).await;
    world.pass(5).await;
    assert_eq!(
        drifted(&world).await,
        None,
        "hashes of different versions say nothing"
    );
    patch::<NodePool>(&world, "default", old).await;
    world
        .until(30, "the claim has the pool's hash again", async |w| {
            let claims = w.claims().await;
            claims[0].annotation(annotations::NODE_POOL_HASH)
                == claim.annotation(annotations::NODE_POOL_HASH)
        })
        .await;
    assert_eq!(drifted(&world).await, None);
}

/// Conformance: DIS-051
#[tokio::test(start_paused = true)]
async fn machines_expire_whatever_budgets_say_and_are_counted_once() {
    let mut world = settled(1, json!({"template": {"spec": {"expireAfter": "1h"}}})).await;
    let claim = world.claims().await.remove(0);
    world.pass(3500).await;
    assert!(!world.claims().await[0].is_deleting());
    world
        .until(300, "the claim has expired", async |w| {
            w.claims().await.iter().all(|c| c.uid() != claim.uid())
        })
        .await;
    world.until_running(1, 120).await;
    let counted = world.metric(
        "karpenter_nodeclaims_disrupted_total{reason=\"expired\",nodepool=\"default\",capacity_type=\"spot\",consolidation_policy=\"\",termination_mode=\"graceful\"}",
    );
    assert_eq!(counted, Some(1.0));
    world.stack.stop_controllers().await;
}

/// Conformance: DIS-050
#[tokio::test(start_paused = true)]
async fn a_claim_whose_machine_is_gone_goes_once_its_node_is_not_ready() {
    let world = settled(1, json!({})).await;
    let claim = world.claims().await.remove(0);
    world
        .stack
        .cloud
        .kill(claim.status.provider_id.as_deref().unwrap());
    world.pass(20).await;
    assert!(
        !world.claims().await[0].is_deleting(),
        "the node still says that it is ready"
    );
    let node = world.nodes().await.remove(0).metadata.name.unwrap();
    world.stack.node_faults.set(&node, NodeFault::Dead);
    world
        .until(400, "the claim is collected", async |w| {
            w.claims().await.iter().all(|c| c.uid() != claim.uid())
        })
        .await;
    let series = world.stack.registry.render();
    assert!(series.contains("karpenter_nodeclaims_disrupted_total{reason=\"garbage_collected\""));
    world.until_running(1, 120).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_a_claim_is_given_back_with_its_node() {
    let mut world = settled(1, json!({})).await;
    world.stack.stop_controllers().await;
    // Somebody removes the claim for good while nobody is there to end the machine.
    let claim = world.claims().await.remove(0);
    patch::<NodeClaim>(
        &world,
        claim.name(),
        json!({"metadata": {"finalizers": null}}),
    )
    .await;
    world.delete::<NodeClaim>(claim.name()).await;
    world
        .until(30, "the claim is gone", async |w| {
            w.claims().await.is_empty()
        })
        .await;
    let id = claim.status.provider_id.clone().unwrap();
    let lost = |w: &World| {
        let machines = w.stack.cloud.machines();
        machines
            .iter()
            .any(|m| m.answer.status.provider_id.as_ref() == Some(&id))
    };
    assert!(lost(&world));
    world.stack.start_controllers();
    world
        .until(120, "the machine is given back", async |w| !lost(w))
        .await;
    world.until_running(1, 300).await;
    world.assert_no_orphans().await;
}

/// Conformance: DIS-019
#[tokio::test(start_paused = true)]
async fn a_claim_that_only_the_model_knows_is_forgotten() {
    let mut world = World::bare(settings()).await;
    world.stack.stop_controllers().await;
    let provider = KwokProvider::new(
        world.client.clone(),
        world.stack.clock,
        Vec::new(),
        world.stack.cloud.clone(),
    );
    let options = settings().options;
    let operator = Operator::builder(Arc::new(provider), world.client.clone(), options)
        .clock(world.stack.clock)
        .build();
    let (cx, stop) = (Arc::clone(operator.context()), CancellationToken::new());
    let running = tokio::spawn(operator.run(stop.clone()));
    world.pass(1).await;
    let ghost = |name: &str| NodeClaim {
        metadata: kube::core::ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(name.to_owned()),
            ..Default::default()
        },
        ..NodeClaim::new(name, Default::default())
    };
    let mut launched = ghost("launched");
    launched.status.provider_id = Some("kwok://launched".to_owned());
    for claim in [ghost("ghost"), launched] {
        cx.model.created_node_claim(claim).await.unwrap();
    }
    world.pass(10).await;
    assert!(cx.view().node_claim("ghost").is_some());
    world.pass(10).await;
    assert!(cx.view().node_claim("ghost").is_none());
    assert!(
        cx.view().node_claim("launched").is_some(),
        "what was launched is not forgotten"
    );
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_smaller_than_promised_is_told_of() {
    let world = settled(1, json!({})).await;
    let found =
        async |w: &World| w.claims().await[0].condition_status(types::CONSISTENT_STATE_FOUND);
    world
        .until(30, "the node is consistent", async |w| {
            found(w).await == Status::True
        })
        .await;
    let node = world.nodes().await.remove(0).metadata.name.unwrap();
    let api: Api<Node> = world.api();
    let small = Patch::Merge(json!({"status": {"capacity": {"cpu": "1m"}}}));
    api.patch_status(&node, &PatchParams::default(), &small)
        .await
        .unwrap();
    world
        .until(1300, "the node is inconsistent", async |w| {
            found(w).await == Status::False
        })
        .await;
    assert!(world.told("FailedConsistencyCheck").await);
}

#[tokio::test(start_paused = true)]
async fn the_nodeclass_label_comes_back_to_claims_and_nodes() {
    let world = settled(1, json!({})).await;
    let label = "karpenter.kwok.sh/kwoknodeclass";
    let without = json!({"metadata": {"labels": {label: null}}});
    let claim = world.claims().await.remove(0);
    patch::<NodeClaim>(&world, claim.name(), without.clone()).await;
    let node = world.nodes().await.remove(0).metadata.name.unwrap();
    patch::<Node>(&world, &node, without).await;
    world
        .until(10, "the label is back", async |w| {
            let node = w.nodes().await.remove(0).metadata.labels.unwrap();
            w.claims().await[0].label(label) == Some("default")
                && node.get(label).map(String::as_str) == Some("default")
        })
        .await;
}
