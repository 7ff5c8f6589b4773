//! Replays kube-scheduler's filters over a finished plan.
//!
//! [`check`](crate::check) verifies a plan against the rules of the engine and the naive solver. This module verifies it against
//! those of kube-scheduler, implemented again from its source, and shares only quantities and instance types with the engine:
//! planned nodes are launched, DaemonSets create their pods on them, and every placed pod is bound to its node as soon as all
//! filters pass. A pod that no order of binding brings to its node is stuck: Karpenter would regard it as placed for ever.
//!
//! The rules are those of kube-scheduler. A domain exists if a node has it; a spread constraint counts the nodes that its
//! policies include, over all alternatives of the node affinity; a pod is the first of its affinity group only if no pod anywhere
//! matches all its terms.
//!
//! The testbed's scheduler picks node and order itself; this module must test one pod on one given node, in any order. Sharing it would
//! also hide its bugs from both.
//!
//! UPSTREAM: k8s.io/kubernetes v1.36 pkg/scheduler/framework/plugins/{podtopologyspread,interpodaffinity,nodeaffinity,
//! tainttoleration,nodeports,noderesources,nodevolumelimits,volumebinding}

mod pod_info;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod, Taint};
use karpenter_api::labels::HOSTNAME;
use karpenter_core::offering::Offering;
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};

use crate::pod;
use crate::pod::{Labels, PodId};
use crate::solve::{Claim, Solution};
use crate::template::launchable;
use crate::world::World;
pub(crate) use pod_info::{PodInfo, tolerates};
use pod_info::{Spread, Term, term_meets};

/// The outcome of binding a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replay {
    /// Pods that the plan places and kube-scheduler never binds there, with the filter that rejects them.
    pub stuck: Vec<(PodId, &'static str)>,
    /// Planned nodes to which no pod was bound, by their index in the plan.
    pub empty: Vec<usize>,
}

/// Which offering of a planned node is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launch {
    /// The cheapest offering.
    Cheapest,
    /// A pseudo-random offering for a seed: providers may choose by criteria that Karpenter does not know.
    Drawn(u64),
}

/// A pending pod and the node on which the plan places it, both by their index in the cluster.
pub(crate) type Waiting = (usize, Option<usize>);

/// Binds the pods of a plan as kube-scheduler may: with all nodes there or, if that leaves pods of existing nodes, with these and the
/// pods that they count bound before a node is launched.
///
/// kube-scheduler binds a pod as soon as some node passes its filters. A launched node joins tens of seconds later, so that what an
/// existing node can take is bound before. That a pod is nominated for a node only reserves room for it there, and holds no pod back.
pub fn replay(world: &World, solution: &Solution, launch: Launch) -> Replay {
    let (best, last) = bound(world, solution, launch);
    let reason = |(pod, node): &Waiting| {
        let why = node.map_or(Some("launch"), |node| last.refusal(*pod, node));
        (last.pods[*pod].id.clone(), why.unwrap_or("order"))
    };
    let planned = last
        .nodes
        .iter()
        .filter_map(|node| Some((node, node.planned?)));
    let idle = planned.filter(|(node, _)| node.pods.iter().all(|pod| last.pods[*pod].is_daemon));
    Replay {
        stuck: best.iter().map(reason).collect(),
        empty: idle.map(|(_, index)| index).collect(),
    }
}

/// Returns the pods of a plan that kube-scheduler can bind, in the order in which it does.
pub(crate) fn binding_order(world: &World, solution: &Solution) -> Vec<PodId> {
    let (_, last) = bound(world, solution, Launch::Cheapest);
    let id = |pod: &usize| last.pods[*pod].id.clone();
    last.bound.iter().map(id).collect()
}

