//! From the NodeClaim to the Node: writes before the launch, registration, and initialization.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Taint};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_api::v1::NodePool;
use karpenter_core::provider::{HookOutcome, ProviderProfile};
use karpenter_fixtures::Object;
use serde_json::json;

use crate::cloud::{Hook, Scripted};
use crate::world::{World, deployment, node_pool};

/// A NodePool that never consolidates nodes.
fn never() -> Object<NodePool> {
    node_pool("default").consolidate_after("Never")
}

async fn claim(world: &World) -> Option<NodeClaim> {
    world.claims().await.into_iter().next()
}

async fn node(world: &World) -> Option<Node> {
    world.nodes().await.into_iter().next()
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec
        .as_ref()
        .and_then(|s| s.taints.clone())
        .unwrap_or_default()
}

fn has_taint(node: &Node, key: &str) -> bool {
    taints(node).iter().any(|t| t.key == key)
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

async fn until_initialized(world: &World) {
    until!(world, 120, "the node is initialized", |w| {
        claim(w)
            .await
            .is_some_and(|c| c.is_true(types::INITIALIZED))
    });
}

/// Conformance: API-074, API-079
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_matches_its_template_and_has_its_finalizer_early() {
    let own = json!([{"key": "example.com/own", "value": "x", "effect": "NoSchedule"}]);
    let starting = json!([{"key": "example.com/starting", "effect": "NoSchedule"}]);
    let pool = never()
        .node_label("team", "a")
        .node_annotation("note", "b")
        .taint("example.com/own", "x", "NoSchedule")
        .startup_taint("example.com/starting", "NoSchedule")
        .expire_after("100h")
        .termination_grace_period("7m");
    let mut world = World::with(pool).await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    let tolerant = deployment("app", 1).tolerate(json!({"operator": "Exists"}));
    world.add(tolerant).await;
    until!(world, 60, "an instance is launched", |_| {
        !cloud.calls("create").is_empty()
    });
    let asked = cloud.calls("create").remove(0).claim;
    let finalizers = asked.metadata.finalizers.clone().unwrap_or_default();
    assert_eq!(finalizers, ["karpenter.sh/termination"]);
    let claim = claim(&world).await.unwrap();
    assert_eq!(claim.label("team"), Some("a"));
    assert_eq!(claim.label("karpenter.sh/nodepool"), Some("default"));
    assert_eq!(
        claim.label("karpenter.kwok.sh/kwoknodeclass"),
        Some("default")
    );
    assert_eq!(claim.annotation("note"), Some("b"));
    let spec = serde_json::to_value(&claim.spec).unwrap();
    assert_eq!((&spec["taints"], &spec["startupTaints"]), (&own, &starting));
    assert_eq!(spec["expireAfter"], "100h");
    assert_eq!(spec["terminationGracePeriod"], "7m");
    assert_eq!(spec["nodeClassRef"]["name"], "default");
    let required = |key: &str| {
        let found = claim.spec.requirements.iter().find(|r| r.key == key);
        found.map(|r| r.values.clone()).unwrap_or_default()
    };
    assert_eq!(required("kubernetes.io/arch"), ["amd64"]);
    assert_eq!(required("kubernetes.io/os"), ["linux"]);
    assert!(!required("node.kubernetes.io/instance-type").is_empty());
}

/// Conformance: DIS-038, API-208
#[tokio::test(start_paused = true)]
async fn registration_waits_for_every_hook_and_names_the_pending_ones() {
    let mut world = World::with(never().node_label("team", "a")).await;
    let hooks = vec![
        Hook::waiting("network"),
        Hook::waiting("storage"),
        Hook::new("broken", Err("the hook's backend is away")),
        Hook::new("fine", Ok(HookOutcome::Ready)),
    ];
    let cloud = Scripted::in_world(&mut world, hooks).await;
    world.deploy("app", 1).await;
    let says = async |w: &World| {
        let claim = claim(w).await?;
        let condition = claim.condition(types::REGISTERED)?;
        Some((condition.reason.clone(), condition.message.clone()))
    };
    let pending = |names: &str| {
        let message = format!("waiting for registration hooks: {names}");
        Some(("RegistrationHookPending".to_owned(), message))
    };
    until!(world, 60, "the hooks are named", |w| {
        says(w).await == pending("network, storage, broken")
    });
    let waiting = node(&world).await.unwrap();
    assert!(has_taint(&waiting, "karpenter.sh/unregistered"));
    assert_eq!(
        label(&waiting, "team"),
        Some("a"),
        "all other labels are synced"
    );
    let errors = "controller_runtime_reconcile_errors_total{controller=\"nodeclaim.lifecycle\"}";
    assert!(world.metric(errors).unwrap() > 0.0);

    cloud.hooks[2].answer(HookOutcome::Ready);
    cloud.hooks[0].answer(HookOutcome::Ready);
    until!(world, 120, "one is left", |w| {
        says(w).await == pending("storage")
    });
    world.pass(60).await;
    assert_eq!(says(&world).await, pending("storage"));
    assert_eq!(world.progress().await.running, 0);
    cloud.hooks[1].answer(HookOutcome::Ready);
    until_initialized(&world).await;
    assert!(!has_taint(
        &node(&world).await.unwrap(),
        "karpenter.sh/unregistered"
    ));
    world.until_running(1, 60).await;
}

/// Pods that fit on one node.
fn small() -> Object<Deployment> {
    deployment("app", 1).cpu("100m")
}

/// Conformance: DIS-053
#[tokio::test(start_paused = true)]
async fn pod_events_are_recorded_every_ten_seconds_at_most() {
    let world = World::with(never()).await;
    world.add(small()).await;
    world.until_running(1, 60).await;
    world.pass(30).await;
    let last = async |w: &World| {
        claim(w)
            .await
            .unwrap()
            .status
            .last_pod_event_time
            .map(|t| t.0)
    };
    let before = last(&world).await;
    world.scale("app", 2).await;
    until!(world, 30, "the first event is written", |w| {
        last(w).await != before
    });
    let first = last(&world).await.unwrap();
    world.scale("app", 1).await;
    world.pass(4).await;
    assert_eq!(last(&world).await, Some(first), "within ten seconds");
    world.pass(10).await;
    world.scale("app", 2).await;
    world.pass(5).await;
    assert!(last(&world).await.unwrap() > first);
}

/// Conformance: API-058
#[tokio::test(start_paused = true)]
async fn a_nodepool_of_another_provider_is_ignored() {
    let world = World::new().await;
    let foreign = node_pool("foreign").class("other.cloud", "OtherNodeClass", "default");
    world.add(foreign).await;
    world.pass(60).await;
    let pools = world.list::<NodePool>().await;
    let foreign = pools.iter().find(|p| p.name() == "foreign").unwrap();
    assert!(foreign.status.conditions.is_empty() && foreign.status.resources.is_empty());
    assert!(foreign.metadata.annotations.is_none(), "not even a hash");
    let own = pools.iter().find(|p| p.name() == "default").unwrap();
    assert!(own.is_true(types::READY));
}

/// Conformance: SCH-009
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_has_the_default_grace_period_of_the_provider() {
    let mut world = World::with(never()).await;
    let grace = "3m".parse().unwrap();
    let patient = |profile: ProviderProfile| profile.with_default_termination_grace_period(grace);
    Scripted::with_profile(&mut world, Vec::new(), patient).await;
    world.run("app", 1).await;
    let claim = claim(&world).await.unwrap();
    let spec = serde_json::to_value(&claim.spec).unwrap();
    assert_eq!(spec["terminationGracePeriod"], json!("3m"));
}
