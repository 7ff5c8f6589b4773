//! OpenAPI v3: the index and the document of each group and version, as far as kubectl uses them.
//!
//! `apply`, `create` and `replace` search a patch operation with the kind and a `fieldValidation` parameter; `explain` finds the
//! kind by the paths and reads `components.schemas`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use crate::registry::schema::{OBJECT_META, builtin_definitions};
use crate::registry::{Registry, Resource};

const COMPONENT: &str = "#/components/schemas/";

/// Returns the document at `/openapi/v3`: the addresses of the documents of each group and version.
pub fn index(registry: &Registry) -> Value {
    let mut paths = Map::new();
    for group in registry.groups() {
        for version in registry.versions(group) {
            let path = if group.is_empty() {
                format!("api/{version}")
            } else {
                format!("apis/{group}/{version}")
            };
            let hash = fingerprint(registry, group, version);
            paths.insert(
                path.clone(),
                json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash:016X}")}),
            );
        }
    }
    json!({"paths": paths})
}

/// Returns a hash that changes with the document of the group and version.
fn fingerprint(registry: &Registry, group: &str, version: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for resource in registry.in_version(group, version) {
        (&resource.plural, &resource.kind, resource.namespaced).hash(&mut hasher);
        if let Some(custom) = &resource.custom {
            custom.open_api_schema.to_string().hash(&mut hasher);
            (custom.has_status, custom.scale.is_some()).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Returns the document at `/openapi/v3/api/VERSION` or `/openapi/v3/apis/GROUP/VERSION`.
pub fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut schemas = BTreeMap::new();
    let mut paths = Map::new();
    for resource in registry.in_version(group, version) {
        let name = component(resource, &mut schemas);
        add_paths(resource, &name, &mut paths);
    }
    if paths.is_empty() {
        return None;
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.4"},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// Adds the resource's schema and the schemas it refers to; returns its name.
fn component(resource: &Resource, schemas: &mut BTreeMap<String, Value>) -> String {
    let gvk =
        json!([{"group": resource.group, "version": resource.version, "kind": resource.kind}]);
    if let Some(custom) = &resource.custom {
        let reversed: Vec<&str> = resource.group.rsplit('.').collect();
        let name = format!(
            "{}.{}.{}",
            reversed.join("."),
            resource.version,
            resource.kind
        );
        let mut schema = custom.open_api_schema.clone();
        if !schema["properties"].is_object() {
            schema["properties"] = json!({});
        }
        let described = |description: &str| json!({"type": "string", "description": description});
        schema["properties"]["apiVersion"] = described(
            "APIVersion defines the versioned schema of this representation of an object.",
        );
        schema["properties"]["kind"] = described(
            "Kind is a string value representing the REST resource this object represents.",
        );
        schema["properties"]["metadata"] = json!({"description": "Standard object's metadata.", "allOf": [{"$ref": format!("{COMPONENT}{OBJECT_META}")}]});
        schema["x-kubernetes-group-version-kind"] = gvk;
        schemas.insert(name.clone(), schema);
        add_builtin(OBJECT_META, schemas);
        return name;
    }
    let name = resource.schema.reference.clone().unwrap_or_default();
    add_builtin(&name, schemas);
    for subresource in &resource.subresources {
        match subresource.kind.kind.as_str() {
            "Eviction" => add_builtin("io.k8s.api.policy.v1.Eviction", schemas),
            "Scale" => add_builtin("io.k8s.api.autoscaling.v1.Scale", schemas),
            "Binding" => add_builtin("io.k8s.api.core.v1.Binding", schemas),
            _ => {}
        }
    }
    if let Some(schema) = schemas.get_mut(&name) {
        schema["x-kubernetes-group-version-kind"] = gvk;
    }
    name
}

fn add_builtin(name: &str, schemas: &mut BTreeMap<String, Value>) {
    if schemas.contains_key(name) {
        return;
    }
    let Some(definition) = builtin_definitions().get(name) else {
        return;
    };
    let mut references = Vec::new();
    let schema = with_components(definition, &mut references);
    schemas.insert(name.to_owned(), schema);
    for reference in references {
        add_builtin(&reference, schemas);
    }
}

/// Turns references by name into references to components; those with a description are wrapped in `allOf`.
fn with_components(node: &Value, references: &mut Vec<String>) -> Value {
    match node {
        Value::Object(fields) => {
            let mut out = Map::new();
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("$ref", Value::String(name)) => {
                        references.push(name.clone());
                        let target = json!({"$ref": format!("{COMPONENT}{name}")});
                        if fields.len() == 1 {
                            return target;
                        }
                        out.insert("allOf".into(), json!([target]));
                    }
                    _ => {
                        out.insert(key.clone(), with_components(value, references));
                    }
                }
            }
            Value::Object(out)
        }
        Value::Array(items) => items
            .iter()
            .map(|item| with_components(item, references))
            .collect(),
        scalar => scalar.clone(),
    }
}

fn add_paths(resource: &Resource, component: &str, paths: &mut Map<String, Value>) {
    let root = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let scope = if resource.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    let collection = format!("{root}{scope}/{}", resource.plural);
    let item = format!("{collection}/{{name}}");
    let gvk = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
    let reference = json!({"$ref": format!("{COMPONENT}{component}")});
    let operation = |action: &str, gvk: &Value| {
        let query = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
        let mut operation = json!({
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk,
        });
        if matches!(action, "post" | "put" | "patch") {
            operation["parameters"] = json!([
                query("dryRun"),
                query("fieldManager"),
                query("fieldValidation")
            ]);
            operation["requestBody"] = json!({"content": {"*/*": {"schema": if action == "patch" { json!({"type": "object"}) } else { reference.clone() }}}});
        }
        operation
    };
    let mut on_collection = Map::new();
    let mut on_item = Map::new();
    for verb in resource.verbs {
        match *verb {
            "list" => on_collection.insert("get".into(), operation("list", &gvk)),
            "create" => on_collection.insert("post".into(), operation("post", &gvk)),
            "deletecollection" => {
                on_collection.insert("delete".into(), operation("deletecollection", &gvk))
            }
            "get" => on_item.insert("get".into(), operation("get", &gvk)),
            "update" => on_item.insert("put".into(), operation("put", &gvk)),
            "patch" => on_item.insert("patch".into(), operation("patch", &gvk)),
            "delete" => on_item.insert("delete".into(), operation("delete", &gvk)),
            _ => None,
        };
    }
    for (path, operations) in [(collection, on_collection), (item.clone(), on_item)] {
        if !operations.is_empty() {
            paths.insert(path, Value::Object(operations));
        }
    }
    for sub in &resource.subresources {
        let gvk =
            json!({"group": sub.kind.group, "version": sub.kind.version, "kind": sub.kind.kind});
        let mut operations = Map::new();
        for verb in sub.verbs {
            let method = match *verb {
                "create" => "post",
                "update" => "put",
                other => other,
            };
            operations.insert(method.to_owned(), operation(method, &gvk));
        }
        paths.insert(format!("{item}/{}", sub.name), Value::Object(operations));
    }
}
