//! Maintains the time of the last pod event on a node, from which `consolidateAfter` counts.
//!
//! Pod events are binding, completion and deletion; pods of DaemonSets do not count. Written every ten seconds at most.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/podevents/controller.go

use std::sync::Arc;

use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::pod_events::{event_node, recorded};

use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};

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
        let Some(after) = recorded(&claim, self.cx.clock.now()) else {
            return Ok(Next::Wait);
        };
        // No other controller writes this field.
        self.cx
            .claim_writes
            .patch_status(self.cx.node_claims(), &claim, &after, Lock::None)
            .await
            .doing("updating nodeclaim status")?;
        Ok(Next::Wait)
    }
}
