//! The algorithm of strategic merge patches.
//!
//! 1. A map's `$patch` directive replaces or empties it; `$retainKeys` drops the fields it does not name.
//! 2. Lists with an explicit `$setElementOrder` are merged and ordered by it.
//! 3. Other fields: null deletes, maps merge, lists with a merge strategy merge by key (or as a set of scalars),
//!    everything else is replaced.
//! 4. A merged list has the patch's items in the patch's order, interleaved with the others in the server's order; an
//!    item the server did not have stands before those it had.
//!
//! UPSTREAM: apimachinery/pkg/util/strategicpatch.

use serde_json::{Map, Value};

use super::PatchError;
use crate::registry::schema::{PatchStrategy, Schema};

type Object = Map<String, Value>;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

fn error<T>(message: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Strategic(message.into()))
}

/// Merges `patch` into `original`, an object of type `schema`.
pub(super) fn merge_map(
    mut original: Object,
    mut patch: Object,
    schema: &Schema,
) -> Result<Object, PatchError> {
    match patch
        .remove(DIRECTIVE)
        .as_ref()
        .map(|value| value.as_str().unwrap_or_default())
    {
        None | Some("merge") => {}
        Some("replace") => return Ok(patch),
        Some("delete") => return Ok(Object::new()),
        Some(other) => return error(format!("unknown patch type found in map: {other}")),
    }
    if let Some(keys) = patch.remove(RETAIN_KEYS) {
        retain_keys(&mut original, &patch, &keys)?;
    }
    merge_ordered_lists(&mut original, &mut patch, schema)?;
    for (key, change) in patch {
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            if let (Some(Value::Array(items)), Value::Array(gone)) =
                (original.get_mut(name), &change)
            {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if change.is_null() {
            original.remove(&key);
            continue;
        }
        let field = schema.field(&key).unwrap_or(Schema::any());
        let merged = match (original.remove(&key), change) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                Value::Object(merge_map(old, new, field)?)
            }
            (Some(Value::Array(old)), Value::Array(new)) if field.patch.merge => {
                Value::Array(merge_list(old, new, field)?)
            }
            (Some(Value::Array(_)), Value::Array(new)) => Value::Array(new),
            (_, change) => plain(change),
        };
        original.insert(key, merged);
    }
    Ok(original)
}

/// Removes the fields that `$retainKeys` does not name; the patch must not set others.
fn retain_keys(original: &mut Object, patch: &Object, keys: &Value) -> Result<(), PatchError> {
    let Some(keys) = keys.as_array() else {
        return error("invalid patch format of retainKeys");
    };
    let named = |key: &str| keys.iter().any(|kept| kept.as_str() == Some(key));
    let stray = patch
        .iter()
        .find(|(key, value)| !value.is_null() && !key.starts_with('$') && !named(key));
    if stray.is_some() {
        return error(
            "invalid patch format of retainKeys: the patch sets a field the list does not name",
        );
    }
    original.retain(|key, _| named(key));
    Ok(())
}

/// Merges the lists for which the patch gives an order, and removes them from the patch.
fn merge_ordered_lists(
    original: &mut Object,
    patch: &mut Object,
    schema: &Schema,
) -> Result<(), PatchError> {
    let ordered: Vec<String> = patch
        .keys()
        .filter_map(|key| key.strip_prefix(ELEMENT_ORDER))
        .map(str::to_owned)
        .collect();
    for name in ordered {
        let Some(Value::Array(order)) = patch.remove(&format!("{ELEMENT_ORDER}{name}")) else {
            return error(format!(
                "invalid patch format of setElementOrder list of {name}"
            ));
        };
        let field = schema.field(&name).unwrap_or(Schema::any());
        if patch.get(&name).is_some_and(|change| !change.is_array()) {
            continue;
        }
        if let (Some(Value::Array(items)), Some(Value::Array(gone))) = (
            original.get_mut(&name),
            patch.remove(&format!("{DELETE_FROM}{name}")),
        ) {
            items.retain(|item| !gone.contains(item));
        }
        let old = original.get(&name).and_then(Value::as_array).cloned();
        let merged = match (old.clone(), patch.remove(&name)) {
            (Some(old), Some(Value::Array(new))) if field.patch.merge => {
                merge_list(old, new, field)?
            }
            (_, Some(Value::Array(new))) => plain_list(new),
            (Some(old), _) => old,
            (None, _) => continue,
        };
        let server = old.unwrap_or_default();
        original.insert(
            name,
            Value::Array(arrange(merged, &order, &server, &field.patch)),
        );
    }
    Ok(())
}

fn merge_list(
    original: Vec<Value>,
    patch: Vec<Value>,
    field: &Schema,
) -> Result<Vec<Value>, PatchError> {
    let of_maps = original.iter().chain(&patch).any(Value::is_object);
    let (original, patch) = if of_maps {
        apply_item_directives(original, patch, &field.patch)?
    } else {
        (original, patch)
    };
    let mut merged = original.clone();
    for item in &patch {
        match (item, &field.patch.merge_key) {
            (Value::Object(change), Some(key)) => {
                let Some(id) = change.get(key) else {
                    return error(format!(
                        "map: {item} does not contain declared merge key: {key}"
                    ));
                };
                match merged.iter_mut().find(|old| old.get(key) == Some(id)) {
                    Some(Value::Object(old)) => {
                        *old = merge_map(std::mem::take(old), change.clone(), field.item())?
                    }
                    _ => merged.push(plain(item.clone())),
                }
            }
            (Value::Object(_), None) => return error("cannot merge lists without merge key"),
            _ if merged.contains(item) => {}
            _ => merged.push(item.clone()),
        }
    }
    Ok(arrange(merged, &patch, &original, &field.patch))
}

