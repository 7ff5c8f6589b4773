//! Maintains the condition Consolidatable, which the disruption methods require.
//!
//! Consolidatable: no pod event on the node for the NodePool's `consolidateAfter`.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/disruption/{controller,consolidation}.go

use std::sync::Arc;

use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::conditions::update_consolidatable;

use crate::context::Context;
use crate::controller::{Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};

/// Maintains the disruption conditions of NodeClaims.
#[derive(Debug)]
pub struct DisruptionConditions {
    /// What all controllers share.
    pub cx: Arc<Context>,
}

impl Controller for DisruptionConditions {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclaim.disruption";
    const KIND: &'static str = NodeClaim::KIND;

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        match change {
            Change::NodeClaim {
                name,
                after: Some(_),
                ..
            } => queue.add(ObjectKey::cluster(name)),
            Change::NodePool {
                name,
                before,
                after: Some(after),
            } if before
                .as_ref()
                .is_none_or(|b| b.metadata.generation != after.metadata.generation) =>
            {
                for claim in view.node_claims_of_pool(name) {
                    queue.add(ObjectKey::cluster(claim.name()));
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let claim = self.cx.managed_claim(&view, &key.name);
        let Some(before) = claim.filter(|claim| !claim.is_deleting()) else {
            return Ok(Next::Wait);
        };
        let Some(pool) = before.node_pool().and_then(|name| view.node_pool(name)) else {
            return Ok(Next::Wait);
        };
        let mut after = NodeClaim::clone(&before);
        let left = update_consolidatable(pool, &mut after, self.cx.clock.now());
        self.cx.write_claim_status(&before, &after).await?;
        Ok(left.map_or(Next::Wait, |left| Next::After(left.unsigned_abs())))
    }
}