/// Binds as many pods as possible; returns those left, and the cluster then.
fn bound(world: &World, solution: &Solution, launch: Launch) -> (Vec<Waiting>, Cluster) {
    let mut cluster = Cluster::of(world, solution, launch);
    let waiting = cluster.planned(world, solution);
    let (mut best, mut last) = cluster.bind(waiting.clone());
    let (mut early, mut left) = (BTreeSet::new(), best.clone());
    while !best.is_empty() && cluster.note_early(&waiting, &left, &mut early) {
        let mut trial = cluster.clone();
        left = trial.bind_to_existing(&waiting, &early);
        (left, trial) = trial.bind(left);
        if left.len() < best.len() {
            (best, last) = (left.clone(), trial);
        }
    }
    (best, last)
}

/// Returns the count that bounds the skew: the lowest, or none if there are fewer domains than `minDomains`.
fn least(counts: &BTreeMap<&str, i64>, constraint: &Spread) -> i64 {
    if (counts.len() as i64) < constraint.min_domains {
        return 0;
    }
    counts.values().copied().min().unwrap_or(0)
}

/// How many orders of binding are tried.
const MAX_ORDERS: u64 = 96;

/// Returns a pseudo-random number for a seed (splitmix64).
fn mixed(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A node as in kube-scheduler's snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) labels: Labels,
    pub(crate) taints: Vec<Taint>,
    allocatable: Resources,
    /// Attach limits by CSI driver.
    limits: BTreeMap<String, usize>,
    pub(crate) pods: Vec<usize>,
    /// Its index among the planned nodes, if it is one.
    planned: Option<usize>,
}

impl Node {
    /// Reports whether another node is in the same domain.
    fn shares(&self, other: &Self, key: &str) -> bool {
        let value = self.labels.get(key);
        value.is_some() && other.labels.get(key) == value
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) pods: Vec<PodInfo>,
    pub(crate) nodes: Vec<Node>,
    /// Indices in `nodes` of the planned nodes that could be launched.
    launched: BTreeMap<usize, usize>,
    by_name: BTreeMap<String, usize>,
    /// The pods that were bound since the start.
    bound: Vec<usize>,
}

impl Cluster {
    /// Builds a cluster of the nodes that are not deleting with their pods, and the launched planned nodes, all with daemon pods.
    pub(crate) fn of(world: &World, solution: &Solution, launch: Launch) -> Self {
        let mut cluster = Self {
            pods: Vec::new(),
            nodes: Vec::new(),
            launched: BTreeMap::new(),
            by_name: BTreeMap::new(),
            bound: Vec::new(),
        };
        for node in world.nodes().into_iter().filter(|node| !node.deleting) {
            let csi = (world.csi_nodes.iter())
                .find(|csi| csi.metadata.name.as_deref() == Some(&node.name));
            let drivers = csi.iter().flat_map(|csi| &csi.spec.drivers);
            let limits = drivers.filter_map(|driver| {
                let count = driver.allocatable.as_ref()?.count?;
                Some((driver.name.clone(), usize::try_from(count).unwrap_or(0)))
            });
            let limits = limits.collect();
            cluster
                .by_name
                .insert(node.name.clone(), cluster.nodes.len());
            cluster.nodes.push(Node {
                labels: node.labels,
                taints: node.taints,
                allocatable: node.allocatable,
                limits,
                pods: Vec::new(),
                planned: None,
            });
        }
        for pod in &world.pods {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            let node = pod::spec(pod).node_name.unwrap_or_default();
            let finished = matches!(phase, Some("Failed" | "Succeeded"));
            if let Some(node) = cluster.by_name.get(&node).copied().filter(|_| !finished) {
                cluster.nodes[node].pods.push(cluster.pods.len());
                cluster.pods.push(PodInfo::of(world, pod));
            }
        }
        for (index, claim) in solution.claims.iter().enumerate() {
            if let Some(node) = launched(world, index, claim, launch) {
                cluster.launched.insert(index, cluster.nodes.len());
                cluster.nodes.push(node);
            }
        }
        for set in &world.daemon_sets {
            cluster.run_daemons(world, set);
        }
        cluster
    }

