//! Invalid input around disruption: each is reported, does not affect other objects, and can be fixed.

use k8s_openapi::api::core::v1::{Node, PodTemplate};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation, JSONSchemaProps,
};
use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_fixtures::pdb;
use karpenter_kwok::KWOKNodeClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::world::{World, node_pool, pool, settings};

/// An empty node that these budgets keep for ten minutes.
async fn kept(budgets: Value) -> World {
    let pool = node_pool("default").set("/spec/disruption/budgets", budgets);
    let world = World::with(pool).await;
    world.run("app", 2).await;
    world.scale("app", 0).await;
    world.pass(600).await;
    assert!(
        !world.claims().await.is_empty(),
        "{}",
        world.describe().await
    );
    world
}

/// Replaces the budgets by one that allows disruption.
async fn allow_disruption(world: &World) {
    let open = json!({"spec": {"disruption": {"budgets": [{"nodes": "100%"}]}}});
    world.patch::<NodePool>("default", open).await;
    world.until_empty(300).await;
}

/// Whether an event with this reason contains this text.
async fn event_contains(world: &World, reason: &str, what: &str) -> bool {
    let own = world.events_of(reason).await;
    let mut messages = own.iter().filter_map(|event| event.message.as_deref());
    messages.any(|message| message.contains(what))
}

#[tokio::test(start_paused = true)]
async fn a_budget_with_an_invalid_schedule_blocks_and_is_reported() {
    let invalid = json!({"nodes": "1", "schedule": "99 99 * * *", "duration": "1h"});
    let world = kept(json!([{"nodes": "100%"}, invalid])).await;
    assert!(event_contains(&world, "InvalidNodePool", "99 99 * * *").await);
    assert!(world.has_event("DisruptionBlocked").await);
    let pool: NodePool = world.api().get("default").await.unwrap();
    assert!(
        pool.is_true(types::READY),
        "nodes can still be launched from it"
    );
    world.run("other", 1).await;
    world.scale("other", 0).await;
    allow_disruption(&world).await;
}

/// Conformance: API-192
#[tokio::test(start_paused = true)]
async fn a_budget_of_zero_blocks_disruption_and_the_event_names_the_reason() {
    let world = kept(json!([{"nodes": "0", "reasons": ["Empty"]}])).await;
    let message = "No allowed disruptions for disruption reason Empty due to blocking budget";
    assert!(event_contains(&world, "DisruptionBlocked", message).await);
    let allowed = "karpenter_nodepools_allowed_disruptions{nodepool=\"default\",reason=\"Empty\"}";
    assert_eq!(world.metric(allowed), Some(0.0));
    allow_disruption(&world).await;
}

