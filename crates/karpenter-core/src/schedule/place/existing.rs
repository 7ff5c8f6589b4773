//! Placing a pod on an existing node: the first by name that accepts it, initialized nodes before others.
//!
//! Requirements and taints are bitsets computed once per variant; free resources, ports and attachments only shrink, so a node
//! that refused a class is not tried again for it in the pass.

use crate::pod::HostPort;
use crate::schedule::compile::ids::{ClassId, GroupId, NodeIdx, PodIdx};
use crate::schedule::compile::solver::Solver;
use crate::schedule::request::ScheduleRequest;
use index_vec::Idx;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::pod::{Pod, ports_conflict};
use crate::schedule::compile::bits::{Bits, members};
use crate::schedule::compile::vectors::subtract;
use crate::schedule::pass::SchedulingPass;
use crate::schedule::pods::class::Variant;
use crate::schedule::pods::queue::PodState;
use crate::schedule::pods::volumes::Volumes;
use crate::schedule::topology::choices::Choices;
use crate::schedule::topology::group::Target;

/// The ports and volumes that a pass added to a node.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) ports: Vec<HostPort>,
    /// Attached volume claims by driver, including those of bound pods.
    pub(crate) attached: Option<BTreeMap<String, FxHashSet<String>>>,
}

/// The existing nodes in a pass: which may be used, and what is left of them.
pub(crate) struct ExistingNodes<'a> {
    solver: &'a Solver,
    /// Nodes not treated as deleted.
    pub(crate) present: Bits<NodeIdx>,
    /// Nodes that pods may be placed on.
    pub(crate) usable: Bits<NodeIdx>,
    /// Nodes that only waiting pods may be placed on.
    avoid: Arc<Bits<NodeIdx>>,
    remaining: Vec<i64>,
    loads: FxHashMap<NodeIdx, Load>,
}

impl<'a> ExistingNodes<'a> {
    pub(crate) fn new(solver: &'a Solver, request: &ScheduleRequest) -> Self {
        let node = |name: &String| solver.node_index.get(name).copied();
        let mut usable = Bits::full(solver.nodes.len());
        for index in request.without.iter().filter_map(node) {
            usable.remove(index);
        }
        let present: Bits<NodeIdx> = usable.clone();
        for (index, node) in solver.nodes.iter_enumerated() {
            if node.broken {
                usable.remove(index);
            }
        }
        Self {
            solver,
            present,
            usable,
            avoid: solver.nodes_named(&request.avoid),
            remaining: solver.remaining.clone(),
            loads: FxHashMap::default(),
        }
    }
}

