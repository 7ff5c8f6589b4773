//! Node repair: unhealthy nodes are replaced forcefully, unless too many are unhealthy at once.
//!
//! 1. Of the conditions that make a node unhealthy, the one that is due first counts; until then nothing is done.
//! 2. While more than a fifth of the NodePool's nodes (or of the cluster's, for NodeClaims without a NodePool) are unhealthy,
//!    nothing is repaired.
//! 3. The NodeClaim's termination deadline is set to now, so that its pods are deleted and its volumes are not waited for;
//!    then the NodeClaim is deleted.
//!
//! Budgets, `do-not-disrupt` and the termination grace period do not delay a repair.
//!
//! UPSTREAM: pkg/controllers/node/health/controller.go
//! DIFFERS: NodeRepairBlocked is published once, about the Node; upstream publishes it two or three times.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::NodeClaim;
use karpenter_api::{events, labels};
use karpenter_core::repair;

use crate::context::Context;
use crate::controller::{Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::events::{Event, reference};
use crate::listener::{Decided, Made};
use crate::model::{Change, View};
use crate::nodeclaim::removal::{disrupt, end_grace_period};
use crate::{logging, provisioning};

/// How long until a blocked repair is retried, and how often its event is repeated.
const BLOCKED_RETRY: Duration = Duration::from_secs(5 * 60);
const EVENT_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Replaces unhealthy nodes.
#[derive(Debug)]
pub struct Health {
    /// What all controllers share.
    pub cx: Arc<Context>,
}

impl Health {
    /// Returns whether too many nodes are unhealthy; publishes an event if so.
    fn is_blocked(&self, view: &View, node: &Node, claim: &NodeClaim) -> bool {
        let policies = &self.cx.provider.profile().repair_policies;
        let pool = claim.node_pool();
        let of_pool =
            |other: &&Arc<Node>| pool.is_none() || label(other, labels::NODE_POOL) == pool;
        let nodes = view.nodes().filter(of_pool).map(AsRef::as_ref);
        if !repair::is_blocked(nodes, policies) {
            return false;
        }
        let whole = if pool.is_some() {
            "nodepool"
        } else {
            "cluster"
        };
        let message = format!("more than 20% nodes are unhealthy in the {whole}");
        let event = Event::warning(reference(node), events::NODE_REPAIR_BLOCKED, message);
        self.cx.recorder.publish(event.every(EVENT_INTERVAL));
        true
    }
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the condition type in the spelling of the metrics: `KernelReady` is `kernel_ready`.
fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for (at, c) in name.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

impl Controller for Health {
    type Key = ObjectKey;
    const NAME: &'static str = "node.health";
    const KIND: &'static str = "Node";

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        let conditions = |node: &Node| {
            let all = node.status.as_ref().and_then(|s| s.conditions.as_ref());
            all.map(|all| {
                let of = |c: &k8s_openapi::api::core::v1::NodeCondition| {
                    (
                        c.type_.clone(),
                        c.status.clone(),
                        c.last_transition_time.clone(),
                    )
                };
                all.iter().map(of).collect::<Vec<_>>()
            })
        };
        match change {
            Change::Node {
                name,
                before,
                after: Some(after),
            } if before
                .as_ref()
                .is_none_or(|b| conditions(b) != conditions(after)) =>
            {
                queue.add(ObjectKey::cluster(name));
            }
            // A Node can exist before its NodeClaim is in the model.
            Change::NodeClaim {
                before,
                after: Some(claim),
                ..
            } if before
                .as_ref()
                .is_none_or(|b| b.status.provider_id != claim.status.provider_id) =>
            {
                let id = claim.status.provider_id.as_deref().unwrap_or_default();
                for node in view.nodes_by_provider_id(id) {
                    queue.add(ObjectKey::cluster(
                        node.metadata.name.as_deref().unwrap_or_default(),
                    ));
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(node) = view.node(&key.name) else {
            return Ok(Next::Wait);
        };
        let claims = self.cx.node_claims_of(&view, node);
        let [claim] = claims.as_slice() else {
            return Ok(Next::Wait);
        };
        if !self.cx.is_managed(&claim.spec.node_class_ref) {
            return Ok(Next::Wait);
        }
        let policies = &self.cx.provider.profile().repair_policies;
        let Some(broken) = repair::broken(node, policies) else {
            return Ok(Next::Wait);
        };
        let left = Duration::try_from(broken.left(self.cx.clock.now())).unwrap_or_default();
        if !left.is_zero() {
            return Ok(Next::After(left));
        }
        // The share of unhealthy nodes in a partly listed cluster could be too small.
        if !view.is_synced() || self.is_blocked(&view, node, claim) {
            return Ok(Next::After(BLOCKED_RETRY));
        }
        let claim = end_grace_period(&self.cx, claim).await?;
        if claim.is_deleting() {
            return Ok(Next::Wait);
        }
        if disrupt(&self.cx, &claim, "unhealthy").await? {
            let text = |key: &str| claim.label(key).unwrap_or_default();
            self.cx.metrics.nodeclaims_unhealthy_disrupted_total.inc(&[
                &snake(&broken.condition.type_),
                text(labels::NODE_POOL),
                text(labels::CAPACITY_TYPE),
                claim.status.image_id.as_deref().unwrap_or_default(),
            ]);
            if let Some(listener) = &self.cx.listener {
                let made = Made {
                    view: &view,
                    policy: &provisioning::policy(&self.cx),
                    took: Duration::ZERO,
                };
                let condition = &broken.condition;
                let why = format!("{} is {}", condition.type_, condition.status);
                let (node, condition) = (&*key.name, &*why);
                listener.decided(made, Decided::Repaired { node, condition });
            }
            tracing::info!(
                Node = logging::object(None, &key.name),
                NodeClaim = logging::object(None, claim.name()),
                condition = broken.condition.type_,
                "deleting unhealthy node"
            );
        }
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-174
    #[test]
    fn conditions_are_spelt_in_snake_case() {
        assert_eq!(snake("Ready"), "ready");
        assert_eq!(
            snake("AcceleratedHardwareReady"),
            "accelerated_hardware_ready"
        );
    }
}
