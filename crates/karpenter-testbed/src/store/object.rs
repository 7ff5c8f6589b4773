//! A stored version of an object, and its selectable fields.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

/// A field that field selectors of a kind may use, and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selectable {
    /// The selector's label, for example `spec.nodeName`.
    pub label: String,
    /// The path inside the object, in segments.
    pub path: Vec<String>,
    /// The value of an absent field (`false` for `spec.unschedulable`, otherwise empty).
    pub absent: &'static str,
}

impl Selectable {
    /// Returns a selectable field whose label is its path.
    #[must_use]
    pub fn new(label: &str) -> Self {
        Self {
            label: label.to_owned(),
            path: label.split('.').map(str::to_owned).collect(),
            absent: "",
        }
    }

    /// Returns the field's text in `object`.
    fn read(&self, object: &Value) -> Box<str> {
        let mut at = object;
        for segment in &self.path {
            match at.get(segment) {
                Some(next) => at = next,
                None => return self.absent.into(),
            }
        }
        match at {
            Value::String(s) => s.as_str().into(),
            Value::Null => self.absent.into(),
            other => other.to_string().into(),
        }
    }
}

/// One version of an object: immutable, shared by readers, watchers and history.
#[derive(Debug)]
pub struct Object {
    /// `namespace/name`, or `name` for cluster-scoped kinds.
    pub key: Arc<str>,
    /// The revision that wrote it; also in the serialized form as `metadata.resourceVersion`.
    pub revision: u64,
    /// The edition of its kind's schema that it was written with; an older one is defaulted again when read.
    pub edition: u32,
    labels: Box<[(Box<str>, Box<str>)]>,
    fields: Box<[Box<str>]>,
    terminating: bool,
    bytes: Bytes,
}

impl Object {
    pub(crate) fn new(
        key: Arc<str>,
        revision: u64,
        edition: u32,
        value: &Value,
        selectable: &[Selectable],
    ) -> Self {
        let labels = value
            .pointer("/metadata/labels")
            .and_then(Value::as_object)
            .map(|map| {
                map.iter()
                    .map(|(k, v)| (k.as_str().into(), v.as_str().unwrap_or_default().into()))
                    .collect()
            })
            .unwrap_or_default();
        Self {
            key,
            revision,
            edition,
            labels,
            fields: selectable.iter().map(|f| f.read(value)).collect(),
            terminating: value
                .pointer("/metadata/deletionTimestamp")
                .is_some_and(Value::is_string),
            // A value of strings, numbers, lists and maps always serializes.
            bytes: serde_json::to_vec(value).unwrap_or_default().into(),
        }
    }

    /// Returns the serialized object.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the parsed object.
    #[must_use]
    pub fn value(&self) -> Value {
        // The bytes were serialized from a value.
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels
            .iter()
            .find(|(k, _)| &**k == key)
            .map(|(_, v)| &**v)
    }

    /// Returns the text of the selectable field at `index` of its kind's list.
    #[must_use]
    pub fn field(&self, index: usize) -> &str {
        self.fields.get(index).map_or("", |f| f)
    }

    /// Whether it has a deletion timestamp.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.terminating
    }

    /// Returns the namespace, empty for cluster-scoped kinds.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(ns, _)| ns)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.key
            .split_once('/')
            .map_or(&*self.key, |(_, name)| name)
    }
}

/// Decides whether an object is selected.
pub trait Matcher: Send + Sync {
    fn matches(&self, object: &Object) -> bool;

    /// Whether every object is selected.
    fn is_everything(&self) -> bool;
}
