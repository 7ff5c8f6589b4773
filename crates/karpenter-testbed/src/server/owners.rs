//! The owners of objects: who depends on whom, by UID.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;

use super::catalog::Served;
use super::value::name_of;
use crate::registry::Resource;

/// The finalizer of foreground deletion.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of orphaning deletion.
pub(super) const ORPHAN: &str = "orphan";

pub(super) type Uid = String;

/// The objects of a cluster by UID, and their owners.
#[derive(Debug, Default)]
pub(super) struct Owners {
    places: FxHashMap<Uid, Place>,
    /// The objects that have, or had, a reference to an owner.
    dependents: FxHashMap<Uid, BTreeSet<Uid>>,
    deleted: FxHashSet<Uid>,
}

/// Where an object is stored.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) resource: Arc<Resource>,
    pub(super) key: String,
}

impl Owners {
    /// Returns where the object of this UID is stored.
    pub(super) fn place(&self, uid: &str) -> Option<Place> {
        self.places.get(uid).cloned()
    }

    /// Returns the objects that have, or had, a reference to this owner.
    pub(super) fn dependents(&self, uid: &str) -> Vec<Uid> {
        let dependents = self.dependents.get(uid);
        dependents.into_iter().flatten().cloned().collect()
    }

    /// Whether the object of this UID existed and is deleted.
    pub(super) fn is_deleted(&self, uid: &str) -> bool {
        self.deleted.contains(uid)
    }

    /// Takes note of an object; returns the objects to reconcile.
    pub(super) fn written(&mut self, served: &Served, object: &Value) -> Vec<Uid> {
        let uid = uid_of(object);
        let owners: Vec<&str> = owners(object).map(owner_uid).collect();
        for owner in &owners {
            let dependents = self.dependents.entry((*owner).to_owned()).or_default();
            dependents.insert(uid.to_owned());
        }
        let place = Place {
            resource: Arc::clone(&served.resource),
            key: served.key(object["metadata"]["namespace"].as_str(), name_of(object)),
        };
        self.places.insert(uid.to_owned(), place);
        let is_due = propagation(object).is_some()
            || owners.iter().any(|owner| self.deleted.contains(*owner));
        is_due.then(|| uid.to_owned()).into_iter().collect()
    }

    /// Forgets an object that is deleted; returns the objects to reconcile.
    pub(super) fn removed(&mut self, last: &Value) -> Vec<Uid> {
        let uid = uid_of(last);
        self.places.remove(uid);
        self.deleted.insert(uid.to_owned());
        let mut due: Vec<Uid> = self.dependents.remove(uid).into_iter().flatten().collect();
        for owner in owners(last).map(owner_uid) {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(uid);
            }
            due.push(owner.to_owned());
        }
        due
    }
}

pub(super) fn uid_of(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

pub(super) fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    let references = object["metadata"]["ownerReferences"].as_array();
    references.into_iter().flatten()
}

pub(super) fn owner_uid(reference: &Value) -> &str {
    reference["uid"].as_str().unwrap_or_default()
}

/// Returns the finalizer by which an object that is being deleted waits for its dependents.
pub(super) fn propagation(object: &Value) -> Option<&'static str> {
    let metadata = &object["metadata"];
    let finalizers = metadata["finalizers"].as_array()?;
    let found = [ORPHAN, FOREGROUND].into_iter();
    let mut found = found.filter(|it| finalizers.iter().any(|finalizer| finalizer == it));
    found
        .next()
        .filter(|_| metadata["deletionTimestamp"].is_string())
}
