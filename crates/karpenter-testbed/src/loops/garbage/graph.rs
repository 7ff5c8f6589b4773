//! The graph of owner references, and the resulting actions. Pure.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use rustc_hash::{FxHashMap, FxHashSet};

/// The finalizer of foreground deletion.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of orphaning deletion.
pub(crate) const ORPHAN: &str = "orphan";

pub(crate) type Uid = Arc<str>;

/// A kind of object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
}

/// An owner reference of a dependent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Uid,
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    blocks: bool,
}

/// An object in the graph.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) kind: Arc<Kind>,
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) owners: Vec<Owner>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) deleting: bool,
}

impl Item {
    /// Reads an object's metadata.
    pub(crate) fn new(kind: &Arc<Kind>, meta: &ObjectMeta) -> Self {
        let owners = meta.owner_references.iter().flatten().map(|o| Owner {
            uid: o.uid.as_str().into(),
            api_version: o.api_version.clone(),
            kind: o.kind.clone(),
            name: o.name.clone(),
            blocks: o.block_owner_deletion == Some(true),
        });
        Self {
            kind: kind.clone(),
            namespace: meta.namespace.as_deref().unwrap_or_default().into(),
            name: meta.name.as_deref().unwrap_or_default().into(),
            owners: owners.collect(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
        }
    }

    fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|f| f == finalizer)
    }

    fn waits_for_dependents(&self) -> bool {
        self.deleting && self.has(FOREGROUND)
    }
}

