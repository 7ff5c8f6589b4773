//! The deletion of a NodeClaim: its Nodes first, then its instance, then its finalizer.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/controller.go (finalize)

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{annotations, finalizers};
use karpenter_api::v1::NodeClaim;
use karpenter_api::{events, labels};
use karpenter_core::lifecycle::termination::{ClaimEffect, ClaimEvent, on_node_claim};

use crate::client::patch::Lock;
use crate::controller::{Doing, Next, ReconcileError};
use crate::events::{Event, reference};
use crate::logging;
use crate::nodeclaim::lifecycle::Lifecycle;

impl Lifecycle {
    /// Executes the deletion of a NodeClaim as far as it goes now.
    pub(super) async fn finalize(&self, claim: &Arc<NodeClaim>) -> Result<Next, ReconcileError> {
        if !has_finalizer(claim) {
            return Ok(Next::Wait);
        }
        let id = claim.status.provider_id.as_deref();
        let nodes = id.map(|id| self.cx.nodes_of(&self.cx.view(), id));
        let nodes = nodes.unwrap_or_default();
        let (mut claim, mut event) = (Arc::clone(claim), ClaimEvent::Due);
        loop {
            for effect in on_node_claim(event, &claim, &nodes) {
                match effect {
                    ClaimEffect::Announce(deadline) => {
                        claim = self.announce_deadline(&claim, deadline).await?;
                    }
                    ClaimEffect::DeleteNodes => {
                        for node in nodes.iter().filter(|n| !is_deleting(n)) {
                            self.delete_node(node).await?;
                        }
                        // Their deletion comes back as a change of the model.
                        return Ok(Next::Wait);
                    }
                    ClaimEffect::FindNode => {
                        event = ClaimEvent::NodeFound(self.delete_unseen_node(&claim).await?);
                    }
                    ClaimEffect::Terminate => {
                        let gone = match self.cx.provider.delete(&claim).await {
                            Ok(()) => false,
                            Err(error) if error.is_node_claim_not_found() => true,
                            Err(error) => return Err(error).doing("terminating instance"),
                        };
                        event = ClaimEvent::Terminated(gone);
                    }
                    ClaimEffect::Mark(progress) => {
                        let now = self.cx.clock.now();
                        let mark = |claim: &mut NodeClaim| progress.mark(claim, now);
                        claim = self.cx.change_claim_status(&claim, mark).await?;
                    }
                    ClaimEffect::Release => return self.release(&claim).await,
                    ClaimEffect::Poll(wait) => return Ok(Next::After(wait)),
                }
            }
        }
    }

    async fn release(&self, claim: &NodeClaim) -> Result<Next, ReconcileError> {
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

    /// Records the termination deadline in an annotation.
    async fn announce_deadline(
        &self,
        claim: &Arc<NodeClaim>,
        deadline: Timestamp,
    ) -> Result<Arc<NodeClaim>, ReconcileError> {
        let text = deadline.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut annotated = NodeClaim::clone(claim);
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
        let reason = events::TERMINATION_GRACE_PERIOD_EXPIRING;
        let event = Event::warning(reference(&**claim), reason, message);
        self.cx.recorder.publish(event.dedupe_by_message());
        Ok(Arc::new(written.unwrap_or(annotated)))
    }

    /// Deletes the NodeClaim's Node if the API server has it; returns whether it has.
    async fn delete_unseen_node(&self, claim: &NodeClaim) -> Result<bool, ReconcileError> {
        let Some(name) = claim.status.node_name.as_deref() else {
            return Ok(false);
        };
        let node = self.cx.nodes().get_opt(name).await.doing("getting node")?;
        let id = |node: &Node| node.spec.as_ref().and_then(|s| s.provider_id.clone());
        let Some(node) = node.filter(|node| id(node) == claim.status.provider_id) else {
            return Ok(false);
        };
        if !is_deleting(&node) {
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

fn is_deleting(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_some()
}

/// Returns whether the NodeClaim still has our finalizer.
pub(super) fn has_finalizer(claim: &NodeClaim) -> bool {
    claim
        .metadata
        .finalizers
        .as_ref()
        .is_some_and(|f| f.iter().any(|f| f == finalizers::TERMINATION))
}
