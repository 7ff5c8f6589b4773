//! Repacking the pods of wasteful planned nodes onto cheaper ones.
//!
//! First fit places as many pods as possible on one node. A pod that must not be interrupted then makes a hundred others run
//! on demand with it, a pod that needs amd64 keeps others off cheaper arm64, and an instance type large enough for all pods may
//! cost more than several smaller ones. After all pods are placed:
//!
//! 1. The worth of a pod is the price of its share of the instance type that suits it best. Planned nodes that cost little more
//!    than the worth of their pods stay as they are; the others are dissolved, most wasteful first.
//! 2. Their pods are packed again (see [`packing`](crate::schedule::repack::packing)); for the plan that the search has chosen, the
//!    packing is improved (see [`improve`](crate::schedule::repack::improve)).
//! 3. The result replaces the planned nodes if it costs less, with the price of each node's own, and is within the limits of the
//!    NodePool.
//!
//! A pod keeps its NodePool, and its domain under a topology constraint; pods under a hostname constraint only share a node
//! with pods they shared one with before, so that constraints still hold. Planned nodes with reservations, minValues, host
//! ports, devices or hostname affinity are left unchanged. The work is bounded by a count, not by time, so that equal inputs
//! give equal plans.
//!
//! DIFFERS: upstream keeps the plan of first fit.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ClassId, PlannedId, PodIdx, RowId, TemplateId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::compile::vectors::Vector;
use crate::schedule::objective::SAME_PRICE;
use crate::schedule::place::budgets::PoolBudgets;
use crate::schedule::place::planned_node::{PlannedNode, PlannedNodes};
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::pods::queue::PodQueue;
use crate::schedule::repack::packing::{Bins, Kind, Offer, Packer, RequirementGroup, cost, learn};
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::group::GroupKind;

/// A planned node is kept if it costs at most this many times the worth of its pods.
const WASTEFUL_FROM: f64 = 1.02;
/// The largest number of instance types considered for one set of requirements.
const MOST_OFFERS: usize = 64;
/// The largest number of different pod groups that are packed together.
const MOST_POD_GROUPS: usize = 64;
/// How often, in a pass, pods of one kind are put on a node for comparison.
const MOST_WORK: usize = 2_000_000;
/// The same, to improve plans with few nodes.
const MOST_IMPROVING: usize = 4_000_000;

/// Pods that are interchangeable for packing.
struct PodGroup {
    set: SetId,
    requests: Vector,
    /// The planned node it came from, if it is under a hostname constraint.
    origin: Option<PlannedId>,
    pods: Vec<PodIdx>,
    worth: f64,
    /// Its worth if other pods use the rest of the node.
    balanced: f64,
}

impl PodGroup {
    /// Returns the kind for packing; `worth` is the worth of one of its pods.
    fn kind(&self, worth: f64) -> Kind {
        let needs = self.requests.iter().copied().enumerate();
        Kind {
            set: self.set,
            needs: needs.filter(|(_, need)| *need > 0).collect(),
            origin: self.origin,
            count: self.pods.len(),
            worth,
        }
    }
}

/// A pod's class, its requirements, its volumes' requirements, and the set of the planned node it is on.
type Requested = (ClassId, SetId, SetId, SetId);

/// The requirements of a pod on a node of its own, and whether it is under a hostname constraint.
type Own = (SetId, bool);

/// Repacks wasteful planned nodes, NodePool by NodePool.
pub(crate) struct Repacker<'p, 'a> {
    solver: &'a Solver,
    queue: &'p PodQueue,
    topology: &'p Topology<'a>,
    rows: &'p mut RowCache<'a>,
    planned: &'p PlannedNodes,
    budgets: &'p mut PoolBudgets<'a>,
    /// Improves the packing by search.
    searches: bool,
    /// The work done so far: to pack, and to improve plans.
    work: usize,
    improving: usize,
    /// The NodePool.
    template: TemplateId,
    /// Requirements of pods on nodes of their own.
    sets: FxHashMap<Requested, Option<Own>>,
}

