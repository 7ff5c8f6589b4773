//! Lifecycle of existing nodes: drift, expiration, lost instances, and consistency checks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, Status, types};
use karpenter_api::hash;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::provider::CloudProvider;
use karpenter_core::schedule::PlannedNodeClaim;
use karpenter_fixtures::Object;
use karpenter_kube::context::Context;
use karpenter_kube::operator::{Operator, OperatorError};
use karpenter_kube::provisioning::launch::create_claims;
use karpenter_kwok::KwokProvider;
use karpenter_testbed::loops::node_agent::NodeFault;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cloud::Scripted;
use crate::world::{World, node_pool, settings};

/// A world with pods on one node of a NodePool that never consolidates.
async fn with_node(pods: i32, pool: Object<NodePool>) -> World {
    let world = World::with(pool.consolidate_after("Never").budgets(&["0"])).await;
    world.run("app", pods).await;
    until!(world, 60, "nodes are initialized", |w| {
        let claims = w.claims().await;
        claims.iter().all(|c| c.is_true(types::INITIALIZED))
    });
    world
}

fn kill(world: &World, claim: &NodeClaim) {
    let id = claim.status.provider_id.as_deref();
    world.cluster.cloud.kill(id.unwrap());
}

async fn is_kept(world: &World, claim: &NodeClaim) -> bool {
    let known = world.get::<NodeClaim>(claim.name()).await;
    known.is_some_and(|known| known.uid() == claim.uid() && !known.is_deleting())
}

async fn drifted(world: &World) -> Option<String> {
    let claims = world.claims().await;
    let condition = claims[0].condition(types::DRIFTED)?;
    assert_eq!(condition.reason, condition.message);
    Some(condition.reason.clone())
}

async fn until_drifted(world: &World, reason: Option<&str>) {
    let what = format!("drift is {reason:?}");
    until!(world, 30, &what, |w| drifted(w).await.as_deref() == reason);
}

/// Conformance: DIS-056
#[tokio::test(start_paused = true)]
async fn the_first_drift_reason_counts_and_a_reverted_change_ends_drift() {
    let world = with_node(1, node_pool("default")).await;
    assert_eq!(drifted(&world).await, None);
    let zone =
        json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["nowhere"]}]);
    let elsewhere = json!({"spec": {"template": {"spec": {"requirements": zone}}}});
    world.patch::<NodePool>("default", elsewhere).await;
    until_drifted(&world, Some("RequirementsDrifted")).await;
    let label = json!({"spec": {"template": {"metadata": {"labels": {"team": "a"}}}}});
    world.patch::<NodePool>("default", label).await;
    until_drifted(&world, Some("NodePoolDrifted")).await;
    let back = json!({"spec": {"template": {"metadata": {"labels": {"team": null}}, "spec": {"requirements": []}}}});
    world.patch::<NodePool>("default", back).await;
    // For upstream's hash an empty map of labels differs from none.
    let none = json!({"spec": {"template": {"metadata": null}}});
    world.patch::<NodePool>("default", none).await;
    until_drifted(&world, None).await;
}

/// Conformance: DIS-051, API-172, DIS-206
#[tokio::test(start_paused = true)]
async fn nodes_expire_despite_budgets_and_are_counted_once() {
    let mut world = with_node(1, node_pool("default").expire_after("1h")).await;
    let claim = world.claim().await;
    world.pass(3500).await;
    assert!(!world.claims().await[0].is_deleting());
    world.until_gone::<NodeClaim>(claim.name(), 300).await;
    world.until_running(1, 120).await;
    let counted = world.metric(
        "karpenter_nodeclaims_disrupted_total{reason=\"expired\",nodepool=\"default\",capacity_type=\"spot\",consolidation_policy=\"\",termination_mode=\"graceful\"}",
    );
    assert_eq!(counted, Some(1.0));
    world.cluster.stop_controllers().await;
}

/// Conformance: DIS-050, API-172
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_without_an_instance_is_deleted_once_its_node_is_not_ready() {
    let mut world = with_node(1, node_pool("default")).await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    let claim = world.claim().await;
    kill(&world, &claim);
    cloud.listed(&world, 3).await;
    assert!(is_kept(&world, &claim).await, "the node is still ready");
    let node = world.node_name().await;
    world.cluster.node_faults.set(&node, NodeFault::Dead);
    world.until_gone::<NodeClaim>(claim.name(), 400).await;
    let series = world.cluster.registry.render();
    assert!(series.contains("karpenter_nodeclaims_disrupted_total{reason=\"garbage_collected\""));
    world.until_running(1, 120).await;
}

/// Conformance: DIS-050
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_that_is_not_registered_is_not_garbage_collected() {
    let mut world = World::new().await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    world.cluster.cloud.never_register(true);
    world.deploy("app", 1).await;
    until!(world, 60, "a claim is launched", |w| {
        w.claims().await.iter().any(|c| c.is_true(types::LAUNCHED))
    });
    let claim = world.claim().await;
    kill(&world, &claim);
    cloud.listed(&world, 3).await;
    assert!(is_kept(&world, &claim).await, "liveness deletes it");
}

