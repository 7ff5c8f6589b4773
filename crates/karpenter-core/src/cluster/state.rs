//! The state of the model, in persistent maps: cloning is O(1).

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use karpenter_api::v1::NodePool;
use karpenter_api::v1alpha1::NodeOverlay;
use rpds::RedBlackTreeMapSync;

use super::index::{Index, Map, NamespacedMap};
use super::nodes::Nodes;
use super::pods::Pods;
use super::{
    ClusterConfig, ControllerSelector, DaemonSet, Labels, StorageClass, Volume, VolumeAttachment,
    VolumeClaim,
};
use crate::instance_type::InstanceType;

/// The state of the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) config: Arc<ClusterConfig>,
    pub(super) epoch: u64,
    pub(super) pods: Pods,
    pub(super) nodes: Nodes,
    pub(super) catalogue: Catalogue,
    pub(super) workloads: Workloads,
    pub(super) storage: Storage,
    pub(super) devices: Devices,
}

/// What can be launched.
#[derive(Clone, Debug, Default)]
pub(super) struct Catalogue {
    pub(super) pools: Map<NodePool>,
    pub(super) overlays: Map<NodeOverlay>,
    /// By NodePool.
    pub(super) instance_types: RedBlackTreeMapSync<String, Result<Arc<[InstanceType]>, String>>,
}

/// What pods belong to.
#[derive(Clone, Debug, Default)]
pub(super) struct Workloads {
    pub(super) daemon_sets: NamespacedMap<DaemonSet>,
    pub(super) pdbs: NamespacedMap<PodDisruptionBudget>,
    pub(super) services: NamespacedMap<Option<Labels>>,
    pub(super) replica_sets: NamespacedMap<ControllerSelector>,
    pub(super) stateful_sets: NamespacedMap<ControllerSelector>,
    pub(super) replication_controllers: NamespacedMap<ControllerSelector>,
    pub(super) namespaces: Map<Labels>,
}

/// The volumes of pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Storage {
    pub(super) claims: NamespacedMap<VolumeClaim>,
    pub(super) volumes: Map<Volume>,
    pub(super) classes: Map<StorageClass>,
    pub(super) csi_nodes: Map<BTreeMap<String, u32>>,
    pub(super) attachments: Map<VolumeAttachment>,
    /// Names of VolumeAttachments by node.
    pub(super) attachments_by_node: Index,
}

/// The devices of nodes, and the claims of pods for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Devices {
    pub(super) slices: Map<ResourceSlice>,
    pub(super) claims: NamespacedMap<ResourceClaim>,
    pub(super) classes: Map<DeviceClass>,
}

impl State {
    pub(super) fn new(config: ClusterConfig) -> Self {
        let config = Arc::new(config);
        Self {
            nodes: Nodes::new(config.clone()),
            config,
            ..Self::default()
        }
    }
}
