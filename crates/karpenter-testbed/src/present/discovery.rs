//! Discovery documents: the served groups, versions and resources.
//!
//! UPSTREAM: apiserver/pkg/endpoints/discovery.

use serde_json::{Map, Value, json};

use crate::registry::{Registry, Resource, Subresource, api_version};

/// Content type that kubectl expects of `APIGroupDiscoveryList` responses of version `v2`.
pub const AGGREGATED_V2: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The form of discovery that a client prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryForm {
    /// `APIGroupDiscoveryList` of `apidiscovery.k8s.io/v2`.
    AggregatedV2,
    /// `APIVersions`, `APIGroupList`.
    Legacy,
}

impl DiscoveryForm {
    /// Parses an `Accept` header.
    pub fn from_accept(accept: &str) -> Self {
        for part in accept.split(',') {
            let parameters: Vec<&str> = part.split(';').map(str::trim).collect();
            if parameters.contains(&"as=APIGroupDiscoveryList")
                && parameters.contains(&"g=apidiscovery.k8s.io")
                && parameters.contains(&"v=v2")
            {
                return Self::AggregatedV2;
            }
        }
        Self::Legacy
    }

    /// Returns the content type of the response.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::AggregatedV2 => AGGREGATED_V2,
            Self::Legacy => "application/json",
        }
    }
}

/// Returns the document at `/api` in the requested form. `address` is the server address for legacy clients, `host:port`.
pub fn core(registry: &Registry, form: DiscoveryForm, address: &str) -> Value {
    match form {
        DiscoveryForm::Legacy => json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        }),
        _ => aggregated(registry, true),
    }
}

/// Returns the document at `/apis` in the requested form.
pub fn groups(registry: &Registry, form: DiscoveryForm) -> Value {
    match form {
        DiscoveryForm::Legacy => {
            let named = registry
                .groups()
                .into_iter()
                .filter(|group| !group.is_empty());
            let groups: Vec<Value> = named
                .map(|name| Value::Object(group_entry(registry, name)))
                .collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        _ => aggregated(registry, false),
    }
}

/// Returns the `APIGroup` at `/apis/GROUP`.
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    if name.is_empty() || !registry.groups().contains(&name) {
        return None;
    }
    let mut entry = group_entry(registry, name);
    entry.insert("kind".into(), json!("APIGroup"));
    entry.insert("apiVersion".into(), json!("v1"));
    Some(Value::Object(entry))
}

fn group_entry(registry: &Registry, name: &str) -> Map<String, Value> {
    let versions: Vec<Value> = registry
        .versions(name)
        .iter()
        .map(|version| json!({"groupVersion": api_version(name, version), "version": version}))
        .collect();
    let mut entry = Map::new();
    entry.insert("name".into(), json!(name));
    entry.insert(
        "preferredVersion".into(),
        versions.first().cloned().unwrap_or_default(),
    );
    entry.insert("versions".into(), Value::Array(versions));
    entry
}

/// Returns the `APIResourceList` at `/api/VERSION` or `/apis/GROUP/VERSION`.
pub fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut entries = Vec::new();
    for resource in registry.in_version(group, version) {
        entries.push(legacy_entry(resource));
        let mut subresources: Vec<&Subresource> = resource.subresources.iter().collect();
        subresources.sort_by(|a, b| a.name.cmp(&b.name));
        entries.extend(
            subresources
                .into_iter()
                .map(|sub| legacy_sub_entry(resource, sub)),
        );
    }
    (!entries.is_empty()).then(|| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version(group, version), "resources": entries})
    })
}

fn legacy_entry(resource: &Resource) -> Value {
    let mut entry = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    entry
}

fn legacy_sub_entry(resource: &Resource, sub: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", resource.plural, sub.name),
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": sub.kind.kind,
        "verbs": sub.verbs,
    });
    if (&sub.kind.group, &sub.kind.version) != (&resource.group, &resource.version) {
        entry["group"] = json!(sub.kind.group);
        entry["version"] = json!(sub.kind.version);
    }
    entry
}

fn aggregated(registry: &Registry, core: bool) -> Value {
    let groups = registry
        .groups()
        .into_iter()
        .filter(|group| group.is_empty() == core);
    let items: Vec<Value> = groups
        .map(|group| {
            let versions: Vec<Value> = registry
                .versions(group)
                .iter()
                .map(|version| {
                    let resources: Vec<Value> = registry
                        .in_version(group, version)
                        .map(|resource| aggregated_entry(resource))
                        .collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if group.is_empty() {
                json!({})
            } else {
                json!({"name": group})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_entry(resource: &Resource) -> Value {
    // Built-in resources omit group and version if they are those of the document; custom ones include them.
    let kind_of = |group: &str, version: &str, kind: &str| {
        let own = group == resource.group && version == resource.version;
        if own && !resource.is_custom() {
            json!({"group": "", "version": "", "kind": kind})
        } else {
            json!({"group": group, "version": version, "kind": kind})
        }
    };
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind_of(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if !resource.subresources.is_empty() {
        let subresource = |sub: &Subresource| {
            json!({
                "subresource": sub.name,
                "responseKind": kind_of(&sub.kind.group, &sub.kind.version, &sub.kind.kind),
                "verbs": sub.verbs,
            })
        };
        entry["subresources"] = resource.subresources.iter().map(subresource).collect();
    }
    entry
}

/// Returns the document at `/version` for a version such as `1.36`.
pub fn version(version: &str) -> Value {
    let (major, minor) = version.split_once('.').unwrap_or(("1", version));
    let before = minor
        .parse()
        .map_or(0, |minor: u32| minor.saturating_sub(1));
    json!({
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": before.to_string(),
        "gitVersion": format!("v{major}.{minor}.4+karpenter-testbed"),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}
