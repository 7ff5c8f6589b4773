//! Repacking the pods of wasteful planned nodes onto cheaper ones.
//!
//! First fit places as many pods as possible on one node. A pod that must not be interrupted then makes a hundred others run
//! on demand with it, a pod that needs amd64 keeps others off cheaper arm64, and an instance type large enough for all pods may
//! cost more than several smaller ones. After all pods are placed:
//!
//! 1. The worth of a pod is the price of its share of the instance type that suits it best. Planned nodes that cost little more
//!    than the worth of their pods stay as they are; the others are dissolved, most wasteful first.
//! 2. Their pods are packed again (see [`packing`](crate::schedule::repack::packing)); for the plan that the search has chosen, several
//!    times, each with the worths that the prices of the last packing show.
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
use crate::schedule::compile::group_identity::GroupKind;
use crate::schedule::compile::ids::{ClassId, PlannedId, PodIdx, RowId, TemplateId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::objective::SAME_PRICE;
use crate::schedule::place::budgets::PoolBudgets;
use crate::schedule::place::planned_node::{PlannedNode, PlannedNodes};
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::pods::queue::PodQueue;
use crate::schedule::random::Random;
use crate::schedule::repack::packing::{Bins, Kind, Offer, Packer, RequirementGroup, learn};
use crate::schedule::topology::domains::Topology;

/// A planned node is kept if it costs at most this many times the worth of its pods.
const WASTEFUL_FROM: f64 = 1.02;
/// The largest number of instance types considered for one set of requirements.
const MOST_OFFERS: usize = 64;
/// The largest number of different kinds of pods that are packed together.
const MOST_KINDS: usize = 64;
/// How often, in a pass, pods of one kind are put on a node for comparison.
const MOST_WORK: usize = 2_000_000;
/// How often pods are packed, as long as that takes no more than this work in a pass.
const ROUNDS: usize = 40;
const MOST_WORK_OF_ROUNDS: usize = 500_000;
/// By how much a worth that a round has learned is varied at random.
const VARIATION: f64 = 0.4;

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
    /// How often pods are packed.
    rounds: usize,
    /// The work done so far.
    work: usize,
    /// The NodePool.
    template: TemplateId,
    /// Requirements of pods on nodes of their own.
    sets: FxHashMap<Requested, Option<Own>>,
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
            rounds: if searches { ROUNDS } else { 1 },
            work: 0,
            template: TemplateId(0),
            sets: FxHashMap::default(),
        }
    }

    /// Repacks planned nodes with at least so many pods. Returns those that are replaced, and those that replace them.
    pub(crate) fn repack(mut self, from_pods: usize) -> (Bits<PlannedId>, Vec<PlannedNode>) {
        let (mut replaced, mut added) = (Bits::default(), Vec::new());
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
                let of_chunk = chunk.planned.clone();
                if let Some(planned) = self.repack_chunk(chunk) {
                    replaced.unite(&of_chunk);
                    added.extend(planned);
                }
            }
        }
        (replaced, added)
    }

    /// Returns planned nodes that cost clearly more than the worth of their pods, in chunks to be packed together.
    fn wasteful(&mut self, from_pods: usize) -> Vec<Chunk> {
        let mut found: Vec<Wasteful> = Vec::new();
        for index in self.planned.all().indices() {
            let planned = &self.planned[index];
            if planned.template != self.template || planned.pods.len() < from_pods {
                continue;
            }
            let Some(kinds) = self.kinds(index) else {
                continue;
            };
            let worths = kinds.iter().map(|kind| kind.worth * kind.pods.len() as f64);
            let worth = worths.sum();
            let price = planned.lowest_price(self.rows);
            if price > worth * WASTEFUL_FROM {
                found.push(Wasteful {
                    index,
                    price,
                    worth,
                    kinds,
                });
            }
        }
        chunks(found)
    }

    /// Returns the pods of a planned node by kind; `None` if it must be left unchanged.
    fn kinds(&mut self, index: PlannedId) -> Option<Vec<Kind>> {
        let planned = &self.planned[index];
        // Pods with host ports have no set of their own, and nodes with reservations are not repacked at all.
        if planned.min_values_relaxed {
            return None;
        }
        let mut kinds: Vec<Kind> = Vec::new();
        let mut places: FxHashMap<(SetId, &[i64], bool), usize> = FxHashMap::default();
        for pod in &planned.pods {
            let queued = &self.queue.pods[*pod];
            let (own, volumes) = (queued.requirements, queued.volumes);
            let (set, apart) = self.own_set((queued.class, own, volumes, planned.set))?;
            let requests = &self.queue.classes[queued.class].requests;
            let place = match places.get(&(set, &**requests, apart)) {
                Some(place) => *place,
                None => {
                    places.insert((set, requests, apart), kinds.len());
                    let needs = requests.iter().copied().enumerate();
                    kinds.push(Kind {
                        set,
                        needs: needs.filter(|(_, need)| *need > 0).collect(),
                        origin: apart.then_some(index),
                        pods: Vec::new(),
                        worth: self.worth(set, requests)?,
                    });
                    kinds.len() - 1
                }
            };
            kinds[place].pods.push(*pod);
        }
        Some(kinds)
    }

    /// Returns the lowest price of the share of a node that a pod uses most of; `None` if it fits on none.
    fn worth(&mut self, set: SetId, requests: &[i64]) -> Option<f64> {
        let compiled = &self.solver.templates[self.template];
        let prices = self
            .offers(set)
            .filter_map(|(price, row)| Some(price * share(requests, compiled.row_room(row))?));
        prices.min_by(f64::total_cmp)
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
    fn offers(&mut self, set: SetId) -> impl Iterator<Item = (f64, RowId)> + use<> {
        let offers = self.rows.offers(self.template, set);
        let step = offers.len().div_ceil(MOST_OFFERS).max(1);
        (0..offers.len())
            .rev()
            .step_by(step)
            .map(move |place| offers[place])
    }

    /// Packs the pods of a chunk again; `None` if that saves nothing.
    fn repack_chunk(&mut self, mut chunk: Chunk) -> Option<Vec<PlannedNode>> {
        let template = self.template;
        let node_overhead = self.solver.policy.node_overhead_price;
        let mut packer = Packer {
            groups: self.requirement_groups(&chunk.kinds),
            node_overhead,
            work: self.work,
            most_work: MOST_WORK,
        };
        let mut least = chunk.price + node_overhead * chunk.planned.len() as f64;
        let mut best: Option<Bins> = None;
        let mut random = Random::new(1);
        for round in 0..self.rounds {
            if round > 0 && packer.work > MOST_WORK_OF_ROUNDS {
                break;
            }
            let Some(mut bins) = packer.pack(&chunk.kinds) else {
                break;
            };
            for (bin, _) in &mut bins {
                bin.price = (self.rows).lowest_price(template, bin.set, &bin.used, None);
            }
            learn(&mut chunk.kinds, &bins, node_overhead);
            // Otherwise the rounds soon repeat themselves.
            for kind in &mut chunk.kinds {
                let share = random.below(1000) as f64 / 1000.0;
                kind.worth *= 1.0 + VARIATION * (share - 0.5);
            }
            let costs = bins.iter();
            let costs = costs.map(|(bin, copies)| (bin.price + node_overhead) * *copies as f64);
            let cost: f64 = costs.sum();
            if cost <= least - SAME_PRICE {
                (least, best) = (cost, Some(bins));
            }
        }
        self.work = packer.work;
        let bins = best?;
        let mut planned: Vec<PlannedNode> = Vec::new();
        let mut next: Vec<usize> = vec![0; chunk.kinds.len()];
        for (bin, copies) in bins {
            for _ in 0..copies {
                let mut pods: Vec<PodIdx> = Vec::new();
                for (kind, count) in &bin.counts {
                    let from = next[*kind];
                    pods.extend(&chunk.kinds[*kind].pods[from..from + count]);
                    next[*kind] += count;
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

    /// Returns the requirement groups of some kinds of pods, with their offers.
    fn requirement_groups(&mut self, kinds: &[Kind]) -> Vec<RequirementGroup<'a>> {
        let compiled = &self.solver.templates[self.template];
        let sets: BTreeSet<SetId> = kinds.iter().map(|kind| kind.set).collect();
        let group = |set: SetId| {
            let offer = |(price, row): (f64, RowId)| Offer {
                price,
                row,
                room: compiled.row_room(row),
            };
            let offers = self.offers(set).map(offer).collect();
            let mut accepts = |kind: &Kind| self.rows.algebra.join(set, kind.set) == Some(set);
            let takes = (0..kinds.len()).filter(|place| accepts(&kinds[*place]));
            RequirementGroup {
                set,
                offers,
                takes: takes.collect(),
            }
        };
        sets.into_iter().map(group).collect()
    }
}

/// A planned node that costs clearly more than the worth of its pods.
struct Wasteful {
    index: PlannedId,
    price: f64,
    worth: f64,
    kinds: Vec<Kind>,
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
        let joins = |chunk: &&mut Chunk| chunk.kinds.len() + node.kinds.len() <= MOST_KINDS;
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
    kinds: Vec<Kind>,
}

impl Chunk {
    fn take(&mut self, node: Wasteful) {
        self.planned.insert(node.index);
        self.price += node.price;
        for kind in node.kinds {
            let alike = |other: &&mut Kind| {
                (other.set, &other.needs, other.origin) == (kind.set, &kind.needs, kind.origin)
            };
            match self.kinds.iter_mut().find(alike) {
                Some(other) => other.pods.extend(kind.pods),
                None => self.kinds.push(kind),
            }
        }
    }
}

/// Returns the largest share of any of a node's resources that a pod uses; `None` if it does not fit.
fn share(requests: &[i64], room: &[i64]) -> Option<f64> {
    let mut most: f64 = 0.0;
    for (need, room) in requests.iter().zip(room) {
        if need > room {
            return None;
        }
        if *need > 0 {
            most = most.max(*need as f64 / *room as f64);
        }
    }
    Some(most)
}

#[cfg(test)]
mod tests;
