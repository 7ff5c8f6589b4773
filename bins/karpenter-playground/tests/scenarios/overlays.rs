//! NodeOverlays (gate NodeOverlay).

use karpenter_api::conditions::{HasConditions, Status, types};
use karpenter_api::labels::annotations;
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_kwok::KwokNodeClass;
use serde_json::{Value, json};

use crate::cloud::Scripted;
use crate::lines::Lines;
use crate::world::{World, pool, settings};

async fn world() -> World {
    let mut settings = settings();
    settings.options.feature_gates.node_overlay = true;
    let world = World::bare(settings).await;
    world.create(&KwokNodeClass::new("default")).await;
    world.create(&pool("default", json!({}))).await;
    world
}

async fn overlay(world: &World, name: &str, spec: Value) {
    let object = json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name}, "spec": spec});
    let overlay: NodeOverlay = serde_json::from_value(object).unwrap();
    world.create(&overlay).await;
}

/// Status and reason of ValidationSucceeded, once it is known.
async fn verdict(world: &World, name: &str) -> (Status, String) {
    let known = async |w: &World| {
        let overlay: NodeOverlay = w.api().get(name).await.unwrap();
        let condition = overlay.condition(types::VALIDATION_SUCCEEDED)?.clone();
        (condition.status != "Unknown").then_some((Status::of(&condition), condition.reason))
    };
    world
        .until(30, "the overlay is judged", async |w| {
            known(w).await.is_some()
        })
        .await;
    known(world).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_price_overlay_changes_what_is_bought_and_says_so_on_the_claim() {
    let world = world().await;
    let cheap = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m-64x-amd64-linux"]}]);
    overlay(
        &world,
        "cheap",
        json!({"requirements": cheap, "price": "0.000001"}),
    )
    .await;
    assert_eq!(verdict(&world, "cheap").await.0, Status::True);
    world.deploy("app", 1).await;
    world.until_running(1, 60).await;
    let claim = world.claims().await.remove(0);
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
        "the provider chooses by the overlay's price"
    );
}

#[tokio::test(start_paused = true)]
async fn an_extended_resource_that_only_an_overlay_knows_can_be_asked_for() {
    let world = world().await;
    overlay(
        &world,
        "disks",
        json!({"requirements": [], "capacity": {"example.com/disk": "2"}}),
    )
    .await;
    assert_eq!(verdict(&world, "disks").await.0, Status::True);
    let asks = json!({"containers": [{"name": "app", "image": "pause", "resources": {"requests": {"cpu": "1", "example.com/disk": "1"}, "limits": {"example.com/disk": "1"}}}]});
    world.deploy_with("app", 1, asks).await;
    world
        .until(60, "a claim is made for it", async |w| {
            let claims = w.claims().await;
            claims
                .iter()
                .any(|c| c.annotation(annotations::CAPACITY_OVERLAY_APPLIED) == Some("true"))
        })
        .await;
    world.until_running(1, 60).await;
}

#[tokio::test(start_paused = true)]
async fn conflicting_and_invalid_overlays_are_told_so() {
    let world = world().await;
    overlay(&world, "b", json!({"requirements": [], "price": "1"})).await;
    assert_eq!(verdict(&world, "b").await.0, Status::True);
    overlay(&world, "a", json!({"requirements": [], "price": "2"})).await;
    assert_eq!(
        verdict(&world, "a").await,
        (Status::False, "Conflict".to_owned())
    );
    overlay(&world, "same", json!({"requirements": [], "price": "1"})).await;
    assert_eq!(
        verdict(&world, "same").await.0,
        Status::True,
        "it says the same as `b`"
    );
    let unknown =
        json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["gift"]}]);
    overlay(
        &world,
        "wrong",
        json!({"requirements": unknown, "price": "1"}),
    )
    .await;
    assert_eq!(
        verdict(&world, "wrong").await,
        (Status::False, "RuntimeValidation".to_owned())
    );
    world.delete::<NodeOverlay>("b").await;
    world.delete::<NodeOverlay>("same").await;
    world
        .until(30, "the rest of the conflict is accepted", async |w| {
            let overlay: NodeOverlay = w.api().get("a").await.unwrap();
            overlay.is_true(types::READY)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_not_evaluated_yet_is_passed_by_without_an_error() {
    let lines = Lines::taken();
    let mut world = World::new().await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    world.pass(30).await;
    *cloud.unevaluated.lock().unwrap() = vec!["default".to_owned()];
    world.deploy("app", 1).await;
    world.pass(60).await;
    assert!(
        world.claims().await.is_empty(),
        "what was known before is forgotten"
    );
    assert_eq!(lines.of("ERROR"), Vec::<serde_json::Value>::new());
    cloud.unevaluated.lock().unwrap().clear();
    world.until_running(1, 60).await;
}
