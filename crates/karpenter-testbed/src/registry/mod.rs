//! The kinds, their names and schemas.
//!
//! - [`Registry`] holds every served resource: the built-in ones ([`Registry::builtin`]) and those of
//!   CustomResourceDefinitions ([`Registry::register_crd`], [`Registry::unregister_crd`]). Look one up by URL with
//!   [`Registry::find`] or by kind with [`Registry::find_kind`].
//! - [`Resource`] is one served (group, version, plural) with its names, verbs, subresources, field selectors, storage
//!   and [`schema::Schema`].
//! - [`schema`]: one interface for built-in types and CRD structural schemas.
//! - [`decode`]: unknown fields (strict decoding), pruning, type errors with the messages of a real server.
//!
//! All types are plain data with pure functions; the server keeps the [`Registry`] and replaces it when CRDs change.

mod builtin;
mod crd;
pub mod decode;
pub mod schema;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceSubresourceScale,
};
use kube::core::{GroupVersionKind, Version};
use serde_json::Value;

pub use crd::CrdError;
use schema::Schema;

/// The verbs of an ordinary stored resource, in the order of discovery.
pub const ALL_VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
/// The verbs of a custom resource, in the order of discovery.
pub const CUSTOM_VERBS: &[&str] = &[
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];
/// The verbs of a status-like subresource.
pub const STATUS_VERBS: &[&str] = &["get", "patch", "update"];
/// The verb of a subresource that only supports POST.
pub const CREATE_VERB: &[&str] = &["create"];

/// Returns the `apiVersion` string of a group and version: `v1` or `group/version`.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// Splits an `apiVersion` string into group and version.
pub fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// One subresource of a resource, such as `status` or `eviction`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    /// Path segment after the object's name.
    pub name: String,
    /// Kind of requests and responses.
    pub kind: GroupVersionKind,
    pub verbs: &'static [&'static str],
}

/// The storage location of objects, for all their groups and versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageKey {
    /// Group of the stored form.
    pub group: String,
    /// Plural of the stored form.
    pub plural: String,
}

/// The part of a resource that only CustomResourceDefinitions have.
#[derive(Debug, Clone, PartialEq)]
pub struct CustomResource {
    pub crd: String,
    /// `openAPIV3Schema` of this version as written, for validation, defaulting and CEL.
    pub open_api_schema: Value,
    /// Additional printer columns; an Age column if the CRD has none.
    pub columns: Vec<CustomResourceColumnDefinition>,
    /// Scale subresource, when there is one.
    pub scale: Option<CustomResourceSubresourceScale>,
    /// Whether the status subresource is enabled.
    pub has_status: bool,
    /// `spec.conversion` of the CRD.
    pub conversion: Value,
    /// Every version of the CRD that can be stored or served.
    pub versions: Vec<String>,
}

/// One served resource: a group, a version and a plural.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    /// API group, empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    /// Singular name kubectl accepts.
    pub singular: String,
    /// Short names kubectl accepts.
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub verbs: &'static [&'static str],
    pub subresources: Vec<Subresource>,
    /// Field selectors in addition to `metadata.name` and `metadata.namespace`: label → JSON path of the value.
    pub field_selectors: Vec<FieldSelector>,
    /// The storage location of objects.
    pub storage: StorageKey,
    /// Version in which objects are stored.
    pub storage_version: String,
    pub schema: Arc<Schema>,
    /// Set for resources of a CustomResourceDefinition.
    pub custom: Option<CustomResource>,
}

/// A field selector a resource supports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSelector {
    /// The label in requests, such as `involvedObject.name`.
    pub label: String,
    /// Keys from the object's root to the value.
    pub path: Vec<String>,
    /// Value assumed when the field is absent (`false` for booleans, else empty).
    pub absent: &'static str,
}

impl Resource {
    /// Returns `v1` or `group/version`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// Returns `plural` or `plural.group`: the resource's name in messages and CRD names.
    pub fn qualified_name(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Returns `Kind` or `Kind.group`: the kind's name in `Invalid` messages.
    pub fn qualified_kind(&self) -> String {
        if self.group.is_empty() {
            self.kind.clone()
        } else {
            format!("{}.{}", self.kind, self.group)
        }
    }

    /// Whether the resource comes from a CustomResourceDefinition.
    pub fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    /// Whether `verb` is supported on the resource itself.
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }
}

#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// Keyed by (group, version, plural).
    resources: BTreeMap<(String, String, String), Arc<Resource>>,
    /// Groups in the order of discovery: built-in ones first, then custom ones by name.
    builtin_groups: Vec<String>,
}

impl Registry {
    pub fn builtin() -> Self {
        let mut registry = Self::default();
        for resource in builtin::resources() {
            if !registry.builtin_groups.contains(&resource.group) {
                registry.builtin_groups.push(resource.group.clone());
            }
            registry.insert(resource);
        }
        registry
    }

    fn insert(&mut self, resource: Resource) -> Arc<Resource> {
        let key = (
            resource.group.clone(),
            resource.version.clone(),
            resource.plural.clone(),
        );
        let resource = Arc::new(resource);
        self.resources.insert(key, Arc::clone(&resource));
        resource
    }

    /// Returns the resource under `/apis/GROUP/VERSION/[namespaces/NS/]PLURAL` (`/api/VERSION/…` if the group is empty).
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// Returns the resource whose objects have this kind.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.in_version(group, version)
            .find(|resource| resource.kind == kind)
    }

    /// Returns every resource, ordered by group, version and plural.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    /// Returns the resources of one group and version, ordered by plural.
    pub fn in_version(&self, group: &str, version: &str) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources
            .values()
            .filter(move |resource| resource.group == group && resource.version == version)
    }

    /// Returns the groups in the order of discovery: core, built-in groups, then custom ones by name.
    pub fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = self.builtin_groups.iter().map(String::as_str).collect();
        for resource in self.resources.values() {
            if !groups.contains(&resource.group.as_str()) {
                groups.push(&resource.group);
            }
        }
        groups
    }

    /// Returns the versions of a group, the preferred one first (`v2` before `v1` before `v1beta1` before `v1alpha1`).
    pub fn versions(&self, group: &str) -> Vec<&str> {
        let of_group = self.resources.values().filter(|r| r.group == group);
        let mut versions: Vec<&str> = of_group.map(|r| r.version.as_str()).collect();
        versions.dedup();
        versions.sort_by_cached_key(|version| Reverse(Version::parse(version).priority()));
        versions
    }

    /// Serves the versions of a CustomResourceDefinition; replaces its earlier form.
    ///
    /// Returns the served resources.
    ///
    /// # Errors
    ///
    /// [`CrdError`] if the object is not a valid CRD; the registry is unchanged then.
    pub fn register_crd(&mut self, definition: &Value) -> Result<Vec<Arc<Resource>>, CrdError> {
        let (name, resources) = crd::resources(definition)?;
        self.unregister_crd(&name);
        let served = resources.into_iter().map(|resource| self.insert(resource));
        Ok(served.collect())
    }

    /// Stops serving the resources of the CustomResourceDefinition `name`.
    pub fn unregister_crd(&mut self, name: &str) {
        let is_other = |custom: &CustomResource| custom.crd != name;
        self.resources
            .retain(|_, resource| resource.custom.as_ref().is_none_or(is_other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_kind_has_its_schema() {
        for resource in Registry::builtin().iter() {
            let schema = resource.schema.resolve();
            assert!(
                schema.properties.contains_key("metadata"),
                "{} has no schema",
                resource.kind
            );
        }
    }
}
