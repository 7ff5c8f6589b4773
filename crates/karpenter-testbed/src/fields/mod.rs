//! Ownership of fields: managed fields and server-side apply.
//!
//! - [`track_update`]: after a create, PUT, JSON/merge/strategic patch, records the changed fields of the writer in
//!   `metadata.managedFields` of the object to be stored.
//! - [`apply`]: server-side apply of a configuration to the live object (or to none), with conflicts.
//! - [`unchanged`]: whether a write is a no-op (keep the stored object, its times and resourceVersion).
//! - [`set::FieldSet`]: the set operations of `fieldsV1`.
//!
//! The server's order of work: decode and prune → patch or [`apply`] → defaulting and the strategy of the resource
//! (status or spec reset, system fields) → [`track_update`] (not after [`apply`]) → validation → [`unchanged`]?
//!
//! UPSTREAM: apimachinery/pkg/util/managedfields, structured-merge-diff/merge.

mod managed;
pub mod set;
mod typed;

use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::registry::decode;
use crate::registry::schema::Schema;
use managed::{Manager, Managers, Owned};
use set::FieldSet;
use typed::Emptied;

/// Manager of the fields of an untracked object before its first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// kubectl's annotation with the last configuration of client-side apply.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The writer of a request: manager, endpoint, time.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// `fieldManager`, or the part of the User-Agent before the slash.
    pub manager: &'a str,
    /// `apiVersion` of the request's objects.
    pub api_version: &'a str,
    /// Subresource, empty for the resource itself.
    pub subresource: &'a str,
    /// Current time, RFC 3339 in whole seconds with `Z`.
    pub now: &'a str,
    /// Top-level fields this endpoint ignores: `["status"]` for a resource with a status subresource, `["spec"]` for a
    /// built-in status, `["spec", "metadata"]` for a custom one.
    pub ignored: &'a [&'a str],
}

/// A field that another manager owns with another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The owner as messages call it: `"m2"`, `"kubectl" using v1`.
    pub owner: String,
    /// The field, such as `.spec.weight`.
    pub field: String,
}

/// The reason why a configuration cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// Other managers own fields with other values: 409 `Conflict`, with one cause of reason `FieldManagerConflict` per field,
    /// whose message is `conflict with OWNER`.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// `metadata.managedFields` is set in the configuration: 400 `BadRequest`.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// The configuration does not match the type: 500 `InternalError`, as a real server responds.
    #[error("failed to create typed patch object ({object}): {problem}")]
    Typed {
        /// Namespace, name and kind.
        object: String,
        problem: String,
    },
}

/// Returns the message of a conflict response.
fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [conflict] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            conflict.owner, conflict.field
        );
    }
    let mut owners: Vec<&str> = conflicts
        .iter()
        .map(|conflict| conflict.owner.as_str())
        .collect();
    owners.sort_unstable();
    owners.dedup();
    let parts: Vec<String> = owners
        .into_iter()
        .map(|owner| {
            let fields: Vec<String> = conflicts
                .iter()
                .filter(|conflict| conflict.owner == owner)
                .map(|conflict| format!("- {}", conflict.field))
                .collect();
            format!("conflicts with {owner}:\n{}", fields.join("\n"))
        })
        .collect();
    format!(
        "Apply failed with {} conflicts: {}",
        conflicts.len(),
        parts.join("\n")
    )
}

/// Fields that have no owner.
fn unowned() -> &'static FieldSet {
    static UNOWNED: OnceLock<FieldSet> = OnceLock::new();
    UNOWNED.get_or_init(|| {
        let mut set = FieldSet::default();
        for field in ["f:apiVersion", "f:kind", "f:metadata"] {
            set.insert([field]);
        }
        for field in [
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
        ] {
            set.insert(["f:metadata", &format!("f:{field}")]);
        }
        set
    })
}

fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// Returns the base of a create: for built-in types an object whose value fields are present and empty (Go's zero value), for
/// custom resources an empty object.
fn blank(schema: &Schema) -> Value {
    let mut blank = Value::Object(Map::new());
    if schema.reference.is_some() {
        decode::fill_zero_values(&mut blank, schema);
    }
    blank
}

/// Records in `new.metadata.managedFields` what `writer` changes between `live` (`None`: create) and `new`.
///
/// `new` is the object as it will be stored (defaulted, system fields set). Its own `managedFields` are those of the request:
/// they are used if they are valid (they are writable), `[{}]` resets all managers; missing or invalid ones mean those of the
/// live object. Subresources always use those of the live object. Times change only for entries that gain fields.
pub fn track_update(live: Option<&Value>, new: &mut Value, schema: &Schema, writer: &Writer<'_>) {
    let of_live = || live.and_then(managed::read).unwrap_or_default();
    let mut managers = if !writer.subresource.is_empty() {
        of_live()
    } else {
        managed::read(new)
            .filter(|managers| !managers.is_empty())
            .unwrap_or_else(of_live)
    };
    if live.is_none() || !managers.is_empty() {
        let blank = if live.is_none() {
            blank(schema)
        } else {
            Value::Null
        };
        update(
            live.unwrap_or(&blank),
            new,
            schema,
            &mut managers,
            &updater(writer),
            writer,
        );
    }
    managed::write(new, &managers);
}

