//! Node repair (feature gate NodeRepair).

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::labels::annotations;
use karpenter_fixtures::HOSTNAME;
use karpenter_kube::controller::{Controller, Next, ObjectKey};
use karpenter_kube::node::health::Health;
use karpenter_testbed::loops::node_agent::NodeFault;
use serde_json::json;

use crate::world::{World, deployment, node_pool, settings};

/// A world with `nodes` nodes with one pod each.
async fn with_nodes(nodes: usize) -> World {
    let mut settings = settings();
    settings.options.feature_gates.node_repair = true;
    let world =
        World::with_settings(settings, node_pool("default").consolidate_after("Never")).await;
    let stays = |key: &str| json!({"key": key, "operator": "Exists"});
    let apart = deployment("app", i32::try_from(nodes).unwrap())
        .spread(HOSTNAME, 1, ("app", "app"))
        // Only repair moves the pods.
        .tolerate(stays("node.kubernetes.io/unreachable"))
        .tolerate(stays("node.kubernetes.io/not-ready"));
    world.add(apart).await;
    world.until_running(nodes, 120).await;
    world
}

async fn node_names(world: &World) -> Vec<String> {
    let nodes = world.nodes().await;
    nodes
        .into_iter()
        .map(|n| n.metadata.name.unwrap())
        .collect()
}

/// Conformance: API-172, API-174, DIS-158
#[tokio::test(start_paused = true)]
async fn an_unhealthy_node_is_replaced_after_its_toleration() {
    let world = with_nodes(3).await;
    let victim = node_names(&world).await.remove(0);
    world.cluster.node_faults.set(&victim, NodeFault::Dead);
    world.pass(9 * 60).await;
    assert!(node_names(&world).await.contains(&victim));
    until!(world, 300, "the node is gone", |w| {
        !node_names(w).await.contains(&victim)
    });
    world.until_running(3, 300).await;
    let text = world.cluster.registry.render();
    assert!(text.contains(
        "karpenter_nodeclaims_unhealthy_disrupted_total{condition=\"ready\",nodepool=\"default\""
    ));
    assert!(text.contains(
        "karpenter_nodeclaims_disrupted_total{reason=\"unhealthy\",nodepool=\"default\""
    ));
    let pods = text.lines().find(|line| {
        line.starts_with("karpenter_pods_disruption_initiated_total{reason=\"unhealthy\"")
    });
    assert!(pods.is_some_and(|line| line.ends_with(" 1")), "{pods:?}");
}

/// Conformance: DIS-158
#[tokio::test(start_paused = true)]
async fn the_pods_of_an_unhealthy_node_get_no_grace_period() {
    let world = with_nodes(1).await;
    let victim = node_names(&world).await.remove(0);
    world.cluster.node_faults.set(&victim, NodeFault::Dead);
    until!(world, 900, "the deadline is set", |w| {
        let claims = w.claims().await;
        let deadline = claims
            .iter()
            .find_map(|c| c.annotation(annotations::TERMINATION_TIMESTAMP));
        deadline
            .is_some_and(|text| text.parse::<jiff::Timestamp>().unwrap() <= w.cluster.clock.now())
    });
}

/// Conformance: API-194, DIS-159
#[tokio::test(start_paused = true)]
async fn with_too_many_unhealthy_nodes_none_is_replaced_and_each_has_an_event() {
    let world = with_nodes(5).await;
    let names = node_names(&world).await;
    for victim in &names[..2] {
        world.cluster.node_faults.set(victim, NodeFault::Dead);
    }
    world.pass(13 * 60).await;
    assert_eq!(node_names(&world).await.len(), 5);
    let blocked = async |w: &World| {
        let events = w.events_of("NodeRepairBlocked").await.into_iter();
        let counts = events.map(|e| (e.involved_object.name.unwrap(), e.count.unwrap()));
        counts.collect::<Vec<_>>()
    };
    let mut expected: Vec<_> = names[..2].iter().map(|n| (n.clone(), 1)).collect();
    expected.sort();
    let mut found = blocked(&world).await;
    found.sort();
    assert_eq!(found, expected);
    // They are checked every five minutes; the event is repeated every fifteen.
    let counts = async |w: &World| blocked(w).await.into_iter().map(|(_, count)| count).max();
    world.pass(9 * 60).await;
    assert_eq!(counts(&world).await, Some(1));
    world.pass(9 * 60).await;
    assert_eq!(counts(&world).await, Some(2));
    let health = Health {
        cx: Arc::clone(world.cluster.context().unwrap()),
    };
    let next = health.reconcile(ObjectKey::cluster(&names[0])).await;
    assert_eq!(next.unwrap(), Next::After(Duration::from_secs(300)));
    // One of them becomes ready again, so the other may be replaced.
    world.cluster.node_faults.clear(&names[0]);
    until!(world, 900, "the other is replaced", |w| {
        !node_names(w).await.contains(&names[1])
    });
    assert!(node_names(&world).await.contains(&names[0]));
}
