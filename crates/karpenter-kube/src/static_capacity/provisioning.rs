//! Making what a static NodePool lacks.
//!
//! UPSTREAM: pkg/controllers/static/provisioning/controller.go

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::static_capacity::{draft, replicas};

use super::population;
use crate::context::Context;
use crate::controller::{Backoff, Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::logging;
use crate::model::{Change, View};
use crate::options::Options;
use crate::provisioning::launch::create_claims;
use crate::resting::Resting;

/// How often a settled pool is looked at.
const SETTLED: Duration = Duration::from_secs(60);
/// How long a pool at its limit waits.
const AT_LIMIT: Duration = Duration::from_secs(30);
/// How long to wait for the model.
const UNSYNCED: Duration = Duration::from_secs(1);
/// How long a pool waits whose machines cannot be launched.
const REST: Backoff = Backoff {
    base: Duration::from_secs(2),
    max: SETTLED,
};

/// Keeps static pools from being too small.
#[derive(Debug)]
pub struct Provisioning {
    cx: Arc<Context>,
    /// DIFFERS: upstream makes a claim as soon as the one before it could not be launched, as fast as the provider refuses.
    resting: Mutex<Resting>,
}

impl Provisioning {
    /// The controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            cx,
            resting: Mutex::new(Resting::new(REST)),
        }
    }

    fn resting(&self) -> MutexGuard<'_, Resting> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a pool still rests.
    fn rest(&self, pool: &str) -> Option<Duration> {
        let until = self.resting().until(pool)?;
        Some(self.cx.clock.until(until)).filter(|rest| !rest.is_zero())
    }

    /// Notes what a change of a claim says of whether its pool gets machines.
    fn learn(&self, pool: &str, before: Option<&NodeClaim>, after: Option<&NodeClaim>) {
        let launched =
            |claim: Option<&NodeClaim>| claim.is_some_and(|c| c.is_true(types::LAUNCHED));
        let there = |claim: Option<&NodeClaim>| claim.is_some_and(|c| !c.is_deleting());
        if launched(after) {
            if !launched(before) {
                self.resting().succeeded(pool);
            }
        } else if there(before) && !there(after) && !launched(before) && self.rest(pool).is_none() {
            // Those that were made together fail together.
            let clock = self.cx.clock;
            self.resting()
                .failed(pool, |duration| clock.instant_after(duration));
        }
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
            Change::NodePool {
                name, after: None, ..
            } => self.resting().succeeded(name),
            Change::NodeClaim { before, after, .. } => {
                let claim = after.as_ref().or(before.as_ref());
                let pool = claim.and_then(|claim| claim.node_pool());
                let Some(pool) =
                    pool.filter(|pool| view.node_pool(pool).is_some_and(|pool| pool.is_static()))
                else {
                    return;
                };
                self.learn(pool, before.as_deref(), after.as_deref());
                if after.as_ref().is_none_or(|claim| claim.is_deleting()) {
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
        if let Some(rest) = self.rest(pool.name()) {
            return Ok(Next::After(rest));
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
        let nobody = BTreeSet::new();
        let created = create_claims(&self.cx, &drafts, &nobody, "provisioned").await;
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
