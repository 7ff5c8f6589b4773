//! Maintains the time of the last pod event on a node, from which `consolidateAfter` counts.
//!
//! Pod events are binding, completion and deletion; pods of DaemonSets do not count. Written every ten seconds at most.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/podevents/controller.go

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::pod_events::event_node;

use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};

/// Shorter than the interval between two disruption passes, so that none misses an event.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// Maintains `status.lastPodEventTime`.
#[derive(Debug)]
pub struct PodEvents {
    /// What all controllers share.
    pub cx: Arc<Context>,
}

impl Controller for PodEvents {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclaim.podevents";
    const KIND: &'static str = NodeClaim::KIND;

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
        let Some(claim) = self.cx.managed_claim(&view, &key.name) else {
            return Ok(Next::Wait);
        };
        let known = claim.status.last_pod_event_time.as_ref().map(|t| t.0);
        if known.is_some_and(|at| self.cx.clock.since(at) < MIN_INTERVAL) {
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
