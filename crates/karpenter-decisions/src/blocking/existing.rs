//! Why existing nodes do not take a pod, counted.

use std::collections::BTreeMap;

use karpenter_api::labels;
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::pod::{HostPort, LabelExpr, Pod};
use serde::Serialize;

/// Existing nodes by the first test that a pod fails on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Existing {
    /// Number of nodes examined.
    pub looked: usize,
    /// Nodes by test: `Deleting`, `Taint`, `NodeSelector`, `InsufficientResources/<resource>`, `HostPort`; `Other` stands for topology,
    /// volumes and devices.
    pub reasons: BTreeMap<String, usize>,
}

/// The first test that a pod fails on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Failure<'p> {
    Deleting,
    Taint,
    NodeSelector,
    Insufficient(&'p str),
    HostPort,
    Other,
}

impl Failure<'_> {
    fn name(self) -> String {
        match self {
            Self::Deleting => "Deleting".to_owned(),
            Self::Taint => "Taint".to_owned(),
            Self::NodeSelector => "NodeSelector".to_owned(),
            Self::Insufficient(resource) => format!("InsufficientResources/{resource}"),
            Self::HostPort => "HostPort".to_owned(),
            Self::Other => "Other".to_owned(),
        }
    }
}

/// Counts the nodes of a cluster by why they do not take a pod.
pub(super) fn existing(snapshot: &Snapshot, pod: &Pod) -> Existing {
    let mut counts: BTreeMap<Failure<'_>, usize> = BTreeMap::new();
    for node in snapshot.nodes() {
        *counts
            .entry(first_failure(snapshot, node, pod))
            .or_default() += 1;
    }
    Existing {
        looked: counts.values().sum(),
        reasons: counts
            .into_iter()
            .map(|(failure, count)| (failure.name(), count))
            .collect(),
    }
}

/// Reports whether a node takes a pod, as far as topology, volumes and devices allow it.
pub(crate) fn takes(snapshot: &Snapshot, node: &NodeState, pod: &Pod) -> bool {
    first_failure(snapshot, node, pod) == Failure::Other
}

fn first_failure<'p>(snapshot: &Snapshot, node: &NodeState, pod: &'p Pod) -> Failure<'p> {
    let shape = &pod.shape;
    if node.is_deleting() {
        return Failure::Deleting;
    }
    if karpenter_core::taints::untolerated(&node.taints(), &shape.tolerations).is_some() {
        return Failure::Taint;
    }
    let label = |key: &str| match key {
        labels::HOSTNAME => Some(node.hostname()),
        _ => node.labels().get(key),
    };
    let selected = shape
        .node_selector
        .iter()
        .all(|(key, value)| label(key) == Some(value));
    let meets = |expression: &LabelExpr| meets(expression, label(&expression.key));
    let of_terms = shape.required_nodes.is_empty()
        || shape
            .required_nodes
            .iter()
            .any(|term| !term.expressions.is_empty() && term.expressions.iter().all(meets));
    if !selected || !of_terms {
        return Failure::NodeSelector;
    }
    let used = snapshot.node_pods(node.name()).map(|pods| pods.requests());
    let allocatable = node.allocatable();
    let free = |name: &str| {
        let used = used.map_or(0, |used| used.get(name));
        allocatable.get(name).saturating_sub(used)
    };
    let mut requests = shape.requests.iter();
    if let Some((resource, _)) = requests.find(|(name, amount)| *amount > free(name)) {
        return Failure::Insufficient(resource);
    }
    let taken = |port: &HostPort| {
        let others = snapshot.pods_on(node.name()).iter();
        others
            .flat_map(|other| &other.shape.host_ports)
            .any(|other| other.conflicts(port))
    };
    if shape.host_ports.iter().any(taken) {
        return Failure::HostPort;
    }
    Failure::Other
}

fn meets(expression: &LabelExpr, value: Option<&str>) -> bool {
    let listed = |value: &str| expression.values.iter().any(|other| other == value);
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = || Some((number(value?)?, number(expression.values.first()?)?));
    match expression.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => bound().is_some_and(|(value, bound)| value > bound),
        "Lt" => bound().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}
