//! The input of user data.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTaint {
    pub key: String,
    /// Taint value, often empty.
    pub value: String,
    /// Taint effect: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The cluster that nodes join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Name of the EKS cluster.
    pub name: String,
    /// URL of the API server.
    pub endpoint: String,
    /// Certificate authority, base64 of its PEM; `None` if the endpoint's certificate is publicly trusted.
    pub certificate_authority: Option<String>,
    /// CIDR of the cluster's services; AL2023 needs it.
    pub service_cidr: Option<String>,
}

/// The input of a node's user data.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeSettings {
    pub cluster: Cluster,
    /// Labels that the node registers with, as [`kubelet_labels`](super::kubelet_labels) returns them.
    pub labels: BTreeMap<String, String>,
    /// Taints that the node registers with, as [`kubelet_taints`](super::kubelet_taints) returns them.
    pub taints: Vec<NodeTaint>,
    /// Kubelet settings for the instance type: `maxPods` is a number, reserved resources are quantities, `clusterDNS`
    /// has its default.
    pub kubelet: Map<String, Value>,
    /// Whether instance store volumes are joined to a RAID-0 for pods.
    pub raid0: bool,
    /// Whether the Bottlerocket version binds the usual directories by default, see
    /// [`binds_instance_storage_by_default`](super::binds_instance_storage_by_default).
    pub default_mounts: bool,
    /// The user's text, `spec.userData`.
    pub custom: Option<String>,
}
