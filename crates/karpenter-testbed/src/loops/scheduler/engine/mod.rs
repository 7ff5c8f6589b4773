//! The scheduler's decisions: for each pending pod its node, or the reason why there is none.
//!
//! No I/O and no clock. `set_*` and `remove_*` update the state, [`Engine::pass`] returns decisions.
//!
//! 1. A pass takes the pending pods by priority, then by age.
//! 2. For each pod all nodes are filtered and scored, and other pods are counted by topology domain.
//! 3. A rejection applies to all pods of equal [`Shape`]; there is another pass only once a change could help.

mod place;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, PodSpec};
use rustc_hash::FxHashMap;

use super::counters::Namespaces;
use super::node::{NodeFacts, NodeInfo};
use super::shape::Shape;
use super::volumes::{ClaimBinding, VolumeCatalog};
use crate::loops::cache::Key;
use crate::selector::Labels;

pub(crate) type Uid = Arc<str>;
type Nodes = BTreeMap<Arc<str>, NodeInfo>;

/// The shortest time between two different messages of a pod.
const REPORT_PERIOD: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decision {
    /// Bind the pod; the engine already counts it on the node.
    Bind {
        uid: Uid,
        pod: Key,
        node: Arc<str>,
        claims: Vec<ClaimBinding>,
    },
    /// Report to the pod why it stays pending.
    Refuse { pod: Key, message: Arc<str> },
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
    key: Key,
    shape: Arc<Shape>,
    /// The node it is bound or being bound to.
    node: Option<Arc<str>>,
    /// The claims bound with it, until the API server confirms its binding.
    assumed: Option<Vec<ClaimBinding>>,
    terminating: bool,
    /// Its number among the pending pods, while it is one: a larger one is younger.
    pending: Option<u64>,
    nominated: Option<String>,
    message: Option<Arc<str>>,
    reported_at: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub(crate) struct Engine {
    /// Nodes with their numbers: a larger one is younger.
    nodes: FxHashMap<Arc<str>, (Arc<NodeFacts>, u64)>,
    pods: FxHashMap<Uid, PodEntry>,
    namespaces: Namespaces,
    volumes: VolumeCatalog,
    last_number: u64,
    /// Whether something has changed since the last pass that could help a pod.
    changed: bool,
    /// When a pod with a recent message may get the present one.
    report_again_at: Option<Timestamp>,
}

impl Engine {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Changes the volume catalogue.
    pub(crate) fn volumes(&mut self) -> &mut VolumeCatalog {
        self.changed = true;
        &mut self.volumes
    }

    pub(crate) fn set_namespace(&mut self, namespace: &Namespace) {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        let known = self.namespaces.insert(name, labels.clone());
        self.changed |= known != Some(labels);
    }

    /// Updates or removes a node. Heartbeats change nothing.
    pub(crate) fn set_node(&mut self, name: &str, node: Option<&Node>) {
        let facts = node.map(|node| Arc::new(NodeFacts::new(node)));
        let known = self.nodes.get(name);
        if known.map(|(facts, _)| facts) == facts.as_ref() {
            return;
        }
        let number = known.map(|(_, number)| *number);
        match facts {
            Some(facts) => {
                let number = number.unwrap_or_else(|| self.number());
                self.nodes.insert(name.into(), (facts, number));
            }
            None => drop(self.nodes.remove(name)),
        }
        self.changed = true;
    }

    /// Updates a pod that is not terminal.
    pub(crate) fn set_pod(&mut self, pod: &PodInput<'_>) {
        if let Some(entry) = self.pods.get_mut(pod.uid) {
            // A stale state of a pod that is being bound has no new information.
            if entry.assumed.is_some() && pod.node.is_none() && !pod.terminating {
                return;
            }
            let same = entry.node.as_deref() == pod.node && entry.shape.labels == *pod.labels;
            if same && entry.node.is_some() {
                entry.assumed = None;
                self.changed |= entry.terminating != pod.terminating;
                entry.terminating = pod.terminating;
                return;
            }
            if same && entry.pending.is_some() && pod.ours && !pod.terminating {
                entry.nominated = pod.nominated.map(str::to_owned);
                if pod.message.is_some() {
                    entry.message = pod.message.map(Arc::from);
                }
                return;
            }
            self.remove_pod(pod.uid);
        }
        let is_pending = pod.node.is_none() && pod.ours && !pod.terminating;
        let shape = Shape::new(pod.name, pod.namespace, pod.labels, pod.spec);
        let entry = PodEntry {
            key: Key::new(pod.namespace, pod.name),
            shape: Arc::new(shape),
            node: pod.node.map(Arc::from),
            assumed: None,
            terminating: pod.terminating,
            pending: is_pending.then(|| self.number()),
            nominated: pod.nominated.map(str::to_owned),
            message: pod.message.map(Arc::from),
            reported_at: None,
        };
        self.pods.insert(pod.uid.into(), entry);
        self.changed = true;
    }

    /// Removes a pod that is deleted or terminal.
    pub(crate) fn remove_pod(&mut self, uid: &str) {
        if let Some(entry) = self.pods.remove(uid) {
            self.changed |= entry.node.is_some();
            self.volumes.forget(&entry.assumed.unwrap_or_default());
        }
    }

    /// Makes the pod pending again after a failed binding.
    pub(crate) fn bind_failed(&mut self, uid: &Uid) {
        let number = self.number();
        if let Some(entry) = self.pods.get_mut(uid)
            && let Some(claims) = entry.assumed.take()
        {
            self.volumes.forget(&claims);
            (entry.node, entry.pending) = (None, Some(number));
            self.changed = true;
        }
    }

    /// Reports to the pod again after its condition could not be written.
    pub(crate) fn report_failed(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.message = None;
            self.changed = true;
        }
    }

    /// Returns when to call [`Engine::pass`] at the latest, without a change.
    pub(crate) fn next_report(&self) -> Option<Timestamp> {
        self.report_again_at
    }

    /// Decides about the pending pods, if something has changed or is to be reported.
    pub(crate) fn pass(&mut self, now: Timestamp) -> Vec<Decision> {
        if !self.changed && self.report_again_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        (self.changed, self.report_again_at) = (false, None);
        let pending = self.pods.iter().filter_map(|(uid, pod)| {
            // Higher priority first, then older first.
            Some((Reverse(pod.shape.priority), pod.pending?, uid.clone()))
        });
        let mut pending: Vec<_> = pending.collect();
        if pending.is_empty() {
            return Vec::new();
        }
        pending.sort_unstable();
        let mut nodes = self.nodes_with_pods();
        let mut refused: FxHashMap<Arc<Shape>, Arc<str>> = FxHashMap::default();
        let mut decisions = Vec::new();
        for (.., uid) in pending {
            let Some(shape) = self.pods.get(&uid).map(|pod| Arc::clone(&pod.shape)) else {
                continue;
            };
            let place = match refused.get(&shape) {
                Some(message) => Err(Arc::clone(message)),
                None => self.place(&uid, &shape, &nodes),
            };
            match place {
                Ok((node, needs)) => {
                    let Some(there) = nodes.get_mut(&node) else {
                        continue;
                    };
                    let claims = self.volumes.bindings(&needs, there).unwrap_or_default();
                    there.add(&shape, &self.volumes.mounts(&needs));
                    decisions.extend(self.bind(uid, node, claims));
                    // Its place may help pods that count others.
                    refused.retain(|shape, _| shape.affinity.is_empty() && shape.spread.is_empty());
                }
                Err(message) => {
                    decisions.extend(self.refuse(&uid, &message, now));
                    refused.insert(shape, message);
                }
            }
        }
        decisions
    }

    /// Returns the nodes with the pods that are bound, or being bound, to them.
    fn nodes_with_pods(&self) -> Nodes {
        let nodes = self.nodes.iter().map(|(name, (facts, number))| {
            let node = NodeInfo::new(name.clone(), Arc::clone(facts), *number);
            (name.clone(), node)
        });
        let mut nodes: Nodes = nodes.collect();
        for pod in self.pods.values() {
            if let Some(node) = pod.node.as_ref().and_then(|name| nodes.get_mut(name)) {
                let needs = self.volumes.needs(&pod.shape).unwrap_or_default();
                node.add(&pod.shape, &self.volumes.mounts(&needs));
            }
        }
        nodes
    }

    fn bind(&mut self, uid: Uid, node: Arc<str>, claims: Vec<ClaimBinding>) -> Option<Decision> {
        self.volumes.assume(&claims);
        let entry = self.pods.get_mut(&uid)?;
        (entry.node, entry.pending) = (Some(node.clone()), None);
        entry.assumed = Some(claims.clone());
        Some(Decision::Bind {
            uid,
            pod: entry.key.clone(),
            node,
            claims,
        })
    }

    /// Rejects a pod, which is reported unless it knows, or has another message that is recent.
    fn refuse(&mut self, uid: &Uid, message: &Arc<str>, now: Timestamp) -> Option<Decision> {
        let entry = self.pods.get_mut(uid)?;
        if entry.message.as_ref() == Some(message) {
            return None;
        }
        let may_report_at = entry
            .reported_at
            .and_then(|at| at.checked_add(REPORT_PERIOD).ok())
            .filter(|at| entry.message.is_some() && *at > now);
        if let Some(at) = may_report_at {
            let earliest = self.report_again_at.map_or(at, |known| known.min(at));
            self.report_again_at = Some(earliest);
            return None;
        }
        (entry.message, entry.reported_at) = (Some(message.clone()), Some(now));
        Some(Decision::Refuse {
            pod: entry.key.clone(),
            message: message.clone(),
        })
    }
}
