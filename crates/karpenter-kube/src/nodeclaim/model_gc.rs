//! Removes NodeClaims from the model that the API server does not have.
//!
//! The model adds a NodeClaim when it is created, before the watch reports it. If it is deleted before the watch lists it,
//! no event removes it from the model. So every new NodeClaim is checked once, a while later.
//!
//! UPSTREAM: pkg/controllers/state/informer/nodeclaimgc.go

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::v1::NodeClaim;

use crate::context::Context;
use crate::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};

/// How long a NodeClaim may take to be launched or deleted before it is checked.
const DELAY: Duration = Duration::from_secs(15);

/// Removes NodeClaims that do not exist from the model.
#[derive(Debug)]
pub struct ModelNodeClaimGc {
    /// What all controllers share.
    pub cx: Arc<Context>,
}

fn is_launched(claim: &NodeClaim) -> bool {
    claim
        .status
        .provider_id
        .as_deref()
        .is_some_and(|id| !id.is_empty())
}

impl Controller for ModelNodeClaimGc {
    type Key = ObjectKey;
    const NAME: &'static str = "state.nodeclaimgc";
    const KIND: &'static str = NodeClaim::KIND;

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        if let Change::NodeClaim {
            name,
            before: None,
            after: Some(claim),
        } = change
            && !is_launched(claim)
        {
            let due = self.cx.clock.instant_after(DELAY);
            queue.add_later(ObjectKey::cluster(name), due);
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(claim) = view.node_claim(&key.name).filter(|c| !is_launched(c)) else {
            return Ok(Next::Wait);
        };
        let found = self
            .cx
            .node_claims()
            .get_opt(&key.name)
            .await
            .doing("getting nodeclaim")?;
        if found.is_some_and(|found| found.uid() == claim.uid()) {
            return Ok(Next::Wait);
        }
        let (name, uid) = (Arc::clone(&key.name), claim.uid().to_owned());
        self.cx.model.missing_node_claim(name, uid).await?;
        Ok(Next::Wait)
    }
}
