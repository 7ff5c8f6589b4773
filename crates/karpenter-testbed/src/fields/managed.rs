//! Reads, writes and orders `metadata.managedFields`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::set::FieldSet;

/// A manager and its operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Manager {
    /// `Apply` or `Update`.
    pub(super) operation: String,
    /// Name given by the client.
    pub(super) name: String,
    /// Empty for operation Apply, whose managers are the same in every version.
    pub(super) version: String,
    /// Empty for the main resource.
    pub(super) subresource: String,
}

impl Manager {
    /// Describes the manager as conflict messages do.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == "Update" {
            text.push_str(&format!(" using {}", self.version));
        }
        text
    }
}

/// The fields of a manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) fields: FieldSet,
    pub(super) api_version: String,
    /// RFC 3339, may be absent.
    pub(super) time: Option<String>,
}

/// Every manager of an object.
pub(super) type Managers = BTreeMap<Manager, Owned>;

/// Reads an object's managers; `None` if an entry is invalid.
pub(super) fn read(object: &Value) -> Option<Managers> {
    let mut managers = Managers::new();
    let entries = object
        .pointer("/metadata/managedFields")
        .and_then(Value::as_array);
    for entry in entries.into_iter().flatten() {
        let text = |key: &str| {
            entry
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let operation = text("operation");
        if !matches!(operation.as_str(), "Apply" | "Update") {
            return None;
        }
        let api_version = text("apiVersion");
        let version = if operation == "Apply" {
            String::new()
        } else {
            api_version.clone()
        };
        let fields = match entry.get("fieldsV1") {
            Some(fields) => FieldSet::from_json(fields)?,
            None => FieldSet::default(),
        };
        let manager = Manager {
            operation,
            name: text("manager"),
            version,
            subresource: text("subresource"),
        };
        let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
        managers.insert(
            manager,
            Owned {
                fields,
                api_version,
                time,
            },
        );
    }
    Some(managers)
}

/// Writes the managers into an object: ordered by operation, time, name.
pub(super) fn write(object: &mut Value, managers: &Managers) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    if managers.is_empty() {
        metadata.remove("managedFields");
        return;
    }
    let mut order: Vec<(&Manager, &Owned)> = managers.iter().collect();
    order.sort_by(|(a, owned_a), (b, owned_b)| {
        (
            &a.operation,
            &owned_a.time,
            &a.name,
            &owned_a.api_version,
            &a.subresource,
        )
            .cmp(&(
                &b.operation,
                &owned_b.time,
                &b.name,
                &owned_b.api_version,
                &b.subresource,
            ))
    });
    let entries = order
        .into_iter()
        .map(|(manager, owned)| entry(manager, owned))
        .collect();
    metadata.insert("managedFields".into(), Value::Array(entries));
}

fn entry(manager: &Manager, owned: &Owned) -> Value {
    let mut entry = json!({
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": owned.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": owned.fields.to_json(),
    });
    if let Some(time) = &owned.time {
        entry["time"] = json!(time);
    }
    if !manager.subresource.is_empty() {
        entry["subresource"] = json!(manager.subresource);
    }
    entry
}
