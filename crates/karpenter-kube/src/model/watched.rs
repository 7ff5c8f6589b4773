//! Pods and Nodes as their watches deserialize them: without what no controller reads.
//!
//! Two fifths of the time to parse a pod is spent on `metadata.managedFields`, and half of a Node are its images: they are skipped in the
//! text, except for the entry of Karpenter's nomination of the pod. Freed afterwards, they would leave holes in the memory between objects that stay.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeCondition, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    FieldsV1, ManagedFieldsEntry, ObjectMeta, OwnerReference, Time,
};
use karpenter_core::pod::FIELD_MANAGER;
use serde::de::{IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::json;

/// A pod without its managed fields.
#[derive(Debug, Clone, Deserialize, kube::Resource)]
#[resource(inherit = "Pod")]
pub(super) struct WatchedPod {
    #[serde(default, deserialize_with = "read_metadata")]
    metadata: ObjectMeta,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

impl From<WatchedPod> for Pod {
    fn from(watched: WatchedPod) -> Self {
        Self {
            metadata: watched.metadata,
            spec: watched.spec,
            status: watched.status,
        }
    }
}

/// A Node without its managed fields and without the parts of its status that no controller reads.
#[derive(Debug, Clone, Deserialize, kube::Resource)]
#[resource(inherit = "Node")]
pub(super) struct WatchedNode {
    #[serde(default, deserialize_with = "read_metadata")]
    metadata: ObjectMeta,
    spec: Option<NodeSpec>,
    status: Option<WatchedNodeStatus>,
}

#[derive(Debug, Clone, Deserialize)]
struct WatchedNodeStatus {
    allocatable: Option<BTreeMap<String, Quantity>>,
    capacity: Option<BTreeMap<String, Quantity>>,
    conditions: Option<Vec<NodeCondition>>,
}

impl From<WatchedNode> for Node {
    fn from(watched: WatchedNode) -> Self {
        let status = watched.status.map(|status| NodeStatus {
            allocatable: status.allocatable,
            capacity: status.capacity,
            conditions: status.conditions,
            ..NodeStatus::default()
        });
        let mut node = Self {
            metadata: watched.metadata,
            spec: watched.spec,
            status,
        };
        trim_node(&mut node);
        node
    }
}

/// Removes the parts of a Node that no controller reads: more than half of it, and timestamps that change with every heartbeat.
pub(crate) fn trim_node(node: &mut Node) {
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        *status = NodeStatus {
            allocatable: status.allocatable.take(),
            capacity: status.capacity.take(),
            conditions: status.conditions.take(),
            ..NodeStatus::default()
        };
    }
}

/// The metadata of a pod or Node that controllers and watches read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    #[serde(default)]
    managed_fields: Vec<ManagedFields>,
}

/// The manager of fields, and whether `status.nominatedNodeName` is one of them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagedFields {
    #[serde(default)]
    manager: Manager,
    #[serde(default)]
    fields_v1: Fields,
}

#[derive(Default, Deserialize)]
struct Fields {
    #[serde(default, rename = "f:status")]
    status: StatusFields,
}

#[derive(Default, Deserialize)]
struct StatusFields {
    #[serde(rename = "f:nominatedNodeName")]
    nominated: Option<IgnoredAny>,
}

/// Whether a manager is Karpenter; other names are not stored.
#[derive(Default)]
struct Manager {
    is_karpenter: bool,
}

impl<'de> Deserialize<'de> for Manager {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Manager;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the name of a manager")
            }

            fn visit_str<E>(self, name: &str) -> Result<Manager, E> {
                Ok(Manager {
                    is_karpenter: name == FIELD_MANAGER,
                })
            }
        }
        deserializer.deserialize_str(Name)
    }
}

impl Metadata {
    /// Returns the entry of Karpenter for `status.nominatedNodeName`, if it wrote it.
    fn nominated(&self) -> Option<Vec<ManagedFieldsEntry>> {
        let nominated = |entry: &ManagedFields| {
            entry.manager.is_karpenter && entry.fields_v1.status.nominated.is_some()
        };
        let fields = json!({ "f:status": { "f:nominatedNodeName": {} } });
        self.managed_fields.iter().any(nominated).then(|| {
            vec![ManagedFieldsEntry {
                manager: Some(FIELD_MANAGER.to_owned()),
                fields_v1: Some(FieldsV1(fields)),
                ..ManagedFieldsEntry::default()
            }]
        })
    }
}

