//! Fields that a write keeps as they are stored, and fields that the server sets.

use serde_json::Value;

use super::super::catalog::Served;
use super::super::value::object_of;

/// Keeps the metadata that clients cannot change.
pub(super) fn carry_metadata(old: &Value, new: &mut Value) {
    let metadata = object_of(new, "metadata");
    for key in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ] {
        match old["metadata"].get(key) {
            Some(kept) => {
                metadata.insert(key.into(), kept.clone());
            }
            None => {
                metadata.remove(key);
            }
        }
    }
}

/// Keeps the part of the object that the path does not write.
pub(super) fn carry_halves(
    served: &Served,
    old: &Value,
    new: &mut Value,
    subresource: Option<&str>,
) {
    let put = |new: &mut Value, key: &str| match old.get(key) {
        Some(kept) => new[key] = kept.clone(),
        None => {
            if let Some(map) = new.as_object_mut() {
                map.remove(key);
            }
        }
    };
    match subresource {
        None if served.subresource("status").is_some() => put(new, "status"),
        Some("status") if served.is_custom() => {
            let mut kept = old.clone();
            match new.get("status") {
                Some(status) => kept["status"] = status.clone(),
                None => {
                    if let Some(map) = kept.as_object_mut() {
                        map.remove("status");
                    }
                }
            }
            if let Some(fields) = new["metadata"].get("managedFields") {
                kept["metadata"]["managedFields"] = fields.clone();
            }
            *new = kept;
        }
        Some("status") => {
            let mut keys: Vec<String> = Vec::new();
            for map in [old.as_object(), new.as_object()].into_iter().flatten() {
                keys.extend(map.keys().cloned());
            }
            for key in keys {
                if key != "metadata" && key != "status" {
                    put(new, &key);
                }
            }
        }
        Some("finalize") => put(new, "status"),
        _ => {}
    }
}

pub(super) fn bump_generation(served: &Served, old: &Value, new: &mut Value) {
    let Some(generation) = old["metadata"]["generation"].as_i64() else {
        return;
    };
    let changed = if served.is_custom() {
        let has_status = served.subresource("status").is_some();
        let outside = |value: &Value| -> Vec<(String, Value)> {
            value
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(k, _)| *k != "metadata" && !(has_status && *k == "status"))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        };
        outside(old) != outside(new)
    } else {
        old["spec"] != new["spec"]
    };
    if changed {
        new["metadata"]["generation"] = (generation + 1).into();
    }
}

/// Whether an object that is being deleted has no finalizers and no grace period left.
pub(in crate::server) fn ready_to_go(value: &Value) -> bool {
    let metadata = &value["metadata"];
    metadata["deletionTimestamp"].is_string()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && metadata["finalizers"].as_array().is_none_or(Vec::is_empty)
        && value["spec"]["finalizers"]
            .as_array()
            .is_none_or(Vec::is_empty)
}
