//! What consolidation launches: nothing that it would replace soon.

use karpenter_kwok::CapacityPool;

use super::{LARGE, MIDDLE, SMALL, instance_types, on_demand};
use crate::world::World;

/// A node that consolidation launched when the instance type of the right size was not available; now it is.
async fn second_best() -> World {
    let world = on_demand(&[SMALL, MIDDLE, LARGE], |pool| pool).await;
    world.run("app", 12).await;
    assert_eq!(instance_types(&world.claims().await), [LARGE]);
    world.cluster.cloud.exhaust(CapacityPool {
        instance_type: Some(SMALL.to_owned()),
        zone: None,
        capacity_type: None,
    });
    world.scale("app", 2).await;
    until!(world, 300, "a node of medium size is left", |w| {
        instance_types(&w.claims().await) == [MIDDLE]
    });
    world.until_running(2, 60).await;
    world.cluster.cloud.restock();
    world
}

#[tokio::test(start_paused = true)]
async fn a_consolidated_node_may_be_consolidated_once_pods_have_left_it() {
    let world = second_best().await;
    // Its pods are recorded every ten seconds.
    world.pass(20).await;
    world.scale("app", 1).await;
    until!(world, 120, "a small node is left", |w| {
        instance_types(&w.claims().await) == [SMALL]
    });
    world.until_running(1, 60).await;
}
