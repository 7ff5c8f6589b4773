//! The deletion of a NodeClaim: its Nodes first, then its instance, then its finalizer.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/controller.go (finalize)

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{annotations, finalizers};
use karpenter_api::v1::NodeClaim;
use karpenter_api::{events, labels};

use crate::client::patch::Lock;
use crate::controller::{Doing, Next, ReconcileError};
use crate::events::{Event, reference};
use crate::logging;
use crate::nodeclaim::lifecycle::Lifecycle;

/// Interval between checks whether the instance is terminated.
const POLL: Duration = Duration::from_secs(5);

impl Lifecycle {
    /// Performs one step of the deletion of a NodeClaim.
    pub(super) async fn finalize(&self, claim: &NodeClaim) -> Result<Next, ReconcileError> {
        if !has_finalizer(claim) {
            return Ok(Next::Wait);
        }
        let claim = &self.announce_deadline(claim).await?;
        if claim.is_true(types::REGISTERED) {
            if self.delete_nodes(claim).await? {
                // Their deletion comes back as a change of the model.
                return Ok(Next::Wait);
            }
            // The instance is terminated once its Node has drained: the API server was asked for a Node by then.
            if !claim.is_true(types::INSTANCE_TERMINATING) && self.delete_unseen_node(claim).await?
            {
                return Ok(Next::After(POLL));
            }
        }
        if claim.status.provider_id.is_some() {
            match self.cx.provider.delete(claim).await {
                Ok(()) => {
                    self.mark_instance_terminating(claim).await?;
                    return Ok(Next::After(POLL));
                }
                Err(error) if error.is_node_claim_not_found() => {}
                Err(error) => return Err(error).doing("terminating instance"),
            }
        }
        let mut released = claim.clone();
        released
            .metadata
            .finalizers
            .get_or_insert_default()
            .retain(|f| f != finalizers::TERMINATION);
        self.cx
            .claim_writes
            .patch_object(self.cx.node_claims(), claim, &released, Lock::Optimistic)
            .await
            .doing("removing finalizer")?;
        self.observe_end(claim);
        self.launches.forget(claim.uid());
        self.unreported.forget(claim.uid());
        tracing::info!(
            NodeClaim = logging::object(None, claim.name()),
            nodeclaim = claim.name(),
            "provider-id" = claim.status.provider_id.as_deref().unwrap_or_default(),
            Node = logging::object(None, claim.status.node_name.as_deref().unwrap_or_default()),
            "deleted nodeclaim"
        );
        let label = |key: &str| claim.label(key).unwrap_or_default();
        self.cx.metrics.nodeclaims_terminated_total.inc(&[
            label(labels::NODE_POOL),
            label(labels::CAPACITY_TYPE),
            label(labels::ZONE),
        ]);
        Ok(Next::Wait)
    }

    /// Records the termination deadline in an annotation, once.
    async fn announce_deadline(&self, claim: &NodeClaim) -> Result<NodeClaim, ReconcileError> {
        let (Some(grace), Some(deleted)) = (
            &claim.spec.termination_grace_period,
            &claim.metadata.deletion_timestamp,
        ) else {
            return Ok(claim.clone());
        };
        if claim
            .annotation(annotations::TERMINATION_TIMESTAMP)
            .is_some()
        {
            return Ok(claim.clone());
        }
        let deadline = deleted
            .0
            .saturating_add(grace.value())
            .unwrap_or(jiff::Timestamp::MAX);
        let text = deadline.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut annotated = claim.clone();
        annotated
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(annotations::TERMINATION_TIMESTAMP.into(), text.clone());
        let written = self
            .cx
            .claim_writes
            .patch_object(self.cx.node_claims(), claim, &annotated, Lock::Optimistic)
            .await
            .doing("annotating nodeclaim")?;
        let message = format!("All pods will be deleted by {text}");
        self.cx.recorder.publish(
            Event::warning(
                reference(claim),
                events::TERMINATION_GRACE_PERIOD_EXPIRING,
                message,
            )
            .dedupe_by_message(),
        );
        Ok(written.unwrap_or(annotated))
    }

    /// Deletes the NodeClaim's Node if the model lacks it but the API server has it; returns whether it has.
    ///
    /// The model may lag behind, and the next step terminates the instance with every pod on it.
    async fn delete_unseen_node(&self, claim: &NodeClaim) -> Result<bool, ReconcileError> {
        let Some(name) = claim.status.node_name.as_deref() else {
            return Ok(false);
        };
        let node = self.cx.nodes().get_opt(name).await.doing("getting node")?;
        let id = |node: &Node| node.spec.as_ref().and_then(|s| s.provider_id.clone());
        let Some(node) = node.filter(|node| id(node) == claim.status.provider_id) else {
            return Ok(false);
        };
        if node.metadata.deletion_timestamp.is_none() {
            self.delete_node(&node).await?;
        }
        Ok(true)
    }

    async fn delete_node(&self, node: &Node) -> Result<(), ReconcileError> {
        let (api, writes) = (self.cx.nodes(), &self.cx.node_writes);
        let deleted = writes.delete(api, node, Lock::None).await;
        deleted.doing("deleting node")?;
        Ok(())
    }

    /// Deletes the NodeClaim's Nodes; returns true while there are any.
    async fn delete_nodes(&self, claim: &NodeClaim) -> Result<bool, ReconcileError> {
        let nodes = claim
            .status
            .provider_id
            .as_deref()
            .map(|id| self.cx.nodes_of(&self.cx.view(), id))
            .unwrap_or_default();
        let staying = nodes
            .iter()
            .filter(|n| n.metadata.deletion_timestamp.is_none());
        for node in staying {
            self.delete_node(node).await?;
        }
        Ok(!nodes.is_empty())
    }

    /// Records that the provider has accepted the termination of the instance.
    pub(crate) async fn mark_instance_terminating(
        &self,
        claim: &NodeClaim,
    ) -> Result<(), ReconcileError> {
        let now = self.cx.clock.now();
        let marked = self.cx.change_claim_status(claim, |claim| {
            claim.set_true(types::INSTANCE_TERMINATING, now);
        });
        marked.await?;
        Ok(())
    }

    fn observe_end(&self, claim: &NodeClaim) {
        let pool = claim.node_pool().unwrap_or_default();
        if let Some(terminating) = claim.condition(types::INSTANCE_TERMINATING) {
            let took = self
                .cx
                .clock
                .since(terminating.last_transition_time.0)
                .as_secs_f64();
            self.cx
                .metrics
                .nodeclaims_instance_termination_duration_seconds
                .observe(&[pool], took);
        }
        if let Some(deleted) = &claim.metadata.deletion_timestamp {
            let took = self.cx.clock.since(deleted.0).as_secs_f64();
            self.cx
                .metrics
                .nodeclaims_termination_duration_seconds
                .observe(&[pool], took);
        }
    }
}

/// Returns whether the NodeClaim still has our finalizer.
pub(super) fn has_finalizer(claim: &NodeClaim) -> bool {
    claim
        .metadata
        .finalizers
        .as_ref()
        .is_some_and(|f| f.iter().any(|f| f == finalizers::TERMINATION))
}