    /// Adds a pod of a DaemonSet to each node where it should run, does not run yet, and fits.
    fn run_daemons(&mut self, world: &World, set: &k8s_openapi::api::apps::v1::DaemonSet) {
        let template = set.spec.clone().unwrap_or_default().template;
        let mut pod = Pod {
            metadata: template.metadata.unwrap_or_default(),
            spec: template.spec,
            status: None,
        };
        pod.metadata.namespace.clone_from(&set.metadata.namespace);
        for container in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
            if let Some(resources) = &mut container.resources {
                let limits = resources.limits.clone().unwrap_or_default();
                let requests = resources.requests.get_or_insert_default();
                limits.into_iter().for_each(|(name, limit)| {
                    requests.entry(name).or_insert(limit);
                });
            }
        }
        let mut daemon = PodInfo::of(world, &pod);
        daemon.is_daemon = true;
        let owned = |other: &Pod| {
            let mut owners = other.metadata.owner_references.iter().flatten();
            owners.any(|o| o.kind == "DaemonSet" && Some(&o.name) == set.metadata.name.as_ref())
        };
        for node in 0..self.nodes.len() {
            let name = self
                .by_name
                .iter()
                .find(|(_, at)| **at == node)
                .map(|(name, _)| name);
            let runs = |name: &String| {
                let mut pods = world.pods.iter().filter(|other| owned(other));
                pods.any(|pod| pod::spec(pod).node_name.as_ref() == Some(name))
            };
            let there = &self.nodes[node];
            if !name.is_some_and(runs)
                && daemon.accepts(&there.labels)
                && daemon.tolerates(&there.taints)
            {
                self.pods.push(daemon.clone());
                let pod = self.pods.len() - 1;
                if self.no_room(pod, node).is_none() {
                    self.nodes[node].pods.push(pod);
                }
            }
        }
    }

    /// Returns the pods of the plan with their nodes; the node is None if it could not be launched.
    pub(crate) fn planned(&mut self, world: &World, solution: &Solution) -> Vec<Waiting> {
        let existing = solution.existing.iter();
        let mut planned: Vec<(&PodId, Option<usize>)> = existing
            .map(|(id, name)| (id, self.by_name.get(name).copied()))
            .collect();
        for (index, claim) in solution.claims.iter().enumerate() {
            let node = self.launched.get(&index).copied();
            planned.extend(claim.pods.iter().map(|id| (id, node)));
        }
        let known: BTreeMap<PodId, &Pod> =
            (world.pods.iter()).map(|pod| (pod::id(pod), pod)).collect();
        let mut waiting = Vec::new();
        for (id, node) in planned {
            if let Some(pod) = known.get(id) {
                waiting.push((self.pods.len(), node));
                self.pods.push(PodInfo::of(world, pod));
            }
        }
        waiting
    }

    /// Returns for each pod the first one that is equal but for its name: its workload.
    fn workloads(&self, waiting: &[Waiting]) -> BTreeMap<usize, usize> {
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        let of = |(pod, _): &Waiting| {
            let mut info = self.pods[*pod].clone();
            info.id.name.clear();
            (*pod, *first.entry(format!("{info:?}")).or_insert(*pod))
        };
        waiting.iter().map(of).collect()
    }

    /// Sorts the pods: by descending requests; then the same with constrained pods first; then shuffled, with and without that, pod by
    /// pod and workload by workload. Where one workload counts for the spread of another and not the reverse, all pods of the
    /// other may have to come first, which an order pod by pod hardly ever has.
    fn order(&self, waiting: &mut [Waiting], workloads: &BTreeMap<usize, usize>, attempt: u64) {
        waiting.sort_by_cached_key(|(pod, _)| {
            let info = &self.pods[*pod];
            let free =
                info.spread.is_empty() && info.affinity.is_empty() && info.anti_affinity.is_empty();
            let size = |name| info.requests.get(name).saturating_neg();
            let draw = |number: usize| mixed(number as u64 ^ (attempt << 32));
            let drawn = match attempt {
                0 | 1 => (0, 0),
                _ if attempt % 4 < 2 => (0, draw(*pod)),
                _ => (draw(workloads[pod]), draw(*pod)),
            };
            (
                free && attempt % 2 == 1,
                drawn,
                size(CPU),
                size(MEMORY),
                info.id.clone(),
            )
        });
    }

    /// Binds the pods in the best of several orders; returns those left and the cluster then.
    fn bind(&self, mut waiting: Vec<Waiting>) -> (Vec<Waiting>, Self) {
        let mut best: Option<(Vec<Waiting>, Self)> = None;
        let workloads = self.workloads(&waiting);
        for attempt in 0..MAX_ORDERS {
            self.order(&mut waiting, &workloads, attempt);
            let mut trial = self.clone();
            let left = trial.bind_all(&waiting);
            let done = left.is_empty();
            if best
                .as_ref()
                .is_none_or(|(least, _)| left.len() < least.len())
            {
                best = Some((left, trial));
            }
            if done {
                break;
            }
        }
        let (mut best, mut last) = best.unwrap_or((waiting.clone(), self.clone()));
        if !best.is_empty() {
            let order = self.search(&waiting);
            let mut trial = self.clone();
            let left = trial.bind_all(&order);
            if left.len() < best.len() {
                (best, last) = (left, trial);
            }
        }
        (best, last)
    }

    /// Notes pods of existing nodes that are left, and those that they count there; reports whether there are more than before.
    fn note_early(&self, all: &[Waiting], left: &[Waiting], early: &mut BTreeSet<usize>) -> bool {
        let before = early.len();
        let existing =
            |(_, node): &&Waiting| node.is_some_and(|node| self.nodes[node].planned.is_none());
        for (pod, _) in left.iter().filter(existing) {
            let counted = all.iter().filter(existing).map(|(other, _)| *other);
            let counted = counted.filter(|other| self.pods[*pod].constrains(&self.pods[*other]));
            early.extend(counted.chain([*pod]));
        }
        early.len() > before
    }

    /// Binds these pods, which are for existing nodes, before planned ones are launched; returns all pods left.
    fn bind_to_existing(&mut self, waiting: &[Waiting], early: &BTreeSet<usize>) -> Vec<Waiting> {
        let existing = self.nodes.iter().filter(|node| node.planned.is_none());
        let planned = self.nodes.split_off(existing.count());
        let all = waiting.iter().copied();
        let (now, mut left): (Vec<_>, Vec<_>) = all.partition(|(pod, _)| early.contains(pod));
        left.extend(self.bind_all(&now));
        self.nodes.extend(planned);
        left
    }

    /// Binds the first pod that can be bound until there is none; returns the pods left.
    fn bind_all(&mut self, pods: &[Waiting]) -> Vec<Waiting> {
        let mut waiting = pods.to_vec();
        loop {
            let binds = |(pod, node): &(usize, Option<usize>)| {
                node.is_some_and(|node| self.refusal(*pod, node).is_none())
            };
            let Some(next) = waiting.iter().position(binds) else {
                return waiting;
            };
            let (pod, node) = waiting.remove(next);
            self.nodes[node.unwrap_or_default()].pods.push(pod);
            self.bound.push(pod);
        }
    }

    /// Returns the filter that rejects a pod on a node.
    fn refusal(&self, pod: usize, node: usize) -> Option<&'static str> {
        let (info, there) = (&self.pods[pod], &self.nodes[node]);
        if !info.accepts(&there.labels) {
            return Some("NodeAffinity");
        }
        if !info.tolerates(&there.taints) {
            return Some("TaintToleration");
        }
        let reachable =
            |need: &Vec<NodeSelectorTerm>| need.iter().any(|t| term_meets(t, &there.labels));
        if !info.volumes.iter().all(reachable) {
            return Some("VolumeBinding");
        }
        if let Some(why) = self.no_room(pod, node) {
            return Some(why);
        }
        self.constraint(pod, node)
    }

    /// Applies the filters that depend on the pods of other nodes.
    fn constraint(&self, pod: usize, node: usize) -> Option<&'static str> {
        let (info, there) = (&self.pods[pod], &self.nodes[node]);
        if !self.spreads(info, there) {
            return Some("PodTopologySpread");
        }
        self.inter_pod_affinity(info, there)
    }

    /// Applies NodePorts, NodeResourcesFit and NodeVolumeLimits.
    fn no_room(&self, pod: usize, node: usize) -> Option<&'static str> {
        let (info, there) = (&self.pods[pod], &self.nodes[node]);
        let here = || there.pods.iter().map(|pod| &self.pods[*pod]);
        if here().any(|other| pod::ports_conflict(&info.ports, &other.ports)) {
            return Some("NodePorts");
        }
        if there.pods.len() as i64 >= there.allocatable.get(PODS) {
            return Some("NodeResourcesFit");
        }
        let mut used = Resources::new();
        here().for_each(|other| used.add_assign(&other.requests));
        let asked = info
            .requests
            .iter()
            .filter(|(name, amount)| *name != PODS && *amount > 0);
        for (name, amount) in asked {
            if amount > there.allocatable.get(name).saturating_sub(used.get(name)) {
                return Some("NodeResourcesFit");
            }
        }
        for (driver, limit) in &there.limits {
            let of = |all: &BTreeSet<(String, String)>| -> BTreeSet<String> {
                let mine = all.iter().filter(|(of, _)| of == driver);
                mine.map(|(_, claim)| claim.clone()).collect()
            };
            let attached: BTreeSet<String> = here().flat_map(|other| of(&other.attached)).collect();
            let new = of(&info.attached).difference(&attached).count();
            if new > 0 && attached.len() + new > *limit {
                return Some("NodeVolumeLimits");
            }
        }
        None
    }

    /// Applies PodTopologySpread.
    pub(crate) fn spreads(&self, info: &PodInfo, there: &Node) -> bool {
        let has_keys = |node: &Node| info.spread.iter().all(|c| node.labels.contains_key(&c.key));
        if !has_keys(there) {
            return false;
        }
        info.spread.iter().all(|constraint| {
            let counts = self.counts(info, constraint);
            let least = least(&counts, constraint);
            let own = i64::from(pod::selects(constraint.selector.as_ref(), &info.labels));
            let here = counts.get(there.labels[&constraint.key].as_str()).copied();
            here.unwrap_or(0) + own - least <= constraint.max_skew
        })
    }

    /// Returns how many pods a spread constraint of a pod counts in each domain.
    pub(crate) fn counts(&self, info: &PodInfo, constraint: &Spread) -> BTreeMap<&str, i64> {
        let has_keys = |node: &&Node| info.spread.iter().all(|c| node.labels.contains_key(&c.key));
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for node in self.nodes.iter().filter(has_keys) {
            if (constraint.honor_affinity && !info.accepts(&node.labels))
                || (constraint.honor_taints && !info.tolerates(&node.taints))
            {
                continue;
            }
            let pods = node.pods.iter().map(|pod| &self.pods[*pod]);
            let count = constraint.count(&info.id.namespace, pods);
            *counts.entry(&node.labels[&constraint.key]).or_default() += count;
        }
        counts
    }

    /// Applies the required affinity of InterPodAffinity.
    fn affinity(&self, info: &PodInfo, there: &Node) -> Option<&'static str> {
        let has_key = |term: &Term| there.labels.contains_key(&term.key);
        if !info.affinity.iter().all(has_key) {
            return Some("InterPodAffinity (key)");
        }
        let matches_all = |other: &PodInfo| info.affinity.iter().all(|t| t.matches(other));
        let with = || self.bound().filter(|(other, _)| matches_all(other));
        let near = |term: &Term| with().any(|(_, node)| there.shares(node, &term.key));
        if info.affinity.iter().all(near) {
            return None;
        }
        let counted = |node: &Node| {
            let mut terms = info.affinity.iter();
            terms.any(|term| node.labels.contains_key(&term.key))
        };
        let first = !with().any(|(_, node)| counted(node)) && matches_all(info);
        (!first).then_some("InterPodAffinity (affinity)")
    }

    /// Returns all bound pods, each with its node.
    fn bound(&self) -> impl Iterator<Item = (&PodInfo, &Node)> {
        let nodes = self.nodes.iter();
        nodes.flat_map(move |node| node.pods.iter().map(move |pod| (&self.pods[*pod], node)))
    }

    /// Applies InterPodAffinity.
    pub(crate) fn inter_pod_affinity(&self, info: &PodInfo, there: &Node) -> Option<&'static str> {
        if let Some(why) = self.affinity(info, there) {
            return Some(why);
        }
        let kept = |(other, node): (&PodInfo, &Node)| {
            info.anti_affinity
                .iter()
                .any(|t| t.matches(other) && there.shares(node, &t.key))
        };
        if self.bound().any(kept) {
            return Some("InterPodAffinity (anti-affinity)");
        }
        let keeps = |(other, node): (&PodInfo, &Node)| {
            other
                .anti_affinity
                .iter()
                .any(|t| t.matches(info) && there.shares(node, &t.key))
        };
        self.bound()
            .any(keeps)
            .then_some("InterPodAffinity (existing anti-affinity)")
    }
}

