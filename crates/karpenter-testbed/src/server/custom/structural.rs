//! Structural schemas: defaults, and validation with the API server's messages.
//!
//! Of the keywords those that the CRDs of this repository have, and few more: neither `multipleOf` nor `oneOf`, `allOf` or `not`,
//! no exclusive bounds, and of the formats `date-time` and `int32`.
//!
//! UPSTREAM: apiextensions-apiserver pkg/apiserver/schema/defaulting, pkg/apiserver/validation

use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use regex::Regex;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use crate::server::wire::error::Cause;

/// Adds defaults, also inside of defaulted values. A null is replaced by the default unless the schema allows null.
pub fn add_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(properties) = schema["properties"].as_object() {
                for (name, property) in properties {
                    if let Some(default) = property.get("default") {
                        let replace = match map.get(name) {
                            None => true,
                            Some(Value::Null) => property["nullable"] != true,
                            Some(_) => false,
                        };
                        if replace {
                            map.insert(name.clone(), default.clone());
                        }
                    }
                    if let Some(child) = map.get_mut(name) {
                        add_defaults(property, child);
                    }
                }
            }
            let values = &schema["additionalProperties"];
            if values.is_object() {
                for (name, child) in map.iter_mut() {
                    if schema["properties"].get(name).is_none() {
                        add_defaults(values, child);
                    }
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                add_defaults(&schema["items"], item);
            }
        }
        _ => {}
    }
}

#[must_use]
pub fn validate(schema: &Value, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    check(schema, value, "", &mut causes);
    causes
}

fn check(schema: &Value, value: &Value, path: &str, out: &mut Vec<Cause>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    if let Some(wanted) = schema["type"].as_str().filter(|_| !int_or_string)
        && !has_type(wanted, value)
    {
        let found = type_name(value);
        out.push(Cause {
            reason: "FieldValueTypeInvalid",
            message: format!(
                "Invalid value: \"{found}\": {path} in body must be of type {wanted}: \"{found}\""
            ),
            field: path.to_owned(),
        });
        return;
    }
    if int_or_string && !(value.is_i64() || value.is_u64() || value.is_string()) {
        let found = type_name(value);
        out.push(Cause {
            reason: "FieldValueTypeInvalid",
            message: format!(
                "Invalid value: \"{found}\": {path} in body must be of type integer,string: \"{found}\""
            ),
            field: path.to_owned(),
        });
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let mut shown: Vec<String> = allowed.iter().map(Value::to_string).collect();
        shown.sort();
        out.push(Cause {
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {value}: supported values: {}",
                shown.join(", ")
            ),
            field: path.to_owned(),
        });
    }
    match value {
        Value::String(text) => check_string(schema, text, path, out),
        Value::Number(number) => {
            check_number(schema, number.as_f64().unwrap_or(0.0), value, path, out)
        }
        Value::Array(items) => check_array(schema, items, path, out),
        Value::Object(map) => check_object(schema, map, path, out),
        _ => {}
    }
    check_any(schema, value, path, out);
}

fn has_type(wanted: &str, value: &Value) -> bool {
    match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|f| f.fract() == 0.0)
        }
        "number" => value.is_number(),
        _ => true,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn body(path: &str, value: &Value, what: &str) -> Cause {
    Cause::invalid(path, value, &format!("{path} in body {what}"))
}

