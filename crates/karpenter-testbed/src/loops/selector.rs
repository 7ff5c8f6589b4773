//! Label selectors and node selector terms.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Labels of a Kubernetes object.
pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
    /// An unknown operator matches nothing.
    Unknown,
}

impl Operator {
    fn parse(text: &str) -> Self {
        match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::Gt,
            "Lt" => Self::Lt,
            _ => Self::Unknown,
        }
    }
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    fn new(key: &str, operator: &str, values: Option<&Vec<String>>) -> Self {
        Self {
            key: key.to_owned(),
            operator: Operator::parse(operator),
            values: values.cloned().unwrap_or_default(),
        }
    }

    fn accepts(&self, value: Option<&str>) -> bool {
        match self.operator {
            Operator::In => value.is_some_and(|v| self.values.iter().any(|x| x == v)),
            Operator::NotIn => value.is_none_or(|v| self.values.iter().all(|x| x != v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => self
                .compare(value)
                .is_some_and(|(have, bound)| have > bound),
            Operator::Lt => self
                .compare(value)
                .is_some_and(|(have, bound)| have < bound),
            Operator::Unknown => false,
        }
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        let have = value?.parse().ok()?;
        let bound = self.values.first()?.parse().ok()?;
        Some((have, bound))
    }
}

/// A compiled label selector: all requirements must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Selector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl Selector {
    /// Compiles `selector`; an absent one selects nothing, an empty one all objects.
    pub(crate) fn new(selector: Option<&LabelSelector>) -> Self {
        let Some(selector) = selector else {
            return Self {
                requirements: Vec::new(),
                nothing: true,
            };
        };
        let mut requirements: Vec<Requirement> = selector
            .match_labels
            .iter()
            .flatten()
            .map(|(key, value)| Requirement {
                key: key.clone(),
                operator: Operator::In,
                values: vec![value.clone()],
            })
            .collect();
        requirements.extend(
            selector
                .match_expressions
                .iter()
                .flatten()
                .map(|e| Requirement::new(&e.key, &e.operator, e.values.as_ref())),
        );
        Self {
            requirements,
            nothing: false,
        }
    }

    /// Adds the requirement that the label `key` is (or, negated, is not) `value`.
    pub(crate) fn and(&mut self, key: &str, value: &str, negated: bool) {
        self.requirements.push(Requirement {
            key: key.to_owned(),
            operator: if negated {
                Operator::NotIn
            } else {
                Operator::In
            },
            values: vec![value.to_owned()],
        });
    }

    /// Whether the selector matches `labels`.
    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        !self.nothing
            && self
                .requirements
                .iter()
                .all(|r| r.accepts(labels.get(&r.key).map(String::as_str)))
    }
}

/// A compiled node selector term: label expressions and the `metadata.name` field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeTerm {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

impl NodeTerm {
    /// Compiles `term`.
    pub(crate) fn new(term: &NodeSelectorTerm) -> Self {
        let compile = |list: &Option<Vec<NodeSelectorRequirement>>| {
            list.iter()
                .flatten()
                .map(|r| Requirement::new(&r.key, &r.operator, r.values.as_ref()))
                .collect()
        };
        Self {
            labels: compile(&term.match_expressions),
            fields: compile(&term.match_fields),
        }
    }

    /// Whether a node with this name and these labels satisfies the term. An empty term matches no node.
    pub(crate) fn matches(&self, name: &str, labels: &Labels) -> bool {
        if self.labels.is_empty() && self.fields.is_empty() {
            return false;
        }
        self.labels
            .iter()
            .all(|r| r.accepts(labels.get(&r.key).map(String::as_str)))
            && self
                .fields
                .iter()
                .all(|r| r.key == "metadata.name" && r.accepts(Some(name)))
    }

    /// Returns the node names that the term requires through `matchFields`, if any.
    pub(crate) fn node_names(&self) -> Option<&[String]> {
        self.fields
            .iter()
            .find(|r| r.key == "metadata.name" && r.operator == Operator::In)
            .map(|r| r.values.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn selects(selector: Option<&LabelSelector>, labels: Option<&Labels>) -> bool {
        Selector::new(selector).matches(labels.unwrap_or(&Labels::new()))
    }

    #[test]
    fn label_selectors_follow_kubernetes() {
        let selector: LabelSelector = serde_json::from_value(json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "NotIn", "values": ["x"]},
                {"key": "old", "operator": "DoesNotExist"}
            ]
        }))
        .unwrap();
        assert!(selects(Some(&selector), Some(&labels(&[("app", "web")]))));
        assert!(!selects(
            Some(&selector),
            Some(&labels(&[("app", "web"), ("tier", "x")]))
        ));
        assert!(!selects(
            Some(&selector),
            Some(&labels(&[("app", "web"), ("old", "")]))
        ));
        assert!(!selects(None, Some(&labels(&[("app", "web")]))));
        assert!(selects(Some(&LabelSelector::default()), None));
    }

    #[test]
    fn node_terms_compare_numbers_and_names() {
        let term: NodeSelectorTerm = serde_json::from_value(json!({
            "matchExpressions": [{"key": "cpu", "operator": "Gt", "values": ["4"]}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]
        }))
        .unwrap();
        let term = NodeTerm::new(&term);
        assert!(term.matches("a", &labels(&[("cpu", "8")])));
        assert!(!term.matches("b", &labels(&[("cpu", "8")])));
        assert!(!term.matches("a", &labels(&[("cpu", "4")])));
        assert!(!term.matches("a", &labels(&[])));
        assert!(!NodeTerm::new(&NodeSelectorTerm::default()).matches("a", &labels(&[])));
    }
}
