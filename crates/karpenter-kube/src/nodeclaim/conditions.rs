//! Maintains the condition Consolidatable, which the disruption methods require.
//!
//! Consolidatable: no pod event on the node for the NodePool's `consolidateAfter`.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/disruption/{controller,consolidation}.go

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};

use crate::context::Context;
use crate::controller::{Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};

/// Maintains the disruption conditions of NodeClaims.
#[derive(Debug)]
pub struct DisruptionConditions {
    cx: Arc<Context>,
}

impl DisruptionConditions {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self { cx }
    }

    /// Sets or clears Consolidatable; returns when it may be due.
    fn consolidatable(&self, pool: &NodePool, claim: &mut NodeClaim) -> Next {
        let outcome = match pool.spec.disruption.consolidate_after.value() {
            Some(after) if !pool.is_static() => quiet_since(claim).map(|since| {
                Duration::try_from(after)
                    .unwrap_or_default()
                    .checked_sub(self.cx.clock.since(since))
            }),
            // `Never`, or a static pool.
            _ => None,
        };
        match outcome {
            Some(Some(left)) if !left.is_zero() => {
                clear(claim);
                Next::After(left)
            }
            Some(_) => {
                claim.set_true(types::CONSOLIDATABLE, self.cx.clock.now());
                Next::Wait
            }
            None => {
                clear(claim);
                Next::Wait
            }
        }
    }
}

fn clear(claim: &mut NodeClaim) {
    claim
        .conditions_mut()
        .retain(|c| c.type_ != types::CONSOLIDATABLE);
}

/// Returns since when no pod event occurred on the node: the last pod event, or else the initialization. `None` before that.
fn quiet_since(claim: &NodeClaim) -> Option<jiff::Timestamp> {
    let initialized = claim
        .condition(types::INITIALIZED)
        .filter(|_| claim.is_true(types::INITIALIZED))?;
    let pods = claim.status.last_pod_event_time.as_ref().map(|t| t.0);
    Some(pods.unwrap_or(initialized.last_transition_time.0))
}

impl Controller for DisruptionConditions {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "nodeclaim.disruption"
    }

    fn kind(&self) -> &'static str {
        NodeClaim::KIND
    }

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
        let Some(before) = self
            .cx
            .node_claim(&view, &key.name)
            .filter(|c| self.cx.is_managed(&c.spec.node_class_ref) && !c.is_deleting())
        else {
            return Ok(Next::Wait);
        };
        let Some(pool) = before.node_pool().and_then(|name| view.node_pool(name)) else {
            return Ok(Next::Wait);
        };
        let mut after = NodeClaim::clone(&before);
        let next = self.consolidatable(pool, &mut after);
        self.cx.write_claim_status(&before, &after).await?;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    /// Conformance: DIS-145
    #[test]
    fn quiet_time_begins_with_the_last_pod_event_or_else_the_initialization() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut claim = NodeClaim::new("a", Default::default());
        claim.status.last_pod_event_time = Some(Time(at(5)));
        assert_eq!(quiet_since(&claim), None, "not initialized");
        claim.set_true(types::INITIALIZED, at(10));
        assert_eq!(quiet_since(&claim), Some(at(5)));
        claim.status.last_pod_event_time = Some(Time(at(20)));
        assert_eq!(quiet_since(&claim), Some(at(20)));
        claim.status.last_pod_event_time = None;
        assert_eq!(quiet_since(&claim), Some(at(10)));
    }
}
