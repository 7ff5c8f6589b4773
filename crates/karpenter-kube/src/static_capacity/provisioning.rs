//! Making what a static NodePool lacks.
//!
//! UPSTREAM: pkg/controllers/static/provisioning/controller.go

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodePool;
use karpenter_core::static_capacity::{draft, replicas};

use super::population;
use crate::context::Context;
use crate::controller::{Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::logging;
use crate::model::{Change, View};
use crate::options::Options;
use crate::provisioning::launch::create_claims;

/// How often a settled pool is looked at.
const SETTLED: Duration = Duration::from_secs(60);
/// How long a pool at its limit waits.
const AT_LIMIT: Duration = Duration::from_secs(30);
/// How long to wait for the model.
const UNSYNCED: Duration = Duration::from_secs(1);

/// Keeps static pools from being too small.
#[derive(Debug)]
pub struct Provisioning {
    cx: Arc<Context>,
}

impl Provisioning {
    /// The controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self { cx }
    }
}

/// Whether a change of a pool can make it lack machines.
fn matters(before: Option<&NodePool>, after: &NodePool) -> bool {
    after.is_static()
        && before.is_none_or(|before| {
            before.spec.replicas != after.spec.replicas
                || before.spec.limits != after.spec.limits
                || before.is_true(types::READY) != after.is_true(types::READY)
        })
}

impl Controller for Provisioning {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "static.provisioning"
    }

    fn kind(&self) -> &'static str {
        NodePool::KIND
    }

    fn concurrency(&self, _: &Options) -> usize {
        10
    }

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        match change {
            Change::NodePool {
                name,
                before,
                after: Some(after),
            } if matters(before.as_deref(), after) => queue.add(ObjectKey::cluster(name)),
            Change::NodeClaim { before, after, .. }
                if after.as_ref().is_none_or(|claim| claim.is_deleting()) =>
            {
                let claim = after.as_ref().or(before.as_ref());
                let pool = claim.and_then(|claim| claim.node_pool());
                if let Some(pool) = pool
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
        let Some(pool) = view.node_pool(&key.name).filter(|pool| {
            self.cx.is_managed(&pool.spec.template.spec.node_class_ref)
                && !pool.is_deleting()
                && pool.is_true(types::READY)
        }) else {
            return Ok(Next::Wait);
        };
        let Some(replicas) = replicas(pool) else {
            return Ok(Next::Wait);
        };
        if !view.is_synced() {
            return Ok(Next::After(UNSYNCED));
        }
        let missing = population(&view, pool.name()).missing(replicas);
        if missing == 0 {
            return Ok(Next::After(SETTLED));
        }
        let granted = self
            .cx
            .static_capacity
            .reserve(&self.cx.model, pool, missing);
        if granted == 0 {
            tracing::info!(
                NodePool = logging::object(None, pool.name()),
                replicas,
                "nodepool has reached its node limit"
            );
            return Ok(Next::After(AT_LIMIT));
        }
        let drafts = vec![draft(pool, self.cx.provider.well_known()); granted as usize];
        // Dropped when the operator stops in between; the reservations end with it.
        let created = create_claims(&self.cx, &drafts, "provisioned").await;
        self.cx.static_capacity.release(pool.name(), granted);
        let failed = created.into_iter().filter_map(Result::err);
        let errors: Vec<_> = failed
            .map(|error| ReconcileError::Internal(format!("creating nodeclaim, {error}")))
            .collect();
        ReconcileError::collect(errors)?;
        Ok(if granted < missing {
            Next::After(AT_LIMIT)
        } else {
            Next::After(SETTLED)
        })
    }
}
