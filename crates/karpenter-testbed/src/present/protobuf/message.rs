//! Messages to JSON objects, by the schema and the field numbers of a built-in kind.

use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::ProtobufError;
use super::wire::{Field, Wire, fields, utf8, varint};
use crate::registry::schema::{Schema, Type};

/// Numbers and booleans whose zero means absent.
const VALUE_FIELDS: &[&str] = &[
    "allowed",
    "collisionCount",
    "continue",
    "denied",
    "failureThreshold",
    "generation",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "minReadySeconds",
    "nodePort",
    "observedGeneration",
    "paused",
    "periodSeconds",
    "publishNotReadyAddresses",
    "readOnly",
    "stdin",
    "stdinOnce",
    "successThreshold",
    "timeoutSeconds",
    "tty",
    "unschedulable",
];

const TAGS_SOURCE: &str = include_str!("../../../data/builtin-protobuf-tags.json");

fn tags() -> &'static Map<String, Value> {
    static TAGS: OnceLock<Map<String, Value>> = OnceLock::new();
    TAGS.get_or_init(|| serde_json::from_str(TAGS_SOURCE).unwrap_or_default())
}

/// Decodes a message to the JSON object that its schema describes.
pub(super) fn message(bytes: &[u8], schema: &Schema) -> Result<Map<String, Value>, ProtobufError> {
    let table = schema
        .reference
        .as_deref()
        .and_then(|name| tags().get(name))
        .and_then(Value::as_object);
    let mut object = Map::new();
    if let Some(table) = table {
        fill(bytes, schema, table, &mut object)?;
    }
    Ok(object)
}

