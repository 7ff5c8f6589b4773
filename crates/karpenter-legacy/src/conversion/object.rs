//! Access to fields and annotations of a document.

use serde_json::{Map, Value};

/// Returns the object at this path, if there is one.
pub(super) fn object_at<'a>(
    value: &'a mut Value,
    pointer: &str,
) -> Option<&'a mut Map<String, Value>> {
    value.pointer_mut(pointer)?.as_object_mut()
}

pub(super) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"].get(key)?.as_str()
}

/// Removes an annotation, and the map of annotations if it is empty.
pub(super) fn take_annotation(object: &mut Value, key: &str) -> Option<String> {
    let metadata = object_at(object, "/metadata")?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let value = annotations.remove(key)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    value.as_str().map(str::to_owned)
}

pub(super) fn drop_empty_annotations(object: &mut Value) {
    if let Some(metadata) = object_at(object, "/metadata") {
        let empty = |annotations: &Value| annotations.as_object().is_some_and(Map::is_empty);
        if metadata.get("annotations").is_some_and(empty) {
            metadata.remove("annotations");
        }
    }
}

pub(super) fn annotate(object: &mut Value, key: &str, value: String) {
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(Map::new());
    }
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = Value::Object(Map::new());
    }
    object["metadata"]["annotations"][key] = value.into();
}
