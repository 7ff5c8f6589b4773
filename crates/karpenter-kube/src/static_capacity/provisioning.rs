//! Creates the missing NodeClaims of a static NodePool.
//!
//! UPSTREAM: pkg/controllers/static/provisioning/controller.go

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::schedule::PlannedNodeClaim;
use karpenter_core::static_capacity::missing;

use crate::context::Context;
use crate::controller::{Backoff, Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::cooldown::Cooldowns;
use crate::listener::{Decided, Made};
use crate::logging;
use crate::model::{Change, View};
use crate::options::Options;
use crate::provisioning;
use crate::provisioning::launch::create_claims;

/// Interval between reconciliations of a NodePool of the right size.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);
/// How long a NodePool at its limit waits.
const AT_LIMIT_RETRY: Duration = Duration::from_secs(30);
/// How long to wait for the model.
const SYNC_RETRY: Duration = Duration::from_secs(1);
/// Cool-down of a NodePool whose nodes cannot be launched.
const COOLDOWN: Backoff = Backoff {
    base: Duration::from_secs(2),
    max: RESYNC_INTERVAL,
};

/// Keeps static NodePools from being too small.
#[derive(Debug)]
pub struct Provisioning {
    cx: Arc<Context>,
    /// DIFFERS: upstream creates a NodeClaim as soon as the previous one could not be launched, as fast as the provider refuses.
    cooldowns: Cooldowns,
}

impl Provisioning {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            cx,
            cooldowns: Cooldowns::default(),
        }
    }

    /// Returns how long the cool-down of a NodePool lasts.
    fn cooldown(&self, pool: &str) -> Option<Duration> {
        let until = self.cooldowns.until(pool)?;
        Some(self.cx.clock.until(until)).filter(|cooldown| !cooldown.is_zero())
    }

    /// Records a pass over a NodePool that lacks nodes.
    fn record(
        &self,
        view: &View,
        planned: &[PlannedNodeClaim],
        claims: &[Option<String>],
        at_limit: Option<&str>,
    ) {
        if let Some(listener) = &self.cx.listener {
            let made = Made {
                view,
                policy: &provisioning::policy(&self.cx),
                took: Duration::ZERO,
            };
            let decided = Decided::Grew {
                planned,
                claims,
                at_limit,
            };
            listener.decided(made, decided);
        }
    }

    /// Records whether the change of a NodeClaim shows that the nodes of its NodePool can be launched.
    fn learn(&self, pool: &str, before: Option<&NodeClaim>, after: Option<&NodeClaim>) {
        let launched =
            |claim: Option<&NodeClaim>| claim.is_some_and(|c| c.is_true(types::LAUNCHED));
        let there = |claim: Option<&NodeClaim>| claim.is_some_and(|c| !c.is_deleting());
        if launched(after) {
            if !launched(before) {
                self.cooldowns.succeeded(pool);
            }
        } else if there(before)
            && !there(after)
            && !launched(before)
            && self.cooldown(pool).is_none()
        {
            // NodeClaims that were created together fail together: they count as one failure.
            let clock = self.cx.clock;
            self.cooldowns
                .failed(pool, COOLDOWN, |duration| clock.instant_after(duration));
        }
    }
}

/// Returns whether a change of a NodePool may require more nodes.
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
    const NAME: &'static str = "static.provisioning";
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
            } if matters(before.as_deref(), after) => queue.add(ObjectKey::cluster(name)),
            Change::NodePool {
                name, after: None, ..
            } => self.cooldowns.succeeded(name),
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
        let managed =
            |pool: &&Arc<NodePool>| self.cx.is_managed(&pool.spec.template.spec.node_class_ref);
        let Some(pool) = view.node_pool(&key.name).filter(managed) else {
            return Ok(Next::Wait);
        };
        let Some(missing) = missing(&view.snapshot, pool) else {
            return Ok(Next::Wait);
        };
        if !view.is_synced() {
            return Ok(Next::After(SYNC_RETRY));
        }
        if missing == 0 {
            return Ok(Next::After(RESYNC_INTERVAL));
        }
        if let Some(cooldown) = self.cooldown(pool.name()) {
            return Ok(Next::After(cooldown));
        }
        let granted = self
            .cx
            .static_capacity
            .reserve(&self.cx.model, pool, missing);
        if granted == 0 {
            self.record(&view, &[], &[], Some(pool.name()));
            tracing::info!(
                NodePool = logging::object(None, pool.name()),
                replicas = pool.spec.replicas,
                "nodepool has reached its node limit"
            );
            return Ok(Next::After(AT_LIMIT_RETRY));
        }
        let planned =
            vec![
                PlannedNodeClaim::from_template(pool, &self.cx.provider.profile().well_known);
                granted as usize
            ];
        // Dropped when the operator stops in between; the reservations are dropped with it.
        let none_replaced = BTreeSet::new();
        let created = create_claims(&self.cx, &planned, &none_replaced, "provisioned").await;
        self.cx.static_capacity.release(pool.name(), granted);
        let names = created.iter().map(|claim| claim.as_ref().ok());
        let names: Vec<_> = names
            .map(|claim| claim.map(|c| c.name().to_owned()))
            .collect();
        self.record(&view, &planned, &names, None);
        let failed = created.into_iter().filter_map(Result::err);
        let errors: Vec<_> = failed
            .map(|error| ReconcileError::Internal(format!("creating nodeclaim, {error}")))
            .collect();
        ReconcileError::collect(errors)?;
        Ok(if granted < missing {
            Next::After(AT_LIMIT_RETRY)
        } else {
            Next::After(RESYNC_INTERVAL)
        })
    }
}
