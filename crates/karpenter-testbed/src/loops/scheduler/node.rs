//! The scheduler's state of a node, and the filters that need nothing else.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use rustc_hash::FxHashSet;

use super::reason::{Reason, insufficient};
use super::shape::{Amounts, HostPort, Shape};
use crate::quantity;
use crate::selector::Labels;

/// The part of a node that only changes with the Node object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeFacts {
    pub(crate) labels: Labels,
    taints: Vec<Taint>,
    /// `PreferNoSchedule` taints.
    soft_taints: Vec<Taint>,
    unschedulable: bool,
    allocatable: Amounts,
}

impl NodeFacts {
    pub(crate) fn new(node: &Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let (soft_taints, taints) = spec
            .taints
            .unwrap_or_default()
            .into_iter()
            .map(|t| Taint {
                time_added: None,
                ..t
            })
            .partition(|t| t.effect == "PreferNoSchedule");
        let status = node.status.as_ref();
        let allocatable = status.and_then(|s| s.allocatable.as_ref());
        let amount =
            |(name, quantity): (&String, _)| (name.clone(), quantity::amount(name, quantity));
        Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints,
            soft_taints,
            unschedulable: spec.unschedulable.unwrap_or(false),
            allocatable: allocatable.into_iter().flatten().map(amount).collect(),
        }
    }
}

/// A node with its pods.
#[derive(Debug)]
pub(crate) struct NodeInfo {
    pub(crate) name: Arc<str>,
    pub(crate) facts: Arc<NodeFacts>,
    /// Larger for younger nodes.
    pub(crate) number: u64,
    requested: Amounts,
    ports: Vec<HostPort>,
    /// Names of the mounted volumes.
    volumes: FxHashSet<String>,
}

impl NodeInfo {
    /// Returns a node without pods.
    pub(crate) fn new(name: Arc<str>, facts: Arc<NodeFacts>, number: u64) -> Self {
        Self {
            name,
            facts,
            number,
            requested: Amounts::new(),
            ports: Vec::new(),
            volumes: FxHashSet::default(),
        }
    }

    /// Adds a pod of this shape.
    pub(crate) fn add(&mut self, shape: &Shape, volumes: &[String]) {
        for (name, amount) in &shape.requests {
            let requested = self.requested.entry(name.clone()).or_default();
            *requested = requested.saturating_add(*amount);
        }
        self.ports.extend(shape.ports.iter().cloned());
        self.volumes.extend(volumes.iter().cloned());
    }

    /// Returns the first reason that depends on the Node object alone.
    pub(crate) fn refuses(&self, shape: &Shape) -> Option<Reason> {
        if self.facts.unschedulable && !tolerates(shape, &unschedulable_taint()) {
            return Some(Reason::Unschedulable);
        }
        if let Some(taint) = self.untolerated(shape) {
            return Some(Reason::Taint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
            });
        }
        (!shape.selects_node(&self.name, &self.facts.labels)).then_some(Reason::NodeAffinity)
    }

    /// Returns the first hard taint that the pod does not tolerate.
    pub(crate) fn untolerated(&self, shape: &Shape) -> Option<&Taint> {
        self.facts.taints.iter().find(|t| !tolerates(shape, t))
    }

    /// Whether one of the pod's host ports is in use.
    pub(crate) fn port_taken(&self, shape: &Shape) -> bool {
        shape
            .ports
            .iter()
            .any(|wanted| self.ports.iter().any(|p| p.conflicts(wanted)))
    }

    fn allocatable(&self, name: &str) -> i64 {
        self.facts.allocatable.get(name).copied().unwrap_or(0)
    }

    fn free(&self, name: &str) -> i64 {
        self.allocatable(name)
            .saturating_sub(self.requested.get(name).copied().unwrap_or(0))
    }

    /// Returns the insufficient resources.
    pub(crate) fn missing(&self, shape: &Shape) -> Vec<Reason> {
        shape
            .requests
            .iter()
            .filter(|(name, amount)| **amount > self.free(name))
            .map(|(name, amount)| insufficient(name, *amount > self.allocatable(name)))
            .collect()
    }

    /// Whether a pod on the node mounts this volume.
    pub(crate) fn mounts(&self, volume: &str) -> bool {
        self.volumes.contains(volume)
    }

    /// Returns the score of the node for the pod; larger is better.
    ///
    /// Utilization (weight 1), preferred node affinity (2) and `PreferNoSchedule` taints (3), each 0 to 1000. Unlike
    /// kube-scheduler's, the parts are not normalized over the feasible nodes: that would make the scores of nodes depend on each
    /// other.
    pub(crate) fn score(&self, shape: &Shape) -> i64 {
        let mut score = 0;
        for name in ["cpu", "memory"] {
            let total = self.allocatable(name);
            if total > 0 {
                let own = shape.requests.get(name).copied().unwrap_or(0);
                let left = self.free(name).saturating_sub(own).max(0);
                score += i64::try_from(i128::from(left) * 500 / i128::from(total)).unwrap_or(0);
            }
        }
        let total: i64 = shape
            .preferred_nodes
            .iter()
            .map(|(w, _)| i64::from(*w))
            .sum();
        if total > 0 {
            let liked: i64 = shape
                .preferred_nodes
                .iter()
                .filter(|(_, term)| term.matches(&self.name, &self.facts.labels))
                .map(|(w, _)| i64::from(*w))
                .sum();
            score += 2 * 1000 * liked / total;
        }
        let disliked = self
            .facts
            .soft_taints
            .iter()
            .filter(|t| !tolerates(shape, t))
            .count();
        score + 3 * (1000 - 250 * i64::try_from(disliked.min(4)).unwrap_or(4))
    }
}

fn tolerates(shape: &Shape, taint: &Taint) -> bool {
    shape.tolerations.iter().any(|t| t.tolerates(taint))
}

fn unschedulable_taint() -> Taint {
    Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    }
}
