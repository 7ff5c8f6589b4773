//! Why existing nodes do not take a pod, counted.

use std::collections::BTreeMap;

use karpenter_api::labels;
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::pod::{HostPort, LabelExpr, Pod};
use serde::Serialize;

/// Existing nodes by the first test that a pod fails on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Existing {
    /// Nodes that were looked at.
    pub looked: usize,
    /// Nodes by test: `Deleting`, `Taint`, `NodeSelector`, `InsufficientResources/<resource>`, `HostPort`; `Other` stands for topology,
    /// volumes and devices.
    pub reasons: BTreeMap<String, usize>,
}

/// Counts the nodes of a cluster by why they do not take a pod.
pub(super) fn existing(snapshot: &Snapshot, pod: &Pod) -> Existing {
    let mut found = Existing::default();
    for node in snapshot.nodes() {
        found.looked += 1;
        *found
            .reasons
            .entry(first_failure(snapshot, node, pod))
            .or_default() += 1;
    }
    found
}

fn first_failure(snapshot: &Snapshot, node: &NodeState, pod: &Pod) -> String {
    let shape = &pod.shape;
    if node.is_deleting() {
        return "Deleting".to_owned();
    }
    if karpenter_core::taints::untolerated(&node.taints(), &shape.tolerations).is_some() {
        return "Taint".to_owned();
    }
    let label = |key: &str| match key {
        labels::HOSTNAME => Some(node.hostname()),
        _ => node.labels().get(key).map(String::as_str),
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
        return "NodeSelector".to_owned();
    }
    let used = snapshot
        .node_pods(node.name())
        .map(|pods| pods.requests().clone());
    let available = node.allocatable().saturating_sub(&used.unwrap_or_default());
    if let Some((resource, _)) = shape
        .requests
        .iter()
        .find(|(name, amount)| *amount > available.get(name))
    {
        return format!("InsufficientResources/{resource}");
    }
    let taken = |port: &HostPort| {
        let others = snapshot.pods_on(node.name()).iter();
        others
            .flat_map(|other| &other.shape.host_ports)
            .any(|other| other.conflicts(port))
    };
    if shape.host_ports.iter().any(taken) {
        return "HostPort".to_owned();
    }
    "Other".to_owned()
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