/// The planned nodes to replace, and what replaces them.
#[derive(Default)]
pub(crate) struct Repacked {
    pub(crate) replaced: Bits<PlannedId>,
    pub(crate) added: Vec<PlannedNode>,
}

impl<'p, 'a> Repacker<'p, 'a> {
    pub(crate) fn new(
        searches: bool,
        queue: &'p PodQueue,
        topology: &'p Topology<'a>,
        rows: &'p mut RowCache<'a>,
        planned: &'p PlannedNodes,
        budgets: &'p mut PoolBudgets<'a>,
    ) -> Self {
        Self {
            solver: rows.solver(),
            queue,
            topology,
            rows,
            planned,
            budgets,
            searches,
            work: 0,
            improving: 0,
            template: TemplateId(0),
            sets: FxHashMap::default(),
        }
    }

    /// Repacks planned nodes with at least so many pods.
    pub(crate) fn repack(mut self, from_pods: usize) -> Repacked {
        let mut found = Repacked::default();
        for (template, compiled) in self.solver.templates.iter_enumerated() {
            let tracked = self.budgets.tracks_reservations(compiled.catalogue);
            if tracked || self.rows.algebra.has_min_values(compiled.set) {
                continue;
            }
            self.template = template;
            self.sets.clear();
            for chunk in self.wasteful(from_pods) {
                if self.work > MOST_WORK {
                    break;
                }
                if let Some(planned) = self.repack_chunk(&chunk) {
                    found.replaced.unite(&chunk.planned);
                    found.added.extend(planned);
                }
            }
        }
        found
    }

    /// Returns planned nodes that cost clearly more than the worth of their pods, in chunks to be packed together.
    fn wasteful(&mut self, from_pods: usize) -> Vec<Chunk> {
        let mut found: Vec<Wasteful> = Vec::new();
        for index in self.planned.all().indices() {
            let planned = &self.planned[index];
            if planned.template != self.template || planned.pods.len() < from_pods {
                continue;
            }
            let Some(pod_groups) = self.pod_groups(index) else {
                continue;
            };
            let worths = pod_groups.iter();
            let worth = worths
                .map(|group| group.worth * group.pods.len() as f64)
                .sum();
            let price = planned.lowest_price(self.rows);
            if price > worth * WASTEFUL_FROM {
                found.push(Wasteful {
                    index,
                    price,
                    worth,
                    pod_groups,
                });
            }
        }
        chunks(found)
    }

    /// Returns the pods of a planned node by kind; `None` if it must be left unchanged.
    fn pod_groups(&mut self, index: PlannedId) -> Option<Vec<PodGroup>> {
        let planned = &self.planned[index];
        // Pods with host ports have no set of their own, and nodes with reservations are not repacked at all.
        if planned.min_values_relaxed {
            return None;
        }
        let mut pod_groups: Vec<PodGroup> = Vec::new();
        let mut place: FxHashMap<(SetId, &[i64], bool), usize> = FxHashMap::default();
        for pod in &planned.pods {
            let queued = &self.queue.pods[*pod];
            let (own, volumes) = (queued.requirements, queued.volumes);
            let (set, apart) = self.own_set((queued.class, own, volumes, planned.set))?;
            let class = &self.queue.classes[queued.class];
            let at = *place
                .entry((set, &class.requests, apart))
                .or_insert_with(|| {
                    pod_groups.push(PodGroup {
                        set,
                        requests: class.requests.iter().copied().collect(),
                        origin: apart.then_some(index),
                        pods: Vec::new(),
                        worth: f64::MAX,
                        balanced: f64::MAX,
                    });
                    pod_groups.len() - 1
                });
            pod_groups[at].pods.push(*pod);
        }
        let compiled = &self.solver.templates[self.template];
        for group in &mut pod_groups {
            for (price, row) in self.offer_list(group.set) {
                if let Some((most, mean)) = shares(&group.requests, compiled.row_room(row)) {
                    group.worth = group.worth.min(price * most);
                    group.balanced = group.balanced.min(price * mean);
                }
            }
            if group.worth == f64::MAX {
                return None;
            }
        }
        Some(pod_groups)
    }

