//! Evaluations of single nodes that later passes carry over.
//!
//! The evaluation of a node is a function of its own pods and price, of the settings, and of what its simulation read of other
//! nodes. That is recorded with it, so that a later pass repeats the simulations alone that a change can have altered. In doubt it
//! repeats them.

use std::collections::BTreeSet;
use std::sync::Arc;

use index_vec::IndexVec;
use rustc_hash::FxHashMap;

use crate::disruption::candidate::{Candidate, NotConsolidatable};
use crate::disruption::consolidation::{Move, Rules};
use crate::disruption::simulation::Simulator;
use crate::pod::{Pod, Shape};
use crate::schedule::{Difference, NodeIdx, Reach, TracedPlace, TracedPod};

/// With more pods that are part of every simulation nothing is carried over: each evaluation would record them.
const MOST_WAITING: usize = 64;

/// A pod in the trace of a simulation, in eight bytes.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Its index in [`Carried::shapes`], and whether all nodes were looked at.
    shape_and_scanned: u32,
    /// The node it was placed on; `u32::MAX` for none.
    node: u32,
}

const SCANNED: u32 = 1 << 31;

impl Place {
    fn new(shape: u32, place: TracedPlace) -> Self {
        Self {
            shape_and_scanned: shape | if place.scanned { SCANNED } else { 0 },
            node: place.node.map_or(u32::MAX, |node| node.0),
        }
    }

    fn shape(self) -> usize {
        (self.shape_and_scanned & !SCANNED) as usize
    }

    fn place(self) -> TracedPlace {
        TracedPlace {
            node: (self.node != u32::MAX).then_some(NodeIdx(self.node)),
            scanned: self.shape_and_scanned & SCANNED != 0,
        }
    }
}

/// Whether each pod of a node moves if it is deleted; `None` if all do.
type Moving = Option<Box<[bool]>>;

/// The evaluation of one node, and what it depends on.
#[derive(Clone, Debug)]
struct Entry {
    result: Result<Move, NotConsolidatable>,
    price: f64,
    moving: Moving,
    trace: Box<[Place]>,
    /// Whether an earlier pass made it.
    is_carried: bool,
}

/// Evaluations against one snapshot.
#[derive(Debug)]
pub(in crate::disruption) struct Carried {
    simulator: Simulator,
    rules: Rules,
    entries: IndexVec<NodeIdx, Option<Box<Entry>>>,
    /// The shapes of the pods in traces.
    shapes: Vec<Arc<Shape>>,
    /// Their places, by address.
    ids: FxHashMap<usize, u32>,
    /// The places of the nodes, by the address of their state.
    places: FxHashMap<usize, NodeIdx>,
}

impl Carried {
    pub(in crate::disruption) fn new(simulator: Simulator, rules: Rules) -> Self {
        let nodes = &simulator.solver().nodes;
        let places = nodes
            .iter()
            .map(|(place, node)| (Arc::as_ptr(&node.state).addr(), place));
        Self {
            places: places.collect(),
            entries: IndexVec::from_vec((0..nodes.len()).map(|_| None).collect()),
            simulator,
            rules,
            shapes: Vec::new(),
            ids: FxHashMap::default(),
        }
    }

    pub(in crate::disruption) fn simulator(&self) -> &Simulator {
        &self.simulator
    }

    /// Returns the evaluations that are still valid for the snapshot of a later simulator.
    pub(in crate::disruption) fn renew(self, simulator: Simulator, rules: Rules) -> Self {
        let mut renewed = Self::new(simulator, rules);
        let (old, new) = (&self.simulator, renewed.simulator.clone());
        if self.rules != rules || !is_recorded(&new) || !has_same_query(old, &new) {
            return renewed;
        }
        let touched = touched(old, &new);
        let Some(difference) = Difference::between(old.solver(), new.solver(), &touched) else {
            return renewed;
        };
        let reaches: Vec<Reach> = self
            .shapes
            .iter()
            .map(|shape| difference.reach(shape))
            .collect();
        let address = |simulator: &Simulator, node: NodeIdx| {
            let node = &simulator.solver().nodes[node];
            node.pods.as_ref().map(Arc::as_ptr)
        };
        for (node, entry) in self.entries.into_iter_enumerated() {
            let Some((mut entry, now)) = entry.zip(difference.unchanged(node)) else {
                continue;
            };
            let leaves = |place: &Place| difference.leaves(place.place(), reaches[place.shape()]);
            if address(old, node) != address(&new, now) || !entry.trace.iter().all(leaves) {
                continue;
            }
            for place in &mut entry.trace {
                let shape = renewed.intern(&self.shapes[place.shape()]);
                let TracedPlace { node, scanned } = place.place();
                let node = node.and_then(|node| difference.unchanged(node));
                *place = Place::new(shape, TracedPlace { node, scanned });
            }
            entry.is_carried = true;
            renewed.entries[now] = Some(entry);
        }
        renewed
    }

