//! What the cloud and the API server can do wrong.

use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodePool;
use karpenter_kwok::CapacityPool;
use karpenter_testbed::faults::{Fault, Rule};

use crate::world::World;

fn out_of(zone: Option<&str>, capacity_type: Option<&str>) -> CapacityPool {
    CapacityPool {
        instance_type: None,
        zone: zone.map(str::to_owned),
        capacity_type: capacity_type.map(str::to_owned),
    }
}

/// Conformance: DIS-027
#[tokio::test(start_paused = true)]
async fn without_any_capacity_claims_go_and_come_until_there_is_some() {
    let world = World::new().await;
    world.stack.cloud.exhaust(out_of(None, None));
    world.deploy("inflate", 3).await;
    world
        .until(60, "the claim is told", async |w| {
            w.told("InsufficientCapacityError").await
        })
        .await;
    world
        .until(30, "the claim goes", async |w| w.claims().await.is_empty())
        .await;
    assert!(world.stack.cloud.machines().is_empty());
    world.stack.cloud.restock();
    world.until_running(3, 120).await;
    world.assert_no_orphans().await;
}

#[tokio::test(start_paused = true)]
async fn capacity_that_is_out_somewhere_is_bought_elsewhere() {
    let world = World::new().await;
    world.stack.cloud.exhaust(out_of(None, Some("spot")));
    for zone in ["test-zone-a", "test-zone-b", "test-zone-c"] {
        world.stack.cloud.exhaust(out_of(Some(zone), None));
    }
    world.deploy("inflate", 3).await;
    world.until_running(3, 120).await;
    for machine in world.stack.cloud.machines() {
        assert_eq!(
            machine.answer.label("topology.kubernetes.io/zone"),
            Some("test-zone-d")
        );
        assert_eq!(
            machine.answer.label("karpenter.sh/capacity-type"),
            Some("on-demand")
        );
    }
}

/// Conformance: DIS-028
#[tokio::test(start_paused = true)]
async fn a_launch_that_fails_is_tried_again_and_says_so_meanwhile() {
    let world = World::new().await;
    world.stack.cloud.fail_launches(3);
    world.deploy("inflate", 1).await;
    world
        .until(30, "the claim says why", async |w| {
            w.claims().await.iter().any(|c| {
                c.condition(types::LAUNCHED)
                    .is_some_and(|l| l.reason == "LaunchFailed" && l.status == "Unknown")
            })
        })
        .await;
    world.until_running(1, 60).await;
    assert_eq!(world.claims().await.len(), 1);
}

/// Conformance: DIS-029, DIS-032
#[tokio::test(start_paused = true)]
async fn a_launch_that_fails_for_five_minutes_is_given_up() {
    let world = World::new().await;
    world.stack.cloud.fail_launches(u32::MAX);
    world.deploy("inflate", 1).await;
    world
        .until(30, "there is a claim", async |w| {
            !w.claims().await.is_empty()
        })
        .await;
    let first = world.claims().await.remove(0);
    world.pass(280).await;
    assert!(
        world.claims().await.iter().any(|c| c.uid() == first.uid()),
        "{}",
        world.describe().await
    );
    // A claim that fails is looked at again within a minute.
    world.pass(80).await;
    assert!(
        world.claims().await.iter().all(|c| c.uid() != first.uid()),
        "{}",
        world.describe().await
    );
    // The next claim fails as well, and two failures say that the pool does not work.
    world.pass(360).await;
    assert!(
        world.list::<NodePool>().await[0].is_false(types::NODE_REGISTRATION_HEALTHY),
        "{}",
        world.describe().await
    );
    assert!(world.stack.cloud.machines().is_empty());
}

/// Conformance: DIS-031, DIS-048
#[tokio::test(start_paused = true)]
async fn a_machine_that_never_joins_is_given_up_after_fifteen_minutes() {
    let world = World::new().await;
    world.stack.cloud.never_register(true);
    world.deploy("inflate", 1).await;
    world
        .until(30, "there is a machine", async |w| {
            !w.stack.cloud.machines().is_empty()
        })
        .await;
    let first = world.stack.cloud.machines().remove(0).claim_uid;
    world.pass(870).await;
    assert!(world.claims().await.iter().any(|c| c.uid() == first));
    world.stack.cloud.never_register(false);
    world.pass(60).await;
    assert!(
        world.claims().await.iter().all(|c| c.uid() != first),
        "{}",
        world.describe().await
    );
    world.until_running(1, 60).await;
    world.assert_no_orphans().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_api_server_slows_things_down_and_loses_nothing() {
    let world = World::new().await;
    let faults = world.stack.testbed.faults();
    faults.add(
        Rule::new(Fault::Error {
            code: 503,
            retry_after: None,
        })
        .rate(0.1),
    );
    faults.add(Rule::new(Fault::Conflict).rate(0.1));
    faults.add(Rule::new(Fault::LostAnswer).rate(0.05));
    faults.add(Rule::new(Fault::Latency(Duration::from_millis(500))).rate(0.2));
    faults.add(Rule::new(Fault::DropWatch { after: 20 }).rate(0.3));
    world.deploy("inflate", 30).await;
    world.until_running(30, 900).await;
    world.scale("inflate", 0).await;
    world.until_empty(1800).await;
}
