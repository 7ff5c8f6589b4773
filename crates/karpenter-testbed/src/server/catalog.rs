//! The served resources: the built-in kinds and the custom ones, each with its collection.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;

use super::custom::Definition;
use crate::registry::{CrdError, FieldSelector, Registry, Resource, StorageKey};
use crate::store::{Collection, Selectable, Store};

/// A resource of requests, with the collection of its objects.
#[derive(Debug, Clone)]
pub struct Served {
    pub resource: Arc<Resource>,
    /// The objects, shared by all versions.
    pub collection: Arc<Collection>,
    /// Counts the CRD updates of a custom resource; objects of an older edition are defaulted again when read.
    pub edition: u32,
    /// Validation of custom resources.
    pub definition: Option<Arc<Definition>>,
}

impl Deref for Served {
    type Target = Resource;

    fn deref(&self) -> &Resource {
        &self.resource
    }
}

impl Served {
    /// Returns the key of an object.
    #[must_use]
    pub fn key(&self, namespace: Option<&str>, name: &str) -> String {
        match namespace {
            Some(ns) if self.namespaced => format!("{ns}/{name}"),
            _ => name.to_owned(),
        }
    }

    /// Whether this is the built-in kind `kind` of `group`.
    #[must_use]
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.custom.is_none() && self.group == group && self.kind == kind
    }

    /// Whether the stored version differs from this one.
    #[must_use]
    pub fn converts(&self) -> bool {
        self.version != self.storage_version
    }
}

#[derive(Debug, Default)]
struct State {
    registry: Arc<Registry>,
    collections: HashMap<StorageKey, Arc<Collection>>,
    /// By (group, version, plural).
    served: HashMap<(String, String, String), Arc<Served>>,
    editions: u32,
}

#[derive(Debug)]
pub struct Catalog {
    store: Arc<Store>,
    state: RwLock<State>,
}

impl Catalog {
    /// Returns the built-in resources.
    #[must_use]
    pub fn new(store: Arc<Store>) -> Self {
        let registry = Registry::builtin();
        let mut state = State::default();
        for resource in registry.iter() {
            if resource.supports("list") {
                let collection = state.collection_for(&store, &registry, resource);
                state.serve(resource, collection, 0, None);
            }
        }
        state.registry = Arc::new(registry);
        Self {
            store,
            state: RwLock::new(state),
        }
    }

    /// Returns the names and schemas of all served resources, for discovery and OpenAPI.
    #[must_use]
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.state.read().registry)
    }

    /// Returns the resource at a path.
    #[must_use]
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Served>> {
        self.state
            .read()
            .served
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
            .cloned()
    }

    /// Returns every served resource that objects are stored through, once for each collection.
    #[must_use]
    pub fn stored(&self) -> Vec<Arc<Served>> {
        let mut all: Vec<Arc<Served>> = Vec::new();
        for served in self.state.read().served.values() {
            match all
                .iter_mut()
                .find(|s| Arc::ptr_eq(&s.collection, &served.collection))
            {
                None => all.push(Arc::clone(served)),
                Some(known) if known.converts() => *known = Arc::clone(served),
                Some(_) => {}
            }
        }
        all.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural)));
        all
    }

    /// Serves the versions of a CustomResourceDefinition, in place of its earlier form.
    ///
    /// # Errors
    /// If the registry cannot use the CRD.
    pub fn define(&self, crd: &Value) -> Result<(), CrdError> {
        let mut state = self.state.write();
        let mut registry = (*state.registry).clone();
        let resources = registry.register_crd(crd)?;
        state.editions += 1;
        let edition = state.editions;
        let name = crd["metadata"]["name"].as_str().unwrap_or_default();
        state
            .served
            .retain(|_, s| s.custom.as_ref().is_none_or(|c| c.crd != name));
        for resource in &resources {
            let collection = state.collection_for(&self.store, &registry, resource);
            let definition = resource.custom.as_ref().map(|custom| {
                let kind = &resource.kind;
                Arc::new(Definition::compile(
                    custom,
                    &resource.group,
                    &resource.version,
                    kind,
                ))
            });
            state.serve(resource, collection, edition, definition);
        }
        state.registry = Arc::new(registry);
        Ok(())
    }

    /// Stops serving a CustomResourceDefinition and drops its objects.
    pub fn undefine(&self, name: &str) {
        let mut state = self.state.write();
        let mut registry = (*state.registry).clone();
        registry.unregister_crd(name);
        let mut gone = Vec::new();
        state.served.retain(|_, s| {
            let keep = s.custom.as_ref().is_none_or(|c| c.crd != name);
            if !keep {
                gone.push(s.storage.clone());
            }
            keep
        });
        for key in gone {
            if let Some(collection) = state.collections.remove(&key) {
                self.store.forget(&collection);
            }
        }
        state.registry = Arc::new(registry);
    }
}

impl State {
    fn collection_for(
        &mut self,
        store: &Store,
        registry: &Registry,
        resource: &Arc<Resource>,
    ) -> Arc<Collection> {
        if let Some(known) = self.collections.get(&resource.storage) {
            return Arc::clone(known);
        }
        // Selectable fields are read from the stored form.
        let stored = registry
            .find(
                &resource.storage.group,
                &resource.storage_version,
                &resource.storage.plural,
            )
            .unwrap_or(resource);
        let mut fields = vec![
            Selectable::new("metadata.name"),
            Selectable::new("metadata.namespace"),
        ];
        fields.extend(
            stored
                .field_selectors
                .iter()
                .map(|f: &FieldSelector| Selectable {
                    label: f.label.clone(),
                    path: f.path.clone(),
                    absent: f.absent,
                }),
        );
        let collection = store.collection(Arc::from(fields));
        self.collections
            .insert(resource.storage.clone(), Arc::clone(&collection));
        collection
    }

    fn serve(
        &mut self,
        resource: &Arc<Resource>,
        collection: Arc<Collection>,
        edition: u32,
        definition: Option<Arc<Definition>>,
    ) {
        self.served.insert(
            (
                resource.group.clone(),
                resource.version.clone(),
                resource.plural.clone(),
            ),
            Arc::new(Served {
                resource: Arc::clone(resource),
                collection,
                edition,
                definition,
            }),
        );
    }
}
