//! Deletes the surplus NodeClaims of a static NodePool.
//!
//! UPSTREAM: pkg/controllers/static/deprovisioning/controller.go

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::lifecycle::static_pools::{Effect, Event, RESYNC_INTERVAL};

use crate::context::Context;
use crate::controller::{Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::listener::{Decided, Made};
use crate::model::{Change, View};
use crate::nodeclaim::removal::delete;
use crate::options::Options;
use crate::{logging, provisioning};

/// Keeps static NodePools from being too large.
#[derive(Debug)]
pub struct Deprovisioning {
    /// What all controllers share.
    pub cx: Arc<Context>,
}

impl Controller for Deprovisioning {
    type Key = ObjectKey;
    const NAME: &'static str = "static.deprovisioning";
    const KIND: &'static str = NodePool::KIND;

    fn concurrency(&self, _: &Options) -> usize {
        10
    }

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        match change {
            Change::NodePool {
                name,
                before,
                after: Some(after),
            } if after.is_static()
                && before
                    .as_ref()
                    .is_none_or(|b| b.spec.replicas != after.spec.replicas) =>
            {
                queue.add(ObjectKey::cluster(name));
            }
            Change::NodeClaim {
                before: None,
                after: Some(claim),
                ..
            } => {
                if let Some(pool) = claim.node_pool()
                    && view.node_pool(pool).is_some_and(|pool| pool.is_static())
                {
                    queue.add(ObjectKey::cluster(pool));
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(pool) = view
            .node_pool(&key.name)
            .filter(|pool| self.cx.is_managed(&pool.spec.template.spec.node_class_ref))
        else {
            return Ok(Next::Wait);
        };
        let claims = view.node_claims_of_pool(pool.name());
        let claims = claims
            .iter()
            .map(|claim| self.cx.claim_writes.latest(claim));
        let claims: Vec<_> = claims.collect();
        let claims: Vec<&NodeClaim> = claims.iter().map(AsRef::as_ref).collect();
        let (shrink, now) = (Event::Shrink(pool.name(), &claims), self.cx.clock.now());
        let pools = &self.cx.static_capacity;
        let effect = pools.with(&self.cx.model, |pools, latest| {
            pools.on(shrink, latest, now)
        });
        let Some(Effect::Delete(surplus)) = effect else {
            return Ok(Next::After(RESYNC_INTERVAL));
        };
        let removals = surplus.into_iter().map(|claim| async {
            let deleted = delete(&self.cx, claim).await?;
            if deleted {
                tracing::info!(
                    NodePool = logging::object(None, pool.name()),
                    NodeClaim = logging::object(None, claim.name()),
                    nodeclaim = claim.name(),
                    "deleting surplus nodeclaim of a static nodepool"
                );
            }
            Ok(deleted.then(|| claim.name()))
        });
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for removed in join_all(removals).await {
            match removed {
                Ok(name) => deleted.extend(name),
                Err(error) => errors.push(error),
            }
        }
        if let Some(listener) = self.cx.listener.as_ref().filter(|_| !deleted.is_empty()) {
            let made = Made {
                view: &view,
                policy: &provisioning::policy(&self.cx),
                took: Duration::ZERO,
            };
            listener.decided(made, Decided::Shrank(&deleted));
        }
        ReconcileError::collect(errors)?;
        // The deletions must be in the model before nodes are counted again; they come back as changes.
        Ok(Next::After(Duration::from_secs(1)))
    }
}
