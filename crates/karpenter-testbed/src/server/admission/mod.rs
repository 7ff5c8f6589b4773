//! What the server adds to and demands of built-in kinds.

use serde_json::{Value, json};

use super::catalog::Served;
use super::error::Cause;
use super::names;
use super::write::{map_of, name_of, object_of};

/// What a new object starts with, whatever the client sent.
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
        ("", "Node") => {
            let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
            let taints = &mut object_of(object, "spec")
                .entry("taints")
                .or_insert_with(|| json!([]));
            if let Some(taints) = taints.as_array_mut()
                && !taints
                    .iter()
                    .any(|t| t["key"] == taint["key"] && t["effect"] == taint["effect"])
            {
                taints.push(taint);
            }
        }
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
        _ if served.subresource("status").is_some() => {
            map_of(object).remove("status");
        }
        _ => {}
    }
}

/// Built-in kinds that count their spec's changes.
fn has_generation(served: &Served) -> bool {
    matches!(
        served.kind.as_str(),
        "Pod"
            | "Deployment"
            | "ReplicaSet"
            | "StatefulSet"
            | "DaemonSet"
            | "Job"
            | "CronJob"
            | "PodDisruptionBudget"
            | "CustomResourceDefinition"
            | "Ingress"
            | "NetworkPolicy"
            | "ReplicationController"
            | "ValidatingWebhookConfiguration"
            | "MutatingWebhookConfiguration"
    )
}

/// Adds defaults.
pub fn default(_served: &Served, _object: &mut Value) {}

/// What is wrong with a new object.
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
    causes
}

/// How names of a kind are checked.
fn name_rule(served: &Served) -> fn(&str) -> Option<String> {
    match (served.group.as_str(), served.kind.as_str()) {
        ("", "Namespace" | "Service") => names::dns_label,
        ("rbac.authorization.k8s.io", _) => names::path_segment,
        _ => names::dns_subdomain,
    }
}

/// What is wrong with a change.
#[must_use]
pub fn validate_update(
    _served: &Served,
    _old: &Value,
    _new: &Value,
    _subresource: Option<&str>,
) -> Vec<Cause> {
    Vec::new()
}
