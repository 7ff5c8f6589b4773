//! A pod as the watch deserializes it.
//!
//! Two fifths of the time to parse a pod is spent on `metadata.managedFields`, which no controller reads: they are skipped
//! in the text. Most objects that are read at start are pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};

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

/// The metadata of a pod that the model and the watch read.
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
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

fn read_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        labels: metadata.labels,
        annotations: metadata.annotations,
        owner_references: metadata.owner_references,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use karpenter_core::pod;
    use serde_json::json;

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
}
