//! Single reconciliations of NodeClaims: what they do, and when the NodeClaim is reconciled again.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::provider::CloudProviderError;
use karpenter_fixtures::{Object, bare_node};
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Controller, Next, ObjectKey, Queue};
use karpenter_kube::nodeclaim::conditions::DisruptionConditions;
use karpenter_kube::nodeclaim::consistency::Consistency;
use karpenter_kube::nodeclaim::drift::Drift;
use karpenter_kube::nodeclaim::expiration::Expiration;
use karpenter_kube::nodeclaim::lifecycle::Lifecycle;
use karpenter_kube::nodeclaim::removal;
use karpenter_kube::nodepool::RegistrationHealth;
use karpenter_kube::provisioning::Triggers;
use karpenter_testbed::loops::node_agent::NodeFault;
use serde_json::json;

use crate::cloud::Scripted;
use crate::world::{World, deployment, node_pool};

/// A cluster with one pod, which blocks the drain of its node, and the cloud's script.
async fn cluster(
    change: impl FnOnce(Object<NodePool>) -> Object<NodePool>,
) -> (World, Arc<Scripted>) {
    let pool = node_pool("default").consolidate_after("Never");
    let mut world = World::with(change(pool)).await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    world.add(deployment("app", 1).do_not_disrupt()).await;
    world.until_running(1, 60).await;
    world.pass(30).await;
    (world, cloud)
}

fn context(world: &World) -> Arc<Context> {
    Arc::clone(world.cluster.context().unwrap())
}

fn lifecycle(cx: &Arc<Context>) -> Lifecycle {
    let health = RegistrationHealth::new(Queue::new());
    let triggers = Triggers::new(&cx.options, cx.clock);
    Lifecycle::new(Arc::clone(cx), Arc::new(health), Arc::new(triggers))
}

fn away() -> CloudProviderError {
    CloudProviderError::other("the cloud is away")
}

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

#[tokio::test(start_paused = true)]
async fn nodeclaims_are_checked_after_their_intervals_until_deleted() {
    let (world, _) = cluster(|pool| pool.expire_after("720h").consolidate_after("1h")).await;
    let cx = context(&world);
    let key = ObjectKey::cluster(world.claim().await.name());
    let checks = async || {
        let (cx, key) = (|| Arc::clone(&cx), || key.clone());
        [
            Consistency { cx: cx() }.reconcile(key()).await.unwrap(),
            Drift::new(cx()).reconcile(key()).await.unwrap(),
            Expiration { cx: cx() }.reconcile(key()).await.unwrap(),
            DisruptionConditions { cx: cx() }
                .reconcile(key())
                .await
                .unwrap(),
        ]
    };
    let [consistency, drift, expiration, conditions] = checks().await;
    assert_eq!(consistency, Next::After(minutes(10)));
    assert_eq!(drift, Next::After(minutes(5)));
    for next in [expiration, conditions] {
        assert_ne!(next, Next::Wait);
    }
    world.delete::<NodeClaim>(&key.name).await;
    world.pass(3).await;
    assert!(world.claim().await.is_deleting());
    assert_eq!(checks().await, [Next::Wait; 4]);
}

