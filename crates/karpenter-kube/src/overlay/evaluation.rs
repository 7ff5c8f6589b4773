//! Evaluates which NodeOverlays are valid.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_api::validation;
use karpenter_core::overlay::{Offered, accept};
use karpenter_core::provider::CloudProvider;
use kube::Api;

use super::Accepted;
use crate::client::patch::{Lock, patch_status};
use crate::context::Context;
use crate::controller::{Controller, Doing, Next, Queue, ReconcileError};
use crate::logging;
use crate::model::{Change, View};
use crate::options::Options;
use crate::provisioning::refresh_instance_types;

/// Interval between evaluations even if nothing changes: instance types may.
const INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);
/// Interval between evaluations while the instance types of some NodePool are not known.
const RETRY: Duration = Duration::from_secs(10);

/// Validates all overlays against all NodePools.
pub struct Evaluation {
    cx: Arc<Context>,
    base: Arc<dyn CloudProvider>,
    accepted: Accepted,
}

impl std::fmt::Debug for Evaluation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluation")
            .field("accepted", &self.accepted)
            .finish_non_exhaustive()
    }
}

impl Evaluation {
    /// Creates the controller. `base` is the provider without overlays.
    #[must_use]
    pub fn new(cx: Arc<Context>, base: Arc<dyn CloudProvider>, accepted: Accepted) -> Self {
        Self { cx, base, accepted }
    }

    async fn report(
        &self,
        before: &NodeOverlay,
        problem: Option<(&str, String)>,
    ) -> Result<(), ReconcileError> {
        let mut after = before.clone();
        let now = self.cx.clock.now();
        match problem {
            None => after.set_true(types::VALIDATION_SUCCEEDED, now),
            Some((reason, message)) => {
                after.set_false(types::VALIDATION_SUCCEEDED, reason, &message, now)
            }
        };
        let api: Api<NodeOverlay> = Api::all(self.cx.clients.api.clone());
        patch_status(&api, before, &after, Lock::Optimistic)
            .await
            .doing("updating nodeoverlay status")?;
        Ok(())
    }
}

impl Controller for Evaluation {
    type Key = ();
    const NAME: &'static str = "nodeoverlay.controller";
    const KIND: &'static str = NodeOverlay::KIND;

    fn concurrency(&self, _: &Options) -> usize {
        1
    }

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<()>) {
        let due = match change {
            Change::Other("NodeOverlay") | Change::Synced | Change::NodeClass { .. } => true,
            Change::NodePool { before, after, .. } => {
                let generation = |pool: &Option<Arc<karpenter_api::v1::NodePool>>| {
                    pool.as_ref().map(|pool| pool.metadata.generation)
                };
                generation(before) != generation(after)
            }
            _ => false,
        };
        if due {
            queue.add(());
        }
    }

    async fn reconcile(&self, (): ()) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        if !view.is_synced() {
            return Ok(Next::Wait);
        }
        let names = &self.base.profile().well_known;
        let mut problems: BTreeMap<String, (&str, String)> = BTreeMap::new();
        let mut valid: Vec<Arc<NodeOverlay>> = Vec::new();
        for overlay in view.snapshot.node_overlays() {
            let findings = validation::node_overlay(overlay, names);
            if findings.is_ok() {
                valid.push(Arc::clone(overlay));
            } else {
                let problem = (reasons::RUNTIME_VALIDATION, findings.message());
                problems.insert(overlay.name().to_owned(), problem);
            }
        }
        let mut pools = Vec::new();
        let mut incomplete = false;
        for pool in view.snapshot.node_pools() {
            if !self.cx.is_managed(&pool.spec.template.spec.node_class_ref) {
                continue;
            }
            match self.base.instance_types(pool).await {
                Ok(types) => pools.push((Arc::clone(pool), types)),
                Err(error) => {
                    incomplete = true;
                    tracing::debug!(NodePool = logging::object(None, pool.name()), error = %error, "cannot evaluate overlays for nodepool");
                }
            }
        }
        let offered: Vec<Offered<'_>> =
            pools.iter().map(|(pool, types)| (&**pool, types)).collect();
        let (accepted, rejected) = accept(&valid, &offered, names);
        for one in rejected {
            let message = format!(
                "conflicts with nodeoverlay `{}` of equal weight",
                one.conflicts_with
            );
            problems.insert(one.overlay, (reasons::CONFLICT, message));
        }
        let evaluated = pools
            .iter()
            .map(|(pool, _)| (pool.name().to_owned(), Arc::clone(pool)))
            .collect();
        if self.accepted.publish(accepted, evaluated) {
            refresh_instance_types(&self.cx).await?;
        }
        let mut errors = Vec::new();
        for overlay in view.snapshot.node_overlays() {
            errors.extend(
                self.report(overlay, problems.remove(overlay.name()))
                    .await
                    .err(),
            );
        }
        ReconcileError::collect(errors)?;
        Ok(Next::After(if incomplete { RETRY } else { INTERVAL }))
    }
}
