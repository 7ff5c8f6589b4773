//! The scheduler's decisions: the next pending pod, and its node or the reason why there is none.
//!
//! No I/O and no clock. `apply_*` and `remove_*` update the state, [`Engine::next`] returns decisions.
//!
//! 1. Pods of equal [`Shape`] form a class; a class keeps its pending pods in order of priority and age.
//! 2. A class whose feasibility depends on the node alone keeps its candidate nodes in a heap by score. A log of changed nodes
//!    shows which entries are stale, so a placement takes O(changed nodes + log nodes), not O(nodes).
//! 3. A class that depends on other pods or volumes scans the nodes, with counters by topology domain.
//! 4. A rejection applies to the whole class until a change could help; only then is one pod tried again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, PodSpec};
use rustc_hash::{FxHashMap, FxHashSet};

use super::counters::{AntiGroup, Counters, Namespaces};
use super::node::{NodeFacts, NodeInfo, Scoring};
use super::shape::{PodTerm, Resources, Shape};
use super::volumes::{ClaimBinding, VolumeCatalog};
use crate::selector::Labels;

/// A pod's UID.
pub(crate) type Uid = Arc<str>;
type ClassId = usize;
/// Higher priority first, then older first.
type Order = (Reverse<i32>, u64);

/// The next action.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decision {
    /// Bind the pod; the engine already counts it on the node.
    Bind {
        uid: Uid,
        node: Arc<str>,
        claims: Vec<ClaimBinding>,
    },
    /// Report to these pods, all of one class, why they stay pending.
    Refuse { uids: Vec<Uid>, message: Arc<str> },
}

/// A pod in the engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PodInput<'a> {
    pub(crate) uid: &'a str,
    pub(crate) name: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) labels: &'a Labels,
    pub(crate) spec: &'a Arc<PodSpec>,
    pub(crate) node: Option<&'a str>,
    pub(crate) terminating: bool,
    pub(crate) nominated: Option<&'a str>,
    /// The message of its `PodScheduled=False` condition.
    pub(crate) message: Option<&'a str>,
    /// Whether this scheduler places it (its scheduler name, no gates).
    pub(crate) ours: bool,
}

/// A spec and its shape.
type ReadShape = (Arc<PodSpec>, Arc<Shape>);

#[derive(Debug)]
struct PodEntry {
    shape: Arc<Shape>,
    /// The node it is bound or being bound to.
    node: Option<Arc<str>>,
    assumed: bool,
    claims: Vec<ClaimBinding>,
    volumes: Vec<(String, String)>,
    terminating: bool,
    pending: Option<(ClassId, Order)>,
    nominated: Option<String>,
    message: Option<Arc<str>>,
    reported_at: Option<Timestamp>,
}

#[derive(Debug)]
struct Refusal {
    message: Arc<str>,
    generation: (u64, u64),
    attempts: u32,
    retry_at: Timestamp,
    /// When pods with a recent older message may get this one.
    report_again_at: Option<Timestamp>,
}

#[derive(Debug)]
struct Class {
    shape: Arc<Shape>,
    pending: BTreeMap<Order, Uid>,
    /// The position of the class in the active queue.
    queued: Option<Order>,
    /// Pods that were added after the rejection and have no message yet.
    unreported: Vec<Uid>,
    heap: BinaryHeap<(i64, Reverse<usize>, u32)>,
    /// Position in the change log up to which `heap` is current.
    seen: Option<u64>,
    refusal: Option<Refusal>,
    counters: Option<(u64, Counters)>,
    /// Per node: the version of the node's facts and whether they admit the class.
    allowed: Vec<(u32, bool)>,
}

/// The scheduler's state.
#[derive(Debug)]
pub(crate) struct Engine {
    scoring: Scoring,
    resources: Resources,
    nodes: Vec<NodeInfo>,
    by_name: FxHashMap<Arc<str>, usize>,
    live_nodes: usize,
    pods: FxHashMap<Uid, PodEntry>,
    /// Bound pods whose node is unknown.
    homeless: FxHashMap<Arc<str>, FxHashSet<Uid>>,
    /// Shapes by the address of the spec they were computed from.
    shapes: FxHashMap<usize, Vec<ReadShape>>,
    classes: FxHashMap<ClassId, Class>,
    class_of: FxHashMap<Arc<Shape>, ClassId>,
    next_class: ClassId,
    active: BTreeSet<(Order, ClassId)>,
    parked: FxHashSet<ClassId>,
    /// Classes with counters.
    counting: FxHashSet<ClassId>,
    anti_groups: FxHashMap<PodTerm, AntiGroup>,
    namespaces: Namespaces,
    volumes: VolumeCatalog,
    /// Nodes that changed, oldest first; `log_start` entries were dropped before it.
    log: Vec<usize>,
    log_start: u64,
    next_order: u64,
    /// Counts changes that could help any pod.
    freed: u64,
    /// Counts placements, which could help pods with affinity.
    placed: u64,
    /// Counts changes after which counters must be rebuilt.
    topology: u64,
}

