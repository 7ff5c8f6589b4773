//! Pods: their readiness and status.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go printPod

use serde_json::json;

use super::column::{AGE, Column, NAME, View, computed, field};

pub(super) const POD: &[Column] = &[
    NAME,
    computed("Ready", |view| json!(ready(view))),
    computed("Status", |view| json!(status(view))),
    computed("Restarts", |_| json!("0")),
    AGE,
    field("IP", "status.podIP").or("<none>").wide(),
    field("Node", "spec.nodeName").or("<none>").wide(),
    field("Nominated Node", "status.nominatedNodeName")
        .or("<none>")
        .wide(),
];

/// Returns the Status column. All containers of a simulated pod are in the same state, and never restart.
fn status(view: &View<'_>) -> String {
    let phase = view.str("/status/phase");
    let is_finished = matches!(phase, "Succeeded" | "Failed");
    let gated = view
        .condition("PodScheduled")
        .is_some_and(|condition| condition["reason"] == "SchedulingGated");
    let state = view.at("/status/containerStatuses/0/state");
    let reason = |of: &str| state.and_then(|state| state.pointer(of)?.as_str());
    let container = reason("/waiting/reason").or_else(|| reason("/terminated/reason"));
    if view.deleted() && !is_finished {
        "Terminating".to_owned()
    } else if gated {
        "SchedulingGated".to_owned()
    } else {
        container
            .unwrap_or_else(|| view.or("/status/reason", phase))
            .to_owned()
    }
}

fn ready(view: &View<'_>) -> String {
    let containers = view.list("/status/containerStatuses");
    let ready = containers.iter().filter(|status| status["ready"] == true);
    format!("{}/{}", ready.count(), view.list("/spec/containers").len())
}
