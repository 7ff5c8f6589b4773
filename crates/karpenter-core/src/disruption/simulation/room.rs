//! A bound that tells, without a simulation, that nodes cannot be consolidated.
//!
//! Pods that request at least some amount of a resource can only move to initialized nodes with at least that much room, and to the
//! replacements. If together they request more than all of these have, a simulation does not place them, or on nodes that are not
//! initialized, or on instance types that are not cheaper. All else that a simulation checks refuses more.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::cluster::Snapshot;
use crate::disruption::candidate::{Candidate, NodeId};
use crate::disruption::consolidation::prices::PriceLists;
use crate::requirements::Requirements;
use crate::resources::{CPU, MEMORY};
use crate::schedule::Solver;

/// The resources that are compared: those that [`Solver::rooms`] returns.
pub(super) const COMPARED: [&str; 2] = [CPU, MEMORY];
/// The price of several replacements is a sum: a difference of this share is due to rounding.
const ROUNDING: f64 = 1e-9;

/// How much initialized and new nodes can take.
#[derive(Debug)]
pub(super) struct Room {
    of_nodes: FxHashMap<NodeId, [i64; 2]>,
    columns: [Column; 2],
}

/// One resource.
#[derive(Debug)]
struct Column {
    /// What is free on initialized nodes, largest first, each with the sum up to it.
    free: Vec<(i64, i64)>,
    /// The lowest prices of instance types for any NodePool, ascending, each with the largest amount up to it.
    new: Vec<(f64, i64)>,
}

impl Room {
    /// Collects the nodes that pods of candidates may move to, which are not to `avoid`, and the instance types.
    pub(super) fn of(
        snapshot: &Snapshot,
        solver: &Solver,
        avoid: &Arc<[String]>,
        prices: &PriceLists,
    ) -> Self {
        let mut of_nodes = FxHashMap::default();
        let mut free: [Vec<i64>; 2] = Default::default();
        for (node, room) in solver.rooms(avoid) {
            of_nodes.insert(NodeId::of(node), room);
            for (free, room) in free.iter_mut().zip(room) {
                free.push(room);
            }
        }
        let mut new: Vec<(f64, [i64; 2])> = Vec::new();
        for pool in snapshot.node_pools() {
            let Some(list) = prices.of(pool.name()) else {
                continue;
            };
            let wanted = &pool.spec.template.spec.requirements;
            let wanted = Requirements::from_api(wanted, &snapshot.config().well_known);
            let admitted = list.admitted(&wanted.unwrap_or_default());
            for (place, instance_type) in list.instance_types().iter().enumerate() {
                let Some(price) = list.cheapest(place, &admitted) else {
                    continue;
                };
                let rooms = instance_type.offerings.iter();
                let rooms = rooms.map(|offering| instance_type.allocatable_of(offering));
                let rooms = rooms.map(|room| COMPARED.map(|resource| room.get(resource)));
                new.extend(rooms.map(|room| (price, room)));
            }
        }
        new.sort_by(|a, b| a.0.total_cmp(&b.0));
        let column = |at: usize| {
            let mut free = std::mem::take(&mut free[at]);
            free.retain(|free| *free > 0);
            free.sort_unstable_by(|a, b| b.cmp(a));
            let (mut sum, mut largest) = (0_i64, 0);
            let free = free.into_iter().map(|free| {
                sum = sum.saturating_add(free);
                (free, sum)
            });
            let new = new.iter().map(|(price, room)| {
                largest = room[at].max(largest);
                (*price, largest)
            });
            Column {
                free: free.collect(),
                new: new.collect(),
            }
        };
        Self {
            of_nodes,
            columns: [0, 1].map(column),
        }
    }

    /// Reports whether there is too little room to delete the candidates, whose pods request `moving` of each resource, and to launch
    /// at most `replacements` cheaper nodes.
    pub(super) fn lacks(
        &self,
        candidates: &[&Candidate],
        moving: impl Fn(usize) -> Vec<i64>,
        replacements: usize,
    ) -> bool {
        let price: f64 = candidates.iter().map(|candidate| candidate.price).sum();
        let limit = match replacements {
            0 | 1 => price,
            _ => price + price.abs() * ROUNDING,
        };
        let own = |candidate: &&Candidate| self.of_nodes.get(&candidate.id());
        let own: Vec<&[i64; 2]> = candidates.iter().filter_map(own).collect();
        (0..COMPARED.len()).any(|at| {
            let mut requests = moving(at);
            requests.retain(|amount| *amount > 0);
            requests.sort_unstable_by(|a, b| b.cmp(a));
            let new = self.columns[at].new_below(limit);
            let new = new.saturating_mul(i64::try_from(replacements.max(1)).unwrap_or(i64::MAX));
            let mut wanted = 0_i64;
            requests.chunk_by(|a, b| a == b).any(|alike| {
                let least = alike[0];
                wanted = alike
                    .iter()
                    .fold(wanted, |sum, more| sum.saturating_add(*more));
                let own = own.iter().map(|room| room[at]);
                let own = own.filter(|room| *room >= least);
                let own = own.fold(0, i64::saturating_add);
                let free = self.columns[at].free_in(least).saturating_sub(own);
                wanted > free.saturating_add(new)
            })
        })
    }
}

impl Column {
    /// Returns what is free on nodes with room for `least`.
    fn free_in(&self, least: i64) -> i64 {
        let count = self.free.partition_point(|(free, _)| *free >= least);
        count.checked_sub(1).map_or(0, |last| self.free[last].1)
    }

    /// Returns the largest amount of an instance type below a price.
    fn new_below(&self, limit: f64) -> i64 {
        let count = self.new.partition_point(|(price, _)| *price < limit);
        count.checked_sub(1).map_or(0, |last| self.new[last].1)
    }
}
