//! Label selectors over pods and namespaces.

use std::collections::BTreeMap;

use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde::{Deserialize, Serialize};

/// Operators of a label selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SelectorOp {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// One condition of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SelectorExpr {
    /// Label key.
    pub key: String,
    /// Operator.
    pub op: SelectorOp,
    /// Values, sorted and distinct.
    pub values: Vec<String>,
}

/// A parsed label selector in canonical form: selectors that differ only in order or duplicates are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LabelSelector {
    /// Matches nothing: the selector is absent or invalid.
    #[default]
    Nothing,
    /// Matches labels that satisfy every condition; matches everything without conditions.
    Matching(Vec<SelectorExpr>),
}

impl LabelSelector {
    /// Parses a Kubernetes selector; `None`, unknown operators and missing or superfluous values give [`Self::Nothing`].
    pub fn parse(selector: Option<&meta::LabelSelector>) -> Self {
        let Some(selector) = selector else {
            return Self::Nothing;
        };
        let mut expressions: Vec<SelectorExpr> = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            expressions.push(SelectorExpr {
                key: key.clone(),
                op: SelectorOp::In,
                values: vec![value.clone()],
            });
        }
        for expression in selector.match_expressions.iter().flatten() {
            let mut values = expression.values.clone().unwrap_or_default();
            let op = match (expression.operator.as_str(), values.is_empty()) {
                ("In", false) => SelectorOp::In,
                ("NotIn", false) => SelectorOp::NotIn,
                ("Exists", true) => SelectorOp::Exists,
                ("DoesNotExist", true) => SelectorOp::DoesNotExist,
                _ => return Self::Nothing,
            };
            values.sort();
            values.dedup();
            expressions.push(SelectorExpr {
                key: expression.key.clone(),
                op,
                values,
            });
        }
        expressions.sort();
        expressions.dedup();
        Self::Matching(expressions)
    }

    /// Creates a selector for exactly these labels.
    pub fn from_labels(labels: &BTreeMap<String, String>) -> Self {
        Self::Matching(
            labels
                .iter()
                .map(|(key, value)| SelectorExpr {
                    key: key.clone(),
                    op: SelectorOp::In,
                    values: vec![value.clone()],
                })
                .collect(),
        )
    }

    /// Adds a condition; a selector that matches nothing is unchanged.
    pub fn add(&mut self, expression: SelectorExpr) {
        if let Self::Matching(expressions) = self
            && let Err(at) = expressions.binary_search(&expression)
        {
            expressions.insert(at, expression);
        }
    }

    /// Reports whether `labels` satisfy the selector.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Nothing => false,
            Self::Matching(expressions) => expressions.iter().all(|expression| {
                let value = labels.get(&expression.key);
                match expression.op {
                    SelectorOp::In => value.is_some_and(|value| expression.values.contains(value)),
                    SelectorOp::NotIn => {
                        value.is_none_or(|value| !expression.values.contains(value))
                    }
                    SelectorOp::Exists => value.is_some(),
                    SelectorOp::DoesNotExist => value.is_none(),
                }
            }),
        }
    }

    /// Returns a label that every matching pod has with one of a few values, for an index, if there is one.
    pub fn anchor(&self) -> Option<(&str, &[String])> {
        match self {
            Self::Nothing => None,
            Self::Matching(expressions) => expressions
                .iter()
                .filter(|expression| expression.op == SelectorOp::In)
                .min_by_key(|expression| expression.values.len())
                .map(|expression| (expression.key.as_str(), expression.values.as_slice())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> meta::LabelSelectorRequirement {
        meta::LabelSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: (!values.is_empty())
                .then(|| values.iter().map(|value| (*value).to_owned()).collect()),
        }
    }

    fn selector(expressions: Vec<meta::LabelSelectorRequirement>) -> LabelSelector {
        LabelSelector::parse(Some(&meta::LabelSelector {
            match_expressions: Some(expressions),
            match_labels: None,
        }))
    }

    /// Conformance: SCH-225
    #[test]
    fn no_selector_matches_nothing_and_an_empty_one_everything() {
        assert!(!LabelSelector::parse(None).matches(&labels(&[("a", "b")])));
        assert!(selector(vec![]).matches(&labels(&[])));
    }

    /// Conformance: SCH-225
    #[test]
    fn an_unparsable_selector_matches_nothing() {
        assert_eq!(
            selector(vec![expression("a", "Like", &["b"])]),
            LabelSelector::Nothing
        );
        assert_eq!(
            selector(vec![expression("a", "In", &[])]),
            LabelSelector::Nothing
        );
        assert_eq!(
            selector(vec![expression("a", "Exists", &["b"])]),
            LabelSelector::Nothing
        );
    }

    /// Conformance: SCH-225
    #[test]
    fn order_and_duplicates_do_not_matter() {
        let a = selector(vec![
            expression("a", "In", &["x", "y"]),
            expression("b", "Exists", &[]),
        ]);
        let b = selector(vec![
            expression("b", "Exists", &[]),
            expression("a", "In", &["y", "x", "y"]),
            expression("b", "Exists", &[]),
        ]);
        assert_eq!(a, b);
        assert!(a.matches(&labels(&[("a", "y"), ("b", "")])));
        assert!(!a.matches(&labels(&[("a", "z"), ("b", "")])));
        assert!(!a.matches(&labels(&[("a", "y")])));
    }

    #[test]
    fn not_in_and_does_not_exist_accept_an_absent_label() {
        let selector = selector(vec![
            expression("a", "NotIn", &["x"]),
            expression("b", "DoesNotExist", &[]),
        ]);
        assert!(selector.matches(&labels(&[])));
        assert!(!selector.matches(&labels(&[("a", "x")])));
        assert!(!selector.matches(&labels(&[("b", "")])));
    }
}
