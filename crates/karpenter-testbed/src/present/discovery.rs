//! Discovery documents: the served groups, versions and resources. Clients that ask for aggregated documents take these, too.
//!
//! UPSTREAM: apiserver/pkg/endpoints/discovery.

use serde_json::{Map, Value, json};

use crate::registry::{Registry, Resource, Subresource, api_version};

/// Returns the document at `/api`. `address` is the server address for legacy clients, `host:port`.
pub fn core(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// Returns the document at `/apis`.
pub fn groups(registry: &Registry) -> Value {
    let named = registry
        .groups()
        .into_iter()
        .filter(|group| !group.is_empty());
    let groups: Vec<Value> = named
        .map(|name| Value::Object(group_entry(registry, name)))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
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
        entries.push(entry_of(resource));
        let mut subresources: Vec<&Subresource> = resource.subresources.iter().collect();
        subresources.sort_by(|a, b| a.name.cmp(&b.name));
        entries.extend(subresources.into_iter().map(|sub| sub_entry(resource, sub)));
    }
    (!entries.is_empty()).then(|| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version(group, version), "resources": entries})
    })
}

fn entry_of(resource: &Resource) -> Value {
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

fn sub_entry(resource: &Resource, sub: &Subresource) -> Value {
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