fn updater(writer: &Writer<'_>) -> Manager {
    Manager {
        operation: "Update".into(),
        name: writer.manager.into(),
        version: writer.api_version.into(),
        subresource: writer.subresource.into(),
    }
}

fn update(
    old: &Value,
    new: &Value,
    schema: &Schema,
    managers: &mut Managers,
    manager: &Manager,
    writer: &Writer<'_>,
) {
    let comparison = typed::compare(old, new, schema);
    let changed = comparison.modified.union(&comparison.added);
    for owned in managers.values_mut() {
        owned.fields = owned
            .fields
            .difference(&changed)
            .difference(&comparison.removed);
    }
    let gained = changed.difference(unowned());
    if !gained.is_empty() {
        let before = managers
            .get(manager)
            .map(|owned| owned.fields.clone())
            .unwrap_or_default();
        let owned = Owned {
            fields: before.union(&gained),
            api_version: writer.api_version.to_owned(),
            time: Some(writer.now.to_owned()),
        };
        managers.insert(manager.clone(), owned);
    }
    managers.retain(|_, owned| !owned.fields.is_empty());
}

/// Applies `config` to `live` (`None`: the object is created) and returns the new object with its managed fields.
///
/// Fields that the manager applied before and now omits are removed unless another manager owns them. With `force`, conflicting
/// fields change their owner. If nothing changes, the result equals the live object, times included.
///
/// # Errors
///
/// [`ApplyError`].
pub fn apply(
    live: Option<&Value>,
    config: &Value,
    schema: &Schema,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    if config
        .pointer("/metadata/managedFields")
        .is_some_and(|fields| fields.as_array().is_none_or(|fields| !fields.is_empty()))
    {
        return Err(ApplyError::ManagedFields);
    }
    let config = without_ignored(&without_managed_fields(config), writer.ignored);
    let mut managers = live.and_then(managed::read).unwrap_or_default();
    let base = live.map_or_else(|| Value::Object(Map::new()), without_managed_fields);
    if managers.is_empty() && live.is_some() {
        let first = Manager {
            name: BEFORE_FIRST_APPLY.into(),
            ..updater(writer)
        };
        update(&blank(schema), &base, schema, &mut managers, &first, writer);
    }
    let before = managers.clone();
    let typed_error = |problem: String| ApplyError::Typed {
        object: describe(&config),
        problem,
    };
    let manager = Manager {
        operation: "Apply".into(),
        name: writer.manager.into(),
        version: String::new(),
        subresource: writer.subresource.into(),
    };
    let fields = typed::fields_of(&config, schema).map_err(typed_error)?;
    let last = managers.get(&manager).cloned();
    let owned = fields.difference(unowned());
    managers.insert(
        manager.clone(),
        Owned {
            fields: owned,
            api_version: writer.api_version.to_owned(),
            time: last.as_ref().and_then(|last| last.time.clone()),
        },
    );
    let merged = typed::merge(&base, &config, schema).map_err(typed_error)?;
    let mut new = match &last {
        Some(last) => {
            let pruned = prune(&merged, schema, &managers, &fields, &last.fields);
            // Empty containers of the configuration are kept, even if pruning emptied them.
            typed::merge(&pruned, &config, schema).map_err(typed_error)?
        }
        None => merged,
    };
    let comparison = typed::compare(&base, &new, schema);
    let changed = comparison.modified.union(&comparison.added);
    let mut conflicts = Vec::new();
    for (other, owned) in managers.iter_mut().filter(|(other, _)| **other != manager) {
        let contested = owned.fields.intersection(&changed);
        let owner = other.describe();
        conflicts.extend(contested.paths().into_iter().map(|field| Conflict {
            owner: owner.clone(),
            field,
        }));
        owned.fields = owned
            .fields
            .difference(&contested)
            .difference(&comparison.removed);
    }
    let allowed =
        force || writer.manager == "kubectl" && resolved_by_last_applied(&base, &conflicts, schema);
    if !conflicts.is_empty() && !allowed {
        return Err(ApplyError::Conflicts(conflicts));
    }
    managers.retain(|_, owned| !owned.fields.is_empty());
    let same_owners = managers.get(&manager).map(|owned| &owned.fields)
        == before.get(&manager).map(|owned| &owned.fields);
    if base != new || !same_owners || live.is_none() {
        if let Some(owned) = managers.get_mut(&manager) {
            owned.time = Some(writer.now.to_owned());
        }
    } else if live
        .is_some_and(|live| managed::read(live).is_some_and(|managers| !managers.is_empty()))
    {
        managers = before;
    }
    if writer.manager == "kubectl" {
        renew_last_applied(&mut new, &config);
    }
    managed::write(&mut new, &managers);
    Ok(new)
}

