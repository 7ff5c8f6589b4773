//! The engine's model of the cluster.
//!
//! [`Cluster`] is a synchronous state machine with one writer: objects are applied as the API server returns them, in any order,
//! and [`Cluster::snapshot`] returns an immutable view in O(1). Data is structurally shared: a snapshot costs nothing until the
//! cluster changes, and then only what changed.

mod config;
mod contents;
mod delta;
mod index;
mod node;
mod node_pods;
mod nodes;
pub mod pdb;
mod pods;
mod shared;
mod snapshot;
mod state;
mod storage;
mod string_map;
mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::k8s_openapi::api::apps::v1 as apps;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use karpenter_api::k8s_openapi::api::storage::v1::{
    CSINode, StorageClass as KubeStorageClass, VolumeAttachment as KubeVolumeAttachment,
};
use karpenter_api::v1::NodePool;
use karpenter_api::v1alpha1::NodeOverlay;

pub use config::ClusterConfig;
pub use contents::Marks;
pub use delta::Delta;
pub use node::{Node, NodeState};
pub use node_pods::NodePods;
pub use snapshot::Snapshot;
pub(crate) use snapshot::TableRow;
pub use storage::{StorageClass, Volume, VolumeAttachment, VolumeClaim, translate_in_tree};
pub use string_map::StringMap;
pub use workload::{ControllerSelector, DaemonSet};

use crate::instance_type::InstanceType;
use crate::pod::{Owner, Shape};
use crate::resources::Resources;
use index::named;
use shared::Shared;
use state::State;

/// The model of the cluster; see the module documentation.
///
/// ```
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use karpenter_core::pod::Pod;
/// use karpenter_core::resources::Resources;
///
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// cluster.insert_pod(Pod::pending("default", "web", Resources::new().with("cpu", 500)));
/// let before = cluster.snapshot();
/// cluster.remove_pod("default", "web");
/// assert_eq!((before.pod_count(), cluster.snapshot().pod_count()), (1, 0));
/// ```
#[derive(Debug)]
pub struct Cluster {
    state: State,
    /// Shapes shared by pods of one workload; classes of pods are recognized by the pointer of their shape.
    shapes: Shared<Shape>,
    limits: Shared<Resources>,
    owners: Shared<[Owner]>,
}

