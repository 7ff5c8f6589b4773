//! Adds the NodeClass label to NodeClaims and Nodes that an earlier release created without it.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/hydration/controller.go, pkg/controllers/node/hydration/controller.go

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodeClassReference};

use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Backoff, Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};
use crate::options::Options;

const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(100),
    max: Duration::from_secs(60),
};

fn class_label(class: &NodeClassReference) -> String {
    labels::node_class(&class.group, &class.kind)
}

/// Adds the label to NodeClaims.
#[derive(Debug)]
pub struct ClaimHydration {
    /// What all controllers share.
    pub cx: Arc<Context>,
}

impl Controller for ClaimHydration {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclaim.hydration";
    const KIND: &'static str = NodeClaim::KIND;

    fn concurrency(&self, options: &Options) -> usize {
        options.concurrency(1000, 5000)
    }

    fn backoff(&self) -> Backoff {
        BACKOFF
    }

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        if let Change::NodeClaim {
            name,
            after: Some(claim),
            ..
        } = change
            && claim
                .label(&class_label(&claim.spec.node_class_ref))
                .is_none()
        {
            queue.add(ObjectKey::cluster(name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(before) = self.cx.managed_claim(&view, &key.name) else {
            return Ok(Next::Wait);
        };
        let class = &before.spec.node_class_ref;
        let mut after = NodeClaim::clone(&before);
        let present = after.metadata.labels.get_or_insert_default();
        present.insert(class_label(class), class.name.clone());
        // No other controller writes this label on an existing NodeClaim.
        self.cx
            .claim_writes
            .patch_object(self.cx.node_claims(), &before, &after, Lock::None)
            .await
            .doing("labeling nodeclaim")?;
        Ok(Next::Wait)
    }
}

/// Adds the label to Nodes.
#[derive(Debug)]
pub struct NodeHydration {
    /// What all controllers share.
    pub cx: Arc<Context>,
}

/// Returns whether a registered Node lacks the label of its NodeClass.
fn lacks_label(node: &Node, claim: &NodeClaim) -> bool {
    let label = class_label(&claim.spec.node_class_ref);
    let present = node.metadata.labels.as_ref();
    // Registration copies all labels of the NodeClaim.
    claim.is_true(types::REGISTERED) && !present.is_some_and(|labels| labels.contains_key(&label))
}

impl Controller for NodeHydration {
    type Key = ObjectKey;
    const NAME: &'static str = "node.hydration";
    const KIND: &'static str = "Node";

    fn concurrency(&self, options: &Options) -> usize {
        options.concurrency(1000, 5000)
    }

    fn backoff(&self) -> Backoff {
        BACKOFF
    }

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        let lacking = |node: &Node, claim: &NodeClaim| {
            if lacks_label(node, claim) {
                queue.add(ObjectKey::cluster(
                    node.metadata.name.as_deref().unwrap_or_default(),
                ));
            }
        };
        match change {
            Change::Node {
                after: Some(node), ..
            } => {
                for claim in view.node_claims_of(node) {
                    lacking(node, &claim);
                }
            }
            Change::NodeClaim {
                after: Some(claim), ..
            } => {
                let id = claim.status.provider_id.as_deref().unwrap_or_default();
                for node in view.nodes_by_provider_id(id) {
                    lacking(&node, claim);
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(before) = view.node(&key.name) else {
            return Ok(Next::Wait);
        };
        let before = self.cx.node_writes.latest(before);
        let claims = view.node_claims_of(&before);
        let [claim] = claims.as_slice() else {
            return Ok(Next::Wait);
        };
        let class = &claim.spec.node_class_ref;
        if !self.cx.is_managed(class) {
            return Ok(Next::Wait);
        }
        let mut after = Node::clone(&before);
        let present = after.metadata.labels.get_or_insert_default();
        present.insert(class_label(class), class.name.clone());
        self.cx
            .node_writes
            .patch_object(self.cx.nodes(), &before, &after, Lock::None)
            .await
            .doing("labeling node")?;
        Ok(Next::Wait)
    }
}
