//! What must hold once disturbances have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{finalizers, taints};
use karpenter_api::v1::{NodeClaim, NodePool};

use crate::driver::{Failure, Simulation};
use crate::{model, world};

/// How long the cluster may take to converge: NodeClaims whose nodes never joined are deleted after 15 minutes, pods of
/// terminated instances are replaced after five, drains take up to an hour, and all of that may happen in a row.
const CONVERGES_WITHIN: Duration = Duration::from_secs(3 * 3600);
/// How long the cluster must stay converged.
const STAYS: Duration = Duration::from_secs(1800);
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Least time since the last launch: consolidation leaves its replacements alone for a while.
const AFTER_LAUNCH: Duration = Duration::from_secs(15 * 60);

/// Ends all disturbances; waits until the cluster has converged, checks that it stays so, deletes all workloads, and waits
/// until their nodes are terminated.
pub(crate) async fn converges(sim: &mut Simulation) -> Result<(), Box<Failure>> {
    sim.trace.add("> disturbances end");
    sim.calm().await;
    sim.step += 1;
    wait_until_converged(sim).await?;
    let launched = sim.cluster.cloud.launched();
    sim.cluster.clock.sleep(STAYS).await;
    sim.check().await?;
    let mut problems = unconverged(sim).await;
    let more = sim.cluster.cloud.launched() - launched;
    if more > 0 {
        problems.push(format!(
            "{more} instances were launched without a disturbance"
        ));
    }
    problems.extend(model::differs(sim).await);
    if !problems.is_empty() {
        return Err(sim.failure(problems).await);
    }
    sim.trace.add("> all workloads are deleted");
    sim.delete_all::<Deployment>().await;
    sim.delete_all::<StatefulSet>().await;
    sim.step += 1;
    wait_until_converged(sim).await?;
    let empty = empty_nodes(sim).await;
    if empty.is_empty() {
        Ok(())
    } else {
        Err(sim.failure(empty).await)
    }
}

async fn wait_until_converged(sim: &mut Simulation) -> Result<(), Box<Failure>> {
    let start = sim.cluster.clock.now();
    // Several checks in a row: a moment between two actions may look converged.
    let mut converged = 0;
    let mut last_launch = (sim.cluster.cloud.launched(), start);
    loop {
        sim.cluster.clock.sleep(CHECK_INTERVAL).await;
        sim.check().await?;
        let mut problems = unconverged(sim).await;
        if problems.is_empty() {
            problems = empty_nodes(sim).await;
        }
        converged = if problems.is_empty() {
            converged + 1
        } else {
            0
        };
        let launched = sim.cluster.cloud.launched();
        if launched != last_launch.0 {
            last_launch = (launched, sim.cluster.clock.now());
        }
        if converged >= 3 && sim.cluster.clock.since(last_launch.1) > AFTER_LAUNCH {
            return Ok(());
        }
        if sim.cluster.clock.since(start) > CONVERGES_WITHIN {
            problems.insert(0, "the cluster does not converge".to_owned());
            return Err(sim.failure(problems).await);
        }
    }
}

