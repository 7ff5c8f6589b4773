//! Expiration: NodeClaims older than `expireAfter` are deleted.
//!
//! An expired NodeClaim is deleted at once: budgets, replacements and `do-not-disrupt` do not delay it; only its drain does.
//!
//! DIFFERS: expired NodeClaims are deleted in parallel as they are due; upstream deletes one per second.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/expiration/controller.go

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::conditions::expires_at;

use super::removal::disrupt;
use crate::context::Context;
use crate::controller::{Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::logging;
use crate::model::{Change, View};

/// Deletes expired NodeClaims.
#[derive(Debug)]
pub struct Expiration {
    /// What all controllers share.
    pub cx: Arc<Context>,
}

impl Controller for Expiration {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclaim.expiration";
    const KIND: &'static str = NodeClaim::KIND;

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        if let Change::NodeClaim {
            name,
            before: None,
            after: Some(_),
        } = change
        {
            queue.add(ObjectKey::cluster(name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let claim = self.cx.managed_claim(&view, &key.name);
        let Some(claim) = claim.filter(|claim| !claim.is_deleting()) else {
            return Ok(Next::Wait);
        };
        let Some(at) = expires_at(&claim) else {
            return Ok(Next::Wait);
        };
        let left = Duration::try_from(at.duration_since(self.cx.clock.now())).unwrap_or_default();
        if !left.is_zero() {
            return Ok(Next::After(left));
        }
        if disrupt(&self.cx, &claim, "expired").await? {
            tracing::info!(
                NodeClaim = logging::object(None, claim.name()),
                nodeclaim = claim.name(),
                "deleting expired nodeclaim"
            );
        }
        Ok(Next::Wait)
    }
}
