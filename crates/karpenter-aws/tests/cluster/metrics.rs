//! What can be bought, as metrics.

use std::sync::PoisonError;

use karpenter_api::v1::NodePool;
use karpenter_aws::unavailable::{CapacityType, Pool};
use kube::api::DeleteParams;
use serde_json::json;

use crate::world::World;

fn available(capacity_type: &str, zone: &str) -> String {
    let offering = "karpenter_cloudprovider_instance_type_offering_available";
    format!(
        r#"{offering}{{instance_type="m5.large",capacity_type="{capacity_type}",zone="us-west-2{zone}"}}"#
    )
}

/// Conformance: AWS-metrics-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offering_is_available_if_one_pool_can_use_it_whatever_becomes_of_others() {
    let world = World::new().await;
    let subnets = json!([{ "id": "subnet-00000000000000002" }]);
    let spec = json!({ "subnetSelectorTerms": subnets });
    world.class("half", spec).await;
    world.pool("half", "half", json!([])).await;
    world.pool("broken", "nowhere", json!([])).await;
    for zone in ["a", "b"] {
        world.counts(&available("on-demand", zone), 1.0).await;
        world.counts(&available("spot", zone), 1.0).await;
        world.counts(&available("reserved", zone), 0.0).await;
    }
    let price = available("on-demand", "a").replace("_available", "_price_estimate");
    assert!((world.metric(&price) - 0.096).abs() < 0.01);
    let of_type = |name: &str| {
        format!(r#"karpenter_cloudprovider_instance_type_{name}{{instance_type="m5.large"}}"#)
    };
    assert!((world.metric(&of_type("cpu_cores")) - 2.0).abs() < 0.01);
    let memory = 8.0 * 1024.0 * 1024.0 * 1024.0;
    assert!((world.metric(&of_type("memory_bytes")) - memory).abs() < 0.01);
    assert!(
        world
            .registry
            .render()
            .contains(&available("reserved", "a")),
        "shown as not available"
    );

    let pool = Pool {
        capacity_type: CapacityType::Spot,
        instance_type: "m5.large".into(),
        zone: "us-west-2b".into(),
        placement: None,
    };
    // Marked again at every look, as by launches that fail: on a busy machine a mark may be over before it is shown.
    world
        .until("a mark to be shown", async || {
            world
                .parts
                .offered
                .unavailable()
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .mark(pool.clone(), world.fake.clock().now());
            (world.metric(&available("spot", "b")).abs() < 0.01).then_some(())
        })
        .await;
    assert!((world.metric(&available("spot", "a")) - 1.0).abs() < 0.01);

    let pools = world.api::<NodePool>();
    let now = DeleteParams::default();
    pools.delete("default", &now).await.unwrap();
    world.counts(&available("on-demand", "a"), 0.0).await;
    assert!((world.metric(&available("on-demand", "b")) - 1.0).abs() < 0.01);
    world.nothing_beyond_the_policy();
}
