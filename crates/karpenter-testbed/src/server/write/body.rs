//! Validation of a body against the path of the request.

use serde_json::Value;

use super::super::catalog::Served;
use super::super::value::{name_of, object_of};
use crate::registry::decode;
use crate::server::wire::error::ApiError;
use crate::server::wire::request::FieldValidation;
use crate::server::write::context::Context;

/// Rejects another kind or version than the path's; adds them if they are absent on a built-in kind.
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

/// A patch cannot rename or move.
pub(super) fn check_identity(new: &Value, old: &Value) -> Result<(), ApiError> {
    for key in ["name", "namespace"] {
        let (is, was) = (&new["metadata"][key], &old["metadata"][key]);
        // An applied configuration may omit them.
        if !is.is_null() && is != was {
            return Err(ApiError::bad_request(format!(
                "the {key} of the object ({}) does not match the {key} on the URL ({})",
                is.as_str().unwrap_or_default(),
                was.as_str().unwrap_or_default()
            )));
        }
    }
    Ok(())
}

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

pub(super) fn check_preconditions(
    served: &Served,
    old: &Value,
    new: &Value,
) -> Result<(), ApiError> {
    let name = name_of(old);
    let (was, is) = (&old["metadata"], &new["metadata"]);
    if let Some(uid) = is["uid"].as_str().filter(|u| !u.is_empty())
        && is["uid"] != was["uid"]
    {
        return Err(ApiError::conflict(
            served,
            name,
            &format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                was["uid"].as_str().unwrap_or_default()
            ),
        ));
    }
    if has_revision(new) && is["resourceVersion"] != was["resourceVersion"] {
        return Err(ApiError::modified(served, name));
    }
    Ok(())
}

/// Handles unknown fields and values of the wrong type according to the field validation mode.
pub(super) fn normalize(
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

pub(super) fn has_revision(value: &Value) -> bool {
    value
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .is_some_and(|rv| !rv.is_empty() && rv != "0")
}

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
