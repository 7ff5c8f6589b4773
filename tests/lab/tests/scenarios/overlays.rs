//! NodeOverlays (feature gate NodeOverlay).

use karpenter_api::conditions::{HasConditions, Status, types};
use karpenter_api::labels::annotations;
use karpenter_api::v1alpha1::NodeOverlay;
use serde_json::{Value, json};

use crate::cloud::Scripted;
use crate::lines::Lines;
use crate::world::{World, deployment, node_pool, settings};

async fn world() -> World {
    let mut settings = settings();
    settings.options.feature_gates.node_overlay = true;
    World::with_settings(settings, node_pool("default")).await
}

async fn overlay(world: &World, name: &str, spec: Value) {
    let object = json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name}, "spec": spec});
    let overlay: NodeOverlay = serde_json::from_value(object).unwrap();
    world.create(&overlay).await;
}

/// Returns status and reason of ValidationSucceeded, once it is set.
async fn verdict(world: &World, name: &str) -> (Status, String) {
    let known = async |w: &World| {
        let overlay: NodeOverlay = w.api().get(name).await.unwrap();
        let condition = overlay.condition(types::VALIDATION_SUCCEEDED)?.clone();
        (condition.status != "Unknown").then_some((Status::of(&condition), condition.reason))
    };
    until!(world, 30, "the overlay is validated", |w| {
        known(w).await.is_some()
    });
    known(world).await.unwrap()
}

/// Conformance: SCH-247
#[tokio::test(start_paused = true)]
async fn a_price_overlay_changes_the_launched_type_and_is_on_the_nodeclaim() {
    let world = world().await;
    let cheap = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m-64x-amd64-linux"]}]);
    overlay(
        &world,
        "cheap",
        json!({"requirements": cheap, "price": "0.000001"}),
    )
    .await;
    assert_eq!(verdict(&world, "cheap").await.0, Status::True);
    world.run("app", 1).await;
    let claim = world.claim().await;
    assert_eq!(
        claim.annotation(annotations::PRICE_OVERLAY_APPLIED),
        Some("true")
    );
    let first = claim
        .spec
        .requirements
        .iter()
        .find(|r| r.key == "node.kubernetes.io/instance-type")
        .unwrap();
    assert!(first.values.contains(&"m-64x-amd64-linux".to_owned()));
    assert_eq!(
        claim.label("node.kubernetes.io/instance-type"),
        Some("m-64x-amd64-linux"),
        "the provider uses the overlaid price"
    );
    // Calls of the provider go through the overlays, too.
    world.delete_deployments(&["app"]).await;
    world.until_empty(300).await;
}

/// Conformance: SCH-247
#[tokio::test(start_paused = true)]
async fn an_extended_resource_that_only_an_overlay_adds_can_be_requested() {
    let world = world().await;
    overlay(
        &world,
        "disks",
        json!({"requirements": [], "capacity": {"example.com/disk": "2"}}),
    )
    .await;
    assert_eq!(verdict(&world, "disks").await.0, Status::True);
    let asks = deployment("app", 1)
        .request("example.com/disk", "1")
        .set_pod("/spec/containers/0/resources/limits/example.com~1disk", "1");
    world.add(asks).await;
    until!(world, 60, "a claim is created for it", |w| {
        let claims = w.claims().await;
        claims
            .iter()
            .any(|c| c.annotation(annotations::CAPACITY_OVERLAY_APPLIED) == Some("true"))
    });
    world.until_running(1, 60).await;
}

/// Conformance: API-201
#[tokio::test(start_paused = true)]
async fn a_nodepool_with_overlays_not_evaluated_yet_is_skipped() {
    let lines = Lines::taken();
    let mut world = World::new().await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    world.pass(30).await;
    *cloud.unevaluated.lock() = vec!["default".to_owned()];
    world.deploy("app", 1).await;
    world.pass(60).await;
    assert!(
        world.claims().await.is_empty(),
        "the earlier evaluation is discarded"
    );
    assert_eq!(lines.of("ERROR"), Vec::<serde_json::Value>::new());
    cloud.unevaluated.lock().clear();
    world.until_running(1, 60).await;
}
