//! Node terms, pod affinity terms, spread constraints and tolerations of a pod.

use std::collections::BTreeMap;

use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use serde::{Deserialize, Serialize};

use super::selector::{LabelSelector, SelectorExpr, SelectorOp};
use crate::taints::Effect;

/// A preference with its weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Weighted<T> {
    /// 1 to 100. Relaxation drops the heaviest first, as upstream.
    pub weight: i32,
    /// The preferred term.
    pub term: T,
}

/// One expression over node labels; not validated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelExpr {
    /// The label key, as written.
    pub key: String,
    /// The operator, as written.
    pub operator: String,
    /// The values, as written.
    pub values: Vec<String>,
}

/// One alternative of the required node affinity, or one preferred node affinity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeTerm {
    /// `matchExpressions`, all of which must hold.
    pub expressions: Vec<LabelExpr>,
    /// Whether the term uses `matchFields`, which Karpenter does not support.
    pub has_fields: bool,
}

impl NodeTerm {
    /// Parses a Kubernetes node selector term.
    pub fn parse(term: &corev1::NodeSelectorTerm) -> Self {
        Self {
            expressions: term
                .match_expressions
                .iter()
                .flatten()
                .map(|expression| LabelExpr {
                    key: expression.key.clone(),
                    operator: expression.operator.clone(),
                    values: expression.values.clone().unwrap_or_default(),
                })
                .collect(),
            has_fields: term
                .match_fields
                .as_ref()
                .is_some_and(|fields| !fields.is_empty()),
        }
    }
}

/// A pod affinity or anti-affinity term, with `matchLabelKeys` already merged into the selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AffinityTerm {
    /// The node label whose values are the domains.
    pub topology_key: String,
    /// The pods that the term selects.
    pub selector: LabelSelector,
    /// Listed namespaces; the pod's own if there is neither a list nor a selector.
    pub namespaces: Vec<String>,
    /// Namespaces by label; `None` if absent, an empty selector means all.
    pub namespace_selector: Option<LabelSelector>,
}

impl AffinityTerm {
    pub(super) fn parse(
        term: &corev1::PodAffinityTerm,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(namespace.to_owned());
        }
        namespaces.sort();
        namespaces.dedup();
        let mut selector = LabelSelector::parse(term.label_selector.as_ref());
        merge_label_keys(
            &mut selector,
            term.match_label_keys.as_deref(),
            labels,
            SelectorOp::In,
        );
        merge_label_keys(
            &mut selector,
            term.mismatch_label_keys.as_deref(),
            labels,
            SelectorOp::NotIn,
        );
        Self {
            topology_key: term.topology_key.clone(),
            selector,
            namespaces,
            namespace_selector: term
                .namespace_selector
                .as_ref()
                .map(|selector| LabelSelector::parse(Some(selector))),
        }
    }
}

/// A topology spread constraint, with `matchLabelKeys` already merged into the selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpreadConstraint {
    /// The node label whose values are the domains.
    pub topology_key: String,
    /// The allowed difference between the count of a domain and the lowest count.
    pub max_skew: i32,
    /// The number of domains below which the lowest count is taken as zero.
    pub min_domains: Option<i32>,
    /// `DoNotSchedule` (true) or `ScheduleAnyway` (false).
    pub hard: bool,
    /// The pods that are counted.
    pub selector: LabelSelector,
    /// Whether only nodes that match the pod's node selector and required affinity count (the default).
    pub honor_affinity: bool,
    /// Whether only nodes whose taints the pod tolerates count (not the default).
    pub honor_taints: bool,
}

impl SpreadConstraint {
    pub(super) fn parse(
        constraint: &corev1::TopologySpreadConstraint,
        labels: &BTreeMap<String, String>,
    ) -> Self {
        let mut selector = LabelSelector::parse(constraint.label_selector.as_ref());
        merge_label_keys(
            &mut selector,
            constraint.match_label_keys.as_deref(),
            labels,
            SelectorOp::In,
        );
        Self {
            topology_key: constraint.topology_key.clone(),
            max_skew: constraint.max_skew,
            min_domains: constraint.min_domains,
            hard: constraint.when_unsatisfiable != "ScheduleAnyway",
            selector,
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}

fn merge_label_keys(
    selector: &mut LabelSelector,
    keys: Option<&[String]>,
    labels: &BTreeMap<String, String>,
    op: SelectorOp,
) {
    for key in keys.into_iter().flatten() {
        if let Some(value) = labels.get(key) {
            selector.add(SelectorExpr {
                key: key.clone(),
                op,
                values: vec![value.clone()],
            });
        }
    }
}

/// A toleration. Matching follows Kubernetes, the numeric operators included.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    /// The taint's key; empty with operator Exists tolerates everything.
    pub key: String,
    /// `Exists`, `Equal` (the default), `Gt` or `Lt`.
    pub operator: String,
    /// The taint's value, for `Equal`, `Gt`, `Lt`.
    pub value: String,
    /// The taint's effect; `None` matches every effect.
    pub effect: Option<Effect>,
    /// Whether the effect is unknown, so that the toleration matches nothing.
    pub unknown_effect: bool,
}

impl Toleration {
    /// Parses a Kubernetes toleration.
    pub fn parse(toleration: &corev1::Toleration) -> Self {
        let effect = toleration
            .effect
            .as_deref()
            .filter(|effect| !effect.is_empty());
        let parsed = effect.and_then(Effect::parse);
        Self {
            key: toleration.key.clone().unwrap_or_default(),
            operator: toleration
                .operator
                .clone()
                .filter(|operator| !operator.is_empty())
                .unwrap_or_else(|| "Equal".to_owned()),
            value: toleration.value.clone().unwrap_or_default(),
            effect: parsed,
            unknown_effect: effect.is_some() && parsed.is_none(),
        }
    }

    /// Returns the toleration that relaxation adds last: any key, effect PreferNoSchedule.
    pub fn any_prefer_no_schedule() -> Self {
        Self {
            key: String::new(),
            operator: "Exists".to_owned(),
            value: String::new(),
            effect: Some(Effect::PreferNoSchedule),
            unknown_effect: false,
        }
    }
}
