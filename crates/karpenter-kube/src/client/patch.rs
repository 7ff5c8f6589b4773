//! Minimal patches that fail rather than overwrite the change of another client.
//!
//! A merge patch replaces a list (conditions, taints, finalizers) as a whole, so patches with a list contain the
//! resourceVersion they were computed from: the API server answers 409 if another client wrote in between, and the
//! reconciliation is repeated.

use kube::Resource;
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Returns the RFC 7386 merge patch that turns `from` into `to`; `None` if they are equal.
#[must_use]
pub fn merge_diff(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            None => {
                patch.insert(key.clone(), value.clone());
            }
            Some(before) => {
                if let Some(change) = merge_diff(before, value) {
                    patch.insert(key.clone(), change);
                }
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Whether a patch contains the resourceVersion that it was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Fails with a conflict if the object has changed since it was read.
    Optimistic,
    /// Applies to any version; for single fields with one writer.
    None,
}

/// Returns the merge patch for metadata and spec between two versions of an object; `None` if they agree.
#[must_use]
pub fn object_patch<K: Serialize + Resource + PartialEq>(
    before: &K,
    after: &K,
    lock: Lock,
) -> Option<Value> {
    patch_of(before, after, lock, &["metadata", "spec"])
}

/// Returns the merge patch for the status between two versions of an object; `None` if they agree.
#[must_use]
pub fn status_patch<K: Serialize + Resource + PartialEq>(
    before: &K,
    after: &K,
    lock: Lock,
) -> Option<Value> {
    patch_of(before, after, lock, &["status"])
}

fn patch_of<K: Serialize + Resource + PartialEq>(
    before: &K,
    after: &K,
    lock: Lock,
    parts: &[&str],
) -> Option<Value> {
    // Most objects are unchanged: finding that out must not serialize them twice.
    if before == after {
        return None;
    }
    let pick = |object: &K| {
        let mut value = serde_json::to_value(object).unwrap_or_default();
        if let Some(map) = value.as_object_mut() {
            map.retain(|key, _| parts.contains(&key.as_str()));
        }
        value
    };
    let mut patch = merge_diff(&pick(before), &pick(after))?;
    if lock == Lock::Optimistic
        && let Some(version) = &before.meta().resource_version
    {
        patch["metadata"]["resourceVersion"] = version.clone().into();
    }
    Some(patch)
}

/// Patches metadata and spec if they differ; returns the API server's answer.
///
/// # Errors
/// The API server's; a conflict if `lock` is optimistic and another client wrote in between.
pub async fn patch_object<K>(
    api: &kube::Api<K>,
    before: &K,
    after: &K,
    lock: Lock,
) -> Result<Option<K>, kube::Error>
where
    K: Resource + Serialize + DeserializeOwned + Clone + PartialEq + std::fmt::Debug,
{
    let name = before.meta().name.as_deref().unwrap_or_default();
    match object_patch(before, after, lock) {
        Some(patch) => api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(Some),
        None => Ok(None),
    }
}

/// Patches the status if it differs; returns the API server's answer.
///
/// # Errors
/// The API server's; a conflict if `lock` is optimistic and another client wrote in between.
pub async fn patch_status<K>(
    api: &kube::Api<K>,
    before: &K,
    after: &K,
    lock: Lock,
) -> Result<Option<K>, kube::Error>
where
    K: Resource + Serialize + DeserializeOwned + Clone + PartialEq + std::fmt::Debug,
{
    let name = before.meta().name.as_deref().unwrap_or_default();
    match status_patch(before, after, lock) {
        Some(patch) => api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_diff_has_only_the_changed_fields() {
        let from = json!({"a": 1, "b": {"c": 1, "d": 2}, "list": [1], "gone": true});
        let to = json!({"a": 1, "b": {"c": 1, "d": 3}, "list": [1, 2], "new": 0});
        assert_eq!(
            merge_diff(&from, &to),
            Some(json!({"b": {"d": 3}, "list": [1, 2], "gone": null, "new": 0}))
        );
        assert_eq!(merge_diff(&from, &from), None);
    }

    #[test]
    fn an_optimistic_patch_carries_the_version_it_was_computed_from() {
        let mut before = k8s_openapi::api::core::v1::Node::default();
        before.metadata.resource_version = Some("7".into());
        let mut after = before.clone();
        after.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert_eq!(
            object_patch(&before, &after, Lock::Optimistic),
            Some(json!({"metadata": {"labels": {"a": "b"}, "resourceVersion": "7"}}))
        );
        assert_eq!(
            object_patch(&before, &after, Lock::None),
            Some(json!({"metadata": {"labels": {"a": "b"}}}))
        );
        assert_eq!(status_patch(&before, &after, Lock::Optimistic), None);
    }
}
