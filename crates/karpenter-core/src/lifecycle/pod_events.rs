//! The pod events from which `consolidateAfter` counts: binding, completion and deletion of a pod, unless a DaemonSet owns it.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/podevents/controller.go

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::v1::NodeClaim;

use super::after;
use crate::pod::Pod;

/// Least time between two writes. Shorter than the delay of a validation, so that none misses an event.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the node of a pod event, if the change is one.
pub fn event_node<'a>(before: Option<&'a Pod>, after: Option<&'a Pod>) -> Option<&'a str> {
    let after = after?;
    let node = after.node_name.as_deref()?;
    let bound = before.is_none_or(|b| b.node_name.is_none());
    let ended = after.is_terminal() && before.is_some_and(|b| !b.is_terminal());
    let ending = after.deleted_at.is_some() && before.is_some_and(|b| b.deleted_at.is_none());
    (!after.is_owned_by_daemon_set() && (bound || ended || ending)).then_some(node)
}

/// Returns the NodeClaim with the time of a pod event on its node, to be written; `None` if it has a time less than ten seconds ago.
pub fn recorded(claim: &NodeClaim, now: Timestamp) -> Option<NodeClaim> {
    let known = claim.status.last_pod_event_time.as_ref();
    if known.is_some_and(|known| now < after(known.0, MIN_INTERVAL)) {
        return None;
    }
    let mut claim = claim.clone();
    claim.status.last_pod_event_time = Some(Time(now));
    Some(claim)
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

    #[test]
    fn two_pod_events_within_ten_seconds_are_written_once() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let time = |claim: &NodeClaim| claim.status.last_pod_event_time.as_ref().map(|it| it.0);
        let first = recorded(&NodeClaim::new("a", Default::default()), at(100)).unwrap();
        assert_eq!(time(&first), Some(at(100)));
        assert_eq!(recorded(&first, at(109)), None);
        assert_eq!(time(&recorded(&first, at(110)).unwrap()), Some(at(110)));
    }
}
