//! Nodes: their readiness, roles, addresses and versions.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go printNode

use serde_json::{Value, json};

use super::condition;
use crate::present::rows::{AGE, NAME, Painting, painting_of, string, text, wide};

pub(super) static NODE: Painting = painting_of(
    &[
        NAME,
        text("Status", ""),
        text("Roles", ""),
        AGE,
        text("Version", "status.nodeInfo.kubeletVersion"),
        wide("Internal-IP", "status.addresses"),
        wide("External-IP", "status.addresses"),
        wide("OS-Image", "status.nodeInfo.osImage"),
        wide("Kernel-Version", "status.nodeInfo.kernelVersion"),
        wide(
            "Container-Runtime",
            "status.nodeInfo.containerRuntimeVersion",
        ),
    ],
    |view| {
        let mut status = match condition(view, "Ready") {
            Some(ready) if ready["status"] == "True" => "Ready",
            Some(_) => "NotReady",
            None => "Unknown",
        }
        .to_owned();
        if view
            .at("/spec/unschedulable")
            .is_some_and(|value| value == true)
        {
            status.push_str(",SchedulingDisabled");
        }
        let mut roles: Vec<String> = Vec::new();
        for (key, value) in view
            .at("/metadata/labels")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let role = match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => role.to_owned(),
                None if key == "kubernetes.io/role" => {
                    value.as_str().unwrap_or_default().to_owned()
                }
                None => continue,
            };
            if !role.is_empty() && !roles.contains(&role) {
                roles.push(role);
            }
        }
        roles.sort();
        let roles = if roles.is_empty() {
            "<none>".to_owned()
        } else {
            roles.join(",")
        };
        let address = |kind: &str| {
            let found = view
                .list("/status/addresses")
                .iter()
                .find(|address| address["type"] == kind);
            found.map_or_else(|| "<none>".to_owned(), |address| string(address, "address"))
        };
        vec![
            json!(view.name()),
            json!(status),
            json!(roles),
            json!(view.age()),
            json!(view.str("/status/nodeInfo/kubeletVersion")),
            json!(address("InternalIP")),
            json!(address("ExternalIP")),
            json!(view.or("/status/nodeInfo/osImage", "<unknown>")),
            json!(view.or("/status/nodeInfo/kernelVersion", "<unknown>")),
            json!(view.or("/status/nodeInfo/containerRuntimeVersion", "<unknown>")),
        ]
    },
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::present::rows::core_group::tests::cells;

    #[test]
    fn a_node_shows_readiness_roles_and_cordon() {
        let node = json!({"metadata": {"name": "n", "creationTimestamp": "2025-12-31T23:00:00Z", "labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "blue"}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": ""}}});
        assert_eq!(
            cells(&NODE, &node),
            "n | Ready,SchedulingDisabled | blue,worker | 120m | v1.36.0 | 10.1.1.1 | <none> | <unknown> | <unknown> | <unknown>"
        );
        assert_eq!(
            cells(&NODE, &json!({"metadata": {"name": "m"}})),
            "m | Unknown | <none> | <unknown> |  | <none> | <none> | <unknown> | <unknown> | <unknown>"
        );
    }
}
