//! Requirements on node labels, and the reference to a NodeClass.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd::fields;
use crate::serialization::{default_if_null, open_enum};

open_enum! {
    /// The relation of a label to the values of a requirement.
    Operator {
        /// The label has one of the values.
        In,
        /// The label is absent or has none of the values.
        NotIn,
        /// The label is present.
        Exists,
        /// The label is absent.
        DoesNotExist,
        /// The label is an integer greater than the value.
        Gt,
        /// The label is an integer less than the value.
        Lt,
        /// The label is an integer greater than or equal to the value.
        Gte,
        /// The label is an integer less than or equal to the value.
        Lte,
    }
}

impl Operator {
    /// Returns whether the operator compares integers.
    pub fn is_bound(&self) -> bool {
        matches!(self, Self::Gt | Self::Lt | Self::Gte | Self::Lte)
    }
}

/// A requirement relates a label key to values through an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeSelectorRequirement {
    /// The label key that the requirement applies to.
    #[schemars(schema_with = "fields::requirement_key")]
    pub key: String,
    /// How the label relates to the values: In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte or Lte.
    pub operator: Operator,
    /// The values. In and NotIn need at least one; Gt, Lt, Gte and Lte need exactly one, an integer.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "fields::requirement_values")]
    pub values: Vec<String>,
}

/// A requirement relates a label key to values through an operator, and may require a minimum of different values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelectorRequirementWithMinValues {
    /// The label key that the requirement applies to.
    #[schemars(schema_with = "fields::requirement_key")]
    pub key: String,
    /// How the label relates to the values: In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte or Lte.
    pub operator: Operator,
    /// The values. In needs at least one; Gt, Lt, Gte and Lte need exactly one, an integer.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "fields::requirement_values")]
    pub values: Vec<String>,
    /// How many different values of the label must stay possible for a node to be launched.
    /// This field is alpha and may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::min_values")]
    pub min_values: Option<i64>,
}

impl NodeSelectorRequirementWithMinValues {
    /// Creates a requirement without minValues.
    pub fn new<V: Into<String>>(
        key: &str,
        operator: Operator,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        Self {
            key: key.to_owned(),
            operator,
            values: values.into_iter().map(Into::into).collect(),
            min_values: None,
        }
    }
}

/// A reference to a NodeClass, which holds the settings of a provider.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct NodeClassReference {
    /// The API group of the NodeClass, without a version.
    #[serde(default)]
    #[schemars(schema_with = "fields::node_class_group")]
    pub group: String,
    /// The kind of the NodeClass.
    #[serde(default)]
    #[schemars(schema_with = "fields::node_class_kind")]
    pub kind: String,
    /// The name of the NodeClass.
    #[serde(default)]
    #[schemars(schema_with = "fields::node_class_name")]
    pub name: String,
}

impl NodeClassReference {
    /// Returns the key of the label for the name of this NodeClass on NodeClaims and Nodes.
    pub fn label_key(&self) -> String {
        crate::labels::node_class(&self.group, &self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-007
    #[test]
    fn an_unknown_operator_is_kept() {
        let read: NodeSelectorRequirement =
            serde_json::from_str(r#"{"key":"a","operator":"Matches"}"#).unwrap();
        assert_eq!(read.operator, Operator::Other("Matches".into()));
        assert_eq!(
            serde_json::to_string(&read).unwrap(),
            r#"{"key":"a","operator":"Matches"}"#
        );
    }

    #[test]
    fn bounds_are_the_comparing_operators() {
        let bounds: Vec<_> = Operator::KNOWN
            .iter()
            .filter(|operator| operator.is_bound())
            .map(Operator::as_str)
            .collect();
        assert_eq!(bounds, ["Gt", "Lt", "Gte", "Lte"]);
    }

    /// Conformance: API-093
    #[test]
    fn the_label_of_a_node_class_has_its_group_and_kind() {
        let reference = NodeClassReference {
            group: "karpenter.kwok.sh".into(),
            kind: "KWOKNodeClass".into(),
            name: "default".into(),
        };
        assert_eq!(reference.label_key(), "karpenter.kwok.sh/kwoknodeclass");
    }
}
