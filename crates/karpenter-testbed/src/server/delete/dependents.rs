//! Garbage collection: what becomes of the dependents of an object that is deleted.
//!
//! It happens at once, in the server; the real garbage collector watches all objects through the API. Owners that never existed
//! are ignored.

use std::sync::Arc;

use serde_json::Value;

use crate::server::ApiServer;
use crate::server::catalog::Served;
use crate::server::delete::DeleteOptions;
use crate::server::owners::{FOREGROUND, ORPHAN, Uid, owner_uid, owners, propagation, uid_of};
use crate::server::value::{name_of, object_of};
use crate::server::write::context::Context;

impl ApiServer {
    /// Reconciles objects in the background.
    pub(in crate::server) fn collect(&self, uids: Vec<Uid>) {
        for uid in uids {
            let server = self.clone();
            tokio::spawn(async move { server.settle(&uid).await });
        }
    }

    fn with_uid(&self, uid: &str) -> Option<(Arc<Served>, String, Value)> {
        let place = self.owners.as_ref()?.lock().place(uid)?;
        let of = &place.resource;
        let served = self
            .catalog
            .find(&of.group, &of.storage_version, &of.plural)?;
        let object = served.collection.get(&place.key)?.value();
        (uid_of(&object) == uid).then_some((served, place.key, object))
    }

    fn dependents_of(&self, uid: &str) -> Vec<Uid> {
        let owners = self.owners.as_ref();
        let dependents = owners.map(|owners| owners.lock().dependents(uid));
        dependents.unwrap_or_default()
    }

    /// Deletes an object whose owners are deleted; or deletes or releases the dependents of an object that waits for them.
    async fn settle(&self, uid: &str) {
        let Some((served, key, object)) = self.with_uid(uid) else {
            return;
        };
        let finalizer = propagation(&object);
        if let Some(finalizer) = finalizer {
            let mut blocked = false;
            for dependent in self.dependents_of(uid) {
                let Some((kind, key, object)) = self.with_uid(&dependent) else {
                    continue;
                };
                let mut references = owners(&object).filter(|owner| owner_uid(owner) == uid);
                let Some(reference) = references.next() else {
                    continue;
                };
                if finalizer == ORPHAN {
                    self.disown(&kind, &key, &object, &|owner| owner == uid)
                        .await;
                } else {
                    blocked |= reference["blockOwnerDeletion"] == true;
                    if object["metadata"]["deletionTimestamp"].is_null() {
                        self.collect(vec![dependent]);
                    }
                }
            }
            if !blocked {
                self.edit(&served, &key, &object, "finalizers", &|it| it == finalizer)
                    .await;
            }
        } else if object["metadata"]["deletionTimestamp"].is_null() {
            self.settle_dependent(&served, &key, &object).await;
        }
    }

    async fn settle_dependent(&self, served: &Served, key: &str, object: &Value) {
        let waits = |owner: &str| {
            let found = self.with_uid(owner);
            found.is_some_and(|(_, _, owner)| propagation(&owner) == Some(FOREGROUND))
        };
        let is_deleted = |owner: &str| {
            let owners = self.owners.as_ref();
            owners.is_some_and(|owners| owners.lock().is_deleted(owner))
        };
        let all: Vec<&str> = owners(object).map(owner_uid).collect();
        let leaving: Vec<&str> = all
            .iter()
            .copied()
            .filter(|owner| is_deleted(owner) || waits(owner))
            .collect();
        if leaving.is_empty() {
            return;
        }
        if leaving.len() < all.len() {
            return self
                .disown(served, key, object, &|owner| leaving.contains(&owner))
                .await;
        }
        let in_foreground =
            all.iter().any(|owner| waits(owner)) && !self.dependents_of(uid_of(object)).is_empty();
        let options = DeleteOptions {
            uid: Some(uid_of(object).to_owned()),
            propagation: in_foreground.then(|| "Foreground".to_owned()),
            ..DeleteOptions::default()
        };
        let ctx = Context::internal("garbage-collector", None, self.clock.now());
        // It may be deleted already.
        let _ = self
            .delete_key(served, key, name_of(object), &options, &ctx)
            .await;
    }

    async fn disown(
        &self,
        served: &Served,
        key: &str,
        object: &Value,
        leaves: &(dyn Fn(&str) -> bool + Sync),
    ) {
        let leaves = |reference: &Value| leaves(owner_uid(reference));
        self.edit(served, key, object, "ownerReferences", &leaves)
            .await;
    }

    /// Removes elements of a list in an object's metadata.
    async fn edit(
        &self,
        served: &Served,
        key: &str,
        object: &Value,
        list: &str,
        leaves: &(dyn Fn(&Value) -> bool + Sync),
    ) {
        let ctx = Context::internal("garbage-collector", None, self.clock.now());
        let uid = &object["metadata"]["uid"];
        let change = |object: &mut Value| {
            if object["metadata"]["uid"] == *uid
                && let Some(all) = object_of(object, "metadata").get_mut(list)
                && let Some(all) = all.as_array_mut()
            {
                all.retain(|element| !leaves(element));
            }
            Ok(())
        };
        // It may be deleted already.
        let _ = self
            .modify(served, key, name_of(object), &ctx, change)
            .await;
    }
}
