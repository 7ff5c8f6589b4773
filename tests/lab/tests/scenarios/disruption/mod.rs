//! Voluntary disruption: nodes are replaced when that lowers the cost or when they drifted, and commands are rolled back when
//! they fail.

mod commands;
mod conflicts;
mod evaluation;
mod published;
mod replacements;
mod stale;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_fixtures::{CAPACITY_TYPE, Object};
use karpenter_kwok::KWOKNodeClass;
use serde_json::json;

use crate::world::{World, node_pool, settings};

const ON_DEMAND: &str = "on-demand";
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
pub const SMALL: &str = "c-4x-amd64-linux";
pub const MIDDLE: &str = "c-8x-amd64-linux";
const LARGE: &str = "c-16x-amd64-linux";

/// A cluster of on-demand nodes; `change` changes its NodePool.
async fn on_demand(
    instance_types: &[&str],
    change: impl FnOnce(Object<NodePool>) -> Object<NodePool>,
) -> World {
    let world = World::bare(settings()).await;
    world
        .create(&KWOKNodeClass::new("default", Default::default()))
        .await;
    let mut pool = node_pool("default").requires(CAPACITY_TYPE, "In", &[ON_DEMAND]);
    if !instance_types.is_empty() {
        pool = pool.requires(INSTANCE_TYPE, "In", instance_types);
    }
    world.add(change(pool)).await;
    world
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints.is_some_and(|all| all.iter().any(|t| t.key == "karpenter.sh/disrupted"))
}

async fn tainted(world: &World) -> usize {
    world.nodes().await.iter().filter(|n| is_tainted(n)).count()
}

async fn running_pods(world: &World) -> usize {
    world.progress().await.running
}

/// One node that is much too large for the two pods that are left on it.
pub async fn oversized() -> (World, NodeClaim) {
    let world = on_demand(&[], |pool| pool).await;
    world.run("app", 12).await;
    let mut claims = world.claims().await;
    assert_eq!(claims.len(), 1, "{}", world.describe().await);
    (world, claims.remove(0))
}

/// Changes the template of the NodePool and waits until its nodes have drifted.
pub async fn drift(world: &World) {
    let template = json!({"spec": {"template": {"metadata": {"labels": {"generation": "two"}}}}});
    world.patch::<NodePool>("default", template).await;
    for claim in world.claims().await {
        let mut drifted = claim.clone();
        drifted.set_true_with_reason(
            types::DRIFTED,
            "NodePoolDrifted",
            "NodePoolDrifted",
            world.cluster.clock.now(),
        );
        let conditions = json!({"status": {"conditions": drifted.status.conditions}});
        world
            .patch_status::<NodeClaim>(claim.name(), conditions)
            .await;
    }
}

/// Returns the instance types of NodeClaims.
fn instance_types(claims: &[NodeClaim]) -> Vec<&str> {
    let all = claims.iter().filter_map(|c| c.label(INSTANCE_TYPE));
    all.collect()
}

fn count(world: &World, series: &str) -> f64 {
    world.metric(series).unwrap_or_default()
}
