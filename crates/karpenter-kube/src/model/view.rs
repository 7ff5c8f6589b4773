//! An immutable view of the cluster: the engine's snapshot, and what only controllers read.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::{NodeClaim, NodeClassReference, NodePool};
use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::Pod;
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};
use serde_json::Value;

/// A change of the model; `before` is `None` for an added object, `after` for a deleted one.
#[derive(Debug, Clone)]
pub enum Change {
    /// A Node changed.
    Node {
        /// Name of the Node.
        name: Arc<str>,
        /// The previous version.
        before: Option<Arc<Node>>,
        /// The new version.
        after: Option<Arc<Node>>,
    },
    /// A NodeClaim changed.
    NodeClaim {
        /// Name of the NodeClaim.
        name: Arc<str>,
        /// The previous version.
        before: Option<Arc<NodeClaim>>,
        /// The new version.
        after: Option<Arc<NodeClaim>>,
    },
    /// A NodePool changed.
    NodePool {
        /// Name of the NodePool.
        name: Arc<str>,
        /// The previous version.
        before: Option<Arc<NodePool>>,
        /// The new version.
        after: Option<Arc<NodePool>>,
    },
    /// A NodeClass changed.
    NodeClass {
        /// Group, kind and name of the NodeClass.
        reference: NodeClassReference,
        /// The new version.
        after: Option<Arc<NodeClass>>,
    },
    /// A pod changed.
    Pod {
        /// The previous version.
        before: Option<Arc<Pod>>,
        /// The new version.
        after: Option<Arc<Pod>>,
    },
    /// A VolumeAttachment of this node changed.
    VolumeAttachment {
        /// Name of the node.
        node: Arc<str>,
    },
    /// An object of another kind changed; the value is the kind.
    Other(&'static str),
    /// Every kind has been listed once.
    Synced,
}

/// The fields of a provider's NodeClass that the controllers use.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeClass {
    /// Group, kind and name.
    pub reference: NodeClassReference,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.deletionTimestamp`.
    pub deleted_at: Option<Timestamp>,
    /// Status, reason and message of the Ready condition.
    pub ready: Option<(String, String, String)>,
    /// A digest of the status without its conditions: the resources that the provider resolved.
    pub found: u64,
}

impl NodeClass {
    /// Parses an object of any NodeClass kind.
    #[must_use]
    pub fn parse(group: &str, object: &kube::core::DynamicObject, kind: &str) -> Self {
        let text = |c: &Value, key: &str| c[key].as_str().unwrap_or_default().to_owned();
        let ready = object.data["status"]["conditions"]
            .as_array()
            .and_then(|all| all.iter().find(|c| c["type"] == "Ready"))
            .map(|c| (text(c, "status"), text(c, "reason"), text(c, "message")));
        Self {
            reference: NodeClassReference {
                group: group.to_owned(),
                kind: kind.to_owned(),
                name: object.metadata.name.clone().unwrap_or_default(),
            },
            uid: object.metadata.uid.clone().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            deleted_at: object.metadata.deletion_timestamp.as_ref().map(|t| t.0),
            ready,
            found: digest(&object.data["status"]),
        }
    }
}

/// Returns a hash of the status without its conditions.
fn digest(status: &Value) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    for (key, value) in status.as_object().into_iter().flatten() {
        if key != "conditions" {
            (key, value.to_string()).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The cluster at one moment. Cheap to clone; immutable.
#[derive(Debug, Clone)]
pub struct View {
    /// The engine's snapshot.
    pub snapshot: Snapshot,
    pub(super) classes: RedBlackTreeMapSync<String, Arc<NodeClass>>,
    pub(super) refusals: HashTrieMapSync<String, Arc<str>>,
    pub(super) synced: bool,
}

pub(super) fn class_key(group: &str, kind: &str, name: &str) -> String {
    format!("{group}/{kind}/{name}")
}

impl View {
    /// Returns whether every kind has been listed.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Returns the NodeClaim of this name.
    #[must_use]
    pub fn node_claim(&self, name: &str) -> Option<&Arc<NodeClaim>> {
        self.snapshot.node_claim(name)
    }

    /// Returns the NodePool of this name.
    #[must_use]
    pub fn node_pool(&self, name: &str) -> Option<&Arc<NodePool>> {
        self.snapshot.node_pool(name)
    }

    /// Returns the Node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.snapshot.node_object(name)
    }

    /// Returns all Nodes, sorted by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.snapshot.node_objects()
    }

    /// Returns the Nodes with this provider id, sorted by name; usually one.
    #[must_use]
    pub fn nodes_by_provider_id(&self, provider_id: &str) -> Vec<Arc<Node>> {
        let nodes = self.snapshot.node_objects_by_provider_id(provider_id);
        nodes.cloned().collect()
    }

    /// Returns the NodeClaims with this provider id, sorted by name; usually one.
    #[must_use]
    pub fn node_claims_by_provider_id(&self, provider_id: &str) -> Vec<Arc<NodeClaim>> {
        let claims = self.snapshot.node_claims_by_provider_id(provider_id);
        claims.cloned().collect()
    }

    /// Returns the NodeClaims of a Node: those with its provider id.
    #[must_use]
    pub fn node_claims_of(&self, node: &Node) -> Vec<Arc<NodeClaim>> {
        match node
            .spec
            .as_ref()
            .and_then(|s| s.provider_id.as_deref())
            .filter(|id| !id.is_empty())
        {
            Some(id) => self.node_claims_by_provider_id(id),
            None => Vec::new(),
        }
    }

    /// Returns the NodeClaims of a NodePool, sorted by name.
    #[must_use]
    pub fn node_claims_of_pool(&self, pool: &str) -> Vec<Arc<NodeClaim>> {
        self.snapshot.node_claims_of_pool(pool).cloned().collect()
    }

    /// Returns the NodeClass of a reference.
    #[must_use]
    pub fn node_class(&self, reference: &NodeClassReference) -> Option<&Arc<NodeClass>> {
        self.classes.get(&class_key(
            &reference.group,
            &reference.kind,
            &reference.name,
        ))
    }

    /// Returns kube-scheduler's message why it did not schedule the provisionable pod of this uid.
    #[must_use]
    pub fn scheduler_message(&self, uid: &str) -> Option<&str> {
        self.refusals.get(uid).map(AsRef::as_ref)
    }

    /// Returns the pods bound to a node.
    #[must_use]
    pub fn pods_on(&self, node: &str) -> &[Arc<Pod>] {
        self.snapshot.pods_on(node)
    }
}

#[cfg(test)]
mod tests {
    use kube::core::DynamicObject;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_digest_of_a_node_class_changes_with_its_resolved_resources() {
        let class = |image: &str, time: &str| {
            let object: DynamicObject = serde_json::from_value(json!({
                "metadata": { "name": "default" },
                "status": { "amis": [{ "id": image }], "conditions": [{ "type": "AMIsReady", "lastTransitionTime": time }] },
            }))
            .unwrap();
            NodeClass::parse("karpenter.k8s.aws", &object, "EC2NodeClass")
        };
        assert_ne!(class("ami-1", ""), class("ami-2", ""));
        assert_eq!(class("ami-1", "a"), class("ami-1", "b"));
    }
}