/// Returns the node launched for a claim, or None if it has no launchable offering.
fn launched(world: &World, index: usize, claim: &Claim, launch: Launch) -> Option<Node> {
    let types = world.instance_types.get(&claim.pool)?.iter();
    let mut options: Vec<(_, &Offering)> = types
        .filter(|instance_type| claim.types.contains(&instance_type.name))
        .flat_map(|t| t.offerings.iter().map(move |offering| (t, offering)))
        .filter(|(_, offering)| launchable(world, offering, &claim.requirements))
        .collect();
    options.sort_by(|a, b| {
        let key = |offering: &Offering| offering.requirements.to_string();
        (a.1.price.total_cmp(&b.1.price))
            .then_with(|| a.0.name.cmp(&b.0.name))
            .then_with(|| key(a.1).cmp(&key(b.1)))
    });
    let chosen = match launch {
        Launch::Cheapest => 0,
        Launch::Drawn(seed) => {
            (mixed(seed ^ ((index as u64) << 40)) % options.len().max(1) as u64) as usize
        }
    };
    let (instance_type, offering) = options.get(chosen)?;
    let mut labels = Labels::new();
    for all in [
        &claim.requirements,
        &instance_type.requirements,
        &offering.requirements,
    ] {
        for requirement in all.iter() {
            if let Some(value) = requirement.single() {
                labels.insert(requirement.key().to_owned(), value.to_owned());
            }
        }
    }
    labels.insert(HOSTNAME.to_owned(), format!("planned-{index}"));
    for label in [
        karpenter_api::labels::REGISTERED,
        karpenter_api::labels::INITIALIZED,
    ] {
        labels.insert(label.to_owned(), "true".to_owned());
    }
    let pool = world
        .node_pools
        .iter()
        .find(|pool| pool.name() == claim.pool)?;
    Some(Node {
        labels,
        taints: pool.spec.template.spec.taints.clone().unwrap_or_default(),
        allocatable: instance_type.allocatable_of(offering),
        limits: BTreeMap::new(),
        pods: Vec::new(),
        planned: Some(index),
    })
}
