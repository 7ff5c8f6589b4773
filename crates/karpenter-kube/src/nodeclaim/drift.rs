//! The condition Drifted: whether a NodeClaim still matches its NodePool and NodeClass.
//!
//! The provider is asked about what the model does not tell.
//!
//! This controller is separate from Consolidatable, which follows pod events: those do not change drift, and asking a
//! provider is expensive.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/disruption/{controller,drift}.go

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::drift::{CHECK_INTERVAL, Drift as Known, check};
use karpenter_core::lifecycle::conditions::update_drifted;
use tokio::time::Instant;

use crate::context::Context;
use crate::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::logging;
use crate::model::{Change, View};

/// How long a provider may take to observe a change of a NodeClass.
const PROVIDER_LAG: Duration = Duration::from_secs(1);

/// Maintains the condition Drifted.
#[derive(Debug)]
pub struct Drift {
    cx: Arc<Context>,
}

impl Drift {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self { cx }
    }

    async fn ask_provider(&self, claim: &NodeClaim) -> Result<Option<String>, ReconcileError> {
        match self.cx.provider.is_drifted(claim).await {
            Ok(reason) => Ok(reason.filter(|reason| !reason.is_empty())),
            Err(error) if error.is_node_claim_not_found() => Ok(None),
            Err(error) => Err(error).doing("getting drift"),
        }
    }
}

/// Returns whether a change of a NodeClaim can change the result; changes of its status mostly cannot.
fn concerns_drift(before: Option<&NodeClaim>, after: &NodeClaim) -> bool {
    let Some(before) = before else { return true };
    let drifted = |claim: &NodeClaim| {
        let condition = claim.condition(types::DRIFTED);
        condition.map(|c| (c.status.clone(), c.reason.clone()))
    };
    before.metadata.labels != after.metadata.labels
        || before.metadata.annotations != after.metadata.annotations
        || before.metadata.generation != after.metadata.generation
        || before.is_true(types::LAUNCHED) != after.is_true(types::LAUNCHED)
        || drifted(before) != drifted(after)
}

/// Returns whether a change of a NodePool can change the result.
fn pool_concerns_drift(before: Option<&NodePool>, after: &NodePool) -> bool {
    let hash = |pool: &NodePool| {
        let all = pool.metadata.annotations.as_ref();
        let get = |key: &str| all.and_then(|all| all.get(key).cloned());
        (
            get(annotations::NODE_POOL_HASH),
            get(annotations::NODE_POOL_HASH_VERSION),
        )
    };
    before.is_none_or(|before| {
        before.metadata.generation != after.metadata.generation || hash(before) != hash(after)
    })
}

impl Controller for Drift {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclaim.disruption";
    const KIND: &'static str = NodeClaim::KIND;

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        match change {
            Change::NodeClaim {
                name,
                before,
                after: Some(after),
            } if concerns_drift(before.as_deref(), after) => queue.add(ObjectKey::cluster(name)),
            Change::NodePool {
                name,
                before,
                after: Some(after),
            } if pool_concerns_drift(before.as_deref(), after) => {
                for claim in view.node_claims_of_pool(name) {
                    queue.add(ObjectKey::cluster(claim.name()));
                }
            }
            Change::NodeClass { reference, .. } => {
                let claims = view.snapshot.node_claims();
                // The provider watches NodeClasses itself, and may observe the change a little later.
                let due = Instant::now() + PROVIDER_LAG;
                for claim in claims.filter(|c| c.spec.node_class_ref == *reference) {
                    queue.add_later(ObjectKey::cluster(claim.name()), due);
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
        let reason = match check(&view.snapshot, pool, &before, self.cx.clock.now()) {
            Known::Drifted(reason) => Some(reason.to_owned()),
            Known::NotDrifted => None,
            Known::ProviderTells => self.ask_provider(&before).await?,
        };
        let mut after = NodeClaim::clone(&before);
        if let Some(reason) = reason.as_ref().filter(|_| !before.is_true(types::DRIFTED)) {
            tracing::debug!(
                NodeClaim = logging::object(None, before.name()),
                reason,
                "marking drifted"
            );
        }
        update_drifted(&mut after, reason.as_deref(), self.cx.clock.now());
        self.cx.write_claim_status(&before, &after).await?;
        Ok(Next::After(CHECK_INTERVAL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: DIS-198
    #[test]
    fn a_pod_event_does_not_trigger_a_drift_check() {
        let claim = NodeClaim::new("a", Default::default());
        let mut later = claim.clone();
        later.status.last_pod_event_time = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        );
        later.set_true(types::CONSOLIDATABLE, jiff::Timestamp::UNIX_EPOCH);
        assert!(!concerns_drift(Some(&claim), &later));
        assert!(concerns_drift(None, &claim));
        later.set_true(types::LAUNCHED, jiff::Timestamp::UNIX_EPOCH);
        assert!(concerns_drift(Some(&claim), &later));
    }

    #[test]
    fn labels_annotations_generation_and_condition_each_trigger_a_drift_check() {
        let mut claim = NodeClaim::new("a", Default::default());
        claim.set_true_with_reason(types::DRIFTED, "One", "", jiff::Timestamp::UNIX_EPOCH);
        let concerns = |change: &dyn Fn(&mut NodeClaim)| {
            let mut after = claim.clone();
            change(&mut after);
            concerns_drift(Some(&claim), &after)
        };
        let other = || Some([("a".to_owned(), "b".to_owned())].into());
        assert!(!concerns(&|_| ()));
        assert!(concerns(&|claim| claim.metadata.labels = other()));
        assert!(concerns(&|claim| claim.metadata.annotations = other()));
        assert!(concerns(&|claim| claim.metadata.generation = Some(7)));
        assert!(concerns(&|claim| claim.conditions_mut().clear()));
        assert!(concerns(&|claim| {
            claim.set_true_with_reason(types::DRIFTED, "Two", "", jiff::Timestamp::UNIX_EPOCH);
        }));
    }
}
