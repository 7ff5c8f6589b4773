//! What must hold once disturbances have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{finalizers, taints};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::quantity::Quantity;

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
    sim.delete_workloads().await;
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
    for deployment in sim.list::<Deployment>().await {
        let name = deployment.metadata.name.clone().unwrap_or_default();
        let wanted = deployment.spec.and_then(|s| s.replicas).unwrap_or(1);
        let ready = deployment
            .status
            .and_then(|s| s.ready_replicas)
            .unwrap_or_default();
        if wanted != ready {
            problems.push(format!("deployment {name} has {ready} of {wanted} pods"));
        }
    }
    for set in sim.list::<StatefulSet>().await {
        let name = set.metadata.name.clone().unwrap_or_default();
        let wanted = set.spec.and_then(|s| s.replicas).unwrap_or(1);
        let ready = set
            .status
            .and_then(|s| s.ready_replicas)
            .unwrap_or_default();
        if wanted != ready {
            problems.push(format!("statefulset {name} has {ready} of {wanted} pods"));
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
    let full = pools.iter().filter(|p| at_limit(p));
    let stuck: BTreeSet<Option<&str>> = full.map(|p| Some(p.name())).collect();
    for claim in &claims {
        let name = claim.name();
        if claim.is_deleting() {
            problems.push(format!("nodeclaim {name} is being deleted"));
        } else if !claim.is_true(types::INITIALIZED) {
            problems.push(format!("nodeclaim {name} is not initialized"));
        } else if claim.condition(types::DISRUPTION_REASON).is_some() {
            problems.push(format!("nodeclaim {name} is being disrupted"));
        } else if claim.is_true(types::DRIFTED) && !stuck.contains(&claim.node_pool()) {
            problems.push(format!("nodeclaim {name} has drifted"));
        }
    }
    problems.extend(unmatched(sim, &claims, &nodes));
    for node in &nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let all = node.spec.as_ref().and_then(|s| s.taints.as_ref());
        if all.is_some_and(|all| all.iter().any(|t| t.key == taints::DISRUPTED)) {
            problems.push(format!("node {name} is tainted as disrupted"));
        }
        if node.metadata.deletion_timestamp.is_some() {
            problems.push(format!("node {name} is being deleted"));
        } else if node
            .metadata
            .finalizers
            .as_ref()
            .is_none_or(|f| !f.iter().any(|f| f == finalizers::TERMINATION))
        {
            problems.push(format!("node {name} has no finalizer"));
        }
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

fn at_limit(pool: &NodePool) -> bool {
    let replicas = pool.spec.replicas;
    replicas.is_some_and(|wanted| node_limit(pool).is_some_and(|limit| limit <= wanted))
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

/// Returns how a NodePool exceeds its limits, if it does. Nodes that are being replaced do not count; neither do
/// `leftovers`, which stay because their command ended with its process or without ready replacements.
pub(crate) fn beyond_limits(
    pool: &NodePool,
    claims: &[NodeClaim],
    leftovers: &BTreeSet<String>,
) -> Option<String> {
    let mut used: BTreeMap<&str, Quantity> = BTreeMap::new();
    let none = Quantity::from_millis(0);
    let mut nodes = 0;
    for claim in claims {
        let owners = claim.metadata.owner_references.as_ref();
        let owned =
            owners.is_some_and(|o| o.iter().any(|o| Some(&o.uid) == pool.metadata.uid.as_ref()));
        let leaves = claim.is_deleting() || claim.is_true(types::DISRUPTION_REASON);
        if !owned || leaves || leftovers.contains(claim.uid()) {
            continue;
        }
        nodes += 1;
        for (resource, amount) in &claim.status.capacity {
            if let Ok(amount) = amount.0.parse::<Quantity>() {
                let sum = used.entry(resource).or_insert(none);
                *sum = sum.saturating_add(amount);
            }
        }
    }
    used.insert("nodes", Quantity::from_millis(1000 * nodes));
    pool.spec.limits.iter().find_map(|(resource, limit)| {
        let (used, limit) = (used.get(resource.as_str())?, limit.0.parse().ok()?);
        (*used > limit).then(|| format!("pool {} uses {used} of {limit} {resource}", pool.name()))
    })
}
