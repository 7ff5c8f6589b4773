//! The scheduler's decisions: the next pending pod, and its node or the reason why there is none.
//!
//! No I/O and no clock. `apply_*` and `remove_*` update the state, [`Engine::next`] returns decisions.
//!
//! 1. Pods of equal [`Shape`] form a class; a class keeps its pending pods in order of age.
//! 2. For the next pod all nodes are filtered and scored, and other pods are counted by topology domain.
//! 3. A rejection applies to the whole class until a change could help; only then is one pod tried again.

mod decisions;
mod pods;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, PodSpec};
use rustc_hash::FxHashMap;

use super::counters::Namespaces;
use super::node::{NodeFacts, NodeInfo};
use super::shape::Shape;
use super::volumes::{ClaimBinding, VolumeCatalog};
use crate::selector::Labels;

pub(crate) type Uid = Arc<str>;

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
    /// The claims bound with it, until the API server confirms its binding.
    assumed: Option<Vec<ClaimBinding>>,
    volumes: Vec<(String, String)>,
    terminating: bool,
    /// Its number in the class of its shape, while it is pending.
    pending: Option<u64>,
    nominated: Option<String>,
    message: Option<Arc<str>>,
    reported_at: Option<Timestamp>,
}

#[derive(Debug)]
struct Refusal {
    generation: (u64, u64),
    /// When pods with a recent older message may get the present one.
    report_again_at: Option<Timestamp>,
}

/// The pending pods of one shape; never empty.
#[derive(Debug, Default)]
struct Class {
    pending: BTreeMap<u64, Uid>,
    refusal: Option<Refusal>,
}

#[derive(Debug, Default)]
pub(crate) struct Engine {
    nodes: FxHashMap<Arc<str>, NodeInfo>,
    pods: FxHashMap<Uid, PodEntry>,
    classes: FxHashMap<Arc<Shape>, Class>,
    namespaces: Namespaces,
    volumes: VolumeCatalog,
    last_number: u64,
    /// Counts changes that could help any pod.
    freed: u64,
    /// Counts placements, which could help pods with affinity.
    placed: u64,
}

impl Engine {
    /// Returns the next number for a pod or node: a larger one is younger.
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
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
            self.freed += 1;
        }
    }

    /// Updates a node. Heartbeats change nothing.
    pub(crate) fn apply_node(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.as_deref() else {
            return;
        };
        let facts = NodeFacts::new(node);
        match self.nodes.get_mut(name) {
            Some(known) if known.facts == facts => return,
            Some(known) => known.facts = facts,
            None => {
                let mut added = NodeInfo::new(name.into(), facts, self.number());
                for pod in self.pods.values() {
                    if pod.node.as_deref() == Some(name) {
                        added.add(&pod.shape, &pod.volumes);
                    }
                }
                self.nodes.insert(name.into(), added);
            }
        }
        self.freed += 1;
    }

    /// Removes a node; its pods are kept in case it is created again.
    pub(crate) fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.freed += 1;
    }
}
