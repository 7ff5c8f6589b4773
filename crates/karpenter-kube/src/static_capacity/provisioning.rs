//! Creates the missing NodeClaims of a static NodePool.
//!
//! UPSTREAM: pkg/controllers/static/provisioning/controller.go

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::lifecycle::static_pools::{Effect, Event};
use karpenter_core::schedule::PlannedNodeClaim;

use crate::context::Context;
use crate::controller::{Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::listener::{Decided, Made};
use crate::logging;
use crate::model::{Change, View};
use crate::options::Options;
use crate::provisioning;
use crate::provisioning::launch::create_claims;

/// How long to wait for the model.
const SYNC_RETRY: Duration = Duration::from_secs(1);

/// Keeps static NodePools from being too small.
#[derive(Debug)]
pub struct Provisioning {
    cx: Arc<Context>,
}

impl Provisioning {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self { cx }
    }

    /// Hands an event to the process.
    fn on<'a>(&self, event: Event<'a>) -> Option<Effect<'a>> {
        let now = self.cx.clock.now();
        let pools = &self.cx.static_capacity;
        pools.with(&self.cx.model, |pools, latest| pools.on(event, latest, now))
    }

    /// Returns when a NodePool is due.
    fn next(&self, pool: &str) -> Next {
        let pools = &self.cx.static_capacity;
        let next = pools.with(&self.cx.model, |pools, _| pools.next_of(pool));
        next.map_or(Next::Wait, |next| {
            let left = next.duration_since(self.cx.clock.now());
            Next::After(Duration::try_from(left).unwrap_or_default())
        })
    }

    /// Creates NodeClaims.
    async fn launch(
        &self,
        view: &View,
        node: PlannedNodeClaim,
        count: u32,
    ) -> Result<(), ReconcileError> {
        let pool = node.node_pool.clone();
        let planned = vec![node; count as usize];
        // Dropped when the operator stops in between; the reservations are dropped with it.
        let none_replaced = BTreeSet::new();
        let created = create_claims(&self.cx, &planned, &none_replaced, "provisioned").await;
        self.on(Event::Launched {
            pool: &pool,
            count,
            failed: created.iter().any(Result::is_err),
        });
        let names = created.iter().map(|claim| claim.as_ref().ok());
        let names: Vec<_> = names
            .map(|claim| claim.map(|c| c.name().to_owned()))
            .collect();
        self.record(view, &planned, &names, None);
        let failed = created.into_iter().filter_map(Result::err);
        let errors: Vec<_> = failed
            .map(|error| ReconcileError::Internal(format!("creating nodeclaim, {error}")))
            .collect();
        ReconcileError::collect(errors)
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
}

impl Controller for Provisioning {
    type Key = ObjectKey;
    const NAME: &'static str = "static.provisioning";
    const KIND: &'static str = NodePool::KIND;

    fn concurrency(&self, _: &Options) -> usize {
        10
    }

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        let (event, pool) = match change {
            Change::NodePool {
                name,
                before,
                after,
            } => {
                let (before, after) = (before.as_deref(), after.as_deref());
                (Event::NodePool { before, after }, Some(&**name))
            }
            Change::NodeClaim { before, after, .. } => {
                let (before, after) = (before.as_deref(), after.as_deref());
                let pool = after.or(before).and_then(NodeClaim::node_pool);
                (Event::NodeClaim { before, after }, pool)
            }
            _ => return,
        };
        let (Some(pool), now) = (pool, self.cx.clock.now()) else {
            return;
        };
        let next = self.cx.static_capacity.with(&self.cx.model, |pools, _| {
            pools.on(event, &view.snapshot, now);
            pools.next_of(pool)
        });
        if next.is_some_and(|next| next <= now) {
            queue.add(ObjectKey::cluster(pool));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let managed =
            |pool: &&Arc<NodePool>| self.cx.is_managed(&pool.spec.template.spec.node_class_ref);
        let Some(pool) = view.node_pool(&key.name).filter(managed) else {
            return Ok(Next::Wait);
        };
        if !view.is_synced() {
            return Ok(Next::After(SYNC_RETRY));
        }
        match self.on(Event::Grow(pool.name())) {
            Some(Effect::Launch { node, count }) => self.launch(&view, *node, count).await?,
            Some(Effect::ReportLimit) => {
                self.record(&view, &[], &[], Some(pool.name()));
                tracing::info!(
                    NodePool = logging::object(None, pool.name()),
                    replicas = pool.spec.replicas,
                    "nodepool has reached its node limit"
                );
            }
            _ => {}
        }
        Ok(self.next(pool.name()))
    }
}