    /// Returns the requirements of a pod on a node of its own; `None` if the pod must keep its node.
    fn own_set(&mut self, key: Requested) -> Option<Own> {
        if let Some(known) = self.sets.get(&key) {
            return *known;
        }
        let set = self.compute_own_set(key);
        self.sets.insert(key, set);
        set
    }

    fn compute_own_set(&mut self, requested: Requested) -> Option<Own> {
        let (class, requirements, volumes, planned_set) = requested;
        let class = &self.queue.classes[class];
        if !class.shape.host_ports.is_empty() || !class.shape.resource_claims.is_empty() {
            return None;
        }
        let algebra = &mut self.rows.algebra;
        let set = algebra.join(self.solver.templates[self.template].set, requirements)?;
        let mut set = algebra.join(set, volumes)?;
        let mut apart = false;
        for group in class.groups() {
            let group = &self.topology[group];
            let axis = &self.topology[group.axis];
            if axis.is_hostname {
                if group.kind() == GroupKind::Affinity {
                    return None;
                }
                apart = true;
                continue;
            }
            // Whether the pod is counted may depend on other labels of the node.
            if group.filter_sets.is_some() {
                return None;
            }
            let req = algebra.get(planned_set, axis.key);
            // Pods near each other on a node whose domain is open would be in different ones.
            let decided = req.is_some_and(|req| algebra.requirement(req).single().is_some());
            if group.kind() == GroupKind::Affinity && !decided {
                return None;
            }
            if let Some(req) = req {
                set = algebra.narrow(set, req)?;
            }
        }
        Some((set, apart))
    }

    /// Returns the offers under a set of requirements, most expensive first, thinned out if there are many.
    fn offer_list(&mut self, set: SetId) -> impl Iterator<Item = (f64, RowId)> + use<> {
        let offers = self.rows.offers(self.template, set);
        let step = offers.len().div_ceil(MOST_OFFERS).max(1);
        let places = (0..offers.len()).rev().step_by(step);
        places.map(move |place| offers[place])
    }

    /// Packs the pods of a chunk again; `None` if the saving is too small.
    fn repack_chunk(&mut self, chunk: &Chunk) -> Option<Vec<PlannedNode>> {
        let template = self.template;
        let node_overhead = self.solver.policy.node_overhead_price;
        let mut packer = Packer {
            groups: self.requirement_groups(chunk),
            node_overhead,
            width: self.solver.width(),
            work: self.work,
            most_work: MOST_WORK,
        };
        let kinds = |worth: fn(&PodGroup) -> f64| -> Vec<Kind> {
            let groups = chunk.pod_groups.iter();
            groups.map(|group| group.kind(worth(group))).collect()
        };
        let mut plans = Vec::new();
        let worths: [fn(&PodGroup) -> f64; 2] = [|group| group.worth, |group| group.balanced];
        for kinds in worths.map(kinds) {
            let Some(mut bins) = packer.pack(&kinds) else {
                break;
            };
            self.price(&mut bins);
            plans.push(bins);
        }
        self.work = packer.work;
        let cost = |bins: &Bins| cost(bins, node_overhead);
        let mut bins = plans
            .into_iter()
            .min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
        if self.searches {
            let mut kinds = kinds(|group| group.worth);
            learn(&mut kinds, &bins);
            let left = MOST_IMPROVING.saturating_sub(self.improving);
            bins = packer.improve(&kinds, bins, left);
            self.improving += packer.work - self.work;
            self.price(&mut bins);
        }
        let before = chunk.price + node_overhead * chunk.planned.len() as f64;
        if cost(&bins) > before - SAME_PRICE {
            return None;
        }
        let mut planned: Vec<PlannedNode> = Vec::new();
        let mut next: Vec<usize> = vec![0; chunk.pod_groups.len()];
        for (bin, copies) in bins {
            for _ in 0..copies {
                let mut pods: Vec<PodIdx> = Vec::new();
                for (group, count) in &bin.counts {
                    let from = next[*group];
                    pods.extend(&chunk.pod_groups[*group].pods[from..from + count]);
                    next[*group] += count;
                }
                pods.sort_unstable();
                planned.push(PlannedNode {
                    set: bin.set,
                    used: bin.used.clone(),
                    pods,
                    witness: bin.row,
                    ..PlannedNode::new(template, self.solver)
                });
            }
        }
        let freed = chunk.planned.iter().map(|index| &self.planned[index]);
        self.budgets
            .charge_instead(template, freed, &mut planned, self.rows)
            .then_some(planned)
    }

