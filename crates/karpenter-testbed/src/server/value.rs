//! Objects as JSON: what is read and written everywhere.

use serde_json::{Map, Value, json};

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
