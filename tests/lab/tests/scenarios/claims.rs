//! What becomes of NodeClaims that the provider refuses, that do not join, or that no longer fit.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::conditions::{HasConditions, Status, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::pod::Pod as ModelPod;
use karpenter_core::provider::{CloudProviderError, HookOutcome};
use karpenter_fixtures::{HOSTNAME, Object, pod};
use karpenter_kube::controller::{Controller, Queue};
use karpenter_kube::node::eviction::EvictionQueue;
use karpenter_testbed::faults::{Fault, Rule};
use kube::api::PostParams;
use serde_json::json;

use crate::cloud::{Hook, Scripted};
use crate::world::{World, deployment, node_pool};

/// A cluster whose NodePool never consolidates.
async fn quiet(pool: Object<NodePool>) -> World {
    World::with(pool.consolidate_after("Never")).await
}

/// The reason of a condition of the NodeClaim; empty without one.
async fn reason(world: &World, condition: &str) -> String {
    let claims = world.claims().await;
    let condition = claims.first().and_then(|claim| claim.condition(condition));
    condition.map(|it| it.reason.clone()).unwrap_or_default()
}

/// How many NodeClaims were deleted for a reason.
fn disrupted(world: &World, reason: &str, capacity_type: &str) -> Option<f64> {
    world.metric(&format!(
        "karpenter_nodeclaims_disrupted_total{{reason=\"{reason}\",nodepool=\"default\",capacity_type=\"{capacity_type}\",consolidation_policy=\"\",termination_mode=\"graceful\"}}"
    ))
}

/// Conformance: DIS-027, API-172, API-198
#[tokio::test(start_paused = true)]
async fn a_class_that_is_not_ready_ends_the_claim_without_an_event() {
    let mut world = quiet(node_pool("default")).await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    let error = CloudProviderError::NodeClassNotReady("its role is missing".into());
    cloud.creations.lock().push_back(error);
    world.run("app", 1).await;
    let calls = cloud.calls("create");
    assert_ne!(
        calls[0].claim.uid(),
        calls[1].claim.uid(),
        "another NodeClaim"
    );
    assert_eq!(disrupted(&world, "nodeclass_not_ready", ""), Some(1.0));
    let messages = world.messages().await;
    assert!(!messages.iter().any(|it| it.contains("its role is missing")));
}

/// Conformance: DIS-028, API-199
#[tokio::test(start_paused = true)]
async fn a_create_error_says_its_own_reason_on_the_claim_until_the_launch_works() {
    let mut world = quiet(node_pool("default")).await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    let error = || CloudProviderError::Create {
        reason: "SpotServiceLinkedRoleMissing".into(),
        message: "x".repeat(400),
        source: None,
    };
    cloud.creations.lock().extend([error(), error(), error()]);
    world.deploy("app", 1).await;
    until!(world, 30, "the claim says why", |w| {
        reason(w, types::LAUNCHED).await == "SpotServiceLinkedRoleMissing"
    });
    let waiting = world.claim().await;
    let launched = waiting.condition(types::LAUNCHED).unwrap();
    assert_eq!(launched.status, "Unknown");
    assert_eq!(launched.message, format!("{}...", "x".repeat(300)));
    world.until_running(1, 120).await;
    assert_eq!(
        world.claims().await[0].uid(),
        waiting.uid(),
        "the same NodeClaim"
    );
    assert_eq!(cloud.calls("create").len(), 4);
}

/// Conformance: API-208
#[tokio::test(start_paused = true)]
async fn of_several_hooks_that_wait_the_shortest_time_counts() {
    let mut world = quiet(node_pool("default")).await;
    let wait = |seconds: i64| Ok(HookOutcome::Wait(SignedDuration::from_secs(seconds)));
    let hooks = vec![Hook::new("slow", wait(3600)), Hook::new("quick", wait(7))];
    let cloud = Scripted::in_world(&mut world, hooks).await;
    world.deploy("app", 1).await;
    until!(world, 60, "the hooks are asked", |w| {
        reason(w, types::REGISTERED).await == "RegistrationHookPending"
    });
    // Nothing else wakes the claim by now.
    world.pass(60).await;
    for hook in &cloud.hooks {
        hook.answer(HookOutcome::Ready);
    }
    world.pass(8).await;
    assert!(world.claims().await[0].is_true(types::REGISTERED));
}

