//! Pauses of voluntary disruption: the annotation `operations.karpenter.sh/paused` of NodePools.

use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::v1::NodePool;
use karpenter_fixtures::NODE_POOL;
use serde_json::json;

use crate::disruption::drift;
use crate::world::{World, deployment, node_pool};

/// Sets or removes the annotation.
async fn annotate(world: &World, pool: &str, value: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {"operations.karpenter.sh/paused": value}}});
    world.patch::<NodePool>(pool, patch).await;
}

fn in_seconds(world: &World, seconds: u64) -> Timestamp {
    world.cluster.clock.now() + Duration::from_secs(seconds)
}

/// Returns type and message of the events of a NodePool with this reason, in the order of their messages.
async fn events(world: &World, reason: &str) -> Vec<(String, String)> {
    let events = world.events().await.into_iter();
    let of_pools = events.filter(|event| {
        event.reason.as_deref() == Some(reason)
            && event.involved_object.kind.as_deref() == Some("NodePool")
    });
    let mut all: Vec<_> = of_pools
        .map(|event| {
            (
                event.type_.unwrap_or_default(),
                event.message.unwrap_or_default(),
            )
        })
        .collect();
    all.sort();
    all
}

async fn uids(world: &World) -> Vec<String> {
    let claims = world.claims().await;
    let mut uids: Vec<String> = claims.iter().map(|claim| claim.uid().to_owned()).collect();
    uids.sort();
    uids
}

const PAUSED: &str = "karpenter_nodepools_paused{nodepool=\"default\"}";

/// Conformance: ROLL-10
#[tokio::test(start_paused = true)]
async fn only_pending_pods_are_acted_on_until_a_pause_ends_by_itself() {
    let world = World::new().await;
    world.run("app", 12).await;
    let before = uids(&world).await;
    let until = in_seconds(&world, 1800);
    annotate(
        &world,
        "default",
        Some(&format!("until={until};by=alice;why=incident 42")),
    )
    .await;
    // Drift and consolidation: the nodes of the old template are much too large for what is left.
    world.scale("app", 1).await;
    drift(&world).await;
    world.pass(900).await;
    assert_eq!(uids(&world).await, before, "{}", world.describe().await);
    assert_eq!(world.metric(PAUSED), Some(1.0));
    let allowed =
        "karpenter_nodepools_allowed_disruptions{nodepool=\"default\",reason=\"Drifted\"}";
    assert_eq!(world.metric(allowed), Some(0.0));

    world.deploy("more", 40).await;
    until!(world, 300, "pending pods get nodes", |w| {
        w.progress().await.running == 41
    });
    world.delete_deployments(&["more"]).await;
    world.pass(300).await;
    let paused = uids(&world).await;
    assert!(before.iter().all(|uid| paused.contains(uid)));
    assert!(paused.len() > before.len(), "empty nodes are kept, too");

    until!(world, 1800, "the pause is over", |w| {
        w.metric(PAUSED).is_none()
    });
    assert!(world.cluster.clock.now() >= until);
    until!(world, 900, "the drifted nodes are replaced", |w| {
        let left = uids(w).await;
        left.len() == 1 && before.iter().all(|uid| !left.contains(uid))
    });
    let normal = |message: String| ("Normal".to_owned(), message);
    assert_eq!(
        events(&world, "DisruptionPaused").await,
        [
            normal(format!(
                "Disruption is paused until {until} by alice: incident 42"
            )),
            normal(format!(
                "Disruption is resumed: the pause until {until} is over"
            )),
        ]
    );
    let blocked = events(&world, "DisruptionBlocked").await;
    assert!(blocked.is_empty(), "the budgets are open: {blocked:?}");
    world.assert_no_orphans().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_does_not_stop_deletion_by_users_and_expiration() {
    let world = World::new().await;
    let until = in_seconds(&world, 7 * 24 * 3600);
    world.add(node_pool("short").expire_after("1h")).await;
    annotate(&world, "short", Some(&format!("until={until}"))).await;
    annotate(&world, "default", Some(&format!("until={until}"))).await;
    let on_short = deployment("app", 2).select(NODE_POOL, "short");
    world.add(on_short).await;
    world.until_running(2, 60).await;
    let before = uids(&world).await;
    until!(world, 3900, "the expired nodes are replaced", |w| {
        let left = uids(w).await;
        !left.is_empty() && before.iter().all(|uid| !left.contains(uid))
    });
    world.until_running(2, 60).await;
    let claim = world.claim().await;
    world
        .delete::<karpenter_api::v1::NodeClaim>(claim.name())
        .await;
    until!(world, 300, "the deleted node is gone", |w| {
        !uids(w).await.contains(&claim.uid().to_owned())
    });
    world.until_running(2, 120).await;
}

/// Conformance: ROLL-11
#[tokio::test(start_paused = true)]
async fn a_pause_lets_commands_in_flight_finish() {
    let world = World::new().await;
    world.run("app", 3).await;
    let before = uids(&world).await;
    drift(&world).await;
    until!(world, 60, "a replacement is launching", |w| {
        uids(w).await.len() > before.len()
    });
    let until = in_seconds(&world, 3600);
    annotate(&world, "default", Some(&format!("until={until}"))).await;
    until!(world, 300, "the drifted node is gone", |w| {
        let left = uids(w).await;
        before.iter().all(|uid| !left.contains(uid))
    });
    world.until_running(3, 60).await;
    until!(world, 15, "the pause is reported", |w| {
        w.metric(PAUSED) == Some(1.0)
    });
}
