//! Columns of the built-in kinds, and what their cells need.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::present::age::age;
use crate::registry::Resource;

/// A column of a built-in kind.
pub(in crate::present) struct Column {
    pub(in crate::present) name: &'static str,
    pub(in crate::present) kind: &'static str,
    pub(in crate::present) format: &'static str,
    pub(in crate::present) priority: i64,
    /// Path in the object's schema of the field that describes the column, may be empty.
    about: &'static str,
    cell: Cell,
}

/// The value of a column for an object.
enum Cell {
    /// The field that describes the column, or a text if it is absent.
    Field(&'static str),
    Of(fn(&View<'_>) -> Value),
}

impl Column {
    /// Returns the description of the field in the column.
    pub(in crate::present) fn description(&self, resource: &Resource) -> String {
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

    /// Returns the value for an object.
    pub(in crate::present) fn cell(&self, view: &View<'_>) -> Value {
        match self.cell {
            Cell::Of(cell) => cell(view),
            Cell::Field(absent) => {
                let pointer = format!("/{}", self.about.replace('.', "/"));
                match (view.at(&pointer), self.kind) {
                    (Some(Value::String(text)), _) if !text.is_empty() => json!(text),
                    (Some(Value::Number(number)), _) => json!(number),
                    (Some(Value::Bool(flag)), _) => json!(flag),
                    (_, "integer") => json!(0),
                    (_, "boolean") => json!(false),
                    _ => json!(absent),
                }
            }
        }
    }

    /// Shows it with `-o wide` only.
    pub(super) const fn wide(self) -> Self {
        Self {
            priority: 1,
            ..self
        }
    }

    /// Shows `absent` where the field is.
    pub(super) const fn or(self, absent: &'static str) -> Self {
        Self {
            cell: Cell::Field(absent),
            ..self
        }
    }

    pub(super) const fn kind(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }
}

/// A column with a field of the object.
pub(super) const fn field(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        kind: "string",
        format: "",
        priority: 0,
        about,
        cell: Cell::Field(""),
    }
}

/// A column with a computed value.
pub(super) const fn computed(
    name: &'static str,
    about: &'static str,
    cell: fn(&View<'_>) -> Value,
) -> Column {
    Column {
        cell: Cell::Of(cell),
        ..field(name, about)
    }
}

pub(super) const fn whole(name: &'static str, about: &'static str) -> Column {
    field(name, about).kind("integer")
}

pub(super) const NAME: Column = Column {
    format: "name",
    ..field("Name", "metadata.name")
};
pub(super) const AGE: Column = computed("Age", "metadata.creationTimestamp", |view| {
    json!(view.since("/metadata/creationTimestamp"))
});

/// An object and the current instant, with helpers for cells.
pub(in crate::present) struct View<'a> {
    pub(in crate::present) object: &'a Value,
    pub(in crate::present) now: Timestamp,
}

impl<'a> View<'a> {
    /// Returns the value at a JSON pointer, unless it is null.
    pub(super) fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.object
            .pointer(pointer)
            .filter(|value| !value.is_null())
    }

    pub(super) fn str(&self, pointer: &str) -> &'a str {
        self.at(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn or<'b>(&self, pointer: &str, absent: &'b str) -> &'b str
    where
        'a: 'b,
    {
        Some(self.str(pointer))
            .filter(|text| !text.is_empty())
            .unwrap_or(absent)
    }

    pub(super) fn int(&self, pointer: &str) -> i64 {
        self.at(pointer).and_then(Value::as_i64).unwrap_or(0)
    }

    pub(super) fn list(&self, pointer: &str) -> &'a [Value] {
        self.at(pointer)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    pub(super) fn count(&self, pointer: &str) -> usize {
        match self.at(pointer) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(fields)) => fields.len(),
            _ => 0,
        }
    }

    /// Returns the time since a field, `<unknown>` when absent.
    pub(super) fn since(&self, pointer: &str) -> String {
        age(self.at(pointer).and_then(Value::as_str), self.now)
    }

    pub(super) fn deleted(&self) -> bool {
        self.at("/metadata/deletionTimestamp").is_some()
    }

    /// Returns a condition of the status.
    pub(super) fn condition(&self, kind: &str) -> Option<&'a Value> {
        self.list("/status/conditions")
            .iter()
            .find(|condition| condition["type"] == kind)
    }

    /// Whether a condition is true.
    pub(super) fn holds(&self, kind: &str) -> bool {
        self.condition(kind)
            .is_some_and(|condition| condition["status"] == "True")
    }
}

/// Returns a field as text.
pub(super) fn string(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the cells of an object as one line.
    pub(in crate::present::rows) fn cells(columns: &[Column], object: &Value) -> String {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let view = View { object, now };
        let text = |cell: Value| {
            cell.as_str()
                .map_or_else(|| cell.to_string(), str::to_owned)
        };
        let cells: Vec<String> = columns
            .iter()
            .map(|column| text(column.cell(&view)))
            .collect();
        cells.join(" | ")
    }
}