fn check_string(schema: &Value, text: &str, path: &str, out: &mut Vec<Cause>) {
    let value = Value::from(text);
    let length = text.chars().count() as u64;
    if let Some(max) = schema["maxLength"].as_u64()
        && length > max
    {
        out.push(Cause {
            reason: "FieldValueTooLong",
            message: format!("Too long: may not be more than {max} bytes"),
            field: path.to_owned(),
        });
    }
    if let Some(min) = schema["minLength"].as_u64()
        && length < min
    {
        out.push(body(
            path,
            &value,
            &format!("should be at least {min} chars long"),
        ));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && compiled(pattern).is_some_and(|p| !p.is_match(text))
    {
        out.push(body(path, &value, &format!("should match '{pattern}'")));
    }
    if schema["format"] == "date-time" && text.parse::<jiff::Timestamp>().is_err() {
        let what = format!("must be of type date-time: {value}");
        out.push(body(path, &value, &what));
    }
}

/// Returns the compiled pattern: compiling takes a thousand times as long as matching, and the patterns of schemas are few.
/// `None` if it is not a valid regular expression.
fn compiled(pattern: &str) -> Option<Arc<Regex>> {
    static PATTERNS: LazyLock<Mutex<FxHashMap<String, Option<Arc<Regex>>>>> =
        LazyLock::new(Mutex::default);
    let mut patterns = PATTERNS.lock();
    if let Some(known) = patterns.get(pattern) {
        return known.clone();
    }
    let compiled = Regex::new(pattern).ok().map(Arc::new);
    patterns.insert(pattern.to_owned(), compiled.clone());
    compiled
}

fn check_number(schema: &Value, number: f64, value: &Value, path: &str, out: &mut Vec<Cause>) {
    if schema["maximum"].as_f64().is_some_and(|max| number > max) {
        let what = format!("should be less than or equal to {}", schema["maximum"]);
        out.push(body(path, value, &what));
    }
    if schema["minimum"].as_f64().is_some_and(|min| number < min) {
        let what = format!("should be greater than or equal to {}", schema["minimum"]);
        out.push(body(path, value, &what));
    }
    let fits = match schema["format"].as_str() {
        Some("int32") => number >= f64::from(i32::MIN) && number <= f64::from(i32::MAX),
        _ => true,
    };
    if !fits {
        out.push(body(
            path,
            value,
            &format!("must be of type int32: {value}"),
        ));
    }
}

fn check_array(schema: &Value, items: &[Value], path: &str, out: &mut Vec<Cause>) {
    if let Some(max) = schema["maxItems"].as_u64()
        && items.len() as u64 > max
    {
        out.push(Cause {
            reason: "FieldValueTooMany",
            message: format!("Too many: {}: must have at most {max} items", items.len()),
            field: path.to_owned(),
        });
    }
    if let Some(min) = schema["minItems"].as_u64()
        && (items.len() as u64) < min
    {
        out.push(body(
            path,
            &items.len().into(),
            &format!("should have at least {min} items"),
        ));
    }
    let set = schema["x-kubernetes-list-type"] == "set";
    let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (i, item) in items.iter().enumerate() {
        let place = format!("{path}[{i}]");
        if set && items[..i].contains(item) {
            out.push(Cause::duplicate(&place, item));
        }
        if !keys.is_empty()
            && items[..i]
                .iter()
                .any(|other| keys.iter().all(|k| other.get(k) == item.get(k)))
        {
            let identity: Map<String, Value> = keys
                .iter()
                .map(|k| ((*k).to_owned(), item[*k].clone()))
                .collect();
            out.push(Cause::duplicate(&place, &identity.into()));
        }
        check(&schema["items"], item, &place, out);
    }
}

fn check_object(schema: &Value, map: &Map<String, Value>, path: &str, out: &mut Vec<Cause>) {
    let below = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if !map.contains_key(name) {
            out.push(Cause::required(below(name), ""));
        }
    }
    let size = map.len() as u64;
    if let Some(max) = schema["maxProperties"].as_u64()
        && size > max
    {
        out.push(Cause {
            reason: "FieldValueTooMany",
            message: format!("Too many: {size}: must have at most {max} items"),
            field: path.to_owned(),
        });
    }
    if let Some(min) = schema["minProperties"].as_u64()
        && size < min
    {
        out.push(body(
            path,
            &size.into(),
            &format!("should have at least {min} properties"),
        ));
    }
    let values = &schema["additionalProperties"];
    for (name, value) in map {
        match schema["properties"].get(name) {
            Some(property) => check(property, value, &below(name), out),
            None if values.is_object() => check(values, value, &below(name), out),
            None => {}
        }
    }
}

fn check_any(schema: &Value, value: &Value, path: &str, out: &mut Vec<Cause>) {
    let fits = |branch: &Value| {
        let mut causes = Vec::new();
        check(branch, value, path, &mut causes);
        causes.is_empty()
    };
    if let Some(any) = schema["anyOf"].as_array()
        && !any.iter().any(fits)
    {
        out.push(body(
            path,
            value,
            "must validate at least one schema (anyOf)",
        ));
    }
}
