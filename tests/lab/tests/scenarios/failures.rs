//! Failures of the cloud and of the API server.

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodePool;
use karpenter_kwok::CapacityPool;

use crate::world::World;

fn out_of(zone: Option<&str>, capacity_type: Option<&str>) -> CapacityPool {
    CapacityPool {
        instance_type: None,
        zone: zone.map(str::to_owned),
        capacity_type: capacity_type.map(str::to_owned),
    }
}

/// How many NodeClaims were deleted for a reason.
fn disrupted(world: &World, reason: &str) -> f64 {
    let text = world.cluster.registry.render();
    let series = format!("karpenter_nodeclaims_disrupted_total{{reason=\"{reason}\",");
    let own = text.lines().filter(|line| line.starts_with(&series));
    own.filter_map(|line| line.split(' ').next_back()?.parse::<f64>().ok())
        .sum()
}

/// Conformance: DIS-027, API-172
#[tokio::test(start_paused = true)]
async fn without_capacity_nodeclaims_are_created_again_until_there_is_some() {
    let world = World::new().await;
    world.cluster.cloud.exhaust(out_of(None, None));
    world.deploy("inflate", 3).await;
    world.until_event("InsufficientCapacityError", 60).await;
    world.until_claims(0, 30).await;
    assert!(disrupted(&world, "insufficient_capacity") >= 1.0);
    assert!(world.cluster.cloud.instances().is_empty());
    world.cluster.cloud.restock();
    world.until_running(3, 120).await;
    world.assert_no_orphans().await;
}

#[tokio::test(start_paused = true)]
async fn offerings_without_capacity_are_replaced_by_others() {
    let world = World::new().await;
    world.cluster.cloud.exhaust(out_of(None, Some("spot")));
    for zone in ["test-zone-a", "test-zone-b", "test-zone-c"] {
        world.cluster.cloud.exhaust(out_of(Some(zone), None));
    }
    world.run("inflate", 3).await;
    for instance in world.cluster.cloud.instances() {
        assert_eq!(
            instance.answer.label("topology.kubernetes.io/zone"),
            Some("test-zone-d")
        );
        assert_eq!(
            instance.answer.label("karpenter.sh/capacity-type"),
            Some("on-demand")
        );
    }
}

/// Conformance: DIS-029, DIS-032, API-172
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_that_is_not_launched_for_five_minutes_is_deleted() {
    let world = World::new().await;
    world.cluster.cloud.fail_launches(u32::MAX);
    world.deploy("inflate", 1).await;
    until!(world, 30, "there is a claim", |w| {
        !w.claims().await.is_empty()
    });
    let first = world.claim().await;
    world.pass(280).await;
    assert!(
        world.claims().await.iter().any(|c| c.uid() == first.uid()),
        "{}",
        world.describe().await
    );
    // A NodeClaim that fails is reconciled again within a minute.
    world.pass(80).await;
    assert!(
        world.claims().await.iter().all(|c| c.uid() != first.uid()),
        "{}",
        world.describe().await
    );
    assert_eq!(disrupted(&world, "launch_timeout"), 1.0);
    // The next NodeClaim fails as well, and two failures make the NodePool's registration unhealthy.
    world.pass(360).await;
    assert!(
        world.list::<NodePool>().await[0].is_false(types::NODE_REGISTRATION_HEALTHY),
        "{}",
        world.describe().await
    );
    assert!(world.cluster.cloud.instances().is_empty());
}