/// The action for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Keep,
    /// Delete it, if the unknown owners do not exist.
    Delete {
        foreground: bool,
        unknown: Vec<Owner>,
    },
    /// Remove these owner references, if the unknown owners do not exist.
    Disown {
        uids: Vec<Uid>,
        unknown: Vec<Owner>,
    },
    /// Its dependents are deleted: remove this finalizer.
    Release {
        finalizer: &'static str,
    },
    /// Remove it from its dependents, then remove its finalizer `orphan`.
    Orphan {
        dependents: Vec<Uid>,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Graph {
    items: FxHashMap<Uid, Item>,
    dependents: FxHashMap<Uid, FxHashSet<Uid>>,
    by_namespace: FxHashMap<Arc<str>, FxHashSet<Uid>>,
}

impl Graph {
    /// Returns the object of this UID.
    pub(crate) fn get(&self, uid: &str) -> Option<&Item> {
        self.items.get(uid)
    }

    /// The objects of a namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<Uid> {
        self.by_namespace
            .get(namespace)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// The UIDs of all objects of a kind.
    pub(crate) fn of_kind(&self, kind: &Kind) -> Vec<Uid> {
        self.items
            .iter()
            .filter(|(_, i)| *i.kind == *kind)
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    fn children(&self, uid: &str) -> impl Iterator<Item = &Uid> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Updates an object; `dirty` gets the objects to reconcile.
    pub(crate) fn apply(&mut self, uid: &str, item: Item, dirty: &mut Vec<Uid>) {
        let uid: Uid = uid.into();
        if let Some(old) = self.items.get(&uid) {
            for owner in &old.owners {
                if let Some(set) = self.dependents.get_mut(&owner.uid) {
                    set.remove(&uid);
                }
            }
        }
        for owner in &item.owners {
            self.dependents
                .entry(owner.uid.clone())
                .or_default()
                .insert(uid.clone());
        }
        if !item.namespace.is_empty() {
            self.by_namespace
                .entry(item.namespace.clone())
                .or_default()
                .insert(uid.clone());
        }
        if item.deleting {
            dirty.extend(self.children(&uid).cloned());
        }
        if item.deleting || !item.owners.is_empty() {
            dirty.push(uid.clone());
        }
        self.items.insert(uid, item);
    }

    /// Removes an object; `dirty` gets the objects to reconcile.
    pub(crate) fn remove(&mut self, uid: &str, dirty: &mut Vec<Uid>) {
        let Some(item) = self.items.remove(uid) else {
            return;
        };
        dirty.extend(self.children(uid).cloned());
        for owner in &item.owners {
            if let Some(set) = self.dependents.get_mut(&owner.uid) {
                set.remove(uid);
                if set.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
            if self
                .items
                .get(&owner.uid)
                .is_some_and(Item::waits_for_dependents)
            {
                dirty.push(owner.uid.clone());
            }
        }
        if let Some(set) = self.by_namespace.get_mut(&item.namespace) {
            set.remove(uid);
            if set.is_empty() {
                self.by_namespace.remove(&item.namespace);
            }
        }
    }

    /// Returns the current action for an object.
    pub(crate) fn decide(&self, uid: &str) -> Action {
        let Some(item) = self.items.get(uid) else {
            return Action::Keep;
        };
        if item.deleting {
            return self.decide_deleting(uid, item);
        }
        if item.owners.is_empty() {
            return Action::Keep;
        }
        let mut unknown = Vec::new();
        let mut leaving: Vec<Uid> = Vec::new();
        let mut waiting = false;
        let mut solid = false;
        for owner in &item.owners {
            match self.items.get(&owner.uid) {
                None => {
                    unknown.push(owner.clone());
                    leaving.push(owner.uid.clone());
                }
                Some(found) if found.waits_for_dependents() => {
                    waiting = true;
                    leaving.push(owner.uid.clone());
                }
                // Its dependents are orphaned, not deleted.
                Some(_) => solid = true,
            }
        }
        match (solid, leaving.is_empty()) {
            (_, true) => Action::Keep,
            (true, false) => Action::Disown {
                uids: leaving,
                unknown,
            },
            (false, false) => Action::Delete {
                foreground: waiting && self.children(uid).next().is_some(),
                unknown,
            },
        }
    }

    fn decide_deleting(&self, uid: &str, item: &Item) -> Action {
        if item.has(ORPHAN) {
            return Action::Orphan {
                dependents: self.children(uid).cloned().collect(),
            };
        }
        if !item.has(FOREGROUND) {
            return Action::Keep;
        }
        let blocked = self
            .children(uid)
            .filter_map(|child| self.items.get(child))
            .any(|child| child.owners.iter().any(|o| &*o.uid == uid && o.blocks));
        if blocked {
            Action::Keep
        } else {
            Action::Release {
                finalizer: FOREGROUND,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn kind() -> Arc<Kind> {
        Arc::new(Kind {
            resource: ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&()),
            namespaced: true,
        })
    }

    fn add(graph: &mut Graph, uid: &str, owners: &[(&str, bool)], more: Value) -> Vec<Uid> {
        let owners: Vec<Value> = owners
            .iter()
            .map(|(uid, blocks)| {
                json!({"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid, "blockOwnerDeletion": blocks})
            })
            .collect();
        let mut meta = json!({"name": uid, "namespace": "n", "ownerReferences": owners});
        for (key, value) in more.as_object().unwrap() {
            meta[key] = value.clone();
        }
        let mut dirty = Vec::new();
        let meta: ObjectMeta = serde_json::from_value(meta).unwrap();
        graph.apply(uid, Item::new(&kind(), &meta), &mut dirty);
        dirty
    }

    fn foreground() -> Value {
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FOREGROUND]})
    }

    #[test]
    fn a_dependent_without_existing_owners_is_deleted() {
        let mut graph = Graph::default();
        add(&mut graph, "a", &[], json!({}));
        add(&mut graph, "b", &[("a", false)], json!({}));
        assert_eq!(graph.decide("b"), Action::Keep);
        let mut dirty = Vec::new();
        graph.remove("a", &mut dirty);
        assert_eq!(dirty, ["b".into()]);
        assert!(
            matches!(graph.decide("b"), Action::Delete { foreground: false, unknown } if unknown.len() == 1)
        );
    }

    #[test]
    fn one_living_owner_keeps_a_dependent() {
        let mut graph = Graph::default();
        add(&mut graph, "a", &[], json!({}));
        add(&mut graph, "b", &[("a", false), ("gone", false)], json!({}));
        assert!(
            matches!(graph.decide("b"), Action::Disown { uids, .. } if uids == ["gone".into()])
        );
    }

    #[test]
    fn foreground_deletion_goes_from_the_leaves() {
        let mut graph = Graph::default();
        add(&mut graph, "leaf", &[("mid", true)], json!({}));
        add(&mut graph, "mid", &[("top", true)], json!({}));
        let dirty = add(&mut graph, "top", &[], foreground());
        assert!(dirty.contains(&"mid".into()));
        assert_eq!(graph.decide("top"), Action::Keep);
        assert!(matches!(
            graph.decide("mid"),
            Action::Delete {
                foreground: true,
                ..
            }
        ));
        add(&mut graph, "mid", &[("top", true)], foreground());
        assert!(matches!(
            graph.decide("leaf"),
            Action::Delete {
                foreground: false,
                ..
            }
        ));
        let mut dirty = Vec::new();
        graph.remove("leaf", &mut dirty);
        assert_eq!(dirty, ["mid".into()]);
        assert_eq!(
            graph.decide("mid"),
            Action::Release {
                finalizer: FOREGROUND
            }
        );
    }

    #[test]
    fn dependents_that_do_not_block_are_not_waited_for() {
        let mut graph = Graph::default();
        add(&mut graph, "leaf", &[("top", false)], json!({}));
        add(&mut graph, "top", &[], foreground());
        assert_eq!(
            graph.decide("top"),
            Action::Release {
                finalizer: FOREGROUND
            }
        );
    }

    #[test]
    fn orphans_are_let_go_first() {
        let mut graph = Graph::default();
        add(&mut graph, "leaf", &[("top", true)], json!({}));
        let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [ORPHAN]});
        add(&mut graph, "top", &[], deleting);
        assert_eq!(
            graph.decide("top"),
            Action::Orphan {
                dependents: vec!["leaf".into()]
            }
        );
        assert_eq!(graph.decide("leaf"), Action::Keep);
    }
}