const LOG_LIMIT: usize = 1 << 16;

impl Engine {
    /// Returns an empty engine.
    pub(crate) fn new(scoring: Scoring) -> Self {
        Self {
            scoring,
            resources: Resources::default(),
            nodes: Vec::new(),
            by_name: FxHashMap::default(),
            live_nodes: 0,
            pods: FxHashMap::default(),
            homeless: FxHashMap::default(),
            shapes: FxHashMap::default(),
            classes: FxHashMap::default(),
            class_of: FxHashMap::default(),
            next_class: 0,
            active: BTreeSet::new(),
            parked: FxHashSet::default(),
            counting: FxHashSet::default(),
            anti_groups: FxHashMap::default(),
            namespaces: Namespaces::new(),
            volumes: VolumeCatalog::default(),
            log: Vec::new(),
            log_start: 0,
            next_order: 0,
            freed: 0,
            placed: 0,
            topology: 0,
        }
    }

    // ---- nodes -----------------------------------------------------------------------------------------------

    /// Updates a node. Heartbeats change nothing and are cheap.
    pub(crate) fn apply_node(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.as_deref() else {
            return;
        };
        let facts = NodeFacts::new(node, &mut self.resources);
        match self.by_name.get(name) {
            Some(&at) if self.nodes[at].live => {
                if self.nodes[at].facts == facts {
                    return;
                }
                if self.nodes[at].facts.labels != facts.labels {
                    self.relabel(at, facts);
                } else {
                    let info = &mut self.nodes[at];
                    info.facts = facts;
                    // Spread constraints may honor taints.
                    self.topology += 1;
                }
                let info = &mut self.nodes[at];
                info.facts_version += 1;
                info.version += 1;
                self.changed(at);
            }
            Some(&at) => {
                let info = &mut self.nodes[at];
                info.facts = facts;
                info.live = true;
                info.facts_version += 1;
                info.version += 1;
                self.live_nodes += 1;
                self.node_appeared(at);
            }
            None => {
                let name: Arc<str> = name.into();
                let at = self.nodes.len();
                self.by_name.insert(name.clone(), at);
                self.nodes.push(NodeInfo::new(name, facts));
                self.live_nodes += 1;
                self.node_appeared(at);
            }
        }
    }

    fn node_appeared(&mut self, at: usize) {
        self.topology += 1;
        let name = self.nodes[at].name.clone();
        for uid in self.homeless.remove(&name).unwrap_or_default() {
            self.account(&uid, 1);
        }
        self.changed(at);
    }

    fn relabel(&mut self, at: usize, facts: NodeFacts) {
        let uids: Vec<Uid> = self.nodes[at].pods.iter().cloned().collect();
        for uid in &uids {
            self.account(uid, -1);
        }
        self.nodes[at].facts = facts;
        self.topology += 1;
        for uid in &uids {
            self.account(uid, 1);
        }
    }

