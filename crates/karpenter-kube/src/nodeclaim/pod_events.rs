//! Maintains the time of the last pod event on a node, from which `consolidateAfter` counts.
//!
//! Pod events are binding, completion and deletion; pods of DaemonSets do not count. Written every ten seconds at most.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/podevents/controller.go

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::v1::NodeClaim;
use karpenter_core::pod::Pod;

use crate::context::Context;
use crate::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};
use crate::options::Options;
use crate::patch::Lock;

/// Shorter than the interval between two disruption passes, so that none misses an event.
const DEDUPE: Duration = Duration::from_secs(10);

/// Maintains `status.lastPodEventTime`.
#[derive(Debug)]
pub struct PodEvents {
    cx: Arc<Context>,
}

impl PodEvents {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self { cx }
    }
}

/// Returns the node of a pod event, if the change is one.
fn event_node<'a>(before: Option<&'a Pod>, after: Option<&'a Pod>) -> Option<&'a str> {
    let after = after?;
    let node = after.node_name.as_deref()?;
    let bound = before.is_none_or(|b| b.node_name.is_none());
    let ended = after.is_terminal() && before.is_some_and(|b| !b.is_terminal());
    let ending = after.deleted_at.is_some() && before.is_some_and(|b| b.deleted_at.is_none());
    (!after.is_owned_by_daemon_set() && (bound || ended || ending)).then_some(node)
}

impl Controller for PodEvents {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "nodeclaim.podevents"
    }

    fn kind(&self) -> &'static str {
        NodeClaim::KIND
    }

    fn concurrency(&self, options: &Options) -> usize {
        options.concurrency(10, 1000)
    }

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        // Events of pods that are listed at start happened before.
        let Change::Pod { before, after } = change else {
            return;
        };
        if !view.is_synced() {
            return;
        }
        let node = event_node(before.as_deref(), after.as_deref()).and_then(|name| view.node(name));
        for claim in node
            .map(|node| view.node_claims_of(node))
            .unwrap_or_default()
        {
            queue.add(ObjectKey::cluster(claim.name()));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(claim) = self
            .cx
            .node_claim(&view, &key.name)
            .filter(|c| self.cx.is_managed(&c.spec.node_class_ref))
        else {
            return Ok(Next::Wait);
        };
        let known = claim.status.last_pod_event_time.as_ref().map(|t| t.0);
        if known.is_some_and(|at| self.cx.clock.since(at) < DEDUPE) {
            return Ok(Next::Wait);
        }
        let mut after = NodeClaim::clone(&claim);
        after.status.last_pod_event_time = Some(Time(self.cx.clock.now()));
        // No other controller writes this field.
        self.cx
            .claim_writes
            .patch_status(self.cx.node_claims(), &claim, &after, Lock::None)
            .await
            .doing("updating nodeclaim status")?;
        Ok(Next::Wait)
    }
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
