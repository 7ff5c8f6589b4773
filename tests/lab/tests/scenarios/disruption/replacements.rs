//! What consolidation launches: nothing that it would replace soon, and several nodes only where that is allowed.

use karpenter_api::v1::NodePool;
use karpenter_fixtures::{CAPACITY_TYPE, HOSTNAME};
use karpenter_kwok::CapacityPool;
use serde_json::json;

use super::{INSTANCE_TYPE, LARGE, MIDDLE, ON_DEMAND, SMALL, count, instance_types, on_demand};
use crate::world::{World, deployment, node_pool, settings};

/// A node that consolidation launched when the instance type of the right size was not available; now it is.
async fn second_best() -> World {
    let world = on_demand(&[SMALL, MIDDLE, LARGE], |pool| pool).await;
    world.deploy("app", 12).await;
    world.until_running(12, 60).await;
    assert_eq!(instance_types(&world.claims().await), [LARGE]);
    world.cluster.cloud.exhaust(CapacityPool {
        instance_type: Some(SMALL.to_owned()),
        zone: None,
        capacity_type: None,
    });
    world.scale("app", 2).await;
    world
        .until(300, "a node of medium size is left", async |w| {
            instance_types(&w.claims().await) == [MIDDLE]
        })
        .await;
    world.until_running(2, 60).await;
    world.cluster.cloud.restock();
    world
}

#[tokio::test(start_paused = true)]
async fn a_node_launched_by_consolidation_is_kept_for_ten_minutes() {
    let world = second_best().await;
    let launched = world.claims().await[0]
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|t| t.0)
        .unwrap();
    world
        .until(900, "a small node is left", async |w| {
            instance_types(&w.claims().await) == [SMALL]
        })
        .await;
    let age = world.cluster.clock.since(launched).as_secs();
    assert!(age > 600, "it was deleted after {age} s");
    world.until_running(2, 60).await;
}

#[tokio::test(start_paused = true)]
async fn a_consolidated_node_may_be_consolidated_once_pods_have_left_it() {
    let world = second_best().await;
    // Its pods are recorded every ten seconds.
    world.pass(20).await;
    world.scale("app", 1).await;
    world
        .until(120, "a small node is left", async |w| {
            instance_types(&w.claims().await) == [SMALL]
        })
        .await;
    world.until_running(1, 60).await;
}

/// Two nodes that are much too large, each with a pod that must be alone: one small node does not fit both pods, two do.
#[tokio::test(start_paused = true)]
async fn several_nodes_replace_several_where_that_is_allowed() {
    let mut settings = settings();
    settings.options.consolidation_max_replacements = 2;
    let of_types = |types: &[&str]| {
        node_pool("default")
            .without_requirements()
            .requires(CAPACITY_TYPE, "In", &[ON_DEMAND])
            .requires(INSTANCE_TYPE, "In", types)
    };
    let world = World::with_settings(settings, of_types(&[LARGE])).await;
    let alone = deployment("app", 2).anti_affinity(HOSTNAME, ("app", "app"));
    world.add(alone).await;
    world.until_running(2, 60).await;
    assert_eq!(instance_types(&world.claims().await), [LARGE, LARGE]);
    let spec = json!({"spec": of_types(&[SMALL, LARGE]).json()["spec"]});
    world.patch::<NodePool>("default", spec).await;
    world
        .until(300, "two small nodes are left", async |w| {
            instance_types(&w.claims().await) == [SMALL, SMALL]
        })
        .await;
    world.until_running(2, 60).await;
    let decisions = |kind: &str| {
        let series = format!(
            "karpenter_voluntary_disruption_decisions_total{{decision=\"replace\",reason=\"underutilized\",consolidation_type=\"{kind}\"}}"
        );
        count(&world, &series)
    };
    assert_eq!((decisions("multi"), decisions("single")), (1.0, 0.0));
    assert_eq!(world.cluster.cloud.launched(), 4);
    world.assert_no_orphans().await;
}
