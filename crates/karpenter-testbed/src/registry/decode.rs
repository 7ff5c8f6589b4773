//! Decoding a request body against a schema: unknown fields, nulls, type errors.
//!
//! A typed server drops unknown fields (or reports them: `fieldValidation`), treats null as absent and responds with 400 and Go's
//! message if a value has the wrong type. Custom resources are pruned the same way; their types are checked by schema validation.

use serde_json::{Map, Value};

use super::schema::{Schema, Type};
use crate::quantity::is_quantity;

/// Removes fields that the schema does not have; returns their paths (`spec.foo`, `spec.containers[0].bar`) in document order.
///
/// With `fieldValidation=Strict` these paths are the error, see [`strict_message`]; with `Warn` they are warnings, with `Ignore`
/// they are dropped silently.
pub fn prune(value: &mut Value, schema: &Schema) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_at(value, schema, String::new(), &mut unknown);
    unknown
}

fn prune_at(value: &mut Value, schema: &Schema, path: String, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| {
                let known = schema.field(name).is_some() || schema.resolve().kind != Type::Object;
                if !known {
                    unknown.push(join(&path, name));
                }
                known
            });
            for (name, child) in fields {
                if let Some(field) = schema.field(name) {
                    prune_at(child, field, join(&path, name), unknown);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                prune_at(item, schema.item(), format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Returns the message of the 400 response of strict decoding.
pub fn strict_message(kind: &str, version: &str, unknown: &[String]) -> String {
    let fields: Vec<String> = unknown.iter().map(|path| unknown_field(path)).collect();
    format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: strict decoding error: {}",
        fields.join(", ")
    )
}

/// The text of one unknown field, as in warnings: `unknown field "spec.foo"`.
pub fn unknown_field(path: &str) -> String {
    format!("unknown field \"{path}\"")
}

/// Returns the message of the 400 response to a value of the wrong type in a built-in kind, or `None` if all values are valid.
///
/// UPSTREAM: encoding/json's UnmarshalTypeError and the apimachinery parsers of quantities and times.
pub fn type_error(kind: &str, version: &str, value: &Value, schema: &Schema) -> Option<String> {
    let error = type_error_at(value, schema, schema.type_name().unwrap_or(kind), "")?;
    Some(format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: {error}"
    ))
}

fn type_error_at(value: &Value, schema: &Schema, owner: &str, path: &str) -> Option<String> {
    if value.is_null() {
        return None;
    }
    let target = schema.resolve();
    let mismatch = |wanted: &str| {
        let found = match value {
            Value::Bool(_) => "bool".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
            Value::Number(number) => match target.kind {
                Type::Integer => format!("number {number}"),
                _ => "number".to_owned(),
            },
            Value::Null => String::new(),
        };
        if path.is_empty() {
            Some(format!(
                "json: cannot unmarshal {found} into Go value of type {wanted}"
            ))
        } else {
            Some(format!(
                "json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {wanted}"
            ))
        }
    };
    match target.kind {
        Type::Any => None,
        Type::IntOrString => match value {
            Value::String(_) => None,
            Value::Number(number) if number.is_i64() => None,
            _ => mismatch("int32"),
        },
        Type::String if target.format.as_deref() == Some("quantity") => quantity_error(value),
        Type::String => match value {
            Value::String(text) if target.format.as_deref() == Some("date-time") => {
                time_error(text)
            }
            Value::String(_) => None,
            _ => mismatch(&go_type(schema)),
        },
        Type::Integer => match value {
            Value::Number(number)
                if number.is_i64() && fits(number.as_i64(), target.format.as_deref()) =>
            {
                None
            }
            _ => mismatch(&go_type(schema)),
        },
        Type::Number => (!value.is_number()).then(|| mismatch("float64")).flatten(),
        Type::Boolean => (!value.is_boolean()).then(|| mismatch("bool")).flatten(),
        Type::Array => match value {
            Value::Array(items) => {
                let item = schema.item();
                items.iter().find_map(|value| {
                    type_error_at(value, item, item.type_name().unwrap_or(owner), path)
                })
            }
            _ => mismatch(&go_type(schema)),
        },
        Type::Object => match value {
            Value::Object(fields) => object_error(fields, schema, owner, path),
            _ => mismatch(&go_type(schema)),
        },
    }
}

fn object_error(
    fields: &Map<String, Value>,
    schema: &Schema,
    owner: &str,
    path: &str,
) -> Option<String> {
    let owner = schema.type_name().unwrap_or(owner);
    let is_map = schema.resolve().values.is_some();
    fields.iter().find_map(|(name, child)| {
        let field = schema.field(name)?;
        // Go names the struct field, not the map key.
        let path = if is_map {
            path.to_owned()
        } else {
            join(path, name)
        };
        type_error_at(child, field, owner, &path)
    })
}

fn fits(number: Option<i64>, format: Option<&str>) -> bool {
    match format {
        Some("int32") => number.is_some_and(|number| i32::try_from(number).is_ok()),
        _ => true,
    }
}

/// Returns the Go type of a field, as in its error messages.
fn go_type(schema: &Schema) -> String {
    if let Some(name) = &schema.reference {
        let mut parts = name.rsplit('.');
        let (last, package) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        if schema.resolve().kind == Type::Object {
            return format!("{package}.{last}");
        }
    }
    let target = schema.resolve();
    match target.kind {
        Type::Any => "interface {}".to_owned(),
        Type::String => "string".to_owned(),
        Type::Integer => target.format.clone().unwrap_or_else(|| "int64".to_owned()),
        Type::IntOrString => "int32".to_owned(),
        Type::Number => "float64".to_owned(),
        Type::Boolean => "bool".to_owned(),
        Type::Array => format!(
            "[]{}",
            go_type(target.items.as_deref().unwrap_or(Schema::any()))
        ),
        Type::Object => match &target.values {
            Some(values) => format!("map[string]{}", go_type(values)),
            None => "struct".to_owned(),
        },
    }
}

fn quantity_error(value: &Value) -> Option<String> {
    match value {
        Value::Number(_) => None,
        Value::String(text) if is_quantity(text) => None,
        _ => Some(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'".to_owned(),
        ),
    }
}

fn time_error(text: &str) -> Option<String> {
    match text.parse::<jiff::Timestamp>() {
        Ok(_) => None,
        Err(_) => Some(format!(
            "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
        )),
    }
}

/// Removes null fields, as a typed server does by decoding and encoding. Lists keep their nulls.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, child| !child.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Fields that Go serializes although they are empty: struct values that are not pointers, and times without `omitzero` (written
/// as null). Required fields are written too; the schema lists those.
const ALWAYS_WRITTEN: &[(&str, &[&str])] = &[
    ("Container", &["resources"]),
    ("EphemeralContainer", &["resources"]),
    ("ContainerStatus", &["state", "lastState"]),
    ("CronJobSpec", &["jobTemplate"]),
    ("DaemonSetSpec", &["template", "updateStrategy"]),
    ("DeploymentSpec", &["template", "strategy"]),
    ("Event", &["source", "involvedObject", "regarding"]),
    ("JobSpec", &["template"]),
    ("JobTemplateSpec", &["metadata", "spec"]),
    (
        "NodeCondition",
        &["lastHeartbeatTime", "lastTransitionTime"],
    ),
    ("NodeDaemonEndpoints", &["kubeletEndpoint"]),
    ("NodeStatus", &["daemonEndpoints", "nodeInfo"]),
    ("PersistentVolumeClaimSpec", &["resources"]),
    ("PodCondition", &["lastProbeTime", "lastTransitionTime"]),
    ("PodTemplateSpec", &["metadata", "spec"]),
    ("ReplicaSetSpec", &["template"]),
    ("ServiceStatus", &["loadBalancer"]),
    ("StatefulSetSpec", &["template", "updateStrategy"]),
];

/// Adds what a typed server writes for absent fields: empty required fields and empty struct values (`spec: {}`, `status: {}`,
/// `resources: {}`, `lastTransitionTime: null`).
///
/// Meant for the answer to a create and for comparing with "nothing" in managed fields; never for custom resources.
pub fn fill_zero_values(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(fields) => {
            let target = schema.resolve();
            let name = schema.type_name().unwrap_or_default();
            let is_kind = target.properties.contains_key("apiVersion")
                && target.properties.contains_key("metadata");
            let always = ALWAYS_WRITTEN
                .iter()
                .find(|(owner, _)| *owner == name)
                .map_or(&[][..], |(_, fields)| *fields);
            for (key, field) in &target.properties {
                let of_kind = is_kind
                    && matches!(key.as_str(), "metadata" | "spec" | "status")
                    && field.is_struct();
                if !fields.contains_key(key)
                    && (of_kind || always.contains(&key.as_str()) || target.required.contains(key))
                {
                    fields.insert(key.clone(), zero(field));
                }
            }
            for (key, child) in fields {
                if let Some(field) = schema.field(key) {
                    fill_zero_values(child, field);
                }
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| fill_zero_values(item, schema.item())),
        _ => {}
    }
}

fn zero(field: &Schema) -> Value {
    let target = field.resolve();
    match target.kind {
        Type::Object if field.is_struct() => Value::Object(Map::new()),
        Type::String if target.format.is_none() => Value::String(String::new()),
        Type::Integer => Value::from(0),
        Type::Boolean => Value::Bool(false),
        _ => Value::Null,
    }
}
