//! Columns of the built-in kinds, and what their cells need.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::present::age::age;

/// A column of a built-in kind.
pub(in crate::present) struct Column {
    pub(in crate::present) name: &'static str,
    pub(in crate::present) kind: &'static str,
    pub(in crate::present) format: &'static str,
    pub(in crate::present) priority: i64,
    cell: Cell,
}

/// The value of a column for an object.
enum Cell {
    /// A field, or a text if it is absent.
    Field(&'static str, &'static str),
    Of(fn(&View<'_>) -> Value),
}

impl Column {
    /// Returns the value for an object.
    pub(in crate::present) fn cell(&self, view: &View<'_>) -> Value {
        match self.cell {
            Cell::Of(cell) => cell(view),
            Cell::Field(path, absent) => {
                let pointer = format!("/{}", path.replace('.', "/"));
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

    /// Shows `absent` if the field is absent.
    pub(super) const fn or(mut self, absent: &'static str) -> Self {
        if let Cell::Field(_, shown) = &mut self.cell {
            *shown = absent;
        }
        self
    }

    pub(super) const fn kind(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }
}

/// A column with a field of the object.
pub(super) const fn field(name: &'static str, path: &'static str) -> Column {
    Column {
        name,
        kind: "string",
        format: "",
        priority: 0,
        cell: Cell::Field(path, ""),
    }
}

/// A column with a computed value.
pub(super) const fn computed(name: &'static str, cell: fn(&View<'_>) -> Value) -> Column {
    Column {
        cell: Cell::Of(cell),
        ..field(name, "")
    }
}

pub(super) const fn whole(name: &'static str, path: &'static str) -> Column {
    field(name, path).kind("integer")
}

pub(super) const NAME: Column = Column {
    format: "name",
    ..field("Name", "metadata.name")
};
pub(super) const AGE: Column = computed("Age", |view| {
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