/// Conformance: DIS-156
#[tokio::test(start_paused = true)]
async fn a_pod_covered_by_two_pdbs_is_named_until_one_of_them_is_deleted() {
    let world = World::new().await;
    world.run("app", 2).await;
    for name in ["one", "two"] {
        let guard = pdb(name).max_unavailable(1).of(("app", "app"));
        world.add(guard).await;
    }
    world.pass(5).await;
    let node = world.node_name().await;
    world.delete::<Node>(&node).await;
    world.pass(300).await;
    assert!(world.get::<Node>(&node).await.is_some());
    let message = "eviction does not support multiple PDBs";
    assert!(event_contains(&world, "FailedDraining", message).await);
    let budgets = world.namespaced::<PodDisruptionBudget>();
    let params = DeleteParams::default();
    budgets.delete("two", &params).await.unwrap();
    world.until_gone::<Node>(&node, 120).await;
    world.until_running(2, 120).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_without_a_nodepool_are_kept_get_an_event_and_can_be_deleted() {
    let world = World::new().await;
    world.run("app", 1).await;
    let claim = world.claim().await;
    // The NodePool is deleted without its nodes.
    let orphan = DeleteParams {
        propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    let deleted = world.api::<NodePool>().delete("default", &orphan).await;
    deleted.unwrap();
    until!(world, 120, "an event says why the node is kept", |w| {
        event_contains(w, "DisruptionBlocked", "NodePool not found").await
    });
    world.scale("app", 0).await;
    world.pass(600).await;
    assert_eq!(world.claims().await.len(), 1);
    world.delete::<NodeClaim>(claim.name()).await;
    world.until_empty(120).await;
}

/// Removes the schema of a CRD, as in an older generation of it.
async fn without_schema(world: &World, name: &str) {
    let api: Api<CustomResourceDefinition> = world.api();
    let mut definition = api.get(name).await.unwrap();
    for version in &mut definition.spec.versions {
        let anything = JSONSchemaProps {
            type_: Some("object".into()),
            x_kubernetes_preserve_unknown_fields: Some(true),
            ..JSONSchemaProps::default()
        };
        version.schema = Some(CustomResourceValidation {
            open_api_v3_schema: Some(anything),
        });
    }
    api.replace(name, &PostParams::default(), &definition)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_decoded_get_an_event_and_hide_no_others() {
    let lines = Lines::taken();
    let mut settings = settings();
    settings.options.feature_gates.capacity_buffer = true;
    let world = World::bare(settings).await;
    without_schema(&world, "nodepools.karpenter.sh").await;
    without_schema(&world, "capacitybuffers.autoscaling.x-k8s.io").await;
    let bad_pool = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "bad"}, "spec": {"weight": "heavy"}});
    world.create_json::<NodePool>(bad_pool).await;
    let buffer = |name: &str, replicas: Value| {
        let spec = json!({"podTemplateRef": {"name": "chunk"}, "replicas": replicas});
        json!({"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
    };
    let bad = buffer("bad", json!("many"));
    world.create_json::<CapacityBuffer>(bad).await;
    world
        .create(&KWOKNodeClass::new("default", Default::default()))
        .await;
    world.add(node_pool("default")).await;
    let chunk = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "chunk", "namespace": "default"},
        "template": {"spec": {"containers": [{"name": "c", "image": "pause", "resources": {"requests": {"cpu": "1"}}}]}}});
    world.create_json::<PodTemplate>(chunk).await;
    let good = buffer("good", json!(2));
    world.create_json::<CapacityBuffer>(good).await;
    until!(world, 120, "the valid buffer has its node", |w| {
        let claims = w.claims().await;
        claims.iter().any(|c| c.is_true(types::INITIALIZED))
    });
    for kind in ["NodePool", "CapacityBuffer"] {
        let events = world.events_of("InvalidObject").await;
        let mut objects = events.iter().map(|event| &event.involved_object);
        let event = objects.find(|object| object.kind.as_deref() == Some(kind));
        assert_eq!(event.unwrap().name.as_deref(), Some("bad"), "{kind}");
        let named = lines.of("ERROR");
        let is_named = named.iter().any(|line| line[kind]["name"] == "bad");
        assert!(is_named, "{named:#?}");
    }
}

/// Why the NodePool `default` is not ready.
async fn why_not_ready(world: &World) -> Option<String> {
    let pool: NodePool = world.get("default").await?;
    let condition = pool.condition(types::READY)?;
    (condition.status == "False").then(|| condition.message.clone())
}

#[tokio::test(start_paused = true)]
async fn the_event_of_a_pod_tells_a_nodepool_that_is_not_ready_from_none_at_all() {
    let world = World::bare(settings()).await;
    world.deploy("early", 1).await;
    let none = "Failed to schedule pod, no dynamic nodepools found";
    until!(world, 60, "the event without a NodePool", |world| {
        world.says(none).await
    });
    world.add(node_pool("default")).await;
    until!(world, 60, "the condition of the NodePool", |world| {
        why_not_ready(world).await.is_some()
    });
    let message = why_not_ready(&world).await.unwrap();
    assert!(message.contains(types::NODE_CLASS_READY), "{message}");
    world.deploy("late", 1).await;
    let not_ready = format!("{none}; nodepool \"default\" is not ready, {message}");
    until!(world, 60, "the event with the NodePool", |world| {
        world.says(&not_ready).await
    });
}

#[tokio::test(start_paused = true)]
async fn the_event_of_a_pod_names_a_nodepool_of_another_provider() {
    let world = World::bare(settings()).await;
    let class = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" });
    let foreign = json!({ "template": { "spec": { "nodeClassRef": class } } });
    world.create(&pool("default", foreign)).await;
    world.deploy("app", 1).await;
    let text = "Failed to schedule pod, no dynamic nodepools found; nodepool \"default\" is not ready, its EC2NodeClass belongs to another provider";
    until!(world, 60, "the event", |world| world.says(text).await);
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_feature_gate_is_off_has_an_event_and_one_log_line() {
    let lines = Lines::taken();
    let world = World::bare(settings()).await;
    let discount = json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": "discount"},
        "spec": {"requirements": [], "priceAdjustment": "-10%"}});
    world.create_json::<NodeOverlay>(discount).await;
    let says = "NodeOverlay has no effect, because the feature gate NodeOverlay is off";
    until!(world, 5, "the event", |world| {
        event_contains(world, "FeatureGateClosed", says).await
    });
    world.pass(1500).await;
    assert_eq!(world.events_of("FeatureGateClosed").await.len(), 1);
    let mut warned = lines.of("WARN");
    warned.retain(|line| line["feature_gate"] == "NodeOverlay");
    assert_eq!(warned.len(), 1, "{warned:#?}");
}