/// Conformance: AWS-gc-02, DIS-147
#[tokio::test(start_paused = true)]
async fn an_instance_without_a_nodeclaim_is_terminated_after_half_a_minute() {
    let mut world = with_node(1, node_pool("default")).await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    let mut claim = world.claim().await;
    claim.metadata = kube::core::ObjectMeta {
        name: Some("unrecorded".to_owned()),
        uid: Some("unrecorded".to_owned()),
        labels: claim.metadata.labels,
        ..Default::default()
    };
    let id = cloud.create(&claim).await.unwrap().status.provider_id;
    let is_there = |w: &World| {
        let instances = w.cluster.cloud.instances();
        instances.iter().any(|i| i.answer.status.provider_id == id)
    };
    assert!(is_there(&world));
    // Checked every ten seconds.
    world.pass(25).await;
    assert!(is_there(&world), "its claim may not be written yet");
    until!(world, 30, "the instance is terminated", |w| !is_there(w));
    assert_eq!(world.claims().await.len(), 1);
}

/// The controllers were interrupted between the launch and writing its result, and continue with the same NodeClaim.
///
/// Conformance: DIS-147
#[tokio::test(start_paused = true)]
async fn an_instance_whose_nodeclaim_is_still_launching_is_not_terminated() {
    let mut world = World::new().await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    cloud.loses_launches.store(true, Ordering::Relaxed);
    world.deploy("app", 1).await;
    until!(world, 60, "an instance is launched", |w| {
        w.cluster.cloud.launched() == 1
    });
    // Longer than the half minute after which an instance without a NodeClaim is terminated.
    world.pass(60).await;
    cloud.listed(&world, 1).await;
    assert_eq!(world.cluster.cloud.instances().len(), 1);
    cloud.loses_launches.store(false, Ordering::Relaxed);
    world.until_running(1, 300).await;
    assert_eq!(
        world.cluster.cloud.launched(),
        1,
        "the claim got its instance"
    );
}

/// Controllers in addition to those of the world, whose context a scenario can inspect.
fn operator(
    world: &World,
) -> (
    Arc<Context>,
    CancellationToken,
    tokio::task::JoinHandle<Result<(), OperatorError>>,
) {
    let provider = KwokProvider::new(
        world.client.clone(),
        world.cluster.clock,
        Vec::new(),
        world.cluster.cloud.clone(),
    );
    let options = settings().options;
    let operator = Operator::builder(Arc::new(provider), world.client.clone(), options)
        .clock(world.cluster.clock)
        .build();
    let (cx, stop) = (Arc::clone(operator.context()), CancellationToken::new());
    let running = tokio::spawn(operator.run(stop.clone()));
    (cx, stop, running)
}

/// Conformance: SCH-008
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_has_the_hash_that_its_nodepool_had_when_it_was_planned() {
    let mut world = World::new().await;
    world.cluster.stop_controllers().await;
    let (cx, stop, running) = operator(&world);
    let known = async |label: Option<&str>| {
        let what = format!("the model knows the pool with {label:?}");
        until!(world, 30, &what, |_| {
            let view = cx.view();
            view.node_pool("default").is_some_and(|pool| {
                let labels = pool.spec.template.metadata.labels.as_ref();
                labels.and_then(|l| l.get("team")).map(String::as_str) == label
            })
        });
        NodePool::clone(cx.view().node_pool("default").unwrap())
    };
    let planned = known(None).await;
    let draft = PlannedNodeClaim::from_template(&planned, &cx.provider.profile().well_known);
    let label = json!({"spec": {"template": {"metadata": {"labels": {"team": "a"}}}}});
    world.patch::<NodePool>("default", label).await;
    let edited = known(Some("a")).await;
    assert_ne!(hash::node_pool(&planned), hash::node_pool(&edited));
    let created = create_claims(&cx, &[draft], &BTreeSet::new(), "provisioned").await;
    let [Ok(created)] = &created[..] else {
        panic!("{created:?}");
    };
    assert_eq!(
        created.annotation(annotations::NODE_POOL_HASH),
        Some(hash::node_pool(&planned).as_str())
    );
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// Conformance: DIS-019
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_that_only_the_model_has_is_removed() {
    let mut world = World::bare(settings()).await;
    world.cluster.stop_controllers().await;
    let (cx, stop, running) = operator(&world);
    world.pass(1).await;
    let ghost = |name: &str| {
        let mut claim = NodeClaim::new(name, Default::default());
        claim.metadata.uid = Some(name.to_owned());
        claim
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
        "launched claims are not removed"
    );
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// Conformance: DIS-149
#[tokio::test(start_paused = true)]
async fn a_node_smaller_than_its_instance_type_gets_an_event() {
    let world = with_node(1, node_pool("default")).await;
    let found =
        async |w: &World| w.claims().await[0].condition_status(types::CONSISTENT_STATE_FOUND);
    until!(world, 30, "the node is consistent", |w| {
        found(w).await == Status::True
    });
    let node = world.node_name().await;
    world
        .patch_status::<Node>(&node, json!({"status": {"capacity": {"cpu": "1m"}}}))
        .await;
    until!(world, 1300, "the node is inconsistent", |w| {
        found(w).await == Status::False
    });
    assert!(world.has_event("FailedConsistencyCheck").await);
}

/// Conformance: DIS-136
#[tokio::test(start_paused = true)]
async fn the_nodeclass_label_is_restored_on_nodeclaims_and_nodes() {
    let world = with_node(1, node_pool("default")).await;
    let label = "karpenter.kwok.sh/kwoknodeclass";
    let without = json!({"metadata": {"labels": {label: null}}});
    let claim = world.claim().await;
    world
        .patch::<NodeClaim>(claim.name(), without.clone())
        .await;
    let node = world.node_name().await;
    world.patch::<Node>(&node, without).await;
    until!(world, 10, "the label is back", |w| {
        let node = w.nodes().await.remove(0).metadata.labels.unwrap();
        w.claims().await[0].label(label) == Some("default")
            && node.get(label).map(String::as_str) == Some("default")
    });
}