impl SchedulingPass<'_> {
    pub(crate) fn try_nodes(
        &mut self,
        pod: PodIdx,
        class: ClassId,
        variant: &mut Variant,
        choices: &Choices,
        only: Option<&Bits<NodeIdx>>,
    ) -> Option<Target> {
        let words = self.nodes.usable.words().len();
        let allowed: SmallVec<[Bits<NodeIdx>; 2]> = choices
            .domains
            .iter()
            .map(|domains| {
                let mut nodes = Bits::default();
                for domain in domains.allowed.iter() {
                    nodes.unite(&self.topology.axes[domains.axis].nodes[domain]);
                }
                nodes
            })
            .collect();
        let avoids = !self.queue.pods[pod].waiting
            && !self.queue.pods[pod].buffer
            && !self.nodes.avoid.is_empty();
        for index in 0..words {
            let mut word = self.nodes.usable.word(index) & !variant.refused_nodes.word(index);
            if avoids {
                word &= !self.nodes.avoid.word(index);
            }
            for allowed in allowed.iter().chain(only) {
                word &= allowed.word(index);
            }
            if word != 0 {
                word &= self.target_word(choices, index, |targets| &targets.nodes);
            }
            for node in members(index, word) {
                if self.node_accepts(node, class) {
                    self.place_on_node(node, pod, class);
                    return Some(Target::Node(node));
                }
                variant.refused_nodes.insert(node);
            }
        }
        None
    }

    /// Checks conditions that stay false once they are false: resources, ports, attachments; and devices, where pods have
    /// resource claims.
    fn node_accepts(&mut self, node: NodeIdx, class: ClassId) -> bool {
        if !self.node_fits(node, class) {
            return false;
        }
        if !self.queue.classes[class].ports.is_empty() {
            let ports = &self.queue.classes[class].ports;
            // DIFFERS: upstream reserves the ports of DaemonSets on new nodes only.
            if ports_conflict(ports, &self.solver.nodes[node].daemon_ports) {
                return false;
            }
            let added = self
                .nodes
                .loads
                .get(&node)
                .is_some_and(|load| ports_conflict(ports, &load.ports));
            if added
                || self
                    .bound_pods(node)
                    .iter()
                    .any(|pod| ports_conflict(ports, &pod.shape.host_ports))
            {
                return false;
            }
        }
        (self.queue.classes[class].attached.is_empty() || self.attachments_fit(node, class))
            && (self.queue.classes[class].resource_claims.is_empty()
                || self.devices_on_node(node, class))
    }

    fn bound_pods(&self, node: NodeIdx) -> Vec<Arc<Pod>> {
        self.solver
            .snapshot
            .pods_on(&self.solver.nodes[node].name)
            .iter()
            .filter(|pod| !pod.is_terminal())
            .cloned()
            .collect()
    }

    fn attachments_fit(&mut self, node: NodeIdx, class: ClassId) -> bool {
        let name = self.solver.nodes[node].name.clone();
        let Some(limits) = self.solver.snapshot.attach_limits(&name) else {
            return true;
        };
        if self
            .nodes
            .loads
            .get(&node)
            .is_none_or(|load| load.attached.is_none())
        {
            let mut attached: BTreeMap<String, FxHashSet<String>> = BTreeMap::new();
            for pod in self.bound_pods(node) {
                for (driver, planned) in Volumes::attached_by(&self.solver.snapshot, &pod) {
                    attached.entry(driver).or_default().insert(planned);
                }
            }
            self.nodes.loads.entry(node).or_default().attached = Some(attached);
        }
        let Some(attached) = self
            .nodes
            .loads
            .get(&node)
            .and_then(|load| load.attached.as_ref())
        else {
            return true;
        };
        limits.iter().all(|(driver, limit)| {
            let present = attached.get(driver);
            let wanted = self.queue.classes[class]
                .attached
                .iter()
                .filter(|(of, _)| of == driver);
            let new = wanted
                .filter(|(_, planned)| present.is_none_or(|present| !present.contains(planned)))
                .count();
            new == 0 || present.map_or(0, FxHashSet::len) + new <= *limit as usize
        })
    }

    fn place_on_node(&mut self, node: NodeIdx, pod: PodIdx, class: ClassId) {
        let width = self.solver.width();
        subtract(
            &mut self.nodes.remaining[node.index() * width..(node.index() + 1) * width],
            &self.queue.classes[class].requests,
        );
        if !self.queue.classes[class].ports.is_empty()
            || !self.queue.classes[class].attached.is_empty()
        {
            let load = self.nodes.loads.entry(node).or_default();
            load.ports
                .extend(self.queue.classes[class].ports.iter().cloned());
            if let Some(attached) = load.attached.as_mut() {
                for (driver, planned) in &self.queue.classes[class].attached {
                    attached
                        .entry(driver.clone())
                        .or_default()
                        .insert(planned.clone());
                }
            }
        }
        if !self.queue.classes[class].resource_claims.is_empty() {
            self.commit_node_devices(node);
        }
        self.queue.pods[pod].state = PodState::Placed(Target::Node(node));
        self.record_on_node(node, class);
    }

    fn record_on_node(&mut self, node: NodeIdx, class: ClassId) {
        let mut counted = false;
        for index in 0..self.queue.classes[class].counted.len() {
            let group = self.queue.classes[class].counted[index];
            if self.topology.groups[group]
                .nodes
                .as_ref()
                .is_none_or(|nodes| nodes.contains(node))
            {
                self.count_on_node(group, node);
                counted = true;
            }
        }
        for index in 0..self.queue.classes[class].keeps_away.len() {
            let group = self.queue.classes[class].keeps_away[index];
            self.count_on_node(group, node);
        }
        if counted {
            self.epoch += 1;
        }
    }

    fn count_on_node(&mut self, group: GroupId, node: NodeIdx) {
        let axis = &self.topology.axes[self.topology.groups[group].axis];
        if axis.is_hostname {
            self.topology.groups[group].count_on(Target::Node(node), 1);
        } else if let Some(domain) = axis.of_node[node] {
            self.topology.groups[group].count_in(domain, 1);
        }
    }

    pub(crate) fn node_fits(&self, node: NodeIdx, class: ClassId) -> bool {
        let room = &self.nodes.remaining
            [node.index() * self.solver.width()..(node.index() + 1) * self.solver.width()];
        self.queue.classes[class]
            .requests
            .iter()
            .zip(room)
            .all(|(need, room)| need <= room)
    }
}