/// Returns the configuration without the fields that the endpoint ignores; the object's identity is always kept.
fn without_ignored(config: &Value, ignored: &[&str]) -> Value {
    let mut config = config.clone();
    let Some(fields) = config.as_object_mut() else {
        return config;
    };
    for name in ignored {
        match fields.get_mut(*name) {
            Some(Value::Object(metadata)) if *name == "metadata" => {
                metadata.retain(|key, _| {
                    matches!(
                        key.as_str(),
                        "name" | "namespace" | "uid" | "resourceVersion"
                    )
                });
            }
            _ => {
                fields.remove(*name);
            }
        }
    }
    config
}

fn describe(object: &Value) -> String {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    format!(
        "{}/{}; {}, Kind={}",
        text("/metadata/namespace"),
        text("/metadata/name"),
        text("/apiVersion"),
        text("/kind")
    )
}

/// Removes from `merged` what the manager applied last time and no manager owns any more. `now` is all that it applies this time,
/// including the object's identity.
///
/// UPSTREAM: structured-merge-diff/merge/update.go prune: a struct field counts as owned with its children; what was never
/// applied stays.
fn prune(
    merged: &Value,
    schema: &Schema,
    managers: &Managers,
    now: &FieldSet,
    last: &FieldSet,
) -> Value {
    let Ok(all) = typed::fields_of(merged, schema) else {
        return merged.clone();
    };
    let all = typed::with_named_parents(&all, schema);
    let last = typed::with_named_parents(last, schema);
    let owned = managers
        .values()
        .fold(now.clone(), |union, owned| union.union(&owned.fields));
    let owned = typed::with_named_parents(&owned, schema);
    let left = |value: &Value| {
        let fields = typed::fields_of(value, schema).unwrap_or_default();
        typed::with_named_parents(&fields, schema)
    };
    let without_last = typed::remove(merged, schema, &last, Emptied::Null);
    let kept = typed::remove(
        merged,
        schema,
        &all.difference(&left(&without_last).union(&owned)),
        Emptied::Null,
    );
    let gone = all.difference(&left(&kept)).intersection(&last);
    match typed::remove(merged, schema, &gone, Emptied::Gone) {
        Value::Null => Value::Object(Map::new()),
        rest => rest,
    }
}

/// Whether every conflicting field still has the value of kubectl's last client-side apply: then kubectl's server-side apply may
/// own it.
///
/// UPSTREAM: managedfields/internal/lastappliedmanager.go.
fn resolved_by_last_applied(live: &Value, conflicts: &[Conflict], schema: &Schema) -> bool {
    let Some(last) = last_applied(live) else {
        return false;
    };
    let Ok(recorded) = typed::fields_of(&last, schema) else {
        return false;
    };
    let Ok(merged) = typed::merge(live, &last, schema) else {
        return false;
    };
    let drifted = typed::compare(live, &merged, schema);
    let resolved = recorded
        .difference(&drifted.modified)
        .difference(&drifted.added)
        .paths();
    conflicts
        .iter()
        .all(|conflict| resolved.contains(&conflict.field))
}

fn last_applied(object: &Value) -> Option<Value> {
    let text = object
        .get("metadata")?
        .get("annotations")?
        .get(LAST_APPLIED)?
        .as_str()?;
    serde_json::from_str(text).ok()
}

/// Updates kubectl's annotation, so that a later client-side apply computes the correct difference.
fn renew_last_applied(object: &mut Value, config: &Value) {
    if last_applied(object).is_none() {
        return;
    }
    let mut recorded = config.clone();
    if let Some(notes) = recorded
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        notes.remove(LAST_APPLIED);
    }
    if let Some(notes) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        notes.insert(LAST_APPLIED.into(), Value::String(format!("{recorded}\n")));
    }
}

/// Whether storing `new` over `live` changes only times in managed fields and the resourceVersion.
///
/// Such a write keeps the stored object and sends no watch event.
pub fn unchanged(live: &Value, new: &Value) -> bool {
    let comparable = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
            for entry in metadata
                .get_mut("managedFields")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                if let Some(entry) = entry.as_object_mut() {
                    entry.remove("time");
                }
            }
            if let Some(entries) = metadata
                .get_mut("managedFields")
                .and_then(Value::as_array_mut)
            {
                entries.sort_by_key(Value::to_string);
            }
        }
        object
    };
    comparable(live) == comparable(new)
}

#[cfg(test)]
mod tests;
