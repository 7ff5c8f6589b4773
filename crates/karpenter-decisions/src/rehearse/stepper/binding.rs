//! Pods that kube-scheduler binds at once, because an existing node has room for them.
//!
//! kube-scheduler does not know where a pod of a drained node was planned: it takes the feasible node with the best score, of which
//! `NodeResourcesFit` (least allocated) is computed here. So pods can end up elsewhere than planned, and leave no room for the last
//! of them, which then gets a new node. Pods whose place depends on other pods, volumes or devices, or that prefer nodes, are left
//! to the next scheduling pass.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::{AffinityTerm, Pod, Shape};
use rustc_hash::FxHashSet;

use crate::blocking::takes;
use crate::rehearse::stepper::queue::Event;
use crate::rehearse::stepper::{Stepper, is_waiting};

/// The share of a resource that is free counts in thousandths.
const WHOLE: i64 = 1000;

/// What bindings depend on beside the snapshot.
#[derive(Clone, Debug, Default)]
pub(in crate::rehearse) struct Bindings {
    /// The required anti-affinity of all pods.
    keep_away: Vec<AffinityTerm>,
    /// The resources of initialized nodes, by name.
    rooms: BTreeMap<String, Room>,
    /// The nodes whose resources may have changed since.
    touched: BTreeSet<String>,
    /// Pods that kube-scheduler has not tried yet.
    arrived: Vec<(String, String)>,
}

/// The resources of a node that decide its score.
#[derive(Clone, Debug)]
struct Room {
    /// Allocatable cpu and memory.
    total: [i64; 2],
    /// What of them is free.
    free: [i64; 2],
}

/// The resources that decide the score.
const SCORED: [&str; 2] = ["cpu", "memory"];

impl Room {
    /// Returns the resources of a node; `None` if it is not initialized.
    fn of(snapshot: &Snapshot, node: &str) -> Option<Self> {
        let state = snapshot.node(node)?;
        if state.node.is_none() || !state.is_initialized() {
            return None;
        }
        let allocatable = state.allocatable();
        let used = snapshot.node_pods(state.name());
        let used = used.map(|pods| pods.requests());
        let total = SCORED.map(|resource| allocatable.get(resource));
        let used = |resource: &str| used.map_or(0, |used| used.get(resource));
        let free = |at: usize| total[at].saturating_sub(used(SCORED[at]));
        Some(Self {
            total,
            free: [free(0), free(1)],
        })
    }

    /// Returns the score for a pod that requests `scored` of cpu and memory, larger is better; `None` if these do not fit.
    fn score(&self, scored: [i64; 2]) -> Option<i64> {
        if scored[0] > self.free[0] || scored[1] > self.free[1] {
            return None;
        }
        let share = |at: usize| match self.total[at] {
            total if total > 0 => {
                let left = self.free[at].saturating_sub(scored[at]);
                left.max(0).saturating_mul(WHOLE) / total
            }
            _ => 0,
        };
        Some(share(0) + share(1))
    }
}

impl Bindings {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut seen = FxHashSet::default();
        let shapes = snapshot.pods().map(|pod| &pod.shape);
        let shapes = shapes.filter(|shape| seen.insert(Arc::as_ptr(shape)));
        let terms = shapes.flat_map(|shape| &shape.required_anti_affinity);
        Self {
            keep_away: terms.cloned().collect(),
            touched: snapshot
                .nodes()
                .map(|node| node.name().to_owned())
                .collect(),
            ..Self::default()
        }
    }

    /// Notes a pod that is new.
    pub(super) fn add(&mut self, pod: &Pod) {
        for term in &pod.shape.required_anti_affinity {
            if !self.keep_away.contains(term) {
                self.keep_away.push(term.clone());
            }
        }
    }

    /// Reports whether the place of such a pod depends on the node alone.
    fn is_free(&self, shape: &Shape) -> bool {
        let on_others = !shape.required_affinity.is_empty()
            || !shape.required_anti_affinity.is_empty()
            || !shape.preferred_affinity.is_empty()
            || !shape.preferred_anti_affinity.is_empty()
            || !shape.spread.is_empty();
        let more = !shape.preferred_nodes.is_empty()
            || !shape.volumes.is_empty()
            || !shape.resource_claims.is_empty()
            || shape.problem.is_some();
        let is_kept_away = |term: &AffinityTerm| {
            (term.namespace_selector.is_some() || term.namespaces.contains(&shape.namespace))
                && term.selector.matches(&shape.labels)
        };
        !on_others && !more && !self.keep_away.iter().any(is_kept_away)
    }

    /// Notes that the pods or the state of a node may have changed.
    pub(super) fn touch(&mut self, node: &str) {
        if !self.touched.contains(node) {
            self.touched.insert(node.to_owned());
        }
    }

    /// Reads the nodes that may have changed.
    fn refresh(&mut self, snapshot: &Snapshot) {
        for node in std::mem::take(&mut self.touched) {
            match Room::of(snapshot, &node) {
                Some(room) => self.rooms.insert(node, room),
                None => self.rooms.remove(&node),
            };
        }
    }
}

