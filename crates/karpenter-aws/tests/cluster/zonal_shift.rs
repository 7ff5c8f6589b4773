//! Zones that traffic is shifted away from.

use std::time::Duration;

use karpenter_aws_fake::{AwsFake, Cluster, ZonalShift};
use serde_json::json;

use crate::cluster::world::{CLUSTER, World, WorldOptions};

/// Returns a cluster that is registered for shifts, and shifted away from these zones.
fn cluster(away_from: &[&str], fake: &AwsFake) -> Cluster {
    let now = fake.clock().now();
    let shift = |zone: &&str| ZonalShift {
        away_from: (*zone).to_owned(),
        status: "APPLIED".into(),
        start: now,
        expiry: now + Duration::from_secs(3600),
    };
    Cluster {
        zonal_shift: true,
        shifts: away_from.iter().map(shift).collect(),
        ..Cluster::new(CLUSTER, "1.34")
    }
}

/// Registers the cluster for shifts.
fn registered(fake: &AwsFake) {
    fake.add_cluster(cluster(&[], fake));
}

/// Conformance: AWS-zonalshift-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_that_could_use_a_zone_get_events_when_its_shift_starts_and_ends() {
    let world = World::with_fake(|b| b, registered, |s| s.zonal_shift = true).await;
    let only = json!([{ "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-west-2b"] }]);
    world.pool("elsewhere", "default", only).await;
    let by_id =
        json!([{ "key": "topology.k8s.aws/zone-id", "operator": "NotIn", "values": ["usw2-az2"] }]);
    world.pool("careful", "default", by_id).await;
    world
        .until("the pools", async || {
            (world.aws.stores.pools().len() == 3).then_some(())
        })
        .await;
    world.more_calls("GetManagedResource", 2).await;
    for pool in ["default", "elsewhere"] {
        assert!(
            world
                .events("NodePool", pool, "ZonalShiftCleared")
                .await
                .is_empty()
        );
    }

    world.fake.add_cluster(cluster(&["usw2-az2"], &world.fake));
    let message = world
        .event_message("NodePool", "default", "ZonalShiftActive")
        .await;
    assert_eq!(
        message,
        "Zonal shift detected: offerings in zone us-west-2a (usw2-az2) are unavailable for this NodePool"
    );
    let shifted = world.aws.offered.shifted();
    assert!(shifted.contains("us-west-2a", Some("usw2-az2")));
    world.more_calls("GetManagedResource", 3).await;
    let message = world.events("NodePool", "default", "ZonalShiftActive");
    assert_eq!(message.await.len(), 1, "once");

    world.fake.add_cluster(cluster(&[], &world.fake));
    let message = world
        .event_message("NodePool", "default", "ZonalShiftCleared")
        .await;
    assert_eq!(
        message,
        "Zonal shift cleared: offerings in zone us-west-2a (usw2-az2) are restored for this NodePool"
    );
    assert!(!shifted.contains("us-west-2a", Some("usw2-az2")));
    world.nothing_beyond_the_policy();
    for pool in ["elsewhere", "careful"] {
        for reason in ["ZonalShiftActive", "ZonalShiftCleared"] {
            assert!(world.events("NodePool", pool, reason).await.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_service_does_not_change_the_shifted_zones() {
    let world = World::with_fake(|b| b, registered, |s| s.zonal_shift = true).await;
    world.fake.add_cluster(cluster(&["usw2-az2"], &world.fake));
    let shifted = world.aws.offered.shifted();
    world
        .until("the shift", async || {
            shifted
                .contains("us-west-2a", Some("usw2-az2"))
                .then_some(())
        })
        .await;
    world.fake.deny(&["arc-zonal-shift:GetManagedResource"]);
    world.more_calls("GetManagedResource", 3).await;
    assert!(shifted.contains("us-west-2a", Some("usw2-az2")));
}

/// Conformance: AWS-zonalshift-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shift_that_is_active_at_the_start_is_known_before_controllers_run() {
    let how = WorldOptions {
        controllers: false,
        ..WorldOptions::default()
    };
    let furnish = |fake: &AwsFake| fake.add_cluster(cluster(&["usw2-az2"], fake));
    let world = World::start(|b| b, furnish, |s| s.zonal_shift = true, how).await;
    let shifted = world.aws.offered.shifted();
    assert!(shifted.contains("us-west-2a", Some("usw2-az2")));
    assert_eq!(shifted.ids().len(), 1);
}