fn read_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        managed_fields: metadata.nominated(),
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        labels: metadata.labels,
        annotations: metadata.annotations,
        owner_references: metadata.owner_references,
        finalizers: metadata.finalizers,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use karpenter_core::pod;

    use super::*;

    #[test]
    fn a_watched_pod_parses_to_the_same_engine_pod_as_the_whole_pod() {
        let text = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-1", "generateName": "web-", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 1,
                "labels": {"app": "web"}, "annotations": {"karpenter.sh/do-not-disrupt": "true"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true}],
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 30,
                "finalizers": ["example.com/f"],
                "managedFields": [{"manager": "m", "operation": "Update", "fieldsV1": {"f:metadata": {}}}],
            },
            "spec": {
                "nodeName": "n", "priority": 5, "terminationGracePeriodSeconds": 12, "nodeSelector": {"disk": "fast"},
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}}}],
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": "web"}}}],
            },
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:01Z", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let whole: Pod = serde_json::from_value(text.clone()).unwrap();
        let watched: WatchedPod = serde_json::from_value(text).unwrap();
        let watched = Pod::from(watched);
        assert_eq!(watched.metadata.managed_fields, None);
        assert_eq!(watched.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(pod::Pod::parse(&watched), pod::Pod::parse(&whole));
    }

    #[test]
    fn a_nominated_node_is_of_a_plan_if_karpenter_wrote_it() {
        let nominated = |manager: &str, field: &str| {
            let fields = json!({ "f:status": { "f:conditions": {}, field: {} } });
            let text = json!({
                "metadata": {"name": "web-1", "managedFields": [
                    {"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}, {"manager": manager, "fieldsV1": fields},
                ]},
                "status": {"nominatedNodeName": "n"},
            });
            let whole: Pod = serde_json::from_value(text.clone()).unwrap();
            let watched: WatchedPod = serde_json::from_value(text).unwrap();
            let watched = pod::Pod::parse(&Pod::from(watched));
            assert_eq!(watched, pod::Pod::parse(&whole));
            watched.is_nominated_by_plan()
        };
        assert!(nominated("karpenter", "f:nominatedNodeName"));
        assert!(!nominated("kube-scheduler", "f:nominatedNodeName"));
        assert!(!nominated("karpenter", "f:phase"));
    }

    #[test]
    fn a_watched_node_is_the_whole_node_without_what_no_controller_reads() {
        let text = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}, "annotations": {"c": "d"},
                "finalizers": ["karpenter.sh/termination"],
                "ownerReferences": [{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "c", "uid": "k", "blockOwnerDeletion": true}],
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "managedFields": [{"manager": "m", "operation": "Update", "fieldsV1": {"f:metadata": {}}}],
            },
            "spec": {"providerID": "x://n", "unschedulable": true, "taints": [{"key": "t", "effect": "NoSchedule"}]},
            "status": {
                "capacity": {"cpu": "4"}, "allocatable": {"cpu": "3900m"},
                "conditions": [{"type": "Ready", "status": "True", "message": "m", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
                "images": [{"names": ["i"], "sizeBytes": 1}], "nodeInfo": {"kernelVersion": 6},
            },
        });
        let whole = karpenter_fixtures::Object::<Node>::from_json(text.clone())
            .remove("/metadata/managedFields")
            .remove("/status/images")
            .remove("/status/nodeInfo")
            .remove("/status/conditions/0/lastHeartbeatTime");
        let watched: WatchedNode = serde_json::from_value(text).unwrap();
        assert_eq!(Node::from(watched), whole.build());
    }

    #[test]
    fn a_trimmed_node_is_the_watched_one() {
        let text = json!({
            "metadata": {"name": "n", "managedFields": [{"manager": "m"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
                "images": [{"names": ["i"]}]},
        });
        let mut trimmed: Node = serde_json::from_value(text.clone()).unwrap();
        trim_node(&mut trimmed);
        let watched: WatchedNode = serde_json::from_value(text).unwrap();
        assert_eq!(Node::from(watched), trimmed);
    }
}
