//! The scheduler's decisions: the next pending pod, and its node or the reason why there is none.
//!
//! No I/O and no clock. `apply_*` and `remove_*` update the state, [`Engine::next`] returns decisions.
//!
//! 1. Pods of equal [`Shape`] form a class; a class keeps its pending pods in order of priority and age.
//! 2. For the next pod all nodes are filtered and scored. Other pods are counted by topology domain, for each class that needs it.
//! 3. A rejection applies to the whole class until a change could help; only then is one pod tried again.

mod counts;
mod decisions;
mod nodes;
mod pods;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, PodSpec};
use rustc_hash::{FxHashMap, FxHashSet};

use super::counters::{AntiGroup, Counters, Namespaces};
use super::node::NodeInfo;
use super::shape::{PodTerm, Resources, Shape};
use super::volumes::{ClaimBinding, VolumeCatalog};
use crate::selector::Labels;

pub(crate) type Uid = Arc<str>;

type ClassId = usize;

/// Higher priority first, then older first.
type Order = (Reverse<i32>, u64);

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
    pub(crate) spec: &'a PodSpec,
    pub(crate) node: Option<&'a str>,
    pub(crate) terminating: bool,
    pub(crate) nominated: Option<&'a str>,
    /// The message of its `PodScheduled=False` condition.
    pub(crate) message: Option<&'a str>,
    /// Whether this scheduler places it (its scheduler name, no gates).
    pub(crate) ours: bool,
}

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
    refusal: Option<Refusal>,
    counters: Option<(u64, Counters)>,
}

#[derive(Debug)]
pub(crate) struct Engine {
    resources: Resources,
    nodes: Vec<NodeInfo>,
    by_name: FxHashMap<Arc<str>, usize>,
    live_nodes: usize,
    pods: FxHashMap<Uid, PodEntry>,
    shapes: FxHashSet<Arc<Shape>>,
    classes: FxHashMap<ClassId, Class>,
    class_of: FxHashMap<Arc<Shape>, ClassId>,
    next_class: ClassId,
    active: BTreeSet<(Order, ClassId)>,
    parked: FxHashSet<ClassId>,
    counting: FxHashSet<ClassId>,
    anti_groups: FxHashMap<PodTerm, AntiGroup>,
    namespaces: Namespaces,
    volumes: VolumeCatalog,
    /// Nodes that changed or lost a pod since the last [`Engine::wake`].
    changed: FxHashSet<usize>,
    next_order: u64,
    /// Counts changes that could help any pod.
    freed: u64,
    /// Counts placements, which could help pods with affinity.
    placed: u64,
    /// Counts changes after which counters must be rebuilt.
    topology: u64,
}

impl Engine {
    pub(crate) fn new() -> Self {
        Self {
            resources: Resources::default(),
            nodes: Vec::new(),
            by_name: FxHashMap::default(),
            live_nodes: 0,
            pods: FxHashMap::default(),
            shapes: FxHashSet::default(),
            classes: FxHashMap::default(),
            class_of: FxHashMap::default(),
            next_class: 0,
            active: BTreeSet::new(),
            parked: FxHashSet::default(),
            counting: FxHashSet::default(),
            anti_groups: FxHashMap::default(),
            namespaces: Namespaces::new(),
            volumes: VolumeCatalog::default(),
            changed: FxHashSet::default(),
            next_order: 0,
            freed: 0,
            placed: 0,
            topology: 0,
        }
    }

    /// Changes the volume catalogue; all classes may then be tried again.
    pub(crate) fn volumes(&mut self) -> &mut VolumeCatalog {
        self.freed += 1;
        &mut self.volumes
    }

    pub(crate) fn apply_namespace(&mut self, namespace: &Namespace) {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        if self.namespaces.get(&name) != Some(&labels) {
            self.namespaces.insert(name, labels);
            self.topology += 1;
            self.freed += 1;
        }
    }
}
