//! Sets of fields, in the format of `fieldsV1`.
//!
//! A set is a tree of path elements: `f:name` (field or map key), `k:{"name":"a"}` (list item by keys), `v:"x"` (item of
//! a set), `i:0` (index). A node that is itself in the set is a member; JSON writes a member with children as `"."`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A set of field paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSet {
    member: bool,
    children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// Parses `fieldsV1`; returns `None` if it is not an object of valid path elements.
    pub fn from_json(fields: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (element, below) in fields.as_object()? {
            if element == "." {
                set.member = true;
                continue;
            }
            if !["f:", "k:", "v:", "i:"]
                .iter()
                .any(|prefix| element.starts_with(prefix))
            {
                return None;
            }
            let mut child = Self::from_json(below)?;
            if child.children.is_empty() {
                child.member = true;
            }
            set.children.insert(element.clone(), child);
        }
        Some(set)
    }

    /// Serializes the set as `fieldsV1`.
    pub fn to_json(&self) -> Value {
        let mut fields = Map::new();
        for (element, child) in &self.children {
            if child.member && !child.children.is_empty() {
                let mut below = child.to_json();
                if let Value::Object(below) = &mut below {
                    below.insert(".".into(), Value::Object(Map::new()));
                }
                fields.insert(element.clone(), below);
            } else {
                fields.insert(element.clone(), child.to_json());
            }
        }
        Value::Object(fields)
    }

    pub fn insert<I: AsRef<str>>(&mut self, path: impl IntoIterator<Item = I>) {
        let mut at = self;
        for element in path {
            at = at.children.entry(element.as_ref().to_owned()).or_default();
        }
        at.member = true;
    }

    /// Makes the node itself a member.
    pub(super) fn mark(&mut self) {
        self.member = true;
    }

    /// Whether the node itself is a member.
    pub(super) fn is_member(&self) -> bool {
        self.member
    }

    /// Returns the child of a path element.
    pub(super) fn child(&self, element: &str) -> Option<&Self> {
        self.children.get(element)
    }

    /// Returns the child of a path element, and creates it if missing.
    pub(super) fn child_mut(&mut self, element: &str) -> &mut Self {
        self.children.entry(element.to_owned()).or_default()
    }

    /// Returns the path elements of the direct children.
    pub(super) fn elements(&self) -> impl Iterator<Item = &str> {
        self.children.keys().map(String::as_str)
    }

    /// Removes nodes without members.
    pub(super) fn tidy(&mut self) {
        self.children.retain(|_, child| {
            child.tidy();
            !child.is_empty()
        });
    }

    pub fn is_empty(&self) -> bool {
        !self.member && self.children.values().all(Self::is_empty)
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.member |= other.member;
        for (element, theirs) in &other.children {
            let merged = out
                .children
                .get(element)
                .map_or_else(|| theirs.clone(), |ours| ours.union(theirs));
            out.children.insert(element.clone(), merged);
        }
        out
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut out = Self {
            member: self.member && other.member,
            children: BTreeMap::new(),
        };
        for (element, ours) in &self.children {
            if let Some(theirs) = other.children.get(element) {
                let both = ours.intersection(theirs);
                if !both.is_empty() {
                    out.children.insert(element.clone(), both);
                }
            }
        }
        out
    }

    /// Returns the difference of the sets; children of a removed path stay.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut out = Self {
            member: self.member && !other.member,
            children: BTreeMap::new(),
        };
        for (element, ours) in &self.children {
            let rest = other
                .children
                .get(element)
                .map_or_else(|| ours.clone(), |theirs| ours.difference(theirs));
            if !rest.is_empty() {
                out.children.insert(element.clone(), rest);
            }
        }
        out
    }

    /// Every path, shortest first, in kubectl's notation (`.spec.containers[name="a"].image`).
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        if self.member && !prefix.is_empty() {
            paths.push(prefix.to_owned());
        }
        for (element, child) in &self.children {
            child.collect_paths(&format!("{prefix}{}", show_element(element)), paths);
        }
    }
}

/// Formats a path element in kubectl's notation.
fn show_element(element: &str) -> String {
    let (kind, rest) = element.split_at(2.min(element.len()));
    match kind {
        "f:" => format!(".{rest}"),
        "k:" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let pairs: Vec<String> = keys
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            format!("[{}]", pairs.join(","))
        }
        _ => format!("[{rest}]"),
    }
}
