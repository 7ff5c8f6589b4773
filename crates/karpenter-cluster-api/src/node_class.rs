//! ClusterAPINodeClass: which MachineDeployments nodes are launched from.
//!
//! UPSTREAM: karpenter-provider-cluster-api, pkg/apis/v1alpha1/clusterapinodeclass.go

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use karpenter_api::conditions::{ConditionTypes, HasConditions, types};
use kube::{CustomResource, CustomResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The API group of ClusterAPINodeClass, and the domain of the provider's labels and annotations.
pub const GROUP: &str = "karpenter.cluster.x-k8s.io";

/// The type of the condition that the management cluster answers.
pub const CLUSTER_REACHABLE: &str = "ClusterReachable";
/// The type of the condition that a MachineDeployment can be launched from.
pub const MACHINE_DEPLOYMENTS_READY: &str = "MachineDeploymentsReady";
/// The type of the condition that every offering has a price. The class is ready without it.
pub const PRICES_KNOWN: &str = "PricesKnown";

/// The type of the condition that no other class selects its MachineDeployments. The class is ready without it.
pub const MACHINE_DEPLOYMENTS_EXCLUSIVE: &str = "MachineDeploymentsExclusive";

/// Desired state of a ClusterAPINodeClass.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    derive = "PartialEq",
    group = "karpenter.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "ClusterAPINodeClass",
    plural = "clusterapinodeclasses",
    shortname = "capinc",
    shortname = "capincs",
    category = "karpenter",
    status = "ClusterAPINodeClassStatus",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAPINodeClassSpec {
    /// Selects MachineDeployments by their labels, among those with the label `node.cluster.x-k8s.io/karpenter-member` and the empty
    /// value. Unset, all of them are selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub scalable_resource_selector: Option<LabelSelector>,
    /// Who replaces nodes whose MachineDeployment has changed: `Karpenter` (the default), within the disruption budgets of their
    /// NodePool, or `ClusterAPI`, which leaves them as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_policy: Option<DriftPolicy>,
    /// Prices of MachineDeployments without a price annotation. The first entry that fits counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prices: Vec<PriceEntry>,
    /// What of a node's capacity is not available to pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts")]
    pub reserved: BTreeMap<String, Quantity>,
}

/// Who replaces nodes whose MachineDeployment has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// Karpenter, as drift.
    #[default]
    Karpenter,
    /// No one: Machines of Karpenter belong to no MachineSet. Users replace them.
    ClusterAPI,
}

/// The price of an instance type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PriceEntry {
    /// The instance type.
    pub instance_type: String,
    /// The zone; all zones if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The price per hour, as a decimal number.
    pub price: String,
}

/// Observed state of a ClusterAPINodeClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAPINodeClassStatus {
    /// The MachineDeployments of the class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machine_deployments: Vec<MachineDeploymentStatus>,
    /// Conditions of the class.
    #[serde(default)]
    #[schemars(schema_with = "karpenter_api::crd::fields::conditions")]
    pub conditions: Vec<Condition>,
}

/// What a MachineDeployment offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentStatus {
    /// The name of the MachineDeployment.
    pub name: String,
    /// Its instance type, unless it is rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Its zone, unless it is rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Why nothing is launched from it, and what to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
}

impl HasConditions for ClusterAPINodeClass {
    const TYPES: ConditionTypes = ConditionTypes {
        root: types::READY,
        dependents: &[CLUSTER_REACHABLE, MACHINE_DEPLOYMENTS_READY],
    };

    fn conditions(&self) -> &[Condition] {
        self.status
            .as_ref()
            .map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}

fn schema(value: &Value) -> Schema {
    Schema::try_from(value.clone()).unwrap_or_default()
}

fn selector(_: &mut SchemaGenerator) -> Schema {
    let text = json!({ "type": "string" });
    schema(&json!({
        "type": "object",
        "properties": {
            "matchLabels": { "type": "object", "additionalProperties": text },
            "matchExpressions": { "type": "array", "x-kubernetes-list-type": "atomic", "items": {
                "type": "object", "required": ["key", "operator"],
                "properties": {
                    "key": text, "operator": { "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"] },
                    "values": { "type": "array", "x-kubernetes-list-type": "atomic", "items": text },
                },
            } },
        },
        "x-kubernetes-map-type": "atomic",
    }))
}

fn amounts(_: &mut SchemaGenerator) -> Schema {
    let pattern = r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?$";
    schema(&json!({
        "type": "object",
        "maxProperties": 3,
        "additionalProperties": { "anyOf": [{ "type": "integer" }, { "type": "string" }], "pattern": pattern, "x-kubernetes-int-or-string": true },
        "x-kubernetes-validations": [{
            "message": "reserved has keys 'cpu', 'memory' and 'ephemeral-storage' only",
            "rule": "self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",
        }],
    }))
}

/// Returns the CustomResourceDefinition of ClusterAPINodeClass.
#[must_use]
pub fn crd() -> Value {
    let mut crd = serde_json::to_value(ClusterAPINodeClass::crd()).unwrap_or_default();
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    if let Some(schema) = schema.as_object_mut() {
        // Every field has a default, so that a class without a spec is complete.
        schema.remove("required");
    }
    let spec = &mut schema["properties"]["spec"]["properties"];
    spec["prices"]["maxItems"] = json!(500);
    spec["prices"]["items"]["properties"]["price"]["pattern"] = json!(r"^[0-9]+(\.[0-9]+)?$");
    spec["prices"]["items"]["properties"]["instanceType"]["minLength"] = json!(1);
    crd
}