    /// Removes a node; its pods are kept in case it is created again.
    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(&at) = self.by_name.get(name) else {
            return;
        };
        if !self.nodes[at].live {
            return;
        }
        let uids: Vec<Uid> = self.nodes[at].pods.iter().cloned().collect();
        for uid in &uids {
            self.account(uid, -1);
        }
        let info = &mut self.nodes[at];
        info.live = false;
        info.version += 1;
        let name = info.name.clone();
        self.homeless.entry(name).or_default().extend(uids);
        self.live_nodes -= 1;
        self.topology += 1;
        self.changed(at);
    }

    /// Sets the attach limit and topology keys of a driver on a node (from its CSINode).
    pub(crate) fn set_driver(
        &mut self,
        node: &str,
        driver: &str,
        limit: Option<i64>,
        keys: Vec<String>,
    ) {
        self.volumes.set_csi_keys(node, driver, keys);
        if let (Some(&at), Some(limit)) = (self.by_name.get(node), limit) {
            let info = &mut self.nodes[at];
            info.volume_limits.insert(driver.to_owned(), limit);
            info.version += 1;
            self.changed(at);
        }
    }

    /// Changes the volume catalogue; all classes may then be tried again.
    pub(crate) fn volumes(&mut self) -> &mut VolumeCatalog {
        self.freed += 1;
        &mut self.volumes
    }

    /// Updates a namespace's labels.
    pub(crate) fn apply_namespace(&mut self, namespace: &Namespace) {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        if self.namespaces.get(&name) != Some(&labels) {
            self.namespaces.insert(name, labels);
            self.topology += 1;
            self.freed += 1;
        }
    }

    fn changed(&mut self, at: usize) {
        self.freed += 1;
        self.log_change(at);
    }

    fn log_change(&mut self, at: usize) {
        if self.log.len() >= LOG_LIMIT {
            self.log_start += self.log.len() as u64;
            self.log.clear();
        }
        self.log.push(at);
    }

    // ---- pods ------------------------------------------------------------------------------------------------

    fn shape(&mut self, pod: &PodInput<'_>) -> Arc<Shape> {
        // INVARIANT: the entry keeps its spec alive, so the address identifies it.
        let address = Arc::as_ptr(pod.spec) as usize;
        let ephemeral = pod
            .spec
            .volumes
            .iter()
            .flatten()
            .any(|v| v.ephemeral.is_some());
        if !ephemeral
            && let Some((_, shape)) = self
                .shapes
                .get(&address)
                .into_iter()
                .flatten()
                .find(|(_, s)| s.namespace == pod.namespace && s.labels == *pod.labels)
        {
            return shape.clone();
        }
        let shape = Shape::new(
            pod.name,
            pod.namespace,
            pod.labels,
            pod.spec,
            &mut self.resources,
        );
        let shape = match self.class_of.get_key_value(&shape) {
            Some((known, _)) => known.clone(),
            None => Arc::new(shape),
        };
        if Arc::strong_count(pod.spec) > 2 {
            if self.shapes.len() > 4096 {
                self.shapes.clear();
            }
            let known = self.shapes.entry(address).or_default();
            known.push((pod.spec.clone(), shape.clone()));
        }
        shape
    }

    /// Updates a pod that is not terminal.
    pub(crate) fn apply_pod(&mut self, pod: &PodInput<'_>) {
        let uid: Uid = pod.uid.into();
        if let Some(entry) = self.pods.get_mut(&uid) {
            // A stale state of a pod that is being bound has no new information.
            if entry.assumed && pod.node.is_none() && !pod.terminating {
                return;
            }
            let same_node = entry.node.as_deref() == pod.node;
            if same_node && entry.shape.labels == *pod.labels && entry.node.is_some() {
                entry.assumed = false;
                if entry.terminating != pod.terminating {
                    entry.terminating = pod.terminating;
                    self.count_spread_of(&uid, -1);
                }
                return;
            }
            if same_node
                && entry.node.is_none()
                && pod.ours
                && entry.pending.is_some()
                && !pod.terminating
            {
                entry.nominated = pod.nominated.map(str::to_owned);
                if entry.message.as_deref() != pod.message && pod.message.is_some() {
                    entry.message = pod.message.map(Arc::from);
                }
                if entry.shape.labels == *pod.labels {
                    return;
                }
            }
            self.remove_pod(pod.uid);
        }
        let shape = self.shape(pod);
        let entry = PodEntry {
            shape: shape.clone(),
            node: pod.node.map(Arc::from),
            assumed: false,
            claims: Vec::new(),
            volumes: Vec::new(),
            terminating: pod.terminating,
            pending: None,
            nominated: pod.nominated.map(str::to_owned),
            message: pod.message.map(Arc::from),
            reported_at: None,
        };
        self.pods.insert(uid.clone(), entry);
        if pod.node.is_some() {
            self.mount(&uid);
            self.account(&uid, 1);
            self.placed += 1;
        } else if pod.ours && !pod.terminating {
            self.enqueue(&uid, shape);
        }
    }

    fn mount(&mut self, uid: &Uid) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        if !entry.shape.claims.is_empty()
            && let Ok(needs) = self.volumes.needs(&entry.shape)
        {
            entry.volumes = self.volumes.attachments(&needs);
        }
    }

    fn enqueue(&mut self, uid: &Uid, shape: Arc<Shape>) {
        let class_id = match self.class_of.get(&shape) {
            Some(id) => *id,
            None => {
                let id = self.next_class;
                self.next_class += 1;
                self.class_of.insert(shape.clone(), id);
                let class = Class {
                    shape: shape.clone(),
                    pending: BTreeMap::new(),
                    queued: None,
                    unreported: Vec::new(),
                    heap: BinaryHeap::new(),
                    seen: None,
                    refusal: None,
                    counters: None,
                    allowed: Vec::new(),
                };
                self.classes.insert(id, class);
                id
            }
        };
        let order = (Reverse(shape.priority), self.next_order);
        self.next_order += 1;
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.pending = Some((class_id, order));
        }
        if let Some(class) = self.classes.get_mut(&class_id) {
            class.pending.insert(order, uid.clone());
            if class.refusal.is_some() {
                class.unreported.push(uid.clone());
            }
        }
        self.parked.remove(&class_id);
        self.activate(class_id);
    }

    fn activate(&mut self, class_id: ClassId) {
        if let Some(class) = self.classes.get_mut(&class_id) {
            let first = class.pending.first_key_value().map(|(order, _)| *order);
            if let Some(old) = class.queued.take() {
                self.active.remove(&(old, class_id));
            }
            if let Some(order) = first {
                class.queued = Some(order);
                self.active.insert((order, class_id));
            }
        }
    }

    /// Removes a pod that is deleted or terminal.
    pub(crate) fn remove_pod(&mut self, uid: &str) {
        let Some((uid, entry)) = self.pods.get_key_value(uid) else {
            return;
        };
        let uid = uid.clone();
        if let Some((class_id, order)) = entry.pending {
            self.dequeue(class_id, order);
        }
        if self.pods.get(&uid).is_some_and(|e| e.node.is_some()) {
            self.account(&uid, -1);
            self.freed += 1;
        }
        if let Some(entry) = self.pods.remove(&uid)
            && entry.assumed
        {
            self.volumes.forget(&entry.claims);
        }
    }

    fn dequeue(&mut self, class_id: ClassId, order: Order) {
        let Some(class) = self.classes.get_mut(&class_id) else {
            return;
        };
        class.pending.remove(&order);
        if class.pending.is_empty() {
            let shape = class.shape.clone();
            if let Some(old) = class.queued {
                self.active.remove(&(old, class_id));
            }
            self.classes.remove(&class_id);
            self.counting.remove(&class_id);
            self.class_of.remove(&shape);
            self.parked.remove(&class_id);
        } else if !self.parked.contains(&class_id) {
            self.activate(class_id);
        }
    }

    /// Makes the pod pending again after a failed binding.
    pub(crate) fn bind_failed(&mut self, uid: &str) {
        let Some((uid, entry)) = self.pods.get_key_value(uid) else {
            return;
        };
        if !entry.assumed {
            return;
        }
        let uid = uid.clone();
        self.account(&uid, -1);
        self.freed += 1;
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        entry.assumed = false;
        entry.node = None;
        entry.volumes.clear();
        let claims = std::mem::take(&mut entry.claims);
        let shape = entry.shape.clone();
        self.volumes.forget(&claims);
        self.enqueue(&uid, shape);
    }

    /// Reports to the pod again after its condition could not be written.
    pub(crate) fn tell_failed(&mut self, uid: &str) {
        let Some((uid, entry)) = self.pods.get_key_value(uid) else {
            return;
        };
        let (uid, pending) = (uid.clone(), entry.pending);
        if let Some(entry) = self.pods.get_mut(&uid) {
            entry.message = None;
        }
        if let Some((id, _)) = pending
            && let Some(class) = self.classes.get_mut(&id)
        {
            class.unreported.push(uid);
            self.parked.remove(&id);
            self.activate(id);
        }
    }

    /// Adds (1) or removes (-1) a bound pod in all counters.
    fn account(&mut self, uid: &Uid, delta: i64) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let Some(name) = entry.node.clone() else {
            return;
        };
        let Some(&at) = self.by_name.get(&name).filter(|at| self.nodes[**at].live) else {
            let homeless = self.homeless.entry(name.clone()).or_default();
            if delta > 0 {
                homeless.insert(uid.clone());
            } else {
                homeless.remove(uid);
                if homeless.is_empty() {
                    self.homeless.remove(&name);
                }
            }
            return;
        };
        if delta > 0 {
            self.nodes[at].add(uid, &entry.shape, &entry.volumes);
        } else {
            self.nodes[at].remove(uid, &entry.shape, &entry.volumes);
        }
        let node = &self.nodes[at];
        for term in &entry.shape.anti_affinity {
            let group = self
                .anti_groups
                .entry(term.clone())
                .or_insert_with(|| AntiGroup::new(term.clone()));
            group.count(node, delta);
            if group.is_empty() {
                self.anti_groups.remove(term);
            }
        }
        for id in &self.counting {
            if let Some(class) = self.classes.get_mut(id)
                && let Some((_, counters)) = class.counters.as_mut()
            {
                counters.count_affinity(&class.shape, &entry.shape, node, &self.namespaces, delta);
                if !entry.terminating {
                    counters.count_spread(&class.shape, &entry.shape, node, delta);
                }
            }
        }
        self.log_change(at);
    }

    fn count_spread_of(&mut self, uid: &Uid, delta: i64) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let Some(&at) = entry.node.as_ref().and_then(|n| self.by_name.get(n)) else {
            return;
        };
        for id in &self.counting {
            if let Some(class) = self.classes.get_mut(id)
                && let Some((_, counters)) = class.counters.as_mut()
            {
                counters.count_spread(&class.shape, &entry.shape, &self.nodes[at], delta);
            }
        }
        self.freed += 1;
    }

    /// Returns the number of pending pods.
    #[cfg(test)]
    pub(crate) fn pending(&self) -> usize {
        self.classes.values().map(|c| c.pending.len()).sum()
    }
}

mod decisions;

#[cfg(test)]
mod tests;