/// Defines the `apply`/`remove` pair of an object that is stored whole or parsed, by name.
macro_rules! keep {
    ($(#[$doc:meta])* $apply:ident, $remove:ident, $kind:ty, $owner:ident.$map:ident, namespaced, $parse:expr => $stored:ty) => {
        $(#[$doc])*
        pub fn $apply(&mut self, object: &$kind) -> Delta<$stored> {
            let key = named(object.metadata.namespace.as_deref().unwrap_or_default(), object.metadata.name.as_deref().unwrap_or_default());
            let delta = delta::store(&mut self.state.$owner.$map, key, ($parse)(object));
            self.counted(delta)
        }
        /// Removes the object from the model.
        pub fn $remove(&mut self, namespace: &str, name: &str) -> Delta<$stored> {
            let delta = delta::take(&mut self.state.$owner.$map, &named(namespace, name));
            self.counted(delta)
        }
    };
    ($(#[$doc:meta])* $apply:ident, $remove:ident, $kind:ty, $owner:ident.$map:ident, cluster, $parse:expr => $stored:ty) => {
        $(#[$doc])*
        pub fn $apply(&mut self, object: &$kind) -> Delta<$stored> {
            let key = object.metadata.name.clone().unwrap_or_default();
            let delta = delta::store(&mut self.state.$owner.$map, key, ($parse)(object));
            self.counted(delta)
        }
        /// Removes the object from the model.
        pub fn $remove(&mut self, name: &str) -> Delta<$stored> {
            let delta = delta::take(&mut self.state.$owner.$map, name);
            self.counted(delta)
        }
    };
}

impl Cluster {
    /// Creates an empty cluster.
    pub fn new(config: ClusterConfig) -> Self {
        Self {
            state: State::new(config),
            shapes: Shared::default(),
            limits: Shared::default(),
            owners: Shared::default(),
        }
    }

    /// Returns the current state of the cluster. O(1).
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.state.clone())
    }

    /// Counts a change that can affect consolidation.
    fn counted<T: ?Sized>(&mut self, delta: Delta<T>) -> Delta<T> {
        self.state.epoch += u64::from(delta.is_change());
        delta
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ClusterConfig {
        &self.state.config
    }

    // NodePools and their instance types -------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a NodePool.
        apply_node_pool, remove_node_pool, NodePool, catalogue.pools, cluster, NodePool::clone => NodePool
    );

    keep!(
        /// Adds or replaces a NodeOverlay.
        apply_node_overlay, remove_node_overlay, NodeOverlay, catalogue.overlays, cluster, NodeOverlay::clone => NodeOverlay
    );

    /// Sets the instance types of a NodePool, or the provider's error.
    pub fn set_instance_types(&mut self, pool: &str, types: Result<Arc<[InstanceType]>, String>) {
        let same = match (self.state.catalogue.instance_types.get(pool), &types) {
            (Some(Ok(old)), Ok(new)) => Arc::ptr_eq(old, new),
            (Some(Err(old)), Err(new)) => old == new,
            _ => false,
        };
        if !same {
            self.state
                .catalogue
                .instance_types
                .insert_mut(pool.to_owned(), types);
            self.state.epoch += 1;
        }
    }

    /// Removes the instance types of a NodePool: they are not known yet, or no longer.
    pub fn forget_instance_types(&mut self, pool: &str) {
        let removed = self.state.catalogue.instance_types.remove_mut(pool);
        self.state.epoch += u64::from(removed);
    }

    // Workloads --------------------------------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a DaemonSet.
        apply_daemon_set, remove_daemon_set, apps::DaemonSet, workloads.daemon_sets, namespaced, DaemonSet::parse => DaemonSet
    );
    keep!(
        /// Adds or replaces a PodDisruptionBudget.
        apply_pdb, remove_pdb, PodDisruptionBudget, workloads.pdbs, namespaced, PodDisruptionBudget::clone => PodDisruptionBudget
    );
    keep!(
        /// Adds or replaces a Service.
        apply_service, remove_service, corev1::Service, workloads.services, namespaced, workload::service_selector => Option<Labels>
    );
    keep!(
        /// Adds or replaces a ReplicaSet.
        apply_replica_set, remove_replica_set, apps::ReplicaSet, workloads.replica_sets, namespaced,
        workload::replica_set_selector => ControllerSelector
    );
    keep!(
        /// Adds or replaces a StatefulSet.
        apply_stateful_set, remove_stateful_set, apps::StatefulSet, workloads.stateful_sets, namespaced,
        workload::stateful_set_selector => ControllerSelector
    );
    keep!(
        /// Adds or replaces a ReplicationController.
        apply_replication_controller, remove_replication_controller, corev1::ReplicationController, workloads.replication_controllers, namespaced,
        workload::replication_controller_selector => ControllerSelector
    );
    keep!(
        /// Adds or replaces a Namespace.
        apply_namespace, remove_namespace, corev1::Namespace, workloads.namespaces, cluster,
        workload::namespace_labels => Labels
    );

    // Storage ----------------------------------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a PersistentVolumeClaim.
        apply_volume_claim, remove_volume_claim, corev1::PersistentVolumeClaim, storage.claims, namespaced, VolumeClaim::parse => VolumeClaim
    );
    keep!(
        /// Adds or replaces a PersistentVolume.
        apply_volume, remove_volume, corev1::PersistentVolume, storage.volumes, cluster, Volume::parse => Volume
    );
    keep!(
        /// Adds or replaces a StorageClass.
        apply_storage_class, remove_storage_class, KubeStorageClass, storage.classes, cluster, StorageClass::parse => StorageClass
    );
    keep!(
        /// Adds or replaces a CSINode.
        apply_csi_node, remove_csi_node, CSINode, storage.csi_nodes, cluster, storage::attach_limits => BTreeMap<String, u32>
    );

    /// Adds or replaces a VolumeAttachment. Consolidation does not depend on it, so that [`Snapshot::epoch`] does not count it.
    pub fn apply_volume_attachment(
        &mut self,
        object: &KubeVolumeAttachment,
    ) -> Delta<VolumeAttachment> {
        let attachment = VolumeAttachment::parse(object);
        let name = attachment.name.clone();
        let delta = delta::store(&mut self.state.storage.attachments, name, attachment);
        self.index_attachment(&delta);
        delta
    }

    /// Removes the object from the model.
    pub fn remove_volume_attachment(&mut self, name: &str) -> Delta<VolumeAttachment> {
        let delta = delta::take(&mut self.state.storage.attachments, name);
        self.index_attachment(&delta);
        delta
    }

    fn index_attachment(&mut self, delta: &Delta<VolumeAttachment>) {
        let (before, after) = (delta.before.as_deref(), delta.after.as_deref());
        if let Some(known) = after.or(before) {
            let (from, to) = (
                before.map(|b| b.node.as_str()),
                after.map(|a| a.node.as_str()),
            );
            let index = &mut self.state.storage.attachments_by_node;
            index.update(&known.name, from, to);
        }
    }

    // Dynamic resource allocation --------------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a ResourceSlice.
        apply_resource_slice, remove_resource_slice, ResourceSlice, devices.slices, cluster, ResourceSlice::clone => ResourceSlice
    );
    keep!(
        /// Adds or replaces a ResourceClaim.
        apply_resource_claim, remove_resource_claim, ResourceClaim, devices.claims, namespaced, ResourceClaim::clone => ResourceClaim
    );
    keep!(
        /// Adds or replaces a DeviceClass.
        apply_device_class, remove_device_class, DeviceClass, devices.classes, cluster, DeviceClass::clone => DeviceClass
    );
}

/// The labels of a namespace.
pub type Labels = BTreeMap<String, String>;

impl From<Snapshot> for Cluster {
    /// Creates a cluster that starts from a snapshot, for simulations. O(1).
    fn from(snapshot: Snapshot) -> Self {
        Self {
            state: snapshot.into_state(),
            shapes: Shared::default(),
            limits: Shared::default(),
            owners: Shared::default(),
        }
    }
}
