//! Executes the effects of the process of a NodeClaim that is not being deleted.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::events;
use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::node_claim::{Effect, Event, Joining, Surroundings};

use crate::client::patch::Lock;
use crate::controller::{Doing, Next, ReconcileError};
use crate::events::reference;
use crate::logging;
use crate::nodeclaim::lifecycle::Lifecycle;
use crate::nodeclaim::removal::count_disrupted;

/// A NodeClaim as it is to be written.
pub(super) struct Joined {
    pub(super) claim: NodeClaim,
    pub(super) next: Next,
    /// Errors of steps, which are to be tried again.
    pub(super) errors: Vec<ReconcileError>,
}

impl Lifecycle {
    /// Executes the process until its NodeClaim is to be written; `None` if it is deleted instead.
    pub(super) async fn join(&self, claim: NodeClaim) -> Result<Option<Joined>, ReconcileError> {
        let mut joining = Joining::new(claim, self.cx.clock.now());
        let (mut event, mut errors) = (Event::Due, Vec::new());
        loop {
            let view = self.cx.view();
            let id = joining.claim().status.provider_id.as_deref();
            let nodes = id.map(|id| self.cx.nodes_of(&view, id)).unwrap_or_default();
            let around = Surroundings {
                snapshot: &view.snapshot,
                nodes: &nodes,
            };
            let effects = joining.on(event, around, self.cx.clock.now());
            // Replaced by the answer to the last effect.
            event = Event::Due;
            for effect in effects {
                let claim = joining.claim();
                event = match effect {
                    Effect::Launch => {
                        let (answer, error) = self.launch(claim).await;
                        errors.extend(error);
                        answer
                    }
                    Effect::WarnOfMissingTaint(node) => {
                        self.warn_of_missing_taint(claim, &node);
                        Event::Due
                    }
                    Effect::RunHooks => {
                        let (answers, failed) = self.run_hooks(claim).await;
                        errors.extend(failed);
                        // Before the Node is read again to be registered: the fewer other changes there are in between, the better.
                        if let ([node], []) = (&nodes[..], &answers.pending[..]) {
                            let name = node.metadata.name.as_deref().unwrap_or_default();
                            let provisioner = &self.provisioner;
                            provisioner.registering(&self.cx, claim.name(), name).await;
                        }
                        Event::HooksRan(answers)
                    }
                    // Kubelet and others write the Node at this time.
                    Effect::Register(node, wanted) => {
                        let written = self.write_node(&node, &wanted, Lock::Lists).await;
                        let written = written.doing("registering node");
                        Event::Registered(written.map_err(|error| errors.push(error)).is_ok())
                    }
                    // No other controller writes this label: an optimistic lock would only conflict with kubelet's status writes.
                    Effect::Initialize(node, wanted) => {
                        let written = self.write_node(&node, &wanted, Lock::None).await;
                        let written = written.doing("initializing node");
                        Event::Initialized(written.map_err(|error| errors.push(error)).is_ok())
                    }
                    Effect::Delete { reason, failure } => {
                        self.delete_failed(claim, reason, failure).await?;
                        return Ok(None);
                    }
                    Effect::Write { next } => {
                        let (claim, next) = (claim.clone(), next.map_or(Next::Wait, Next::After));
                        return Ok(Some(Joined {
                            claim,
                            next,
                            errors,
                        }));
                    }
                };
            }
        }
    }

    async fn write_node(
        &self,
        node: &Arc<Node>,
        wanted: &Node,
        lock: Lock,
    ) -> Result<Option<Node>, kube::Error> {
        let writes = &self.cx.node_writes;
        writes
            .patch_object(self.cx.nodes(), node, wanted, lock)
            .await
    }

    fn warn_of_missing_taint(&self, claim: &NodeClaim, node: &Node) {
        let message = "Missing karpenter.sh/unregistered taint which prevents registration race conditions on Karpenter-managed nodes";
        let node = node.metadata.name.as_deref().unwrap_or_default();
        tracing::error!(
            NodeClaim = logging::object(None, claim.name()),
            nodeclaim = claim.name(),
            Node = logging::object(None, node),
            error = message,
            "node claim registration error"
        );
        let reason = events::UNREGISTERED_TAINT_MISSING;
        let event = crate::events::Event::warning(reference(claim), reason, message);
        self.cx.recorder.publish(event);
    }

    /// Deletes a NodeClaim that cannot become a node; the provisioner creates a new one for its pods.
    async fn delete_failed(
        &self,
        claim: &NodeClaim,
        reason: &'static str,
        failure: Option<(String, String)>,
    ) -> Result<(), ReconcileError> {
        if let Some(failure) = failure {
            self.record_registration(claim, Err(failure));
            tracing::info!(
                NodeClaim = logging::object(None, claim.name()),
                nodeclaim = claim.name(),
                reason,
                "terminating due to timeout"
            );
        }
        let (api, writes) = (self.cx.node_claims(), &self.cx.claim_writes);
        let deleted = writes.delete(api, claim, Lock::None).await;
        if deleted.doing("deleting nodeclaim")? {
            count_disrupted(&self.cx, claim, reason);
        }
        Ok(())
    }
}
