//! Records the memory that registered nodes report, per instance type and AMI.
//!
//! UPSTREAM: pkg/controllers/providers/instancetype/capacity/controller.go

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels as core_labels;
use karpenter_core::quantity::Quantity;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Controller, Next, ObjectKey, Queue, ReconcileError};
use karpenter_kube::model::{Change, View};

use crate::cloud_provider::Ec2Provider;
use crate::cloud_provider::stores::Stores;

/// Controller that records the memory capacity of registered nodes.
#[derive(Debug)]
pub struct CapacityDiscovery {
    cx: Arc<Context>,
    stores: Stores,
    provider: Arc<Ec2Provider>,
}

impl CapacityDiscovery {
    #[must_use]
    pub fn new(cx: Arc<Context>, stores: Stores, provider: Arc<Ec2Provider>) -> Self {
        Self {
            cx,
            stores,
            provider,
        }
    }
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn is_registered(node: &Node) -> bool {
    label(node, core_labels::REGISTERED) == Some("true")
}

/// Returns the memory capacity of a node in bytes.
fn memory(node: &Node) -> Option<i64> {
    let capacity = node.status.as_ref()?.capacity.as_ref()?;
    let memory: Quantity = capacity.get("memory")?.0.parse().ok()?;
    Some(memory.units_floor()).filter(|bytes| *bytes > 0)
}

impl Controller for CapacityDiscovery {
    type Key = ObjectKey;
    const NAME: &'static str = "providers.instancetype.capacity";
    const KIND: &'static str = "Node";

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        if let Change::Node {
            name,
            before,
            after: Some(after),
        } = change
            && is_registered(after)
            && before.as_deref().is_none_or(|node| !is_registered(node))
        {
            queue.add(ObjectKey::cluster(name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(node) = view.node(&key.name) else {
            return Ok(Next::Wait);
        };
        let claims = view.node_claims_of(node);
        let Some(claim) = claims.first() else {
            return Ok(Next::Wait);
        };
        let (Some(bytes), Some(image), Some(name)) = (
            memory(node),
            claim.status.image_id.as_deref(),
            label(node, core_labels::INSTANCE_TYPE),
        ) else {
            return Ok(Next::Wait);
        };
        if !self.stores.filled().await {
            return Ok(Next::Wait);
        }
        let Some(class) = self.stores.class_of_claim(claim) else {
            return Ok(Next::Wait);
        };
        // A failure to list instance types is not reported: the next node of the type carries the same information.
        let Ok(types) = self.provider.types_of(&class).await else {
            return Ok(Next::Wait);
        };
        let Some(t) = types.iter().find(|t| t.name == name) else {
            return Ok(Next::Wait);
        };
        let now = self.cx.clock.now();
        let amis = &class.status.amis;
        let changed = self.provider.offered().with_discovered(|discovered| {
            discovered.expire(now);
            discovered.observe(amis, name, &t.requirements, image, bytes, now)
        });
        if changed {
            tracing::debug!(
                logger = Self::NAME,
                "instance-type" = name,
                "memory-capacity" = bytes,
                "updated discovered capacity cache"
            );
        }
        Ok(Next::Wait)
    }
}
