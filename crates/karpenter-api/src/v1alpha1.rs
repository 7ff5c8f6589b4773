//! `karpenter.sh/v1alpha1`: NodeOverlay.
//!
//! UPSTREAM: pkg/apis/v1alpha1/nodeoverlay.go

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{ConditionTypes, HasConditions, types};
use crate::crd::{fields, rules};
use crate::serialization::default_if_null;
use crate::v1::NodeSelectorRequirement;
use crate::{ResourceList, resource};

resource! {
    /// NodeOverlay changes the price or adds to the capacity of the instance types it matches, in Karpenter's simulations.
    NodeOverlay {
        group: "karpenter.sh", version: "v1alpha1", plural: "nodeoverlays", scope: ClusterResourceScope,
        spec: NodeOverlaySpec, status: NodeOverlayStatus
    }
}

impl NodeOverlay {
    /// Returns `weight`; an absent one is 0.
    pub fn weight(&self) -> i32 {
        self.spec.weight.unwrap_or(0)
    }

    /// Compares overlays in the order in which they are applied: weight descending, ties by name descending.
    ///
    /// UPSTREAM: pkg/apis/v1alpha1/nodeoverlay.go, OrderByWeight
    pub fn application_order(a: &Self, b: &Self) -> std::cmp::Ordering {
        b.weight()
            .cmp(&a.weight())
            .then_with(|| b.name().cmp(a.name()))
    }
}

impl HasConditions for NodeOverlay {
    const TYPES: ConditionTypes = ConditionTypes {
        root: types::READY,
        dependents: &[types::VALIDATION_SUCCEEDED],
    };

    fn conditions(&self) -> &[Condition] {
        &self.status.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.conditions
    }
}

/// The desired state of a NodeOverlay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::node_overlay_spec()))]
pub struct NodeOverlaySpec {
    /// The instance types the overlay applies to, by well-known labels and labels of the NodePool's template. An empty list
    /// selects all of them.
    #[serde(default, deserialize_with = "default_if_null")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::overlay_requirements(), "x-required" = true))]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// A change of the price: a signed number (-0.5, +1.2) or a signed percentage (+10%, -15%).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(
        pattern = r"^(([+-]{1}(\d*\.?\d+))|(\+{1}\d*\.?\d+%)|(^(-\d{1,2}(\.\d+)?%)$)|(-100%))$"
    ))]
    pub price_adjustment: Option<String>,
    /// The price per hour that replaces the instance type's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^\d+(\.\d+)?$"))]
    pub price: Option<String>,
    /// Extended resources of the nodes in addition to those of the provider. The standard resources cannot be changed.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    #[schemars(schema_with = "fields::overlay_capacity")]
    pub capacity: ResourceList,
    /// The priority of the overlay: where several match, the higher weight wins. An overlay without a weight has weight 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub weight: Option<i32>,
}

/// The observed state of a NodeOverlay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeOverlayStatus {
    /// Conditions of health and readiness.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "fields::conditions")]
    pub conditions: Vec<Condition>,
}
