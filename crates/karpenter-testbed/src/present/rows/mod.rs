//! Columns and cells of the built-in kinds.

mod core_group;
mod policy;
mod storage;
mod workloads;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::age;
use crate::registry::Resource;

/// A column of a built-in kind.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) format: &'static str,
    pub(super) priority: i64,
    /// Path in the object's schema of the field that describes the column, may be empty.
    about: &'static str,
}

impl Column {
    /// Returns the description of the field in the column.
    pub(super) fn description(&self, resource: &Resource) -> String {
        let mut schema = Some(resource.schema.as_ref());
        for name in self.about.split('.').filter(|name| !name.is_empty()) {
            schema = schema.and_then(|schema| schema.field(name));
        }
        if self.about.is_empty() {
            String::new()
        } else {
            schema
                .and_then(|schema| schema.description.clone())
                .unwrap_or_default()
        }
    }
}

const fn text(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        kind: "string",
        format: "",
        priority: 0,
        about,
    }
}

const fn wide(name: &'static str, about: &'static str) -> Column {
    Column {
        priority: 1,
        ..text(name, about)
    }
}

const fn whole(name: &'static str, about: &'static str) -> Column {
    Column {
        kind: "integer",
        ..text(name, about)
    }
}

const NAME: Column = Column {
    format: "name",
    ..text("Name", "metadata.name")
};
const AGE: Column = text("Age", "metadata.creationTimestamp");
const CONTAINERS: Column = wide("Containers", "");
const IMAGES: Column = wide("Images", "");
const SELECTOR: Column = wide("Selector", "spec.selector");

/// The cells and conditions of one kind's rows.
pub(super) struct Painting {
    pub(super) columns: &'static [Column],
    pub(super) cells: fn(&View<'_>) -> Vec<Value>,
    /// Row conditions (`Completed`).
    pub(super) conditions: Option<fn(&Value) -> Option<Value>>,
}

const fn painting_of(columns: &'static [Column], cells: fn(&View<'_>) -> Vec<Value>) -> Painting {
    Painting {
        columns,
        cells,
        conditions: None,
    }
}

/// An object and the current instant, with helpers for cells.
pub(super) struct View<'a> {
    pub(super) object: &'a Value,
    pub(super) now: Timestamp,
}

impl<'a> View<'a> {
    /// Returns the value at a JSON pointer, unless it is null.
    fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.object
            .pointer(pointer)
            .filter(|value| !value.is_null())
    }

    fn str(&self, pointer: &str) -> &'a str {
        self.at(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    fn or<'b>(&self, pointer: &str, absent: &'b str) -> &'b str
    where
        'a: 'b,
    {
        Some(self.str(pointer))
            .filter(|text| !text.is_empty())
            .unwrap_or(absent)
    }

    fn int(&self, pointer: &str) -> i64 {
        self.at(pointer).and_then(Value::as_i64).unwrap_or(0)
    }

    fn list(&self, pointer: &str) -> &'a [Value] {
        self.at(pointer)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    fn count(&self, pointer: &str) -> usize {
        match self.at(pointer) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(fields)) => fields.len(),
            _ => 0,
        }
    }

    fn name(&self) -> &'a str {
        self.str("/metadata/name")
    }

    /// Returns the time since a field, `<unknown>` when absent.
    fn since(&self, pointer: &str) -> String {
        age(self.at(pointer).and_then(Value::as_str), self.now)
    }

    fn age(&self) -> String {
        self.since("/metadata/creationTimestamp")
    }

    fn deleted(&self) -> bool {
        self.at("/metadata/deletionTimestamp").is_some()
    }

    /// Returns names and images of the containers at a pointer.
    fn containers(&self, pointer: &str) -> (String, String) {
        let containers = self.list(pointer);
        (joined(containers, "name"), joined(containers, "image"))
    }

    /// Formats a label selector in kubectl's text form.
    fn selector(&self, pointer: &str) -> String {
        selector_text(self.at(pointer))
    }
}

fn string(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}

fn joined(items: &[Value], key: &str) -> String {
    items
        .iter()
        .map(|item| string(item, key))
        .collect::<Vec<_>>()
        .join(",")
}

/// Formats `a=b,c in (d,e)`; `<none>` when absent, empty if the selector selects all objects.
fn selector_text(selector: Option<&Value>) -> String {
    let Some(selector) = selector else {
        return "<none>".to_owned();
    };
    let mut parts: Vec<String> = Vec::new();
    for (key, value) in selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        parts.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for requirement in selector
        .get("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let key = string(requirement, "key");
        let mut values: Vec<&str> = requirement
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        let values = values.join(",");
        parts.push(match requirement.get("operator").and_then(Value::as_str) {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key,
        });
    }
    if parts.is_empty() {
        "<none>".to_owned()
    } else {
        parts.join(",")
    }
}

/// Formats `a=b,c=d` of a map of labels, `<none>` when empty.
fn labels_text(labels: Option<&Value>) -> String {
    let pairs: Vec<String> = labels
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() {
        "<none>".to_owned()
    } else {
        pairs.join(",")
    }
}

/// Returns the columns of a built-in kind; kinds without their own show name and age.
pub(super) fn painting(group: &str, kind: &str) -> &'static Painting {
    let found = match (group, kind) {
        ("", _) => core_group::painting(kind),
        ("events.k8s.io", "Event") => core_group::painting("Event"),
        ("apps" | "batch" | "autoscaling", _) => workloads::painting(kind),
        ("storage.k8s.io" | "resource.k8s.io", _) => None,
        _ => policy::painting(kind),
    };
    found
        .or_else(|| storage::painting(kind))
        .unwrap_or(&DEFAULT)
}

static DEFAULT: Painting = painting_of(&[NAME, AGE], |view| {
    vec![json!(view.name()), json!(view.age())]
});
