//! What a plan is worth beside its price: two plans are compared by price only where these are equal.
//!
//! Measured on the cluster after all pods of the plan are bound, each planned node launched as its cheapest offering.

use k8s_openapi::api::core::v1::{NodeSelector, Pod};

use crate::pod;
use crate::replay::{Cluster, Launch, PodInfo, tolerates};
use crate::solve::Solution;
use crate::world::World;

/// The preferences that a plan meets, the NodePools that it uses, and how evenly it spreads pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quality {
    /// Preferred node affinity, pod affinity and anti-affinity, soft spread constraints and soft taints that are met, over all
    /// placed pods.
    pub preferences: usize,
    /// The weight of the NodePool of each pod on a planned node, summed up.
    pub weight: i64,
    /// The difference between the fullest and the emptiest domain of each spread constraint of each placed pod, summed up.
    pub skew: i64,
}

/// Returns the quality of a plan.
pub fn quality(world: &World, solution: &Solution) -> Quality {
    let mut cluster = Cluster::of(world, solution, Launch::Cheapest);
    let placed = cluster.planned(world, solution);
    for (pod, node) in &placed {
        if let Some(node) = node {
            cluster.nodes[*node].pods.push(*pod);
        }
    }
    let mut quality = Quality {
        weight: weight(world, solution),
        ..Quality::default()
    };
    for (index, node) in placed {
        let id = &cluster.pods[index].id;
        let pod = world.pods.iter().find(|pod| pod::id(pod) == *id);
        let (Some(pod), Some(node)) = (pod, node) else {
            continue;
        };
        quality.skew += skew(&cluster, &PodInfo::of(world, &with_hard_spreads(pod)));
        cluster.nodes[node].pods.retain(|other| *other != index);
        let met = wishes(pod)
            .iter()
            .filter(|wish| meets(&cluster, &PodInfo::of(world, wish), node))
            .count();
        quality.preferences += met + usize::from(tolerates_soft_taints(&cluster, pod, node));
        cluster.nodes[node].pods.push(index);
    }
    quality
}

fn weight(world: &World, solution: &Solution) -> i64 {
    let weight = |name: &str| {
        let mut pools = world.node_pools.iter();
        let pool = pools.find(|pool| pool.name() == name);
        i64::from(pool.and_then(|pool| pool.spec.weight).unwrap_or_default())
    };
    let claims = solution.claims.iter();
    claims
        .map(|claim| weight(&claim.pool) * claim.pods.len() as i64)
        .sum()
}

/// Returns the pod with soft spread constraints as hard ones.
fn with_hard_spreads(pod: &Pod) -> Pod {
    let mut hard = pod.clone();
    let spec = hard.spec.get_or_insert_default();
    for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
        constraint.when_unsatisfiable = "DoNotSchedule".to_owned();
    }
    hard
}

/// Returns the pod once for each of its preferences, which is then its only constraint.
fn wishes(pod: &Pod) -> Vec<Pod> {
    let affinity = pod::affinity(pod);
    let mut bare = pod.clone();
    let spec = bare.spec.get_or_insert_default();
    spec.affinity = None;
    spec.topology_spread_constraints = None;
    spec.node_selector = None;
    let mut wishes = Vec::new();
    let mut wish = |change: &dyn Fn(&mut k8s_openapi::api::core::v1::Affinity)| {
        let mut one = bare.clone();
        let spec = one.spec.get_or_insert_default();
        change(spec.affinity.get_or_insert_default());
        wishes.push(one);
    };
    let nodes = affinity.node_affinity.unwrap_or_default();
    for preferred in nodes
        .preferred_during_scheduling_ignored_during_execution
        .into_iter()
        .flatten()
    {
        let required = NodeSelector {
            node_selector_terms: vec![preferred.preference],
        };
        wish(&|affinity| {
            let nodes = affinity.node_affinity.get_or_insert_default();
            nodes.required_during_scheduling_ignored_during_execution = Some(required.clone());
        });
    }
    let pods = affinity.pod_affinity.unwrap_or_default();
    for preferred in pods
        .preferred_during_scheduling_ignored_during_execution
        .into_iter()
        .flatten()
    {
        wish(&|affinity| {
            let pods = affinity.pod_affinity.get_or_insert_default();
            let term = preferred.pod_affinity_term.clone();
            pods.required_during_scheduling_ignored_during_execution = Some(vec![term]);
        });
    }
    let apart = affinity.pod_anti_affinity.unwrap_or_default();
    for preferred in apart
        .preferred_during_scheduling_ignored_during_execution
        .into_iter()
        .flatten()
    {
        wish(&|affinity| {
            let pods = affinity.pod_anti_affinity.get_or_insert_default();
            let term = preferred.pod_affinity_term.clone();
            pods.required_during_scheduling_ignored_during_execution = Some(vec![term]);
        });
    }
    // Which nodes a spread counts depends on the node selector and the required node affinity.
    for soft in pod::spread_constraints(pod, true)
        .into_iter()
        .filter(|constraint| constraint.when_unsatisfiable == "ScheduleAnyway")
    {
        let mut one = with_hard_spreads(pod);
        let spec = one.spec.get_or_insert_default();
        spec.topology_spread_constraints = Some(vec![soft]);
        let mut one = with_hard_spreads(&one);
        if let Some(affinity) = one.spec.as_mut().and_then(|spec| spec.affinity.as_mut()) {
            affinity.pod_affinity = None;
            affinity.pod_anti_affinity = None;
        }
        wishes.push(one);
    }
    wishes
}

/// Returns whether the only constraint of a pod is met on a node beside the pods of the cluster.
fn meets(cluster: &Cluster, wish: &PodInfo, node: usize) -> bool {
    let there = &cluster.nodes[node];
    let near = cluster.inter_pod_affinity(wish, there);
    wish.accepts(&there.labels)
        && cluster.spreads(wish, there)
        && near.is_none_or(|why| why == "InterPodAffinity (existing anti-affinity)")
}

fn tolerates_soft_taints(cluster: &Cluster, pod: &Pod, node: usize) -> bool {
    let tolerations = pod::spec(pod).tolerations.unwrap_or_default();
    let taints = cluster.nodes[node].taints.iter();
    let mut soft = taints.filter(|taint| taint.effect == "PreferNoSchedule");
    soft.all(|taint| tolerations.iter().any(|one| tolerates(one, taint)))
}

fn skew(cluster: &Cluster, info: &PodInfo) -> i64 {
    let skews = info.spread.iter().map(|constraint| {
        let counts = cluster.counts(info, constraint);
        let most = counts.values().max().copied().unwrap_or(0);
        most - counts.values().min().copied().unwrap_or(0)
    });
    skews.sum()
}