/// Returns what has not converged.
async fn unconverged(sim: &Simulation) -> Vec<String> {
    let mut problems = Vec::new();
    let claims = sim.list::<NodeClaim>().await;
    let nodes = sim.list::<Node>().await;
    let pods = sim.list::<Pod>().await;
    let deployments = sim.list::<Deployment>().await.into_iter().map(|it| {
        let ready = it.status.and_then(|s| s.ready_replicas);
        (it.metadata.name, it.spec.and_then(|s| s.replicas), ready)
    });
    let sets = sim.list::<StatefulSet>().await.into_iter().map(|it| {
        let ready = it.status.and_then(|s| s.ready_replicas);
        (it.metadata.name, it.spec.and_then(|s| s.replicas), ready)
    });
    for (name, wanted, ready) in deployments.chain(sets) {
        let (wanted, ready) = (wanted.unwrap_or(1), ready.unwrap_or_default());
        if wanted != ready {
            let name = name.unwrap_or_default();
            problems.push(format!("{name} has {ready} of {wanted} pods"));
        }
    }
    for pod in &pods {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        if phase != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            problems.push(format!("pod {name} is {}", phase.unwrap_or("Pending")));
        }
    }
    let pools = sim.list::<NodePool>().await;
    // A static NodePool at its limit has no headroom for a replacement.
    let is_full = |pool: &&NodePool| node_limit(pool) <= pool.spec.replicas;
    let full = pools.iter().filter(|pool| pool.spec.replicas.is_some());
    let full = full
        .filter(|pool| node_limit(pool).is_some())
        .filter(is_full);
    let stuck: BTreeSet<Option<&str>> = full.map(|p| Some(p.name())).collect();
    for claim in &claims {
        let why = if claim.is_deleting() {
            "is being deleted"
        } else if !claim.is_true(types::INITIALIZED) {
            "is not initialized"
        } else if claim.condition(types::DISRUPTION_REASON).is_some() {
            "is being disrupted"
        } else if claim.is_true(types::DRIFTED) && !stuck.contains(&claim.node_pool()) {
            "has drifted"
        } else {
            continue;
        };
        problems.push(format!("nodeclaim {} {why}", claim.name()));
    }
    problems.extend(unmatched(sim, &claims, &nodes));
    for node in &nodes {
        let mut tainted = node.spec.iter().flat_map(|it| it.taints.iter().flatten());
        let mut held = node.metadata.finalizers.iter().flatten();
        let why = if tainted.any(|taint| taint.key == taints::DISRUPTED) {
            "is tainted as disrupted"
        } else if node.metadata.deletion_timestamp.is_some() {
            "is being deleted"
        } else if !held.any(|it| it == finalizers::TERMINATION) {
            "has no finalizer"
        } else {
            continue;
        };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        problems.push(format!("node {name} {why}"));
    }
    problems.extend(static_pools(&pools, &claims));
    problems
}

/// Checks that instances, Nodes and NodeClaims match one to one.
fn unmatched(sim: &Simulation, claims: &[NodeClaim], nodes: &[Node]) -> Vec<String> {
    let mut problems = Vec::new();
    let claimed: BTreeSet<&str> = claims
        .iter()
        .filter_map(|c| c.status.provider_id.as_deref())
        .collect();
    if claimed.len() != claims.len() {
        problems.push("nodeclaims without an instance of their own".to_owned());
    }
    let instances = sim.cluster.cloud.instances();
    let launched: BTreeSet<&str> = instances
        .iter()
        .filter_map(|m| m.answer.status.provider_id.as_deref())
        .collect();
    let joined: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|n| n.spec.as_ref()?.provider_id.as_deref())
        .collect();
    for (what, ids) in [("instance", &launched), ("node", &joined)] {
        for id in ids.difference(&claimed) {
            problems.push(format!("{what} {id} has no nodeclaim"));
        }
        for id in claimed.difference(ids) {
            problems.push(format!("nodeclaim of {id} has no {what}"));
        }
    }
    problems
}

fn node_limit(pool: &NodePool) -> Option<i64> {
    pool.spec.limits.get("nodes")?.0.parse().ok()
}

/// Checks that static NodePools have the right number of nodes.
fn static_pools(pools: &[NodePool], claims: &[NodeClaim]) -> Vec<String> {
    let counted = pools.iter().filter_map(|pool| {
        let wanted = pool.spec.replicas?;
        let wanted = node_limit(pool).map_or(wanted, |limit| wanted.min(limit));
        let present = claims
            .iter()
            .filter(|c| c.node_pool() == Some(pool.name()))
            .count();
        (i64::try_from(present).unwrap_or(0) != wanted)
            .then(|| format!("pool {} has {present} of {wanted} nodes", pool.name()))
    });
    counted.collect()
}

/// Returns NodeClaims of empty nodes outside of static NodePools.
async fn empty_nodes(sim: &Simulation) -> Vec<String> {
    let pods = sim.list::<Pod>().await;
    let used: BTreeSet<&str> = pods
        .iter()
        .filter(|p| {
            let owners = p.metadata.owner_references.as_ref();
            !owners.is_some_and(|o| o.iter().any(|o| o.kind == "DaemonSet"))
        })
        .filter_map(|p| p.spec.as_ref()?.node_name.as_deref())
        .collect();
    let claims = sim.list::<NodeClaim>().await;
    let empty = claims.iter().filter(|c| {
        c.node_pool() != Some(world::STATIC)
            && c.status
                .node_name
                .as_deref()
                .is_none_or(|node| !used.contains(node))
    });
    empty
        .map(|c| format!("nodeclaim {} is empty", c.name()))
        .collect()
}
