//! Label selectors and node selector terms, for the API server and the controllers.
//!
//! `kube::core::Selector` does not serve here: it has no `Gt` and `Lt`, no parser, no hash, and matches a `BTreeMap` only, which the
//! store would have to build for each object of a list or watch.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

/// Labels of a Kubernetes object.
pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operator {
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
    /// Creates a requirement. `Gt` and `Lt` match nothing if the value is not an integer.
    pub(crate) fn new(key: String, operator: Operator, values: Vec<String>) -> Self {
        Self {
            key,
            operator,
            values,
        }
    }

    fn compile(key: &str, operator: &str, values: Option<&Vec<String>>) -> Self {
        let values = values.cloned().unwrap_or_default();
        Self::new(key.to_owned(), Operator::parse(operator), values)
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

/// A compiled label selector: all requirements must match. The default selects all objects.
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
        let labels = selector.match_labels.iter().flatten();
        let labels = labels
            .map(|(key, value)| Requirement::new(key.clone(), Operator::In, vec![value.clone()]));
        let expressions = selector.match_expressions.iter().flatten();
        let expressions =
            expressions.map(|e| Requirement::compile(&e.key, &e.operator, e.values.as_ref()));
        labels.chain(expressions).collect()
    }

    /// Compiles the `LabelSelector` of an object; an invalid one selects nothing.
    pub(crate) fn of_json(selector: &Value) -> Self {
        Self::new(LabelSelector::deserialize(selector).ok().as_ref())
    }

    /// Adds the requirement that the label `key` is (or, negated, is not) `value`.
    pub(crate) fn and(&mut self, key: &str, value: &str, negated: bool) {
        let operator = if negated {
            Operator::NotIn
        } else {
            Operator::In
        };
        let values = vec![value.to_owned()];
        self.requirements
            .push(Requirement::new(key.to_owned(), operator, values));
    }

    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Returns whether the selector matches the labels whose values `label` returns.
    pub(crate) fn matches_with<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.accepts(label(&r.key)))
    }

    /// Returns whether the selector has no requirement.
    pub(crate) fn selects_all(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }
}

impl FromIterator<Requirement> for Selector {
    fn from_iter<I: IntoIterator<Item = Requirement>>(requirements: I) -> Self {
        Self {
            requirements: requirements.into_iter().collect(),
            nothing: false,
        }
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
                .map(|r| Requirement::compile(&r.key, &r.operator, r.values.as_ref()))
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

    #[test]
    fn an_invalid_selector_of_an_object_selects_nothing() {
        let web = labels(&[("app", "web")]);
        let operator = |operator| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": ["web"]}]});
        assert!(Selector::of_json(&operator("In")).matches(&web));
        for invalid in [operator("Is"), json!({"matchLabels": []}), json!(null)] {
            assert!(!Selector::of_json(&invalid).matches(&web), "{invalid}");
        }
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