impl Stepper {
    /// Lets kube-scheduler try a new pod, once all that happens at this time has happened.
    pub(super) fn arrive(&mut self, namespace: &str, name: &str) {
        if self.bindings.arrived.is_empty() {
            self.queue.add(self.now, Event::Bind);
        }
        let key = (namespace.to_owned(), name.to_owned());
        self.bindings.arrived.push(key);
    }

    /// Binds new pods. Each workload's controller creates its pods together, so those of one workload follow each other.
    pub(super) fn bind_arrived(&mut self) {
        let arrived = std::mem::take(&mut self.bindings.arrived);
        let snapshot = self.cluster.snapshot();
        let mut first: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let mut in_order = Vec::new();
        for (index, (namespace, name)) in arrived.iter().enumerate() {
            let pod = snapshot.pod(namespace, name);
            let owner = pod.and_then(|pod| pod.shape.controller.as_ref());
            let owner = owner.map_or(name.as_str(), |owner| owner.name.as_str());
            in_order.push(*first.entry((namespace, owner)).or_insert(index));
        }
        let mut arrived: Vec<_> = in_order.into_iter().zip(&arrived).collect();
        arrived.sort_by_key(|(first, _)| *first);
        let keys: Vec<_> = arrived.into_iter().map(|(_, key)| key.clone()).collect();
        self.bind_with_room(&keys);
        // Only a pod for which kube-scheduler finds no node makes Karpenter plan.
        for (namespace, name) in &keys {
            let snapshot = self.cluster.snapshot();
            if snapshot
                .pod(namespace, name)
                .is_some_and(|pod| is_waiting(pod))
            {
                self.trigger(name);
            }
        }
    }

    /// Binds those of these pending pods that have room on existing nodes.
    pub(super) fn bind_with_room(&mut self, keys: &[(String, String)]) {
        let snapshot = self.cluster.snapshot();
        let pods = keys
            .iter()
            .filter_map(|(namespace, name)| snapshot.pod(namespace, name));
        let pods: Vec<&Arc<Pod>> = pods
            .filter(|pod| !pod.gated && pod.scheduler_name.is_none())
            .collect();
        for alike in pods.chunk_by(|a, b| a.shape == b.shape) {
            if let [first, ..] = alike
                && self.bindings.is_free(&first.shape)
            {
                self.bind_alike(&first.shape, alike);
            }
        }
    }

    fn bind_alike(&mut self, shape: &Shape, pods: &[&Arc<Pod>]) {
        self.bindings.refresh(&self.cluster.snapshot());
        let scored = SCORED.map(|resource| shape.requests.get(resource));
        // Restored at the end: meanwhile, bindings only note which nodes they touch.
        let rooms = std::mem::take(&mut self.bindings.rooms);
        let mut nodes: BinaryHeap<(i64, Reverse<&str>)> = rooms
            .iter()
            .filter_map(|(node, room)| Some((room.score(scored)?, Reverse(node.as_str()))))
            .collect();
        for pod in pods {
            while let Some((_, Reverse(name))) = nodes.pop() {
                let snapshot = self.cluster.snapshot();
                let Some(node) = snapshot.node(name) else {
                    continue;
                };
                // Nodes that do not take the pod do not take the next one like it either.
                if !takes(&snapshot, node, pod) {
                    continue;
                }
                self.bind(&pod.key.namespace, &pod.key.name, name);
                let room = Room::of(&self.cluster.snapshot(), name);
                let score = room.and_then(|room| room.score(scored));
                nodes.extend(score.map(|score| (score, Reverse(name))));
                break;
            }
        }
        self.bindings.rooms = rooms;
    }
}