/// Conformance: DIS-166
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_stays_drifted_while_the_cloud_cannot_be_asked() {
    let (world, cloud) = cluster(|pool| pool.budgets(&["0"])).await;
    *cloud.drift.lock() = Some("AMIDrift".to_owned());
    world.pass(310).await;
    assert!(world.claim().await.is_true(types::DRIFTED));
    *cloud.drift.lock() = None;
    *cloud.unknown.lock() = Some("the cloud is away");
    let key = ObjectKey::cluster(world.claim().await.name());
    let drift = Drift::new(context(&world));
    assert!(drift.reconcile(key).await.is_err());
    assert!(world.claim().await.is_true(types::DRIFTED));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_ended_is_now_unless_it_has_passed() {
    let (world, _) = cluster(|pool| pool).await;
    let cx = context(&world);
    let deadline = |claim: &NodeClaim| {
        let text = claim.annotation(annotations::TERMINATION_TIMESTAMP);
        text.unwrap().parse::<jiff::Timestamp>().unwrap()
    };
    let claim = world.claim().await;
    let ended = removal::end_grace_period(&cx, &claim).await.unwrap();
    assert!(cx.clock.since(deadline(&ended)) < Duration::from_secs(1));
    world.pass(60).await;
    let again = removal::end_grace_period(&cx, &ended).await.unwrap();
    assert_eq!(deadline(&again), deadline(&ended), "it has passed");
    let later = (cx.clock.now() + minutes(5)).to_string();
    let later = json!({"metadata": {"annotations": {annotations::TERMINATION_TIMESTAMP: later}}});
    world.patch::<NodeClaim>(claim.name(), later).await;
    let claim = world.claim().await;
    let ended = removal::end_grace_period(&cx, &claim).await.unwrap();
    assert!(deadline(&ended) <= cx.clock.now());
}

#[tokio::test(start_paused = true)]
async fn a_node_unknown_to_the_model_is_deleted_before_its_instance() {
    let (mut world, cloud) = cluster(|pool| pool).await;
    let claim = world.claim().await;
    let name = claim.status.node_name.clone().unwrap();
    let id = claim.status.provider_id.clone().unwrap();
    cloud.deletions.lock().extend((0..100).map(|_| Err(away())));
    world.delete::<NodeClaim>(claim.name()).await;
    world.pass(5).await;
    let released = json!({"metadata": {"finalizers": null}});
    world.patch::<Node>(&name, released.clone()).await;
    world.pass(5).await;
    assert!(world.nodes().await.is_empty());
    let cx = context(&world);
    world.cluster.stop_controllers().await;
    let node = async |id: &str| {
        let node = bare_node(&name).finalizer("example.com/held");
        world.add(node.set("/spec/providerID", id)).await;
    };
    let is_deleting = async || {
        let node = world.get::<Node>(&name).await.unwrap();
        node.metadata.deletion_timestamp.is_some()
    };
    let calls = cloud.calls("delete").len();
    let lifecycle = lifecycle(&cx);
    let key = ObjectKey::cluster(claim.name());
    node(&id).await;
    for _ in 0..2 {
        let next = lifecycle.reconcile(key.clone()).await.unwrap();
        assert_eq!(next, Next::After(Duration::from_secs(5)));
        assert!(is_deleting().await);
    }
    assert_eq!(cloud.calls("delete").len(), calls);

    // A Node of another instance has only the name in common.
    world.patch::<Node>(&name, released).await;
    node("kwok://another").await;
    assert!(lifecycle.reconcile(key).await.is_err());
    assert!(!is_deleting().await);
    assert_eq!(cloud.calls("delete").len(), calls + 1);
    let finalizers = world.claim().await.metadata.finalizers;
    assert_eq!(finalizers.unwrap(), ["karpenter.sh/termination"]);
}

/// Conformance: DIS-147
#[tokio::test(start_paused = true)]
async fn the_node_of_an_instance_without_a_nodeclaim_is_deleted_after_it() {
    let (world, cloud) = cluster(|pool| pool).await;
    let mut stray = world.claim().await;
    stray.metadata.name = Some("stray".to_owned());
    stray.metadata.uid = Some("stray".to_owned());
    cloud.deletions.lock().extend((0..100).map(|_| Err(away())));
    let cx = context(&world);
    cx.provider.create(&stray).await.unwrap();
    let errors =
        "controller_runtime_reconcile_errors_total{controller=\"nodeclaim.garbagecollection\"}";
    until!(world, 200, "the instance cannot be terminated", |w| {
        w.metric(errors).is_some_and(|count| count > 0.0)
    });
    assert_eq!(world.nodes().await.len(), 2);
    let gone = || CloudProviderError::NodeClaimNotFound("gone".into());
    *cloud.deletions.lock() = (0..100).map(|_| Err(gone())).collect();
    let before = world.metric(errors);
    until!(world, 200, "its Node is deleted", |w| {
        w.nodes().await.len() == 1
    });
    assert_eq!(world.metric(errors), before);
}

#[tokio::test(start_paused = true)]
async fn a_nodeclaim_whose_node_is_not_ready_is_kept_while_its_instance_exists() {
    let (world, cloud) = cluster(|pool| pool).await;
    let claim = world.claim().await;
    let node = claim.status.node_name.clone().unwrap();
    world.cluster.node_faults.set(&node, NodeFault::Dead);
    world.pass(90).await;
    cloud.listed(&world, 2).await;
    let claims = world.claims().await;
    assert!(claims[0].uid() == claim.uid() && !claims[0].is_deleting());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_nodeclaim_that_has_lost_its_instance_is_not_collected() {
    let (world, cloud) = cluster(|pool| pool.termination_grace_period("10s")).await;
    let claim = world.claim().await;
    let finalizers = json!(["karpenter.sh/termination", "example.com/held"]);
    let held = json!({"metadata": {"finalizers": finalizers}});
    world.patch::<NodeClaim>(claim.name(), held).await;
    world.delete::<NodeClaim>(claim.name()).await;
    let node = claim.status.node_name.clone().unwrap();
    world.until_gone::<Node>(&node, 120).await;
    cloud.listed(&world, 2).await;
    assert!(world.get::<NodeClaim>(claim.name()).await.is_some());
    let text = world.cluster.registry.render();
    assert!(!text.contains("reason=\"garbage_collected\""));
}
