//! What the body of a write must be: kind, namespace, known fields of the right types.

use serde_json::{Map, Value, json};

use super::catalog::Served;
use super::context::Context;
use super::error::ApiError;
use super::request::FieldValidation;
use crate::registry::decode;

/// The object's name, empty when absent.
pub(super) fn name_of(value: &Value) -> &str {
    value["metadata"]["name"].as_str().unwrap_or_default()
}

/// The map at `key`, created when it is not one.
pub(super) fn object_of<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    map_of(map_of(value).entry(key).or_insert_with(|| json!({})))
}

/// The value as a map, made one when it is something else.
pub(super) fn map_of(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made a map above"),
    }
}

/// What Go calls a JSON value.
fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether the client names the revision it has seen.
pub(super) fn has_revision(value: &Value) -> bool {
    value
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .is_some_and(|rv| !rv.is_empty() && rv != "0")
}

/// Refuses another kind or version than the path's; fills them in when absent on a built-in kind.
pub(super) fn check_kind(served: &Served, value: &mut Value) -> Result<(), ApiError> {
    if !value.is_object() {
        return Err(ApiError::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: json: cannot unmarshal {} into Go value",
            served.kind,
            served.version,
            served.kind,
            json_type(value)
        )));
    }
    let wanted = served.api_version();
    let kind = value["kind"].as_str().unwrap_or_default();
    let version = value["apiVersion"].as_str().unwrap_or_default();
    if served.is_custom() && (kind.is_empty() || version.is_empty()) {
        let missing = if kind.is_empty() {
            "Kind"
        } else {
            "apiVersion"
        };
        return Err(ApiError::bad_request(format!(
            "Object '{missing}' is missing in the request body"
        )));
    }
    if !version.is_empty() && version != wanted {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({wanted})"
        )));
    }
    if !kind.is_empty() && kind != served.kind {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {}: no kind \"{kind}\" is registered for the resource `{}`",
            served.version,
            served.kind,
            served.qualified_name(),
        )));
    }
    value["kind"] = served.kind.as_str().into();
    value["apiVersion"] = wanted.into();
    Ok(())
}

/// Unknown fields and values of the wrong type, as the field validation mode wants them.
pub(super) fn normalise(
    served: &Served,
    value: &mut Value,
    ctx: &Context,
    warnings: &mut Vec<String>,
) -> Result<(), ApiError> {
    if !served.is_custom() {
        decode::drop_nulls(value);
        if let Some(message) =
            decode::type_error(&served.kind, &served.version, value, &served.schema)
        {
            return Err(ApiError::bad_request(message));
        }
    }
    let unknown = decode::prune(value, &served.schema);
    if unknown.is_empty() {
        return Ok(());
    }
    match ctx.validation {
        FieldValidation::Strict => Err(ApiError::bad_request(decode::strict_message(
            &served.kind,
            &served.version,
            &unknown,
        ))),
        FieldValidation::Warn => {
            warnings.extend(unknown.iter().map(|path| decode::unknown_field(path)));
            Ok(())
        }
        FieldValidation::Ignore => Ok(()),
    }
}

/// Puts the path's namespace into the object; refuses another one.
pub(super) fn check_namespace(value: &mut Value, namespace: Option<&str>) -> Result<(), ApiError> {
    let metadata = object_of(value, "metadata");
    let given = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match namespace {
        Some(ns) if given.is_empty() => {
            metadata.insert("namespace".into(), ns.into());
            Ok(())
        }
        Some(ns) if given == ns => Ok(()),
        Some(_) => Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
        None => {
            metadata.remove("namespace");
            Ok(())
        }
    }
}
