//! Typed values: the fields they set, their difference, their merge.
//!
//! UPSTREAM: structured-merge-diff/typed.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::FieldSet;
use crate::registry::schema::{ListType, Schema, Type};

/// How a value is merged.
enum Shape<'a> {
    /// Replaced as a whole.
    Leaf,
    /// Merged field by field.
    Object,
    /// Merged item by item, identified by path elements.
    List(&'a ListType),
}

fn shape<'a>(value: &Value, schema: &'a Schema) -> Shape<'a> {
    match value {
        Value::Object(_)
            if !schema.is_atomic_map()
                && matches!(schema.resolve().kind, Type::Object | Type::Any) =>
        {
            Shape::Object
        }
        Value::Array(_) => match &schema.list {
            ListType::Atomic => Shape::Leaf,
            list => Shape::List(list),
        },
        _ => Shape::Leaf,
    }
}

/// Returns the path elements of a list's items in order, or the problem of an item.
fn elements(items: &[Value], schema: &Schema, list: &ListType) -> Result<Vec<String>, String> {
    let mut found: Vec<String> = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let element = match list {
            ListType::Map(keys) => {
                let mut id = Map::new();
                for key in keys {
                    let default = || {
                        schema
                            .item()
                            .field(key)
                            .and_then(|field| field.default.clone())
                    };
                    if let Some(value) = item
                        .get(key)
                        .filter(|value| !value.is_null())
                        .cloned()
                        .or_else(default)
                    {
                        id.insert(key.clone(), value);
                    }
                }
                if id.is_empty() {
                    return Err(format!(
                        "element {index}: associative list with keys has an element that omits key field {:?}",
                        keys.join(",")
                    ));
                }
                format!("k:{}", Value::Object(id))
            }
            _ => format!("v:{item}"),
        };
        if found.contains(&element) {
            return Err(format!("duplicate entries for key {}", &element[2..]));
        }
        found.push(element);
    }
    Ok(found)
}

/// Returns the fields that a configuration sets.
///
/// # Errors
///
/// The path and problem of a list whose items cannot be distinguished.
pub(super) fn fields_of(value: &Value, schema: &Schema) -> Result<FieldSet, String> {
    let mut set = FieldSet::default();
    collect(value, schema, "", &mut set)?;
    set.tidy();
    Ok(set)
}

fn collect(value: &Value, schema: &Schema, path: &str, set: &mut FieldSet) -> Result<(), String> {
    match (shape(value, schema), value) {
        (Shape::Object, Value::Object(fields)) => {
            for (name, child) in fields {
                let Some(field) = schema.field(name) else {
                    continue;
                };
                let below = set.child_mut(&format!("f:{name}"));
                collect(child, field, &format!("{path}.{name}"), below)?;
                let empty = child.is_null() || child.as_object().is_some_and(Map::is_empty);
                if empty || !schema.resolve().properties.contains_key(name) {
                    below.mark();
                }
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            for (item, element) in items.iter().zip(
                elements(items, schema, list).map_err(|problem| format!("{path}: {problem}"))?,
            ) {
                let below = set.child_mut(&element);
                collect(item, schema.item(), path, below)?;
                below.mark();
            }
        }
        _ => set.mark(),
    }
    Ok(())
}

/// The difference of `new` and `old`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Comparison {
    /// Fields only in `new`.
    pub(super) added: FieldSet,
    /// Fields with another value.
    pub(super) modified: FieldSet,
    /// Fields only in `old`.
    pub(super) removed: FieldSet,
}

/// Compares two objects of one schema without their managed fields. A list whose items cannot be distinguished is compared as a
/// whole.
pub(super) fn compare(old: &Value, new: &Value, schema: &Schema) -> Comparison {
    let mut comparison = Comparison::default();
    walk(
        Some(old),
        Some(new),
        schema,
        &mut Vec::new(),
        &mut comparison,
    );
    comparison
}

fn walk(
    old: Option<&Value>,
    new: Option<&Value>,
    schema: &Schema,
    path: &mut Vec<String>,
    out: &mut Comparison,
) {
    let is_object =
        |value: Option<&Value>| value.is_none_or(|value| value.is_null() || value.is_object());
    let is_list =
        |value: Option<&Value>| value.is_none_or(|value| value.is_null() || value.is_array());
    let is_empty = |value: Option<&Value>| match value {
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        _ => true,
    };
    let sample = [new, old]
        .into_iter()
        .flatten()
        .find(|value| !value.is_null());
    let descended = match sample.map(|value| shape(value, schema)) {
        _ if is_empty(old) && is_empty(new) => false,
        Some(Shape::Object) if is_object(old) && is_object(new) => {
            walk_objects(
                old.and_then(Value::as_object),
                new.and_then(Value::as_object),
                schema,
                path,
                out,
            );
            true
        }
        Some(Shape::List(list)) if is_list(old) && is_list(new) => {
            walk_lists(old, new, schema, list, path, out)
        }
        _ => false,
    };
    match (old, new) {
        (None, Some(_)) => out.added.insert(path.iter()),
        (Some(_), None) => out.removed.insert(path.iter()),
        (Some(old), Some(new)) if !descended && old != new => out.modified.insert(path.iter()),
        _ => {}
    }
}

fn walk_objects(
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    schema: &Schema,
    path: &mut Vec<String>,
    out: &mut Comparison,
) {
    let names: std::collections::BTreeSet<&String> =
        old.into_iter().chain(new).flat_map(Map::keys).collect();
    for name in names {
        let Some(field) = schema.field(name) else {
            continue;
        };
        // Managed fields have no owner.
        if name == "managedFields" && path.len() == 1 && path[0] == "f:metadata" {
            continue;
        }
        path.push(format!("f:{name}"));
        walk(
            old.and_then(|fields| fields.get(name)),
            new.and_then(|fields| fields.get(name)),
            field,
            path,
            out,
        );
        path.pop();
    }
}

