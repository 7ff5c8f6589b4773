//! Prices of NodeOverlays (feature gate NodeOverlay).

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodePool;
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_core::provider::CloudProvider;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::world::{World, WorldOptions};

/// An instance type so new that its price is unknown.
const UNPRICED: &str = "z99.huge";

async fn world(node_overlay: bool) -> World {
    let how = WorldOptions {
        node_overlay,
        ..WorldOptions::default()
    };
    let world = World::start(|b| b, |fake| fake.add_instance_type(UNPRICED), |_| {}, how).await;
    world
        .until("the type to be known", async || {
            prices(&world).await.is_some().then_some(())
        })
        .await;
    world
}

/// Returns the prices of the type's available offerings, if the type is known.
async fn prices(world: &World) -> Option<Vec<f64>> {
    let pool = world.get::<NodePool>("default").await?;
    let types = world.aws.provider.instance_types(&pool).await.ok()?;
    let unpriced = types.iter().find(|t| t.name == UNPRICED)?;
    let available = unpriced.offerings.iter().filter(|o| o.available);
    Some(available.map(|o| o.price).collect())
}

async fn overlay(world: &World, further: Value) {
    let mut spec = json!({
        "price": "1.5",
        "requirements": [{ "key": "node.kubernetes.io/instance-type", "operator": "In", "values": [UNPRICED] }],
    });
    for (key, value) in further.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let overlay = json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": "price" }, "spec": spec,
    });
    let overlay: NodeOverlay = serde_json::from_value(overlay).unwrap();
    let api = world.api::<NodeOverlay>();
    api.create(&PostParams::default(), &overlay).await.unwrap();
}

async fn validated(world: &World) -> Option<bool> {
    let overlay = world.get::<NodeOverlay>("price").await?;
    let condition = overlay.condition(types::VALIDATION_SUCCEEDED)?;
    Some(condition.status == "True")
}

/// Conformance: AWS-types-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_without_a_price_is_available_while_a_valid_overlay_gives_it_one() {
    let world = world(true).await;
    assert_eq!(prices(&world).await, Some(vec![]));
    // An overlay may not set the provider's own resources.
    overlay(
        &world,
        json!({ "capacity": { "vpc.amazonaws.com/efa": "1" } }),
    )
    .await;
    world
        .until("the overlay to be refused", async || {
            (!validated(&world).await?).then_some(())
        })
        .await;
    assert_eq!(prices(&world).await, Some(vec![]));
    let valid = Patch::Merge(json!({ "spec": { "capacity": null } }));
    let api = world.api::<NodeOverlay>();
    api.patch("price", &PatchParams::default(), &valid)
        .await
        .unwrap();
    world
        .until("the type to be available", async || {
            let prices = prices(&world).await?;
            (!prices.is_empty() && prices.iter().all(|price| *price == 1.5)).then_some(())
        })
        .await;
    // It can be launched, too.
    let manifest = World::manifest("new", &[("node.kubernetes.io/instance-type", &[UNPRICED])]);
    world
        .until("an instance of the type", async || {
            world.aws.provider.create(&manifest).await.ok()
        })
        .await;
    api.delete("price", &DeleteParams::default()).await.unwrap();
    world
        .until("the type not to be available", async || {
            prices(&world).await?.is_empty().then_some(())
        })
        .await;
}

/// Conformance: AWS-types-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_gate_overlays_give_no_prices() {
    let world = world(false).await;
    overlay(&world, json!({})).await;
    // By then the controllers have run.
    world.pool("later", "default", json!([])).await;
    world
        .until("a pool that is ready", async || {
            let pool = world.get::<NodePool>("later").await?;
            pool.is_true(types::READY).then_some(())
        })
        .await;
    assert_eq!(prices(&world).await, Some(vec![]));
    assert_eq!(validated(&world).await, None, "overlays are not validated");
}
