//! An object under construction, and what all kinds share.

use std::fmt;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// An object of kind `K` under construction.
///
/// The methods of all kinds are here; each kind has methods of its own, and kinds with a pod template have those of a pod.
pub struct Object<K> {
    json: Value,
    kind: PhantomData<fn() -> K>,
}

impl<K> Object<K> {
    /// Starts with an object as JSON.
    pub fn from_json(json: Value) -> Self {
        Self {
            json,
            kind: PhantomData,
        }
    }

    /// Returns the object as JSON.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Returns the object as JSON.
    pub fn into_json(self) -> Value {
        self.json
    }

    /// Returns the object.
    ///
    /// # Panics
    ///
    /// If a field was set to a value that `K` does not have.
    #[track_caller]
    pub fn build(self) -> K
    where
        K: DeserializeOwned,
    {
        read(self.json)
    }

    pub fn name(&self) -> &str {
        self.json["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Sets the value at a [JSON pointer](https://www.rfc-editor.org/rfc/rfc6901), and creates the objects on the way.
    #[must_use]
    pub fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        *self.at(pointer) = value.into();
        self
    }

    /// Appends to the list at a JSON pointer.
    #[must_use]
    pub fn push(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let list = self.at(pointer);
        let value = value.into();
        match list {
            Value::Array(list) => list.push(value),
            other => *other = json!([value]),
        }
        self
    }

    /// Removes the value at a JSON pointer.
    #[must_use]
    pub fn remove(mut self, pointer: &str) -> Self {
        if let Some((parent, field)) = pointer.rsplit_once('/') {
            let field = unescaped(field);
            if let Some(parent) = self.json.pointer_mut(parent).and_then(Value::as_object_mut) {
                parent.remove(&field);
            }
        }
        self
    }

    fn at(&mut self, pointer: &str) -> &mut Value {
        let mut at = &mut self.json;
        for part in pointer.split('/').skip(1) {
            let part = unescaped(part);
            at = match part.parse::<usize>() {
                Ok(index) if at.is_array() => &mut at[index],
                _ => {
                    if !at.is_object() {
                        *at = Value::Object(Map::new());
                    }
                    &mut at[part]
                }
            };
        }
        at
    }

    /// Removes what a user does not write: UID and status.
    #[must_use]
    pub fn as_written(self) -> Self {
        self.remove("/metadata/uid").remove("/status")
    }

    /// Sets name and UID.
    #[must_use]
    pub fn renamed(self, name: &str) -> Self {
        self.set("/metadata/name", name).uid(name)
    }

    /// Sets the UID, which is the name otherwise.
    #[must_use]
    pub fn uid(self, uid: &str) -> Self {
        self.set("/metadata/uid", uid)
    }

    /// Sets the namespace, which is `default` otherwise.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.set("/metadata/namespace", namespace)
    }

    /// Sets a label of the object.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.json["metadata"]["labels"][key] = json!(value);
        self
    }

    /// Removes a label of the object.
    #[must_use]
    pub fn without_label(mut self, key: &str) -> Self {
        if let Some(labels) = self.json["metadata"]["labels"].as_object_mut() {
            labels.remove(key);
        }
        self
    }

    /// Sets an annotation of the object.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.json["metadata"]["annotations"][key] = json!(value);
        self
    }

    #[must_use]
    pub fn created(self, time: &str) -> Self {
        self.set("/metadata/creationTimestamp", time)
    }

    /// Marks the object as being deleted since a time.
    #[must_use]
    pub fn deleted(self, time: &str) -> Self {
        self.set("/metadata/deletionTimestamp", time)
    }

    #[must_use]
    pub fn finalizer(self, finalizer: &str) -> Self {
        self.push("/metadata/finalizers", finalizer)
    }

    /// Adds an owner that is the object's controller.
    #[must_use]
    pub fn owned_by(self, api_version: &str, kind: &str, name: &str) -> Self {
        self.push(
            "/metadata/ownerReferences",
            json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": true }),
        )
    }

    /// Sets a condition of the object, and removes the previous one of that type.
    #[must_use]
    pub fn condition(self, type_: &str, status: &str, reason: &str, since: &str) -> Self {
        self.without_condition(type_).push(
            "/status/conditions",
            json!({ "type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": since }),
        )
    }

    /// Removes a condition of the object.
    #[must_use]
    pub fn without_condition(mut self, type_: &str) -> Self {
        let conditions = self.json.pointer_mut("/status/conditions");
        if let Some(conditions) = conditions.and_then(Value::as_array_mut) {
            conditions.retain(|condition| condition["type"] != type_);
        }
        self
    }
}

fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

/// Reads an object from JSON.
///
/// # Panics
///
/// If `json` is not of this type. The message has both.
#[track_caller]
#[expect(clippy::panic, reason = "a test that needs another object fails here")]
pub fn read<T: DeserializeOwned>(json: Value) -> T {
    T::deserialize(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// Returns copies of an object with the names `name-000`, `name-001`, …
pub fn copies<K>(object: &Object<K>, count: usize) -> Vec<Object<K>> {
    (0..count)
        .map(|index| {
            let name = format!("{}-{index:03}", object.name());
            object.clone().renamed(&name)
        })
        .collect()
}

impl<K> Clone for Object<K> {
    fn clone(&self) -> Self {
        Self::from_json(self.json.clone())
    }
}

impl<K> fmt::Debug for Object<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.json.fmt(f)
    }
}

impl<K> Serialize for Object<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<K> From<Object<K>> for Value {
    fn from(object: Object<K>) -> Self {
        object.json
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn object(json: Value) -> Object<Pod> {
        Object::from_json(json)
    }

    #[test]
    fn a_pointer_creates_the_objects_on_the_way_and_finds_items_of_lists() {
        let changed = object(json!({ "list": [{ "a": 1 }] }))
            .set("/list/0/a", 2)
            .set("/labels/example.com~1team", "a")
            .push("/new/list", "x")
            .push("/new/list", "y");
        assert_eq!(
            changed.json(),
            &json!({ "list": [{ "a": 2 }], "labels": { "example.com/team": "a" }, "new": { "list": ["x", "y"] } })
        );
    }

    #[test]
    fn a_removed_field_is_gone_and_removing_what_is_not_there_changes_nothing() {
        let labels = json!({ "metadata": { "labels": { "example.com/team": "a", "b": "c" } } });
        let changed = object(labels)
            .remove("/metadata/labels/example.com~1team")
            .remove("/spec/nodeName");
        assert_eq!(
            changed.json(),
            &json!({ "metadata": { "labels": { "b": "c" } } })
        );
    }

    #[test]
    fn a_condition_replaces_the_one_of_its_type() {
        let pod = object(json!({}))
            .condition("Ready", "False", "Starting", "2026-01-01T00:00:00Z")
            .condition("Ready", "True", "Started", "2026-01-01T00:01:00Z")
            .build();
        let conditions = pod.status.unwrap().conditions.unwrap();
        let statuses: Vec<&str> = conditions.iter().map(|c| c.status.as_str()).collect();
        assert_eq!(statuses, ["True"]);
    }

    #[test]
    #[should_panic(expected = "invalid type: string \"high\"")]
    fn an_object_that_its_type_does_not_allow_is_not_built() {
        let _ = object(json!({ "spec": { "containers": [], "priority": "high" } })).build();
    }
}
