//! Default spread constraints, for pods without constraints of their own.
//!
//! The selector comes from the Services that select the pod and from the pod's workload controller, as in kube-scheduler.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/topology.go (default constraints); k8s.io/kubernetes helper.DefaultSelector

use std::collections::BTreeMap;

use crate::cluster::{ControllerSelector, Snapshot};
use crate::pod::{LabelSelector, Owner, Shape, SpreadConstraint};
use crate::schedule::request::DefaultSpread;

/// Returns the spread constraints of a pod: its own, or the defaults.
pub(crate) fn spread_of(
    shape: &Shape,
    defaults: &[DefaultSpread],
    snapshot: &Snapshot,
) -> Vec<SpreadConstraint> {
    if !shape.spread.is_empty() || defaults.is_empty() {
        return shape.spread.clone();
    }
    let Some(selector) = selector(shape, snapshot) else {
        return Vec::new();
    };
    defaults
        .iter()
        .map(|default| SpreadConstraint {
            topology_key: default.topology_key.clone(),
            max_skew: default.max_skew,
            min_domains: default.min_domains,
            hard: default.hard,
            selector: selector.clone(),
            honor_affinity: default.honor_affinity,
            honor_taints: default.honor_taints,
        })
        .collect()
}

fn selector(shape: &Shape, snapshot: &Snapshot) -> Option<LabelSelector> {
    let mut labels: BTreeMap<String, String> = BTreeMap::new();
    for selector in snapshot.service_selectors(&shape.namespace) {
        if let Some(selector) = selector
            && selector
                .iter()
                .all(|(key, value)| shape.labels.get(key) == Some(value))
        {
            labels.extend(selector.clone());
        }
    }
    let mut further = None;
    let own_kind = |owner: &&Owner| {
        let version = match owner.kind.as_str() {
            "ReplicationController" => "v1",
            _ => "apps/v1",
        };
        owner.api_version == version
    };
    if let Some(owner) = shape.controller.as_ref().filter(own_kind) {
        match snapshot.controller_selector(&owner.kind, &shape.namespace, &owner.name) {
            Some(ControllerSelector::Labels(selector)) => labels.extend(selector.clone()),
            Some(ControllerSelector::Selector(selector)) => further = Some(selector.clone()),
            None => {}
        }
    }
    let mut all = LabelSelector::from_labels(&labels);
    match further {
        Some(LabelSelector::Nothing) => return Some(LabelSelector::Nothing),
        Some(LabelSelector::Matching(expressions)) => expressions
            .into_iter()
            .for_each(|expression| all.add(expression)),
        None => {}
    }
    match &all {
        LabelSelector::Matching(expressions) if expressions.is_empty() => None,
        _ => Some(all),
    }
}
