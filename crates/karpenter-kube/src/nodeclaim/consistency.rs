//! The condition ConsistentStateFound: whether a node has the resources of its instance type.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/consistency/{controller,nodeshape}.go

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::events;
use karpenter_api::v1::NodeClaim;
use karpenter_core::quantity::Quantity;

use crate::context::Context;
use crate::controller::{Controller, Next, ObjectKey, Queue, ReconcileError};
use crate::events::{Event, reference};
use crate::logging;
use crate::model::{Change, View};

/// Interval between checks of a NodeClaim.
const INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Least share of the expected resources.
const MIN_CAPACITY_RATIO: f64 = 0.9;

/// Compares Nodes with the expected resources of their NodeClaims.
#[derive(Debug)]
pub struct Consistency {
    /// The context.
    pub cx: Arc<Context>,
}

/// Returns the requested resources of which the node has too little.
fn shortfalls(claim: &NodeClaim, node: &Node) -> Vec<String> {
    let capacity = node.status.as_ref().and_then(|s| s.capacity.as_ref());
    let amount = |text: &str| text.parse::<Quantity>().ok();
    let mut found = Vec::new();
    for resource in claim.spec.resources.requests.keys() {
        let Some(wire) = claim.status.capacity.get(resource) else {
            continue;
        };
        let Some(expected) = amount(&wire.0).map(|q| q.as_f64()) else {
            continue;
        };
        let actual = capacity.and_then(|c| c.get(resource));
        let there = actual
            .and_then(|q| amount(&q.0))
            .map_or(0.0, |q| q.as_f64());
        // Of a resource that is not expected there is never too little.
        if there < MIN_CAPACITY_RATIO * expected {
            let shown = actual.map_or("0", |q| q.0.as_str());
            let percent = there / expected * 100.0;
            found.push(format!(
                "expected {} of resource {resource}, but found {shown} ({percent:.1}% of expected)",
                wire.0
            ));
        }
    }
    found
}

impl Controller for Consistency {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclaim.consistency";
    const KIND: &'static str = NodeClaim::KIND;

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        let initialized = |claim: &Arc<NodeClaim>| claim.is_true(types::INITIALIZED);
        if let Change::NodeClaim {
            name,
            before,
            after: Some(after),
        } = change
            && initialized(after)
            && !before.as_ref().is_some_and(initialized)
        {
            queue.add(ObjectKey::cluster(name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let claim = self.cx.managed_claim(&view, &key.name);
        let is_checked = |c: &Arc<NodeClaim>| !c.is_deleting() && c.is_true(types::INITIALIZED);
        let Some(before) = claim.filter(is_checked) else {
            return Ok(Next::Wait);
        };
        let id = before.status.provider_id.as_deref().unwrap_or_default();
        let nodes = view.nodes_by_provider_id(id);
        let [node] = nodes.as_slice() else {
            return Ok(Next::After(INTERVAL));
        };
        let found = shortfalls(&before, node);
        let mut after = NodeClaim::clone(&before);
        let now = self.cx.clock.now();
        if found.is_empty() {
            after.set_true(types::CONSISTENT_STATE_FOUND, now);
        } else {
            let message = "Consistency Check Failed";
            after.set_false(
                types::CONSISTENT_STATE_FOUND,
                reasons::CONSISTENCY_CHECK_FAILED,
                message,
                now,
            );
        }
        for issue in found {
            tracing::error!(
                NodeClaim = logging::object(None, before.name()),
                error = issue,
                "consistency error"
            );
            let event =
                Event::warning(reference(&*before), events::FAILED_CONSISTENCY_CHECK, issue);
            self.cx.recorder.publish(event.dedupe_by_message());
        }
        self.cx.write_claim_status(&before, &after).await?;
        Ok(Next::After(INTERVAL))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Conformance: DIS-052
    #[test]
    fn a_node_with_less_than_nine_tenths_of_a_requested_resource_falls_short() {
        let claim: NodeClaim = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": [],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "1", "example.com/none": "1"}}},
            "status": {"capacity": {"cpu": "16", "memory": "128Gi", "pods": "10", "example.com/none": "0"}},
        }))
        .unwrap();
        let node = |capacity| -> Node {
            serde_json::from_value(
                json!({"metadata": {"name": "n"}, "status": {"capacity": capacity}}),
            )
            .unwrap()
        };
        assert_eq!(
            shortfalls(&claim, &node(json!({"cpu": "16", "memory": "116Gi"}))),
            [""; 0]
        );
        assert_eq!(
            shortfalls(&claim, &node(json!({"cpu": "14400m", "memory": "128Gi"}))),
            [""; 0],
            "nine tenths are enough"
        );
        assert_eq!(
            shortfalls(
                &claim,
                &node(json!({"cpu": "16", "memory": "64Gi", "pods": "1"}))
            ),
            ["expected 128Gi of resource memory, but found 64Gi (50.0% of expected)"]
        );
        assert_eq!(
            shortfalls(&claim, &node(json!({"memory": "128Gi"}))),
            ["expected 16 of resource cpu, but found 0 (0.0% of expected)"]
        );
    }
}