    fn intern(&mut self, shape: &Arc<Shape>) -> u32 {
        *self
            .ids
            .entry(Arc::as_ptr(shape).addr())
            .or_insert_with(|| {
                self.shapes.push(shape.clone());
                (self.shapes.len() - 1) as u32
            })
    }

    /// Returns the evaluation of a candidate, if it is known, and whether an earlier pass made it.
    pub(in crate::disruption) fn find(
        &self,
        candidate: &Candidate,
    ) -> Option<(Result<Move, NotConsolidatable>, bool)> {
        let node = self.places.get(&Arc::as_ptr(&candidate.node).addr())?;
        let entry = self.entries[*node].as_ref()?;
        let is_same = entry.price.to_bits() == candidate.price.to_bits()
            && entry.moving == moving(&self.simulator, candidate);
        is_same.then(|| (entry.result.clone(), entry.is_carried))
    }

    pub(in crate::disruption) fn record(
        &mut self,
        candidate: &Candidate,
        result: &Result<Move, NotConsolidatable>,
        trace: &[TracedPod],
    ) {
        let Some(node) = self
            .places
            .get(&Arc::as_ptr(&candidate.node).addr())
            .copied()
        else {
            return;
        };
        let trace = trace
            .iter()
            .map(|pod| Place::new(self.intern(&pod.shape), pod.into()));
        let entry = Entry {
            trace: trace.collect(),
            result: result.clone(),
            price: candidate.price,
            moving: moving(&self.simulator, candidate),
            is_carried: false,
        };
        self.entries[node] = Some(Box::new(entry));
    }

    /// Reports whether evaluations are recorded.
    pub(in crate::disruption) fn is_recorded(&self) -> bool {
        is_recorded(&self.simulator)
    }
}

fn is_recorded(simulator: &Simulator) -> bool {
    simulator.waiting() + simulator.query().buffer_pods.len() <= MOST_WAITING
}

fn has_same_query(a: &Simulator, b: &Simulator) -> bool {
    let (a, b) = (a.query(), b.query());
    let same = |(a, b): (&Arc<Pod>, &Arc<Pod>)| Arc::ptr_eq(a, b) || a == b;
    a.nominated.is_empty()
        && b.nominated.is_empty()
        && a.buffer_pods.len() == b.buffer_pods.len()
        && a.buffer_pods.iter().zip(&b.buffer_pods).all(same)
}

/// Returns the nodes that receive pods by consolidation in only one of two simulators.
fn touched<'a>(a: &'a Simulator, b: &'a Simulator) -> Vec<&'a str> {
    let names = |simulator: &'a Simulator| -> BTreeSet<&'a str> {
        simulator.avoid().iter().map(String::as_str).collect()
    };
    let (a, b) = (names(a), names(b));
    a.symmetric_difference(&b).copied().collect()
}

/// Returns which of a candidate's pods move.
fn moving(simulator: &Simulator, candidate: &Candidate) -> Moving {
    // A pod only stays because of its annotations or a PodDisruptionBudget: most nodes need no look at their pods.
    if simulator.pdbs().is_empty() && !candidate.pods.facts().may_refuse_disruption {
        return None;
    }
    let pods = candidate.pods.pods().iter();
    let moves: Box<[bool]> = pods.map(|pod| simulator.moves(pod)).collect();
    moves.contains(&false).then_some(moves)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::cluster::{Cluster, ClusterConfig};
    use crate::schedule::{Policy, Query};

    #[test]
    fn evaluations_are_recorded_while_at_most_64_pods_are_in_every_simulation() {
        let snapshot = Cluster::new(ClusterConfig::default()).snapshot();
        let policy = Policy::at(Timestamp::UNIX_EPOCH);
        let buffer_pod = |index: usize| {
            let name = format!("buffer-{index}");
            let pod = json!({ "metadata": { "name": name, "namespace": "default", "uid": name } });
            serde_json::from_value(pod).map(|pod| Arc::new(Pod::parse(&pod)))
        };
        let is_recorded = |waiting: usize| {
            let query = Query {
                buffer_pods: (0..waiting).flat_map(buffer_pod).collect(),
                ..Query::default()
            };
            let simulator = Simulator::new(&snapshot, &policy, &query, &Arc::default());
            let rules = Rules {
                spot_to_spot: false,
                max_replacements: 1,
            };
            Carried::new(simulator, rules).is_recorded()
        };
        assert!(is_recorded(MOST_WAITING));
        assert!(!is_recorded(MOST_WAITING + 1));
    }
}
