//! Nodes: their readiness, roles, addresses and versions.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go printNode

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::column::{AGE, Column, NAME, View, computed, field, string};

pub(super) const NODE: &[Column] = &[
    NAME,
    computed("Status", |view| json!(status(view))),
    computed("Roles", |view| json!(roles(view))),
    AGE,
    field("Version", "status.nodeInfo.kubeletVersion"),
    computed("Internal-IP", |view| address(view, "InternalIP")).wide(),
    computed("External-IP", |view| address(view, "ExternalIP")).wide(),
    field("OS-Image", "status.nodeInfo.osImage")
        .or("<unknown>")
        .wide(),
    field("Kernel-Version", "status.nodeInfo.kernelVersion")
        .or("<unknown>")
        .wide(),
    field(
        "Container-Runtime",
        "status.nodeInfo.containerRuntimeVersion",
    )
    .or("<unknown>")
    .wide(),
];

fn status(view: &View<'_>) -> String {
    let ready = match view.condition("Ready") {
        Some(_) if view.holds("Ready") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = view
        .at("/spec/unschedulable")
        .is_some_and(|value| value == true);
    let cordoned = if cordoned { ",SchedulingDisabled" } else { "" };
    format!("{ready}{cordoned}")
}

fn roles(view: &View<'_>) -> String {
    let labels = view.at("/metadata/labels").and_then(Value::as_object);
    let roles: BTreeSet<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            key.strip_prefix("node-role.kubernetes.io/")
                .or_else(|| value.as_str().filter(|_| key == "kubernetes.io/role"))
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() {
        return "<none>".to_owned();
    }
    roles.into_iter().collect::<Vec<_>>().join(",")
}

fn address(view: &View<'_>, kind: &str) -> Value {
    let addresses = view.list("/status/addresses");
    let found = addresses.iter().find(|address| address["type"] == kind);
    json!(found.map_or_else(|| "<none>".to_owned(), |address| string(address, "address")))
}