/// Executes `$patch: delete` and `$patch: replace` in a list's items.
fn apply_item_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    strategy: &PatchStrategy,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut rest = Vec::new();
    let mut replace = false;
    for item in patch {
        match item
            .get(DIRECTIVE)
            .map(|value| value.as_str().unwrap_or_default())
        {
            None => rest.push(item),
            Some("replace") => replace = true,
            Some("delete") => {
                let Some(key) = &strategy.merge_key else {
                    return error("delete patch type with no merge key defined");
                };
                let Some(id) = item.get(key) else {
                    return error(format!(
                        "map: {item} does not contain declared merge key: {key}"
                    ));
                };
                original.retain(|old| old.get(key) != Some(id));
            }
            Some("merge") => return error("merging list cannot yet be specified in the patch"),
            Some(other) => return error(format!("unknown patch type found in list: {other}")),
        }
    }
    if replace {
        Ok((plain_list(rest), Vec::new()))
    } else {
        Ok((original, rest))
    }
}

/// Orders merged items: those of `wanted` in its order, the others in the server's, interleaved so that two items of the server
/// keep its order and new ones come first.
fn arrange(
    merged: Vec<Value>,
    wanted: &[Value],
    server: &[Value],
    strategy: &PatchStrategy,
) -> Vec<Value> {
    let same = |a: &Value, b: &Value| match (&strategy.merge_key, a.is_object()) {
        (Some(key), true) => a.get(key) == b.get(key),
        _ => a == b,
    };
    let place = |list: &[Value], item: &Value| list.iter().position(|other| same(item, other));
    let (mut first, mut others): (Vec<Value>, Vec<Value>) = merged
        .into_iter()
        .partition(|item| place(wanted, item).is_some());
    first.sort_by_key(|item| place(wanted, item));
    others.sort_by_key(|item| place(server, item));
    let mut arranged = Vec::with_capacity(first.len() + others.len());
    let mut first = first.into_iter().peekable();
    let mut others = others.into_iter().peekable();
    loop {
        let other_is_next = match (others.peek(), first.peek()) {
            (None, None) => break,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(other), Some(item)) => {
                matches!((place(server, other), place(server, item)), (Some(other), Some(item)) if other < item)
            }
        };
        arranged.extend(if other_is_next {
            others.next()
        } else {
            first.next()
        });
    }
    arranged
}

/// Returns a patch value without a counterpart in the original: without directives and nulls.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let keep = |(key, value): &(String, Value)| {
                let directive = key == DIRECTIVE
                    || key == RETAIN_KEYS
                    || key.starts_with(ELEMENT_ORDER)
                    || key.starts_with(DELETE_FROM);
                !directive && !value.is_null()
            };
            Value::Object(
                fields
                    .into_iter()
                    .filter(keep)
                    .map(|(key, value)| (key, plain(value)))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(plain_list(items)),
        scalar => scalar,
    }
}

fn plain_list(items: Vec<Value>) -> Vec<Value> {
    let kept = items.into_iter().filter(|item| {
        item.get(DIRECTIVE)
            .is_none_or(|directive| directive == "merge")
    });
    kept.map(plain).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::strategic;
    use super::*;

    fn pod() -> Schema {
        Schema::named("io.k8s.api.core.v1.Pod")
    }

    #[test]
    fn set_element_order_orders_the_merged_list() {
        let before = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "sidecar", "image": "s"}, {"name": "b", "image": "2"}]}});
        let patch = json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
            "containers": [{"name": "c", "image": "3"}, {"name": "a", "image": "9"}]}});
        let after = strategic(&before, &patch, &pod()).unwrap();
        assert_eq!(
            after,
            json!({"spec": {"containers": [{"name": "sidecar", "image": "s"}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}, {"name": "a", "image": "9"}]}})
        );
    }

    #[test]
    fn directives_delete_and_replace_items() {
        let before = json!({"spec": {"containers": [{"name": "a", "env": [{"name": "x", "value": "1"}]}, {"name": "b"}]}});
        let delete = json!({"spec": {"containers": [{"name": "b", "$patch": "delete"}, {"name": "a", "env": [{"name": "x", "$patch": "delete"}]}]}});
        assert_eq!(
            strategic(&before, &delete, &pod()).unwrap(),
            json!({"spec": {"containers": [{"name": "a", "env": []}]}})
        );
        let replace = json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}});
        assert_eq!(
            strategic(&before, &replace, &pod()).unwrap(),
            json!({"spec": {"containers": [{"name": "z"}]}})
        );
        let whole = json!({"spec": {"$patch": "replace", "nodeName": "n"}});
        assert_eq!(
            strategic(&before, &whole, &pod()).unwrap(),
            json!({"spec": {"nodeName": "n"}})
        );
    }

    #[test]
    fn retain_keys_drops_the_other_strategy() {
        let schema = Schema::named("io.k8s.api.apps.v1.Deployment");
        let before = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
        let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
        assert_eq!(
            strategic(&before, &patch, &schema).unwrap(),
            json!({"spec": {"strategy": {"type": "Recreate"}}})
        );
        let bad = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate", "rollingUpdate": {}}}});
        assert_eq!(strategic(&before, &bad, &schema).unwrap_err().code(), 400);
    }

    #[test]
    fn finalizers_merge_as_a_set_and_delete_from_a_primitive_list() {
        let before = json!({"metadata": {"finalizers": ["a", "b"]}});
        let add = strategic(&before, &json!({"metadata": {"finalizers": ["c"]}}), &pod()).unwrap();
        assert_eq!(add, json!({"metadata": {"finalizers": ["c", "a", "b"]}}));
        let remove = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]}});
        assert_eq!(
            strategic(&before, &remove, &pod()).unwrap(),
            json!({"metadata": {"finalizers": ["b"]}})
        );
    }
}
