//! KWOKNodeClass: configuration of simulated instances.
//!
//! UPSTREAM: kwok/apis/v1alpha1/kwoknodeclass.go

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use karpenter_api::conditions::{ConditionTypes, HasConditions, types};
use karpenter_api::crd::{Column, Definition};
use karpenter_api::duration::Duration;
use schemars::JsonSchema;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// The API group of KWOKNodeClass, and the domain of the provider's labels.
pub const GROUP: &str = "karpenter.kwok.sh";

/// The NodeClass of simulated instances.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct KwokNodeClass {
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(default)]
    pub spec: KwokNodeClassSpec,
    /// Observed state.
    #[serde(default)]
    pub status: KwokNodeClassStatus,
}

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KwokNodeClassSpec {
    /// Time from the launch of a node until it appears in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration_delay: Option<Duration>,
}

/// What Karpenter has observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KwokNodeClassStatus {
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

impl KwokNodeClass {
    /// Kind of the resource.
    pub const KIND: &'static str = "KWOKNodeClass";
    /// Plural of the resource, as in URLs.
    pub const PLURAL: &'static str = "kwoknodeclasses";
    /// API version of the resource.
    pub const VERSION: &'static str = "v1alpha1";

    /// Creates a class of this name with the defaults.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        Self {
            metadata,
            ..Self::default()
        }
    }

    /// Makes the class ready, as it cannot be invalid; returns whether it changed.
    pub fn make_ready(&mut self, now: Timestamp) -> bool {
        self.set_true(types::READY, now)
    }
}

impl HasConditions for KwokNodeClass {
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

impl Serialize for KwokNodeClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let with_status = !self.status.conditions.is_empty();
        let mut object = serializer.serialize_struct(Self::KIND, 4 + usize::from(with_status))?;
        object.serialize_field("apiVersion", &format!("{GROUP}/{}", Self::VERSION))?;
        object.serialize_field("kind", Self::KIND)?;
        object.serialize_field("metadata", &self.metadata)?;
        object.serialize_field("spec", &self.spec)?;
        if with_status {
            object.serialize_field("status", &self.status)?;
        }
        object.end()
    }
}

impl kube::Resource for KwokNodeClass {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        Self::KIND.into()
    }
    fn group(_: &()) -> Cow<'_, str> {
        GROUP.into()
    }
    fn version(_: &()) -> Cow<'_, str> {
        Self::VERSION.into()
    }
    fn plural(_: &()) -> Cow<'_, str> {
        Self::PLURAL.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Returns the CustomResourceDefinition of KWOKNodeClass.
#[must_use]
pub fn crd() -> Value {
    let mut crd = Definition {
        group: GROUP,
        version: KwokNodeClass::VERSION,
        kind: KwokNodeClass::KIND,
        plural: KwokNodeClass::PLURAL,
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
    .build::<KwokNodeClassSpec, KwokNodeClassStatus>();
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
        let class: KwokNodeClass = serde_json::from_value(text.clone()).unwrap();
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
        let mut class = KwokNodeClass::new("default");
        assert!(class.make_ready(Timestamp::UNIX_EPOCH));
        assert!(class.is_true(types::READY));
    }
}
