//! Schemas of fields whose Rust type does not determine the schema: quantities, taints, conditions, bounded strings.
//!
//! For `#[schemars(schema_with = "…")]`, here and in the NodeClasses of providers.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::rules;

/// A qualified name: label keys, taint keys and taint values.
const QUALIFIED_NAME: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";
/// A label value.
const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";
const CONDITION_TYPE: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

fn quantity() -> Value {
    json!({ "anyOf": [{ "type": "integer" }, { "type": "string" }], "pattern": QUANTITY, "x-kubernetes-int-or-string": true })
}

/// Returns the schema of quantities by resource name.
pub fn resource_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": quantity() })
}

pub(crate) fn overlay_capacity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": quantity(), "x-kubernetes-validations": rules::overlay_capacity() })
}

pub(crate) fn requirement_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 316, "pattern": QUALIFIED_NAME })
}

/// Sets the bounds of a label value on the list, as upstream does, where they have no effect.
pub(crate) fn requirement_values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "items": { "type": "string" }, "maxLength": 63, "pattern": LABEL_VALUE, "x-kubernetes-list-type": "atomic",
    })
}

pub(crate) fn min_values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "minimum": 1, "maximum": 50 })
}

pub(crate) fn node_class_group(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^[^/]*$", "x-kubernetes-validations": rules::not_empty("group"), "x-required": true })
}

pub(crate) fn node_class_kind(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "x-kubernetes-validations": rules::not_empty("kind"), "x-required": true })
}

pub(crate) fn node_class_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "x-kubernetes-validations": rules::not_empty("name"), "x-required": true })
}

pub(crate) fn template_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": "string", "maxLength": 63, "pattern": LABEL_VALUE },
        "maxProperties": 100,
        "x-kubernetes-map-type": "atomic",
    })
}

/// Returns the schema of the duration of a budget: hours and minutes.
pub(crate) fn budget_duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$" })
}

/// Returns the schema of a timestamp in RFC 3339.
pub fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// Returns the schema of a list of taints.
pub fn taints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "atomic",
        "items": {
            "description": "A taint repels pods without a matching toleration.",
            "type": "object",
            "required": ["effect", "key"],
            "properties": {
                "effect": {
                    "description": "The effect on pods that do not tolerate the taint.",
                    "type": "string",
                    "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
                },
                "key": { "description": "The key of the taint.", "type": "string", "minLength": 1, "pattern": QUALIFIED_NAME },
                "timeAdded": { "description": "When the taint was added.", "type": "string", "format": "date-time" },
                "value": { "description": "The value of the taint.", "type": "string", "pattern": QUALIFIED_NAME },
            },
        },
    })
}

fn condition(reason: Value, required: &[&str]) -> Value {
    let mut reason = reason;
    reason["description"] =
        "The reason for the status of the condition, as one word in CamelCase.".into();
    reason["type"] = "string".into();
    reason["maxLength"] = 1024.into();
    json!({
        "description": "A condition of health or readiness.",
        "type": "object",
        "required": required,
        "properties": {
            "lastTransitionTime": { "description": "When the status last changed.", "type": "string", "format": "date-time" },
            "message": { "description": "A message for users about the status of the condition.", "type": "string", "maxLength": 32768 },
            "observedGeneration": {
                "description": "The generation of the object that the condition was set for.",
                "type": "integer", "format": "int64", "minimum": 0,
            },
            "reason": reason,
            "status": { "description": "True, False or Unknown.", "type": "string", "enum": ["True", "False", "Unknown"] },
            "type": {
                "description": "The type of the condition, in CamelCase.",
                "type": "string", "maxLength": 316, "pattern": CONDITION_TYPE,
            },
        },
    })
}

fn strict_condition() -> Value {
    let reason = json!({ "minLength": 1, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$" });
    condition(
        reason,
        &["lastTransitionTime", "message", "reason", "status", "type"],
    )
}

fn relaxed_condition() -> Value {
    let reason = json!({ "pattern": "^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$" });
    condition(reason, &["lastTransitionTime", "status", "type"])
}

/// Conditions, merged by type.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    keyed(strict_condition())
}

/// Conditions, merged by type, that old objects may have without reason and message.
pub fn relaxed_conditions(_: &mut SchemaGenerator) -> Schema {
    keyed(relaxed_condition())
}

/// Conditions that old objects may have without reason and message, and that are replaced as a whole.
pub fn atomic_conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": relaxed_condition() })
}

fn keyed(condition: Value) -> Schema {
    json_schema!({
        "type": "array", "items": condition, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    })
}
