//! The existing nodes in a pass: which may be used, and what is left of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::pod::{HostPort, Pod, ports_conflict};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::NodeIdx;
use crate::schedule::compile::solver::Solver;
use crate::schedule::compile::vectors::subtract;
use crate::schedule::pods::class::Class;
use crate::schedule::pods::volumes::Volumes;
use crate::schedule::request::Query;

/// The state of a node that a pass changed.
#[derive(Clone, Debug)]
struct Load {
    /// The free resources.
    remaining: Box<[i64]>,
    ports: Vec<HostPort>,
    /// Attached volume claims by driver, including those of bound pods.
    attached: Option<BTreeMap<String, FxHashSet<String>>>,
}

/// The existing nodes in a pass: which may be used, and what is left of them.
#[derive(Clone)]
pub(crate) struct ExistingNodes<'a> {
    solver: &'a Solver,
    /// Nodes treated as deleted.
    deleted: SmallVec<[NodeIdx; 4]>,
    /// All other nodes.
    present: Arc<Bits<NodeIdx>>,
    /// Nodes that pods may be placed on.
    usable: Bits<NodeIdx>,
    /// Nodes that only waiting pods may be placed on.
    avoid: Arc<Bits<NodeIdx>>,
    /// The nodes that the pass placed pods on, or looked at the volumes of. The others are as in the solver: a simulation with a
    /// hundred thousand nodes copies a few of them.
    loads: FxHashMap<NodeIdx, Load>,
}

impl<'a> ExistingNodes<'a> {
    pub(crate) fn new(solver: &'a Solver, query: &Query) -> Self {
        let node = |name: &String| solver.nodes.find(name);
        let deleted: SmallVec<_> = query.without.iter().filter_map(node).collect();
        let mut present = Bits::full(solver.nodes.len());
        let mut usable = Bits::clone(&solver.sound);
        for index in &deleted {
            present.remove(*index);
            usable.remove(*index);
        }
        Self {
            solver,
            deleted,
            present: Arc::new(present),
            usable,
            avoid: solver.nodes_named(&query.avoid),
            loads: FxHashMap::default(),
        }
    }

    /// Forgets the pods that were placed.
    pub(crate) fn reset(&mut self) {
        self.loads.clear();
    }

    /// Returns the nodes treated as deleted.
    pub(crate) fn deleted(&self) -> &[NodeIdx] {
        &self.deleted
    }

    /// Returns all other nodes.
    pub(crate) fn present(&self) -> &Arc<Bits<NodeIdx>> {
        &self.present
    }

    /// Returns the nodes that a pod may be placed on, 64 at a time.
    pub(crate) fn usable(&self, waiting: bool, index: usize) -> u64 {
        let avoid = if waiting { 0 } else { self.avoid.word(index) };
        self.usable.word(index) & !avoid
    }

    /// Checks conditions that stay false once they are false: resources, ports, attachments.
    pub(crate) fn accepts(&mut self, node: NodeIdx, class: &Class) -> bool {
        self.fits(node, &class.requests)
            && (class.shape.host_ports.is_empty()
                || self.ports_are_free(node, &class.shape.host_ports))
            && (class.attached.is_empty() || self.attachments_fit(node, class))
    }

    fn fits(&self, node: NodeIdx, requests: &[i64]) -> bool {
        let free = match self.loads.get(&node) {
            Some(load) => &load.remaining,
            None => self.solver.nodes.remaining_on(node),
        };
        requests.iter().zip(free).all(|(need, free)| need <= free)
    }

    fn ports_are_free(&self, node: NodeIdx, ports: &[HostPort]) -> bool {
        // DIFFERS: upstream reserves the ports of DaemonSets on new nodes only.
        let added = self.loads.get(&node);
        !ports_conflict(ports, &self.solver.nodes[node].daemon_ports)
            && !added.is_some_and(|load| ports_conflict(ports, &load.ports))
            && !self
                .bound_pods(node)
                .any(|pod| ports_conflict(ports, &pod.shape.host_ports))
    }

    fn bound_pods(&self, node: NodeIdx) -> impl Iterator<Item = &'a Arc<Pod>> + use<'a> {
        let pods = self.solver.snapshot.pods_on(&self.solver.nodes[node].name);
        pods.iter().filter(|pod| !pod.is_terminal())
    }

    fn attachments_fit(&mut self, node: NodeIdx, class: &Class) -> bool {
        let snapshot = &self.solver.snapshot;
        let Some(limits) = snapshot.attach_limits(&self.solver.nodes[node].name) else {
            return true;
        };
        let bound = self.bound_pods(node);
        let load = load_of(&mut self.loads, self.solver, node);
        let attached = load.attached.get_or_insert_with(|| {
            let mut attached: BTreeMap<String, FxHashSet<String>> = BTreeMap::new();
            for (driver, claim) in bound.flat_map(|pod| Volumes::attached_by(snapshot, pod)) {
                attached.entry(driver).or_default().insert(claim);
            }
            attached
        });
        limits.iter().all(|(driver, limit)| {
            let present = attached.get(driver);
            let wanted = class.attached.iter().filter(|(of, _)| of == driver);
            let new = wanted
                .filter(|(_, claim)| present.is_none_or(|present| !present.contains(claim)))
                .count();
            new == 0 || present.map_or(0, FxHashSet::len) + new <= *limit as usize
        })
    }

    /// Deducts the resources, ports and attachments of a pod from a node.
    pub(crate) fn place(&mut self, node: NodeIdx, class: &Class) {
        let load = load_of(&mut self.loads, self.solver, node);
        subtract(&mut load.remaining, &class.requests);
        load.ports.extend(class.shape.host_ports.iter().cloned());
        if let Some(attached) = load.attached.as_mut() {
            for (driver, claim) in &class.attached {
                let of_driver = attached.entry(driver.clone()).or_default();
                of_driver.insert(claim.clone());
            }
        }
    }
}

/// Returns the state of a node in the pass, to be changed.
fn load_of<'a>(
    loads: &'a mut FxHashMap<NodeIdx, Load>,
    solver: &Solver,
    node: NodeIdx,
) -> &'a mut Load {
    loads.entry(node).or_insert_with(|| Load {
        remaining: solver.nodes.remaining_on(node).into(),
        ports: Vec::new(),
        attached: None,
    })
}