/// Reads a message's fields into the object; a number that maps to a table is an embedded struct.
fn fill(
    bytes: &[u8],
    schema: &Schema,
    table: &Map<String, Value>,
    object: &mut Map<String, Value>,
) -> Result<(), ProtobufError> {
    for found in fields(bytes)? {
        match (table.get(&found.number.to_string()), found.bytes()) {
            (Some(Value::Object(embedded)), Some(bytes)) => fill(bytes, schema, embedded, object)?,
            (Some(Value::String(name)), _) => {
                if let Some(field) = schema.field(name) {
                    put(object, name, &found, field, schema)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn put(
    object: &mut Map<String, Value>,
    name: &str,
    found: &Field<'_>,
    field: &Schema,
    owner: &Schema,
) -> Result<(), ProtobufError> {
    let target = field.resolve();
    match (target.kind, found.bytes()) {
        (Type::Array, bytes) => {
            let list = object.entry(name).or_insert_with(|| json!([]));
            let Value::Array(list) = list else {
                return Ok(());
            };
            match bytes {
                // Packed numbers.
                Some(mut packed) if field.item().resolve().kind == Type::Integer => {
                    while !packed.is_empty() {
                        list.push(json!(varint(&mut packed)?.cast_signed()));
                    }
                }
                _ => list.push(value(found, field.item())?),
            }
        }
        (Type::Object, Some(bytes)) if target.values.is_some() => {
            let map = object.entry(name).or_insert_with(|| json!({}));
            let values = target.values.as_deref().unwrap_or(Schema::any());
            let mut key = String::new();
            let mut entry = zero(values);
            for part in fields(bytes)? {
                match part.number {
                    1 => key = utf8(part.bytes().unwrap_or_default())?,
                    2 => entry = value(&part, values)?,
                    _ => {}
                }
            }
            map[key] = entry;
        }
        _ => {
            let decoded = value(found, field)?;
            let required = owner
                .resolve()
                .required
                .iter()
                .any(|required| required == name);
            let in_status = owner
                .type_name()
                .is_some_and(|name| name.ends_with("Status"));
            let absent = match &decoded {
                Value::Null => true,
                Value::String(text) => text.is_empty() && !required,
                Value::Number(number) => {
                    number.as_f64() == Some(0.0)
                        && !required
                        && (in_status || VALUE_FIELDS.contains(&name))
                }
                Value::Bool(flag) => {
                    !flag && !required && (in_status || VALUE_FIELDS.contains(&name))
                }
                _ => false,
            };
            if !absent {
                object.insert(name.to_owned(), decoded);
            }
        }
    }
    Ok(())
}

/// A map entry's value when the entry carries none.
fn zero(schema: &Schema) -> Value {
    match schema.resolve().kind {
        Type::String => json!(""),
        Type::Array => json!([]),
        _ => Value::Null,
    }
}

fn value(found: &Field<'_>, schema: &Schema) -> Result<Value, ProtobufError> {
    let target = schema.resolve();
    let number = match found.wire {
        Wire::Varint(number) | Wire::Fixed(number) => number,
        Wire::Bytes(_) => 0,
    };
    let bytes = found.bytes().unwrap_or_default();
    Ok(match (schema.type_name(), target.kind) {
        (Some("Time"), _) => time(bytes, false)?,
        (Some("MicroTime"), _) => time(bytes, true)?,
        (Some("FieldsV1" | "RawExtension" | "JSON"), _) => raw_json(bytes)?,
        (_, Type::IntOrString) => int_or_string(bytes)?,
        (_, Type::String) => match target.format.as_deref() {
            Some("quantity") => json!(first_text(bytes)?),
            Some("byte") => json!(STANDARD.encode(bytes)),
            _ => json!(utf8(bytes)?),
        },
        (_, Type::Integer) => json!(number.cast_signed()),
        (_, Type::Number) => json!(f64::from_bits(number)),
        (_, Type::Boolean) => json!(number != 0),
        // A list inside a map or list is a message with the items as its field 1.
        (_, Type::Array) => {
            let items = fields(bytes)?;
            let items: Result<Vec<Value>, _> = items
                .iter()
                .filter(|item| item.number == 1)
                .map(|item| value(item, schema.item()))
                .collect();
            Value::Array(items?)
        }
        (_, Type::Object) => Value::Object(message(bytes, schema)?),
        (_, Type::Any) => Value::Null,
    })
}

fn first_text(bytes: &[u8]) -> Result<String, ProtobufError> {
    let first = fields(bytes)?.into_iter().find(|field| field.number == 1);
    first
        .and_then(|field| field.bytes())
        .map_or_else(|| Ok(String::new()), utf8)
}

fn raw_json(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let raw = fields(bytes)?
        .into_iter()
        .find(|field| field.number == 1)
        .and_then(|field| field.bytes());
    raw.map_or(Ok(Value::Null), |raw| {
        serde_json::from_slice(raw).map_err(|_| ProtobufError::Wire)
    })
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut text) = (false, 0_i64, String::new());
    for field in fields(bytes)? {
        match (field.number, &field.wire) {
            (1, Wire::Varint(kind)) => is_text = *kind == 1,
            (2, Wire::Varint(value)) => number = value.cast_signed(),
            (3, Wire::Bytes(bytes)) => text = utf8(bytes)?,
            _ => {}
        }
    }
    Ok(if is_text { json!(text) } else { json!(number) })
}

/// Seconds and nanoseconds since 1970; an empty message is Go's zero time.
fn time(bytes: &[u8], micro: bool) -> Result<Value, ProtobufError> {
    let (mut seconds, mut nanos) = (None, 0_i64);
    for field in fields(bytes)? {
        match (field.number, &field.wire) {
            (1, Wire::Varint(value)) => seconds = Some(value.cast_signed()),
            (2, Wire::Varint(value)) => nanos = value.cast_signed(),
            _ => {}
        }
    }
    let Some(seconds) = seconds else {
        return Ok(Value::Null);
    };
    let nanos = i32::try_from(nanos).map_err(|_| ProtobufError::Wire)?;
    let instant = jiff::Timestamp::new(seconds, if micro { nanos } else { 0 })
        .map_err(|_| ProtobufError::Wire)?;
    Ok(json!(if micro {
        format!("{instant:.6}")
    } else {
        instant.to_string()
    }))
}
