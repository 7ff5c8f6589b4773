//! KWOKNodeClass: configuration of simulated instances.
//!
//! UPSTREAM: kwok/apis/v1alpha1/kwoknodeclass.go

use jiff::Timestamp;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use karpenter_api::conditions::{ConditionTypes, HasConditions, types};
use karpenter_api::crd::{Column, Definition};
use karpenter_api::duration::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The API group of KWOKNodeClass, and the domain of the provider's labels.
pub const GROUP: &str = KWOKNodeClass::GROUP;

karpenter_api::resource! {
    /// The NodeClass of simulated instances.
    KWOKNodeClass {
        group: "karpenter.kwok.sh", version: "v1alpha1", plural: "kwoknodeclasses", scope: ClusterResourceScope,
        spec: #[serde(default)] KWOKNodeClassSpec, status: KWOKNodeClassStatus
    }
}

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KWOKNodeClassSpec {
    /// Time from the launch of a node until it appears in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration_delay: Option<Duration>,
}

/// What Karpenter has observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KWOKNodeClassStatus {
    /// Signals of health and readiness.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

fn conditions(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let text = |max: u32| serde_json::json!({ "type": "string", "maxLength": max });
    schemars::Schema::try_from(serde_json::json!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "message": text(32768),
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
                "reason": text(1024),
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "type": text(316),
            },
        },
    }))
    .unwrap_or_default()
}

impl KWOKNodeClass {
    /// Makes the class ready, as it cannot be invalid; returns whether it changed.
    pub fn make_ready(&mut self, now: Timestamp) -> bool {
        self.set_true(types::READY, now)
    }
}

impl HasConditions for KWOKNodeClass {
    const TYPES: ConditionTypes = ConditionTypes {
        root: types::READY,
        dependents: &[],
    };

    fn conditions(&self) -> &[Condition] {
        &self.status.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.conditions
    }
}

/// Returns the CustomResourceDefinition of KWOKNodeClass.
#[must_use]
pub fn crd() -> Value {
    let mut crd = Definition {
        group: GROUP,
        version: KWOKNodeClass::VERSION,
        kind: KWOKNodeClass::KIND,
        plural: KWOKNodeClass::PLURAL,
        namespaced: false,
        short_names: &["kwoknc", "kwokncs"],
        categories: &["karpenter"],
        description: "KWOKNodeClass is the configuration of nodes that exist as Node objects only.",
        columns: vec![
            Column::new(
                "Ready",
                "string",
                r#".status.conditions[?(@.type=="Ready")].status"#,
            ),
            Column::new("Age", "date", ".metadata.creationTimestamp"),
        ],
        scale: None,
    }
    .build::<KWOKNodeClassSpec, KWOKNodeClassStatus>();
    // Every field has a default, so that a class without a spec is complete.
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("required");
    }
    crd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_survives_serialization() {
        let text = serde_json::json!({
            "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass",
            "metadata": { "name": "default" }, "spec": { "nodeRegistrationDelay": "5s" },
        });
        let class: KWOKNodeClass = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(&class).unwrap(), text);
    }

    #[test]
    fn the_definition_has_upstreams_names_and_columns() {
        let crd = crd();
        assert_eq!(crd["metadata"]["name"], "kwoknodeclasses.karpenter.kwok.sh");
        assert_eq!(
            crd["spec"]["names"]["shortNames"],
            serde_json::json!(["kwoknc", "kwokncs"])
        );
        assert_eq!(crd["spec"]["scope"], "Cluster");
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert_eq!(
            spec["properties"]["nodeRegistrationDelay"]["type"],
            "string"
        );
    }

    #[test]
    fn a_class_becomes_ready() {
        let mut class = KWOKNodeClass::new("default", KWOKNodeClassSpec::default());
        assert!(class.make_ready(Timestamp::UNIX_EPOCH));
        assert!(class.is_true(types::READY));
    }
}