fn walk_lists(
    old: Option<&Value>,
    new: Option<&Value>,
    schema: &Schema,
    list: &ListType,
    path: &mut Vec<String>,
    out: &mut Comparison,
) -> bool {
    fn by_element<'a>(
        value: Option<&'a Value>,
        schema: &Schema,
        list: &ListType,
    ) -> Option<BTreeMap<String, &'a Value>> {
        let items = value
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        Some(
            elements(items, schema, list)
                .ok()?
                .into_iter()
                .zip(items)
                .collect(),
        )
    }
    let (Some(before), Some(after)) =
        (by_element(old, schema, list), by_element(new, schema, list))
    else {
        return false;
    };
    let all: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for element in all {
        path.push(element.clone());
        walk(
            before.get(element).copied(),
            after.get(element).copied(),
            schema.item(),
            path,
            out,
        );
        path.pop();
    }
    true
}

/// Merges `config` into `live`.
///
/// # Errors
///
/// The path and problem of a list whose items cannot be distinguished.
pub(super) fn merge(live: &Value, config: &Value, schema: &Schema) -> Result<Value, String> {
    match (shape(config, schema), live, config) {
        (Shape::Object, Value::Object(live), Value::Object(config)) => {
            let mut merged = live.clone();
            for (name, change) in config {
                let value = match (merged.get(name), schema.field(name)) {
                    (Some(old), Some(field)) => {
                        merge(old, change, field).map_err(|problem| format!(".{name}{problem}"))?
                    }
                    _ => change.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Ok(Value::Object(merged))
        }
        (Shape::List(list), Value::Array(live), Value::Array(config)) => {
            merge_lists(live, config, schema, list).map(Value::Array)
        }
        _ => Ok(config.clone()),
    }
}

/// Merges items in the order of the configuration; other items keep their place before the next shared item.
fn merge_lists(
    live: &[Value],
    config: &[Value],
    schema: &Schema,
    list: &ListType,
) -> Result<Vec<Value>, String> {
    let problem = |problem: String| format!(": {problem}");
    let before = elements(live, schema, list).map_err(problem)?;
    let wanted = elements(config, schema, list).map_err(problem)?;
    let mut merged = Vec::with_capacity(live.len() + config.len());
    let (mut at, mut next) = (0, 0);
    let mut taken: Vec<&String> = Vec::new();
    while at < before.len() || next < wanted.len() {
        match before.get(at) {
            Some(element) if !wanted.contains(element) => {
                merged.push(live[at].clone());
                at += 1;
            }
            Some(element) if taken.contains(&element) => at += 1,
            _ => {
                let element = &wanted[next];
                let old = before.iter().position(|other| other == element);
                merged.push(match old {
                    Some(old) => merge(&live[old], &config[next], schema.item())?,
                    None => config[next].clone(),
                });
                taken.push(element);
                next += 1;
            }
        }
    }
    Ok(merged)
}

/// What happens to a container whose contents are all removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Emptied {
    /// It becomes null, so that it still counts as a field.
    Null,
    /// It is removed; a container that is empty because of that stays, empty.
    Gone,
}

/// Returns the value without the fields in `gone`.
pub(super) fn remove(value: &Value, schema: &Schema, gone: &FieldSet, emptied: Emptied) -> Value {
    match (shape(value, schema), value) {
        (Shape::Object, Value::Object(fields)) => {
            let mut rest = Map::new();
            let mut lost = false;
            for (name, child) in fields {
                match (gone.child(&format!("f:{name}")), schema.field(name)) {
                    (Some(below), _) if below.is_member() => lost = true,
                    (Some(below), Some(field)) => {
                        let left = remove(child, field, below, emptied);
                        if !left.is_null() || child.is_null() || emptied == Emptied::Null {
                            rest.insert(name.clone(), left);
                        }
                    }
                    _ => {
                        rest.insert(name.clone(), child.clone());
                    }
                }
            }
            if lost && rest.is_empty() {
                Value::Null
            } else {
                Value::Object(rest)
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            let Ok(ids) = elements(items, schema, list) else {
                return value.clone();
            };
            let mut rest = Vec::new();
            for (item, element) in items.iter().zip(ids) {
                match gone.child(&element) {
                    Some(below) if below.is_member() => {}
                    Some(below) => rest.push(remove(item, schema.item(), below, emptied)),
                    None => rest.push(item.clone()),
                }
            }
            if rest.is_empty() && !items.is_empty() {
                Value::Null
            } else {
                Value::Array(rest)
            }
        }
        _ => value.clone(),
    }
}

/// Returns the set with every struct field on the path to a member made a member.
pub(super) fn with_named_parents(set: &FieldSet, schema: &Schema) -> FieldSet {
    let mut out = set.clone();
    mark_named(&mut out, set, schema);
    out
}

fn mark_named(out: &mut FieldSet, set: &FieldSet, schema: &Schema) {
    let target = schema.resolve();
    let item = target.items.as_deref().or(target.values.as_deref());
    for element in set.elements() {
        let named = element
            .strip_prefix("f:")
            .and_then(|name| target.properties.get(name));
        if let (Some(below), Some(field)) = (set.child(element), named.or(item)) {
            let target = out.child_mut(element);
            if named.is_some() {
                target.mark();
            }
            mark_named(target, below, field);
        }
    }
}
