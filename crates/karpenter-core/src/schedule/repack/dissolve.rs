//! Repacking the pods of wasteful planned nodes onto cheaper ones.
//!
//! First fit places as many pods as possible on one node. A pod that must not be interrupted then makes a hundred others run
//! on demand with it, a pod that needs amd64 keeps others off cheaper arm64, and an instance type large enough for all pods may
//! cost more than several smaller ones. After all pods are placed:
//!
//! 1. The worth of a pod is the price of its share of the instance type that suits it best. Planned nodes that cost little more
//!    than the worth of their pods stay as they are; the others are dissolved, most wasteful first.
//! 2. Their pods are packed again, several times (see [`packing`](crate::schedule::repack::packing)); of plans within a hundredth of the lowest
//!    price the one with the fewest nodes is chosen, and improved (see [`improve`](crate::schedule::repack::improve)).
//! 3. The result replaces the planned nodes if it saves a twentieth and is within the limits of the NodePool. Half the price of
//!    the cheapest instance type is added to the price of each node, so that a few large nodes are not split into many small
//!    ones. Planned nodes with few pods are packed among themselves, with a fifth of their mean price added for each node: ten
//!    pods that fit one node are not spread over two to save a sixth of its price.
//!
//! A pod keeps its NodePool, and its domain under a topology constraint; pods under a hostname constraint only share a node
//! with pods they shared one with before, so that constraints still hold. Planned nodes with reservations, minValues, host
//! ports, devices or hostname affinity are left unchanged. The work is bounded by a count, not by time, so that equal inputs
//! give equal plans.
//!
//! DIFFERS: upstream keeps the plan of first fit.

use std::collections::BTreeSet;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ClassId, PlannedId, PodIdx, RowId, TemplateId};
use crate::schedule::compile::vectors::Vector;
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::planned_node::PlannedNode;
use crate::schedule::pods::class::{Class, PodState};
use crate::schedule::repack::packing::{
    Bin, Kind, Offer, Packer, RequirementGroup, choose, learn, node_count, price,
};
use crate::schedule::request::Packing;
use crate::schedule::strategy::MOST_PODS;
use crate::schedule::topology::group::{GroupKind, Target};

/// How often a chunk is packed from each of two starts; each round sets the worth of a pod from the price of the round before.
const ROUNDS: usize = 3;
/// A planned node is kept if it costs at most this many times the worth of its pods.
const GOOD_ENOUGH: f64 = 1.02;
/// The largest cost of a new packing that replaces the old one, relative to the old one.
const WORTH_IT: f64 = 0.95;
/// Cost added for each node, as a share of the cheapest instance type: its disk, its address, its DaemonSets.
const NODE_OVERHEAD: f64 = 0.5;
/// Planned nodes with fewer pods count as nodes with few pods.
pub(crate) const MANY_PODS: usize = 11;
/// Cost added for each node with few pods, as a share of the mean price of the nodes in the plan.
pub(crate) const NODE_OVERHEAD_FEW: f64 = 0.2;
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

/// Prices and rows under one set of requirements, most expensive first.
type OfferList = Rc<Vec<(f64, RowId)>>;

/// A pod's class, its requirements, its volumes' requirements, and the set of the planned node it is on.
type Requested = (ClassId, SetId, SetId, SetId);

/// The requirements of a pod on a node of its own, and whether it is under a hostname constraint.
type Own = (SetId, bool);

/// The state of a repacking.
#[derive(Default)]
struct Ledger {
    /// Packs several rounds, and improves the result.
    thorough: bool,
    offer_lists: FxHashMap<SetId, OfferList>,
    /// Requirements of pods on nodes of their own.
    sets: FxHashMap<Requested, Option<Own>>,
    work: usize,
    improving: usize,
    /// Cost added to the price of each node.
    node_overhead: f64,
}

impl<'a> SchedulingPass<'a> {
    /// Repacks wasteful planned nodes. Returns whether pods were repacked, but not thoroughly.
    pub(crate) fn repack(&mut self) -> bool {
        let Packing::LowestCost { from_pods } = self.solver.policy.packing else {
            return false;
        };
        if self.query.is_cancelled() {
            return false;
        }
        // Plans for many pods are made once, so thoroughly; of several plans, only the best is repacked thoroughly.
        let thorough = self.strategy.thorough || self.queue.pods.len() > MOST_PODS;
        let mut replaced = Bits::default();
        let mut added: Vec<PlannedNode> = Vec::new();
        let mut hasty = false;
        let (mut work, mut improving) = (0, 0);
        for template in self.solver.templates.indices() {
            let mut ledger = Ledger {
                thorough,
                work,
                improving,
                ..Ledger::default()
            };
            let compiled = &self.solver.templates[template];
            let tracked = self.budgets.tracks_reservations(compiled.catalogue);
            if tracked || self.rows.algebra.has_min_values(compiled.set) {
                continue;
            }
            let set = compiled.set;
            let mask = self.rows.mask(template, set);
            let cheapest = self.rows.by_price(template, set, &mask).first();
            ledger.node_overhead = cheapest.map_or(0.0, |(price, _)| price * NODE_OVERHEAD);
            for chunk in self.wasteful(template, from_pods, &mut ledger) {
                if ledger.work > MOST_WORK {
                    break;
                }
                hasty |= !thorough;
                if let Some(planned) = self.repack_chunk(template, &chunk, &mut ledger) {
                    replaced.unite(&chunk.planned);
                    added.extend(planned);
                }
            }
            (work, improving) = (ledger.work, ledger.improving);
        }
        if !added.is_empty() {
            self.replace_planned_nodes(&replaced, added);
        }
        hasty
    }

