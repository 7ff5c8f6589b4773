//! Helpers for objects as JSON.

use serde_json::{Map, Value, json};

/// Returns the object's name, empty when absent.
pub(super) fn name_of(value: &Value) -> &str {
    value["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns the map at `key`, created if it is not a map.
pub(super) fn object_of<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    map_of(map_of(value).entry(key).or_insert_with(|| json!({})))
}

/// Returns the value as a map; replaces other values by an empty map.
pub(super) fn map_of(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made a map above"),
    }
}