/// Conformance: DIS-160
#[tokio::test(start_paused = true)]
async fn a_changed_pool_s_registration_health_is_unknown_until_a_registration() {
    let world = quiet(node_pool("default")).await;
    world.run("app", 1).await;
    let health = async |w: &World| {
        let pool = w.list::<NodePool>().await.remove(0);
        let condition = pool.condition(types::NODE_REGISTRATION_HEALTHY).unwrap();
        (condition.status.clone(), condition.reason.clone())
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    let healthy = is("True", "NodeRegistrationHealthy");
    until!(world, 10, "the pool is healthy", |w| {
        health(w).await == healthy
    });
    world
        .patch::<NodePool>("default", json!({"spec": {"weight": 7}}))
        .await;
    world.pass(60).await;
    assert_eq!(
        health(&world).await,
        is("Unknown", "AwaitingReconciliation")
    );
    let ready = world.list::<NodePool>().await.remove(0);
    assert!(ready.is_true(types::READY), "Ready does not depend on it");
    world.scale("app", 400).await;
    until!(world, 120, "the pool is healthy again", |w| {
        health(w).await == healthy
    });
}

async fn drifted(world: &World) -> Option<(String, String)> {
    let claims = world.claims().await;
    let condition = claims[0].condition(types::DRIFTED)?;
    assert_eq!(Status::of(condition), Status::True);
    Some((condition.reason.clone(), condition.message.clone()))
}

/// Conformance: DIS-165
#[tokio::test(start_paused = true)]
async fn the_catalogue_is_asked_about_claims_that_are_an_hour_old() {
    // The budget keeps the drifted node.
    let shut = node_pool("default").without_requirements().budgets(&["0"]);
    let world = quiet(shut).await;
    world.run("app", 1).await;
    let claim = world.claim().await;
    let gone = json!({"metadata": {"labels": {"node.kubernetes.io/instance-type": "gone"}}});
    world.patch::<NodeClaim>(claim.name(), gone).await;
    let created = claim.metadata.creation_timestamp.as_ref().unwrap().0;
    world
        .pass(3590 - world.cluster.clock.since(created).as_secs())
        .await;
    assert_eq!(drifted(&world).await, None, "within its first hour");
    until!(world, 330, "the catalogue is asked", |w| {
        drifted(w).await.is_some()
    });
    let reason = "InstanceTypeNotFound".to_owned();
    assert_eq!(drifted(&world).await, Some((reason.clone(), reason)));
}

/// Conformance: DIS-166
#[tokio::test(start_paused = true)]
async fn the_provider_gives_the_reason_and_unknown_instances_have_not_drifted() {
    let mut world = quiet(node_pool("default").budgets(&["0"])).await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    world.run("app", 1).await;
    *cloud.drift.lock() = Some("AMIDrift".to_owned());
    until!(world, 310, "it is asked every five minutes", |w| {
        drifted(w).await.is_some()
    });
    let reason = "AMIDrift".to_owned();
    assert_eq!(drifted(&world).await, Some((reason.clone(), reason)));
    *cloud.drift.lock() = Some(String::new());
    let errors = "controller_runtime_reconcile_errors_total{controller=\"nodeclaim.disruption\"}";
    let before = world.metric(errors);
    until!(world, 310, "the drift is cleared", |w| {
        drifted(w).await.is_none()
    });
    assert_eq!(world.metric(errors), before);
}

/// Conformance: SCH-260
#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_created_keeps_no_other_from_being_made() {
    let world = quiet(node_pool("default")).await;
    world.pass(5).await;
    let refused = Fault::Error(403);
    let rule = Rule::new(refused)
        .verb("create")
        .resource("nodeclaims")
        .times(1);
    world.cluster.testbed.faults().add(rule);
    let alone = deployment("app", 3).anti_affinity(HOSTNAME, ("app", "app"));
    world.add(alone).await;
    world.until_claims(2, 5).await;
    world.until_running(3, 120).await;
    assert_eq!(world.claims().await.len(), 3);
}

/// Conformance: DIS-155
#[tokio::test(start_paused = true)]
async fn the_deadline_of_an_eviction_comes_closer_and_never_moves_away() {
    let world = quiet(node_pool("default")).await;
    world.run("app", 1).await;
    let cx = Arc::clone(world.cluster.context().unwrap());
    let on = world.node_name().await;
    let pods = world.namespaced::<Pod>();
    let protected = pod("protected").do_not_disrupt().grace_period(30);
    let protected = protected.set("/spec/nodeName", on.as_str()).build();
    let created = pods.create(&PostParams::default(), &protected).await;
    let created = created.unwrap();
    world.pass(5).await;
    let model = [Arc::new(ModelPod::parse(&created))];
    let queue = Queue::new();
    let evictions = EvictionQueue::new(Arc::clone(&cx), queue.clone());
    let reconcile = async || {
        let key = queue.next().unwrap();
        let outcome = evictions.reconcile(key.clone()).await;
        queue.done(key, None);
        outcome
    };
    let grace = async || {
        let pod = pods.get("protected").await.unwrap();
        pod.metadata.deletion_grace_period_seconds
    };
    evictions.add(&model, None);
    assert!(reconcile().await.is_err(), "it does not allow eviction");
    assert_eq!(grace().await, None);
    let now = world.cluster.clock.now();
    let at = |seconds: i64| Some(now + SignedDuration::from_secs(seconds));
    evictions.add(&model, at(20));
    evictions.add(&model, at(3600));
    evictions.add(&model, None);
    reconcile().await.unwrap();
    assert_eq!(
        grace().await,
        Some(20),
        "what is left until the first deadline"
    );
}

/// Conformance: DIS-134
#[tokio::test(start_paused = true)]
async fn failed_launches_are_tried_again_after_one_to_sixty_seconds() {
    let mut world = quiet(node_pool("default")).await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    let errors = (0..12).map(|_| CloudProviderError::other("the cloud is away"));
    cloud.creations.lock().extend(errors);
    world.deploy("app", 1).await;
    world.pass(290).await;
    let gaps = cloud.gaps("create");
    assert!(gaps.len() >= 7, "{gaps:?}");
    // What the first failures write on the claim comes back as its change, which is reconciled without back-off. Then it is between
    // half and all of the back-off, which doubles from a second to a minute.
    for (failures, gap) in gaps.iter().enumerate().skip(2) {
        let longest = 2f64.powi(i32::try_from(failures).unwrap()).min(60.0);
        assert!(
            (longest / 2.0 - 0.1..=longest + 0.5).contains(gap),
            "{gaps:?}"
        );
    }
}
