//! Minimal patches that fail rather than overwrite the change of another client.
//!
//! A merge patch replaces a list (conditions, taints, finalizers) as a whole, so patches with a list contain the
//! resourceVersion they were computed from: the API server answers 409 if another client wrote in between, and the
//! reconciliation is repeated. Where others write often and elsewhere, as kubelets do, a JSON patch tests the lists instead.

use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

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
    /// Fails with a conflict if a list that changes, or a map that is added, is not as it was when the object was read.
    Lists,
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
    patch_of(before, after, lock, OBJECT)
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

/// What is not a subresource.
const OBJECT: &[&str] = &["metadata", "spec"];

/// Returns an object as JSON, with only these parts.
fn pick<K: Serialize>(object: &K, parts: &[&str]) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| parts.contains(&key.as_str()));
    }
    value
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
    let mut patch = merge_diff(&pick(before, parts), &pick(after, parts))?;
    if lock == Lock::Optimistic
        && let Some(version) = &before.meta().resource_version
    {
        patch["metadata"]["resourceVersion"] = version.clone().into();
    }
    Some(patch)
}

/// Returns the operations of a JSON patch (RFC 6902) that turns `from` into `to`, where [`Lock::Lists`] holds. For API servers, a
/// missing value is equal to null.
fn guarded(path: &str, from: &Value, to: &Value, operations: &mut Vec<Value>) {
    let mut push = |op: &str, path: &str, value: &Value| {
        operations.push(json!({ "op": op, "path": path, "value": value }));
    };
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        if from != to {
            if from.is_array() {
                push("test", path, from);
            }
            push("replace", path, to);
        }
        return;
    };
    let of = |key: &String| format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        push("remove", &of(key), &Value::Null);
    }
    for (key, value) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
        if value.is_array() || value.is_object() {
            push("test", &of(key), &Value::Null);
        }
        push("add", &of(key), value);
    }
    for (key, value) in new {
        if let Some(before) = old.get(key) {
            guarded(&of(key), before, value, operations);
        }
    }
}

/// Turns the answer to a failed test of a JSON patch into a conflict, which it is.
fn conflict(error: kube::Error) -> kube::Error {
    const FAILED: &str = "the server rejected our request due to an error in our request";
    match error {
        kube::Error::Api(status) if status.code == 422 && status.message.starts_with(FAILED) => {
            let message = "the object has been modified; please apply your changes to the latest version and try again";
            kube::Error::Api(Box::new(
                Status::failure(message, "Conflict").with_code(409),
            ))
        }
        other => other,
    }
}

/// Patches metadata and spec if they differ; returns the API server's answer.
///
/// # Errors
/// The API server's; a conflict if another client wrote in between what `lock` protects.
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
    let params = PatchParams::default();
    if lock == Lock::Lists {
        let mut operations = Vec::new();
        let (from, to) = (pick(before, OBJECT), pick(after, OBJECT));
        guarded("", &from, &to, &mut operations);
        if operations.is_empty() {
            return Ok(None);
        }
        // Another object may have the name now.
        operations.insert(
            0,
            json!({ "op": "test", "path": "/metadata/uid", "value": before.meta().uid }),
        );
        let patch = serde_json::from_value(operations.into()).map_err(kube::Error::SerdeError)?;
        let answer = api.patch(name, &params, &Patch::<()>::Json(patch)).await;
        return answer.map(Some).map_err(conflict);
    }
    match object_patch(before, after, lock) {
        Some(patch) => api
            .patch(name, &params, &Patch::Merge(patch))
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
    fn a_guarded_patch_tests_replaced_lists_and_what_it_adds_as_a_whole() {
        let from =
            json!({"spec": {"taints": [1], "other": [2]}, "labels": {"a/b": "1", "gone": ""}});
        let to = json!({
            "spec": {"taints": [], "other": [2]}, "labels": {"a/b": "2", "new": "3"}, "finalizers": ["f"],
        });
        let mut operations = Vec::new();
        guarded("", &from, &to, &mut operations);
        assert_eq!(
            Value::from(operations),
            json!([
                {"op": "test", "path": "/finalizers", "value": null},
                {"op": "add", "path": "/finalizers", "value": ["f"]},
                {"op": "remove", "path": "/labels/gone", "value": null},
                {"op": "add", "path": "/labels/new", "value": "3"},
                {"op": "replace", "path": "/labels/a~1b", "value": "2"},
                {"op": "test", "path": "/spec/taints", "value": [1]},
                {"op": "replace", "path": "/spec/taints", "value": []},
            ])
        );
    }

    #[test]
    fn a_test_that_fails_is_a_conflict_and_an_invalid_object_is_not() {
        let code = |message: &str| {
            let status = Status::failure(message, "Invalid").with_code(422);
            match conflict(kube::Error::Api(Box::new(status))) {
                kube::Error::Api(status) => status.code,
                other => panic!("{other}"),
            }
        };
        assert_eq!(
            code("the server rejected our request due to an error in our request"),
            409
        );
        assert_eq!(
            code("Node \"a\" is invalid: metadata.labels: Invalid value"),
            422
        );
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
