//! The pod events from which `consolidateAfter` counts: binding, completion and deletion of a pod, unless a DaemonSet owns it.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/podevents/controller.go

use crate::pod::Pod;

/// Returns the node of a pod event, if the change is one.
pub fn event_node<'a>(before: Option<&'a Pod>, after: Option<&'a Pod>) -> Option<&'a str> {
    let after = after?;
    let node = after.node_name.as_deref()?;
    let bound = before.is_none_or(|b| b.node_name.is_none());
    let ended = after.is_terminal() && before.is_some_and(|b| !b.is_terminal());
    let ending = after.deleted_at.is_some() && before.is_some_and(|b| b.deleted_at.is_none());
    (!after.is_owned_by_daemon_set() && (bound || ended || ending)).then_some(node)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut value = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": [], "nodeName": "n"}, "status": {"phase": "Running"}});
        change(&mut value);
        Pod::parse(&serde_json::from_value(value).unwrap())
    }

    /// Conformance: DIS-144
    #[test]
    fn only_binding_completion_and_deletion_are_pod_events() {
        let running = pod(|_| {});
        let unbound = pod(|p| p["spec"]["nodeName"] = Value::Null);
        let ended = pod(|p| p["status"]["phase"] = json!("Succeeded"));
        let ending = pod(|p| p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
        let daemon = pod(|p| {
            p["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}])
        });
        assert_eq!(event_node(Some(&unbound), Some(&running)), Some("n"));
        assert_eq!(event_node(Some(&running), Some(&ended)), Some("n"));
        assert_eq!(event_node(Some(&running), Some(&ending)), Some("n"));
        assert_eq!(event_node(Some(&running), Some(&running)), None);
        assert_eq!(event_node(Some(&ending), Some(&ending)), None);
        assert_eq!(event_node(Some(&running), None), None);
        assert_eq!(event_node(None, Some(&unbound)), None);
        assert_eq!(event_node(None, Some(&daemon)), None);
    }
}