    fn price(&mut self, bins: &mut Bins) {
        for (bin, _) in bins {
            let rows = &mut *self.rows;
            bin.price = rows.lowest_price(self.template, bin.set, &bin.used, None);
        }
    }

    /// Returns the requirement groups of a chunk's pods, with their offers.
    fn requirement_groups(&mut self, chunk: &Chunk) -> Vec<RequirementGroup<'a>> {
        let compiled = &self.solver.templates[self.template];
        let sets: BTreeSet<SetId> = chunk.pod_groups.iter().map(|group| group.set).collect();
        let mut groups = Vec::with_capacity(sets.len());
        for set in sets {
            let offer = |(price, row): (f64, RowId)| Offer {
                price,
                row,
                room: compiled.row_room(row),
            };
            let offers = self.offer_list(set).map(offer).collect();
            let pod_groups = chunk.pod_groups.iter().enumerate();
            let takes = pod_groups
                .filter(|(_, group)| self.rows.algebra.join(set, group.set) == Some(set))
                .map(|(index, _)| index)
                .collect();
            groups.push(RequirementGroup { set, offers, takes });
        }
        groups
    }
}

/// A planned node that costs clearly more than the worth of its pods.
struct Wasteful {
    index: PlannedId,
    price: f64,
    worth: f64,
    pod_groups: Vec<PodGroup>,
}

/// Divides planned nodes into chunks to be packed together, the most wasteful first.
fn chunks(mut found: Vec<Wasteful>) -> Vec<Chunk> {
    let waste = |node: &Wasteful| node.price - node.worth;
    found.sort_by(|a, b| {
        let by_waste = waste(b).total_cmp(&waste(a));
        by_waste.then(a.index.cmp(&b.index))
    });
    let mut chunks: Vec<Chunk> = Vec::new();
    for node in found {
        let joins =
            |chunk: &&mut Chunk| chunk.pod_groups.len() + node.pod_groups.len() <= MOST_POD_GROUPS;
        match chunks.last_mut().filter(joins) {
            Some(chunk) => chunk.take(node),
            None => {
                let mut chunk = Chunk::default();
                chunk.take(node);
                chunks.push(chunk);
            }
        }
    }
    chunks
}

/// Planned nodes that are repacked together.
#[derive(Default)]
struct Chunk {
    planned: Bits<PlannedId>,
    /// Their total price.
    price: f64,
    pod_groups: Vec<PodGroup>,
}

impl Chunk {
    fn take(&mut self, node: Wasteful) {
        self.planned.insert(node.index);
        self.price += node.price;
        for pod_group in node.pod_groups {
            let alike = |other: &&mut PodGroup| {
                (other.set, &other.requests, other.origin)
                    == (pod_group.set, &pod_group.requests, pod_group.origin)
            };
            match self.pod_groups.iter_mut().find(alike) {
                Some(other) => other.pods.extend(pod_group.pods),
                None => self.pod_groups.push(pod_group),
            }
        }
    }
}

/// Returns the largest and the mean share of a node's resources that a pod uses; `None` if it does not fit.
fn shares(requests: &[i64], room: &[i64]) -> Option<(f64, f64)> {
    let mut most: f64 = 0.0;
    let mut sum = 0.0;
    let mut number = 0.0;
    for (need, room) in requests.iter().zip(room) {
        if need > room {
            return None;
        }
        if *need > 0 {
            let share = *need as f64 / *room as f64;
            most = most.max(share);
            sum += share;
            number += 1.0;
        }
    }
    Some((most, if number > 0.0 { sum / number } else { 0.0 }))
}

#[cfg(test)]
mod tests;
