//! From pending pods to running pods, and back to an empty cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_fixtures::{node_claim, pod};
use karpenter_kube::provisioning::refresh_instance_types;
use karpenter_kwok::KwokNodeClass;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
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

/// Conformance: API-172
#[tokio::test(start_paused = true)]
async fn empty_nodes_are_deleted_and_leave_no_objects_behind() {
    let world = World::new().await;
    world.deploy("inflate", 20).await;
    world.until_running(20, 60).await;
    world.scale("inflate", 0).await;
    world.until_empty(120).await;
    assert!(world.has_event("DisruptionTerminating").await);
    world.pass(5).await;
    assert_eq!(world.list::<NodePool>().await[0].status.nodes, 0);
    let disrupted = "karpenter_nodeclaims_disrupted_total{reason=\"empty\",nodepool=\"default\"";
    assert!(world.cluster.registry.render().contains(disrupted));
}

#[tokio::test(start_paused = true)]
async fn more_pods_get_more_nodes_and_running_ones_stay() {
    let world = World::new().await;
    world.deploy("inflate", 5).await;
    world.until_running(5, 60).await;
    let before: Vec<_> = world
        .claims()
        .await
        .into_iter()
        .map(|c| c.metadata.uid)
        .collect();
    world.scale("inflate", 60).await;
    world.until_running(60, 60).await;
    let after: Vec<_> = world
        .claims()
        .await
        .into_iter()
        .map(|c| c.metadata.uid)
        .collect();
    assert!(before.iter().all(|uid| after.contains(uid)));
}

/// Conformance: SCH-006
#[tokio::test(start_paused = true)]
async fn a_nodepool_without_its_node_class_launches_no_nodes_until_the_node_class_is_created() {
    let world = World::bare(settings()).await;
    world.add(node_pool("default")).await;
    world.deploy("inflate", 1).await;
    world
        .until(60, "the pod has an event", async |w| {
            w.has_event("FailedScheduling").await
        })
        .await;
    let pool = &world.list::<NodePool>().await[0];
    assert_eq!(
        pool.condition(types::NODE_CLASS_READY).unwrap().reason,
        "NodeClassNotFound"
    );
    assert_eq!(world.claims().await.len(), 0);
    world.create(&KwokNodeClass::new("default")).await;
    world.until_running(1, 60).await;
}

#[tokio::test(start_paused = true)]
async fn limits_hold() {
    let world = World::bare(settings()).await;
    world.create(&KwokNodeClass::new("default")).await;
    world.add(node_pool("default").limit("cpu", "8")).await;
    world.deploy("inflate", 30).await;
    world.pass(90).await;
    let progress = world.progress().await;
    assert!(
        progress.running > 0 && progress.running <= 8,
        "{}",
        world.describe().await
    );
    let cpu: i64 = world
        .claims()
        .await
        .iter()
        .map(|c| c.status.capacity["cpu"].0.parse::<i64>().unwrap())
        .sum();
    assert!(cpu <= 8, "{cpu}");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_never_consolidates_keeps_its_empty_nodes() {
    let world = World::bare(settings()).await;
    world.create(&KwokNodeClass::new("default")).await;
    world
        .add(node_pool("default").consolidate_after("Never"))
        .await;
    world.deploy("inflate", 3).await;
    world.until_running(3, 60).await;
    world.scale("inflate", 0).await;
    world.pass(600).await;
    assert!(!world.claims().await.is_empty());
    assert!(
        world
            .claims()
            .await
            .iter()
            .all(|c| c.condition(types::CONSOLIDATABLE).is_none())
    );
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

/// Conformance: SCH-004
#[tokio::test(start_paused = true)]
async fn each_of_a_hundred_pods_has_one_scheduling_decision() {
    let world = World::new().await;
    world.deploy("app", 100).await;
    world.until_running(100, 120).await;
    world.pass(60).await;
    let decisions = "karpenter_pods_scheduling_decision_duration_seconds_count";
    assert_eq!(world.metric(decisions), Some(100.0));
}

/// Conformance: SCH-007
#[tokio::test(start_paused = true)]
async fn pod_waits_are_measured_from_when_the_nodepools_nodes_are_known_to_register() {
    let world = World::bare(settings()).await;
    let class = json!({"metadata": {"name": "default"}, "spec": {"nodeRegistrationDelay": "60s"}});
    let class: KwokNodeClass = serde_json::from_value(class).unwrap();
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
async fn a_nodepool_that_is_being_deleted_launches_no_nodes_and_its_pods_have_a_decision() {
    let world = World::bare(settings()).await;
    world.create(&KwokNodeClass::new("default")).await;
    let held = node_pool("default").finalizer("example.com/held");
    world.add(held).await;
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

/// Waits until pending pods were planned again, as they are every ten seconds: the next change alone causes an earlier plan.
async fn until_planned(world: &World) {
    let plans = "karpenter_scheduler_scheduling_duration_seconds_count{controller=\"provisioner\"}";
    let before = world.metric(plans);
    world
        .until(30, "another plan", async |w| w.metric(plans) != before)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_nodepool_that_begins_to_offer_what_a_pod_needs_causes_a_plan() {
    let world = World::bare(settings()).await;
    world.create(&KwokNodeClass::new("default")).await;
    world.add(node_pool("default").limit("cpu", "0")).await;
    world.deploy("app", 1).await;
    world.pass(60).await;
    assert_eq!(world.claims().await.len(), 0);
    until_planned(&world).await;
    let patch = Patch::Merge(json!({"spec": {"limits": {"cpu": "100"}}}));
    world
        .api::<NodePool>()
        .patch("default", &PatchParams::default(), &patch)
        .await
        .unwrap();
    world.pass(3).await;
    assert_eq!(world.claims().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_nodeclaim_is_deleted_before_it_registers_gets_another_without_delay() {
    let world = World::new().await;
    world.cluster.cloud.never_register(true);
    world.deploy("app", 1).await;
    world
        .until(30, "a node launches", async |w| {
            w.cluster.cloud.launched() == 1
        })
        .await;
    // A nomination lasts ten seconds without its NodeClaim.
    world.pass(1).await;
    let claim = world.claims().await.remove(0);
    world.delete::<NodeClaim>(claim.name()).await;
    world.pass(4).await;
    let left = world.claims().await;
    let others = left.iter().filter(|other| other.uid() != claim.uid());
    assert_eq!(others.count(), 1, "{}", world.describe().await);
}

#[tokio::test(start_paused = true)]
async fn a_node_is_not_empty_while_kube_scheduler_has_yet_to_bind_a_pod_to_it() {
    let mut settings = settings();
    settings.loops.scheduler = false;
    let world = World::bare(settings).await;
    world.create(&KwokNodeClass::new("default")).await;
    world.add(node_pool("default")).await;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let waits = pod("waits").cpu("1").as_written().build();
    pods.create(&PostParams::default(), &waits).await.unwrap();
    let conditions =
        json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
    let params = PatchParams::default();
    pods.patch_status("waits", &params, &status).await.unwrap();
    world
        .until(60, "a node is initialized", async |w| {
            let claims = w.claims().await;
            claims.iter().any(|c| c.is_true(types::INITIALIZED))
        })
        .await;
    world.pass(120).await;
    assert_eq!(world.claims().await.len(), 1);
    assert_eq!(world.cluster.cloud.launched(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_model_has_the_instance_types_of_a_nodepool_or_the_error_that_the_provider_last_had() {
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