    /// Returns planned nodes that cost clearly more than the worth of their pods, in chunks to be packed together.
    fn wasteful(
        &mut self,
        template: TemplateId,
        from_pods: usize,
        ledger: &mut Ledger,
    ) -> Vec<Chunk> {
        let mut found: Vec<Wasteful> = Vec::new();
        for index in self.planned.nodes.indices() {
            let planned = &self.planned[index];
            if planned.template != template || planned.pods.len() < from_pods {
                continue;
            }
            let few = planned.pods.len() < MANY_PODS;
            let Some(pod_groups) = self.pod_groups(index, ledger) else {
                continue;
            };
            let worth: f64 = pod_groups
                .iter()
                .map(|pod_group| pod_group.worth * pod_group.pods.len() as f64)
                .sum();
            let planned = &self.planned[index];
            let (set, used, allowed) = (planned.set, planned.used.clone(), planned.allowed.clone());
            let price = self
                .rows
                .lowest_price(template, set, &used, allowed.as_deref());
            if price > worth * GOOD_ENOUGH {
                found.push(Wasteful {
                    few,
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
    fn pod_groups(&mut self, index: PlannedId, ledger: &mut Ledger) -> Option<Vec<PodGroup>> {
        let planned = &self.planned[index];
        let (template, planned_set) = (planned.template, planned.set);
        // Pods with host ports have no set of their own, and nodes with reservations are not repacked at all.
        if planned.min_values_relaxed {
            return None;
        }
        let mut pod_groups: Vec<PodGroup> = Vec::new();
        let mut place: FxHashMap<(SetId, &[i64], bool), usize> = FxHashMap::default();
        let classes = std::mem::take(&mut self.queue.classes);
        let pods = std::mem::take(&mut self.planned[index].pods);
        let mut movable = true;
        for pod in &pods {
            let queued = &self.queue.pods[*pod];
            let key = (
                queued.class,
                queued.requirements,
                queued.volumes,
                planned_set,
            );
            let class = &classes[queued.class];
            let Some((set, apart)) = self.own_set(template, class, key, ledger) else {
                movable = false;
                break;
            };
            let at = *place
                .entry((set, &class.requests, apart))
                .or_insert_with(|| {
                    pod_groups.push(PodGroup {
                        set,
                        requests: class.requests.iter().copied().collect(),
                        origin: apart.then_some(index),
                        pods: Vec::new(),
                        worth: 0.0,
                        balanced: 0.0,
                    });
                    pod_groups.len() - 1
                });
            pod_groups[at].pods.push(*pod);
        }
        drop(place);
        self.queue.classes = classes;
        self.planned[index].pods = pods;
        if !movable {
            return None;
        }
        for pod_group in &mut pod_groups {
            let offer_list = self.offer_list(template, pod_group.set, ledger);
            let compiled = &self.solver.templates[template];
            (pod_group.worth, pod_group.balanced) = (f64::MAX, f64::MAX);
            for (price, row) in offer_list.iter() {
                let room = compiled.row_room(*row);
                if let Some((most, mean)) = shares(&pod_group.requests, room) {
                    pod_group.worth = pod_group.worth.min(price * most);
                    pod_group.balanced = pod_group.balanced.min(price * mean);
                }
            }
            if pod_group.worth == f64::MAX {
                return None;
            }
        }
        Some(pod_groups)
    }

    /// Returns the requirements of a pod on a node of its own; `None` if the pod must keep its node.
    fn own_set(
        &mut self,
        template: TemplateId,
        class: &Class,
        key: Requested,
        ledger: &mut Ledger,
    ) -> Option<Own> {
        if let Some(known) = ledger.sets.get(&key) {
            return *known;
        }
        let set = self.compute_own_set(template, class, key);
        ledger.sets.insert(key, set);
        set
    }

    fn compute_own_set(
        &mut self,
        template: TemplateId,
        class: &Class,
        (_, requirements, volumes, planned_set): Requested,
    ) -> Option<Own> {
        if !class.ports.is_empty() || !class.shape.resource_claims.is_empty() {
            return None;
        }
        let set = self
            .rows
            .algebra
            .join(self.solver.templates[template].set, requirements)?;
        let mut set = self.rows.algebra.join(set, volumes)?;
        let mut apart = false;
        for group in class.groups() {
            let group = &self.topology.groups[group];
            let axis = &self.topology.axes[group.axis];
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
            if let Some(req) = self.rows.algebra.get(planned_set, axis.key) {
                set = self.rows.algebra.narrow(set, req)?;
            }
        }
        Some((set, apart))
    }

    /// Returns the offers under a set of requirements that no other offer dominates, thinned out if there are many.
    fn offer_list(&mut self, template: TemplateId, set: SetId, ledger: &mut Ledger) -> OfferList {
        if let Some(offer_list) = ledger.offer_lists.get(&set) {
            return offer_list.clone();
        }
        let mask = self.rows.mask(template, set);
        let priced = self.rows.by_price(template, set, &mask);
        let compiled = &self.solver.templates[template];
        let mut kept: Vec<(f64, RowId)> = Vec::new();
        for (price, row) in priced {
            let room = compiled.row_room(*row);
            let beaten = |(_, other): &(f64, RowId)| {
                let more = compiled.row_room(*other);
                room.iter().zip(more).all(|(own, more)| own <= more)
            };
            if !kept.iter().rev().any(beaten) {
                kept.push((*price, *row));
            }
        }
        let step = kept.len().div_ceil(MOST_OFFERS).max(1);
        let offer_list: Vec<(f64, RowId)> = kept.into_iter().rev().step_by(step).collect();
        let offer_list = Rc::new(offer_list);
        ledger.offer_lists.insert(set, offer_list.clone());
        offer_list
    }

    /// Packs the pods of a chunk again; `None` if the saving is too small.
    fn repack_chunk(
        &mut self,
        template: TemplateId,
        chunk: &Chunk,
        ledger: &mut Ledger,
    ) -> Option<Vec<PlannedNode>> {
        let node_overhead = chunk.node_overhead(ledger.node_overhead);
        let mut packer = Packer {
            groups: self.requirement_groups(template, chunk, ledger),
            node_overhead,
            width: self.solver.width(),
            work: ledger.work,
            most_work: MOST_WORK,
        };
        let rounds = if ledger.thorough { ROUNDS } else { 1 };
        let mut plans = Vec::new();
        for balanced in [false, true] {
            let worth = |pod_group: &PodGroup| {
                if balanced {
                    pod_group.balanced
                } else {
                    pod_group.worth
                }
            };
            let pod_groups = chunk.pod_groups.iter();
            let mut kinds: Vec<Kind> = pod_groups
                .map(|pod_group| pod_group.kind(worth(pod_group)))
                .collect();
            for _ in 0..rounds {
                let Some(mut bins) = packer.pack(&kinds) else {
                    break;
                };
                for (bin, _) in &mut bins {
                    bin.price = self.rows.lowest_price(template, bin.set, &bin.used, None);
                }
                learn(&mut kinds, &bins);
                plans.push(bins);
            }
        }
        ledger.work = packer.work;
        let mut bins = choose(plans)?;
        if ledger.thorough {
            let mut kinds: Vec<Kind> = chunk
                .pod_groups
                .iter()
                .map(|pod_group| pod_group.kind(pod_group.worth))
                .collect();
            learn(&mut kinds, &bins);
            let left = MOST_IMPROVING.saturating_sub(ledger.improving);
            bins = packer.improve(&kinds, bins, left);
            ledger.improving += packer.work - ledger.work;
            for (bin, _) in &mut bins {
                bin.price = self.rows.lowest_price(template, bin.set, &bin.used, None);
            }
        }
        let new = (price(&bins), node_count(&bins));
        let old = (chunk.price, chunk.planned.len());
        if !pays(new, old, node_overhead) {
            return None;
        }
        let mut planned: Vec<PlannedNode> = Vec::new();
        let mut next: Vec<usize> = vec![0; chunk.pod_groups.len()];
        for (bin, copies) in bins {
            for _ in 0..copies {
                let mut pods: Vec<PodIdx> = Vec::new();
                for (pod_group, count) in &bin.counts {
                    let from = next[*pod_group];
                    pods.extend(&chunk.pod_groups[*pod_group].pods[from..from + count]);
                    next[*pod_group] += count;
                }
                pods.sort_unstable();
                planned.push(self.planned_node_of(template, &bin, pods));
            }
        }
        let freed = chunk.planned.iter().map(|index| &self.planned[index]);
        self.budgets
            .charge_instead(template, freed, &mut planned, &mut self.rows)
            .then_some(planned)
    }

    fn planned_node_of(&self, template: TemplateId, bin: &Bin, pods: Vec<PodIdx>) -> PlannedNode {
        let compiled = &self.solver.templates[template];
        PlannedNode {
            used: bin.used.clone(),
            pods,
            witness: bin.row,
            ..PlannedNode::new(template, compiled, bin.set, self.solver.width())
        }
    }

    /// Returns the requirement groups of a chunk's pods, with their offers.
    fn requirement_groups(
        &mut self,
        template: TemplateId,
        chunk: &Chunk,
        ledger: &mut Ledger,
    ) -> Vec<RequirementGroup<'a>> {
        let solver = self.solver;
        let compiled = &solver.templates[template];
        let sets: BTreeSet<SetId> = chunk
            .pod_groups
            .iter()
            .map(|pod_group| pod_group.set)
            .collect();
        let mut groups = Vec::with_capacity(sets.len());
        for set in sets {
            let offer = |(price, row): &(f64, RowId)| Offer {
                price: *price,
                row: *row,
                room: compiled.row_room(*row),
            };
            let offer_list = self.offer_list(template, set, ledger);
            let offers = offer_list.iter().map(offer).collect();
            let pod_groups = chunk.pod_groups.iter().enumerate();
            let takes = pod_groups
                .filter(|(_, pod_group)| self.rows.algebra.join(set, pod_group.set) == Some(set))
                .map(|(index, _)| index)
                .collect();
            groups.push(RequirementGroup { set, offers, takes });
        }
        groups
    }

    /// Appends new planned nodes to the remaining ones, and updates the placements of the pods.
    fn replace_planned_nodes(&mut self, replaced: &Bits<PlannedId>, added: Vec<PlannedNode>) {
        let old = std::mem::take(&mut self.planned.nodes);
        let stay = old.into_iter_enumerated();
        self.planned.nodes = stay
            .filter(|(index, _)| !replaced.contains(*index))
            .map(|(_, planned)| planned)
            .chain(added)
            .collect();
        // Explanations of unplaced pods look up the nodes of a domain.
        for axis in &mut self.topology.axes {
            axis.planned
                .iter_mut()
                .for_each(|nodes| *nodes = Bits::default());
        }
        for index in self.planned.nodes.indices() {
            let set = self.planned[index].set;
            self.topology
                .add_planned_node(&mut self.rows.algebra, index, set);
        }
        self.planned.levels.clear();
        for (index, planned) in self.planned.nodes.iter_enumerated() {
            for pod in &planned.pods {
                self.queue.pods[*pod].state = PodState::Placed(Target::Planned(index));
            }
        }
    }
}

/// A planned node that costs clearly more than the worth of its pods.
struct Wasteful {
    /// It has few pods.
    few: bool,
    index: PlannedId,
    price: f64,
    worth: f64,
    pod_groups: Vec<PodGroup>,
}

/// Divides planned nodes into chunks to be packed together, those with many pods first, then the most wasteful.
fn chunks(mut found: Vec<Wasteful>) -> Vec<Chunk> {
    let waste = |node: &Wasteful| node.price - node.worth;
    found.sort_by(|a, b| {
        let by_waste = waste(b).total_cmp(&waste(a));
        (a.few.cmp(&b.few).then(by_waste)).then(a.index.cmp(&b.index))
    });
    let mut chunks: Vec<Chunk> = Vec::new();
    for node in found {
        let joins = |chunk: &&mut Chunk| {
            chunk.few == node.few
                && chunk.pod_groups.len() + node.pod_groups.len() <= MOST_POD_GROUPS
        };
        match chunks.last_mut().filter(joins) {
            Some(chunk) => chunk.take(node),
            None => {
                let mut chunk = Chunk {
                    few: node.few,
                    ..Chunk::default()
                };
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
    /// Its planned nodes have few pods each.
    few: bool,
    planned: Bits<PlannedId>,
    /// Their total price.
    price: f64,
    pod_groups: Vec<PodGroup>,
}

impl Chunk {
    /// Returns the cost added for each node; `usual` is that of nodes with many pods.
    fn node_overhead(&self, usual: f64) -> f64 {
        if !self.few {
            return usual;
        }
        let mean = self.price / self.planned.len().max(1) as f64;
        usual.max(mean * NODE_OVERHEAD_FEW)
    }

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

/// Reports whether a packing replaces an old one, each with its price and its number of nodes.
fn pays(new: (f64, usize), old: (f64, usize), node_overhead: f64) -> bool {
    let cost = |(price, nodes): (f64, usize)| price + node_overhead * nodes as f64;
    cost(new) <= cost(old) * WORTH_IT
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
