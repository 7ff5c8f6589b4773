//! Defaulting and validation, kind by kind.
//!
//! Order for every write: [`prepare_create`] (creates only), [`default`], then [`validate_create`] or [`validate_update`]. Each
//! is a function of the object; checks that need other objects (namespaces, priority classes) are in `super::write`.

mod metadata;
mod nodes;
mod pods;
mod workloads;

use serde_json::{Value, json};

use super::catalog::Served;
use super::value::{map_of, name_of, object_of};
use super::{custom, names};
use crate::registry::decode;
use crate::server::wire::error::Cause;

pub use pods::resolve_priority;

/// Sets the fields that a new object starts with, regardless of the client's values.
pub fn prepare_create(served: &Served, object: &mut Value) {
    if served.is_custom() {
        object_of(object, "metadata").insert("generation".into(), 1.into());
        if served.subresource("status").is_some() {
            map_of(object).remove("status");
        }
        return;
    }
    if has_generation(served) {
        object_of(object, "metadata").insert("generation".into(), 1.into());
    }
    match (served.group.as_str(), served.kind.as_str()) {
        // Kubelets register with their status.
        ("", "Node") => nodes::prepare(object),
        ("", "Pod") => pods::prepare(object),
        ("", "Namespace") => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
            let name = name_of(object).to_owned();
            map_of(
                object_of(object, "metadata")
                    .entry("labels")
                    .or_insert_with(|| json!({})),
            )
            .insert("kubernetes.io/metadata.name".into(), name.into());
        }
        ("", "PersistentVolumeClaim" | "PersistentVolume") => {
            object["status"] = json!({"phase": "Pending"});
        }
        ("policy", "PodDisruptionBudget") => {
            object["status"] = json!({
                "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
            });
        }
        _ if served.subresource("status").is_some() => {
            map_of(object).remove("status");
        }
        _ => {}
    }
}

/// Built-in kinds with a `metadata.generation`.
fn has_generation(served: &Served) -> bool {
    matches!(
        served.kind.as_str(),
        "Pod"
            | "Deployment"
            | "ReplicaSet"
            | "StatefulSet"
            | "DaemonSet"
            | "Job"
            | "PodDisruptionBudget"
            | "CustomResourceDefinition"
            | "Ingress"
            | "NetworkPolicy"
            | "ReplicationController"
            | "ValidatingWebhookConfiguration"
            | "MutatingWebhookConfiguration"
            | "ResourceSlice"
            | "DeviceClass"
    )
}

/// Adds defaults. `now` is the time of new conditions.
pub fn default(served: &Served, object: &mut Value, now: &Value) {
    if let Some(definition) = &served.definition {
        definition.default(object);
        return;
    }
    match (served.group.as_str(), served.kind.as_str()) {
        ("", "Pod") => pods::default(object),
        ("", "Node") => nodes::default(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => custom::complete(object, now),
        _ => workloads::default(served, object),
    }
    decode::fill_zero_values(object, &served.schema);
}

#[must_use]
pub fn validate_create(served: &Served, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = name_of(object);
    if name.is_empty() {
        causes.push(Cause::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else if let Some(why) = name_rule(served)(name) {
        causes.push(Cause::invalid("metadata.name", &name.into(), &why));
    }
    metadata::validate(object, &mut causes);
    validate(served, object, None, &mut causes);
    causes
}

/// Returns how names of a kind are validated.
fn name_rule(served: &Served) -> fn(&str) -> Option<String> {
    match (served.group.as_str(), served.kind.as_str()) {
        ("", "Namespace" | "Service") => names::dns_label,
        ("rbac.authorization.k8s.io", _) => names::path_segment,
        _ => names::dns_subdomain,
    }
}

#[must_use]
pub fn validate_update(
    served: &Served,
    old: &Value,
    new: &Value,
    subresource: Option<&str>,
) -> Vec<Cause> {
    let mut causes = Vec::new();
    metadata::validate(new, &mut causes);
    metadata::validate_change(old, new, &mut causes);
    match (served.group.as_str(), served.kind.as_str(), subresource) {
        ("", "Pod", None) if !served.is_custom() => pods::validate_change(old, new, &mut causes),
        ("", "Node", None) if !served.is_custom() => nodes::validate_change(old, new, &mut causes),
        (_, _, None) if !served.is_custom() => {
            workloads::validate_change(served, old, new, &mut causes);
        }
        _ => {}
    }
    validate(served, new, Some(old), &mut causes);
    causes
}

fn validate(served: &Served, object: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    if let Some(definition) = &served.definition {
        // An object that is being deleted may be invalid under a new schema: only changes are validated.
        if old.is_none_or(|o| without_metadata(o) != without_metadata(object)) {
            causes.extend(definition.validate(object, old));
        }
        return;
    }
    match (served.group.as_str(), served.kind.as_str()) {
        // A change can only affect fields that `validate_change` allows.
        ("", "Pod") if old.is_none() => {
            pods::validate(&object["spec"], "spec", causes);
        }
        ("", "Node") => nodes::validate(object, causes),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            causes.extend(custom::validate_definition(object));
        }
        _ => workloads::validate(served, object, causes),
    }
}

fn without_metadata(object: &Value) -> Vec<(&String, &Value)> {
    object
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != "metadata")
        .collect()
}
