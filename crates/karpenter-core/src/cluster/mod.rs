//! The engine's model of the cluster.
//!
//! [`Cluster`] is a synchronous state machine with one writer: objects are applied as the API server returns them, in any order,
//! and [`Cluster::snapshot`] returns an immutable view in O(1). Data is structurally shared: a snapshot costs nothing until the
//! cluster changes, and then only what changed.

mod contents;
mod delta;
mod index;
mod node;
mod node_pods;
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

use jiff::Timestamp;
use karpenter_api::k8s_openapi::api::apps::v1 as apps;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use karpenter_api::k8s_openapi::api::storage::v1::{
    CSINode, StorageClass as KubeStorageClass, VolumeAttachment as KubeVolumeAttachment,
};
use karpenter_api::labels::taints::{is_known_ephemeral, same};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_api::validation::WellKnown;

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
use crate::offering::DEFAULT_RESERVATION_ID;
use crate::pod::{Owner, Pod, Shape};
use crate::provider::{LAUNCH_TIMEOUT, NodeClassKind, ProviderProfile};
use crate::resources::Resources;
use serde::{Deserialize, Serialize};
use shared::Shared;
use state::{State, StoredNode};

/// The properties of the provider that the model depends on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterConfig {
    /// Known labels, resources and values.
    pub well_known: WellKnown,
    /// NodeClass kinds of the provider; a Node with the label of one is managed by Karpenter.
    pub node_classes: Vec<NodeClassKind>,
    /// The label that names a capacity reservation.
    pub reservation_id_label: String,
    /// Volume provisioners that are not supported.
    pub unsupported_provisioners: Vec<String>,
    /// Topology keys of storage classes that are not supported.
    pub unsupported_topology_keys: Vec<String>,
    /// Whether NodeOverlays change instance types.
    pub node_overlays: bool,
    /// How long a launch may take.
    #[serde(default = "launch_timeout", skip_serializing_if = "is_launch_timeout")]
    pub launch_timeout: std::time::Duration,
    /// Taints of new Nodes that a component of the provider removes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ephemeral_taints: Vec<corev1::Taint>,
}

/// Returns whether a taint is one that every new Node has, or one of the provider's.
fn is_ephemeral(taint: &corev1::Taint, own: &[corev1::Taint]) -> bool {
    is_known_ephemeral(taint) || own.iter().any(|own| same(own, taint))
}

fn launch_timeout() -> std::time::Duration {
    LAUNCH_TIMEOUT
}

fn is_launch_timeout(timeout: &std::time::Duration) -> bool {
    *timeout == LAUNCH_TIMEOUT
}

impl ClusterConfig {
    /// Returns the configuration for a provider.
    ///
    /// ```
    /// use karpenter_core::cluster::ClusterConfig;
    /// use karpenter_core::provider::ProviderProfile;
    ///
    /// let profile = ProviderProfile::new("racks", []).with_reservation_id_label("example.com/contract");
    /// assert_eq!(ClusterConfig::of(&profile).reservation_id_label, "example.com/contract");
    /// ```
    pub fn of(profile: &ProviderProfile) -> Self {
        Self {
            well_known: profile.well_known.clone(),
            node_classes: profile.node_classes.clone(),
            reservation_id_label: profile.reservation_id_label.clone(),
            launch_timeout: profile.launch_timeout,
            ephemeral_taints: profile.ephemeral_taints.clone(),
            ..Self::default()
        }
    }

    /// Returns whether a taint is removed while a node starts, and is ignored until the node is initialized.
    pub fn is_ephemeral(&self, taint: &corev1::Taint) -> bool {
        is_ephemeral(taint, &self.ephemeral_taints)
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            well_known: WellKnown::default(),
            node_classes: Vec::new(),
            reservation_id_label: DEFAULT_RESERVATION_ID.to_owned(),
            unsupported_provisioners: Vec::new(),
            unsupported_topology_keys: Vec::new(),
            node_overlays: false,
            launch_timeout: LAUNCH_TIMEOUT,
            ephemeral_taints: Vec::new(),
        }
    }
}

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

/// Reports whether two states of a pod differ only in readiness and in the times of readiness and scheduling.
fn only_progress(old: &Pod, new: &Pod) -> bool {
    *old == Pod {
        gated: old.gated,
        ready: old.ready,
        ready_since: old.ready_since,
        scheduled_since: old.scheduled_since,
        ..new.clone()
    }
}

/// Namespace and name of an object.
type Named = (String, String);

fn named(namespace: &str, name: &str) -> Named {
    (namespace.to_owned(), name.to_owned())
}

/// Defines the `apply`/`remove` pair of an object that is stored whole or parsed, by name.
macro_rules! keep {
    ($(#[$doc:meta])* $apply:ident, $remove:ident, $kind:ty, $map:ident, namespaced, $parse:expr => $stored:ty) => {
        $(#[$doc])*
        pub fn $apply(&mut self, object: &$kind) -> Delta<$stored> {
            let key = named(object.metadata.namespace.as_deref().unwrap_or_default(), object.metadata.name.as_deref().unwrap_or_default());
            let delta = delta::store(&mut self.state.$map, key, ($parse)(object));
            self.counted(delta)
        }
        /// Removes the object from the model.
        pub fn $remove(&mut self, namespace: &str, name: &str) -> Delta<$stored> {
            let delta = delta::take(&mut self.state.$map, &named(namespace, name));
            self.counted(delta)
        }
    };
    ($(#[$doc:meta])* $apply:ident, $remove:ident, $kind:ty, $map:ident, cluster, $parse:expr => $stored:ty) => {
        $(#[$doc])*
        pub fn $apply(&mut self, object: &$kind) -> Delta<$stored> {
            let key = object.metadata.name.clone().unwrap_or_default();
            let delta = delta::store(&mut self.state.$map, key, ($parse)(object));
            self.counted(delta)
        }
        /// Removes the object from the model.
        pub fn $remove(&mut self, name: &str) -> Delta<$stored> {
            let delta = delta::take(&mut self.state.$map, name);
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

    // Pods -------------------------------------------------------------------------------------------------------------

    /// Adds or replaces a pod.
    pub fn apply_pod(&mut self, pod: &corev1::Pod) -> Delta<Pod> {
        self.insert_pod(Pod::parse(pod))
    }

    /// Adds or replaces a parsed pod.
    pub fn insert_pod(&mut self, pod: Pod) -> Delta<Pod> {
        let pod = self.shared(pod);
        let known = self.state.pods.get(&pod.key.namespace, &pod.key.name);
        let before = known.cloned();
        if before.as_deref() == Some(&pod) {
            return Delta::unchanged(before);
        }
        let progress = before
            .as_deref()
            .is_some_and(|old| only_progress(old, &pod));
        self.state.epoch += u64::from(!progress);
        if let Some(old) = &before {
            self.state.unbind(old);
        }
        let after = Arc::new(pod);
        self.state.bind(&after);
        self.state.pods.insert(after.clone());
        Delta {
            before,
            after: Some(after),
        }
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, namespace: &str, name: &str) -> Delta<Pod> {
        let before = self.state.pods.get(namespace, name).cloned();
        if let Some(old) = &before {
            self.state.unbind(old);
            self.state.pods.remove(namespace, name);
        }
        self.counted(Delta::removed(before))
    }

    // Nodes and NodeClaims ---------------------------------------------------------------------------------------------

    /// Adds or replaces a Node.
    pub fn apply_node(&mut self, node: &corev1::Node) -> Delta<corev1::Node> {
        self.insert_node(Arc::new(node.clone()))
    }

    /// Adds or replaces a Node that is already in an `Arc`.
    pub fn insert_node(&mut self, object: Arc<corev1::Node>) -> Delta<corev1::Node> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let stored = self.state.stored_nodes.get(&name).cloned();
        let (before, known) = stored.map(|old| (old.object, old.parsed)).unzip();
        if before.as_ref() == Some(&object) {
            return Delta::unchanged(before);
        }
        let new = Node::parse(&object);
        // Most updates change fields that no decision depends on.
        let (parsed, relevant) = match &known {
            Some(known) if **known == new => (known.clone(), false),
            _ => (Arc::new(new), true),
        };
        let stored = StoredNode {
            object: object.clone(),
            parsed,
        };
        self.state.stored_nodes.insert_mut(name.clone(), stored);
        if relevant {
            self.state.merge_node(&name, known.as_deref());
            self.state.epoch += 1;
        }
        Delta {
            before,
            after: Some(object),
        }
    }

    /// Removes a Node.
    pub fn remove_node(&mut self, name: &str) -> Delta<corev1::Node> {
        let Some(old) = self.state.stored_nodes.get(name).cloned() else {
            return Delta::unchanged(None);
        };
        self.state.stored_nodes.remove_mut(name);
        self.state.merge_node(name, Some(&old.parsed));
        self.counted(Delta::removed(Some(old.object)))
    }

    /// Adds or replaces a NodeClaim.
    pub fn apply_node_claim(&mut self, claim: &NodeClaim) -> Delta<NodeClaim> {
        self.insert_node_claim(Arc::new(claim.clone()))
    }

    /// Adds or replaces a NodeClaim that is already in an `Arc`.
    pub fn insert_node_claim(&mut self, claim: Arc<NodeClaim>) -> Delta<NodeClaim> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let before = self.state.claims.get(&name).cloned();
        if before.as_ref() == Some(&claim) {
            return Delta::unchanged(before);
        }
        self.state.claims.insert_mut(name.clone(), claim.clone());
        self.state.merge_claim(&name, before.as_deref());
        self.counted(Delta {
            before,
            after: Some(claim),
        })
    }

    /// Removes a NodeClaim.
    pub fn remove_node_claim(&mut self, name: &str) -> Delta<NodeClaim> {
        let delta = delta::take(&mut self.state.claims, name);
        if let Some(old) = &delta.before {
            self.state.merge_claim(name, Some(old));
        }
        self.counted(delta)
    }

    /// Records that pods are nominated to `node` (a Node or NodeClaim name) until `until`.
    pub fn nominate(&mut self, node: &str, until: Timestamp) {
        self.state
            .change_node(node, |state| state.nominated_until = Some(until));
    }

    /// Marks nodes that a disruption command is about to delete. Pods are not placed on them, and limits do not count them.
    pub fn mark_for_deletion(&mut self, provider_ids: &[&str]) {
        self.mark(provider_ids, true);
    }

    /// Reverts [`Self::mark_for_deletion`].
    pub fn unmark_for_deletion(&mut self, provider_ids: &[&str]) {
        self.mark(provider_ids, false);
    }

    fn mark(&mut self, provider_ids: &[&str], mark: bool) {
        for id in provider_ids {
            self.state
                .change_node_by_provider_id(id, |state| state.marked_for_deletion = mark);
        }
    }

    // NodePools and their instance types -------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a NodePool.
        apply_node_pool, remove_node_pool, NodePool, pools, cluster, NodePool::clone => NodePool
    );

    keep!(
        /// Adds or replaces a NodeOverlay.
        apply_node_overlay, remove_node_overlay, NodeOverlay, overlays, cluster, NodeOverlay::clone => NodeOverlay
    );

    /// Sets the instance types of a NodePool, or the provider's error.
    pub fn set_instance_types(&mut self, pool: &str, types: Result<Arc<[InstanceType]>, String>) {
        let same = match (self.state.instance_types.get(pool), &types) {
            (Some(Ok(old)), Ok(new)) => Arc::ptr_eq(old, new),
            (Some(Err(old)), Err(new)) => old == new,
            _ => false,
        };
        if !same {
            self.state.instance_types.insert_mut(pool.to_owned(), types);
            self.state.epoch += 1;
        }
    }

    /// Removes the instance types of a NodePool: they are not known yet, or no longer.
    pub fn forget_instance_types(&mut self, pool: &str) {
        let removed = self.state.instance_types.remove_mut(pool);
        self.state.epoch += u64::from(removed);
    }

    // Workloads --------------------------------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a DaemonSet.
        apply_daemon_set, remove_daemon_set, apps::DaemonSet, daemon_sets, namespaced, DaemonSet::parse => DaemonSet
    );
    keep!(
        /// Adds or replaces a PodDisruptionBudget.
        apply_pdb, remove_pdb, PodDisruptionBudget, pdbs, namespaced, PodDisruptionBudget::clone => PodDisruptionBudget
    );
    keep!(
        /// Adds or replaces a Service.
        apply_service, remove_service, corev1::Service, services, namespaced, workload::service_selector => Option<Labels>
    );
    keep!(
        /// Adds or replaces a ReplicaSet.
        apply_replica_set, remove_replica_set, apps::ReplicaSet, replica_sets, namespaced,
        workload::replica_set_selector => ControllerSelector
    );
    keep!(
        /// Adds or replaces a StatefulSet.
        apply_stateful_set, remove_stateful_set, apps::StatefulSet, stateful_sets, namespaced,
        workload::stateful_set_selector => ControllerSelector
    );
    keep!(
        /// Adds or replaces a ReplicationController.
        apply_replication_controller, remove_replication_controller, corev1::ReplicationController, replication_controllers, namespaced,
        workload::replication_controller_selector => ControllerSelector
    );
    keep!(
        /// Adds or replaces a Namespace.
        apply_namespace, remove_namespace, corev1::Namespace, namespaces, cluster,
        workload::namespace_labels => Labels
    );

    // Storage ----------------------------------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a PersistentVolumeClaim.
        apply_volume_claim, remove_volume_claim, corev1::PersistentVolumeClaim, volume_claims, namespaced, VolumeClaim::parse => VolumeClaim
    );
    keep!(
        /// Adds or replaces a PersistentVolume.
        apply_volume, remove_volume, corev1::PersistentVolume, volumes, cluster, Volume::parse => Volume
    );
    keep!(
        /// Adds or replaces a StorageClass.
        apply_storage_class, remove_storage_class, KubeStorageClass, storage_classes, cluster, StorageClass::parse => StorageClass
    );
    keep!(
        /// Adds or replaces a CSINode.
        apply_csi_node, remove_csi_node, CSINode, csi_nodes, cluster, storage::attach_limits => BTreeMap<String, u32>
    );

    /// Adds or replaces a VolumeAttachment. Consolidation does not depend on it, so that [`Snapshot::epoch`] does not count it.
    pub fn apply_volume_attachment(
        &mut self,
        object: &KubeVolumeAttachment,
    ) -> Delta<VolumeAttachment> {
        let attachment = VolumeAttachment::parse(object);
        let name = attachment.name.clone();
        let delta = delta::store(&mut self.state.volume_attachments, name, attachment);
        self.index_attachment(&delta);
        delta
    }

    /// Removes the object from the model.
    pub fn remove_volume_attachment(&mut self, name: &str) -> Delta<VolumeAttachment> {
        let delta = delta::take(&mut self.state.volume_attachments, name);
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
            let index = &mut self.state.volume_attachments_by_node;
            index.update(&known.name, from, to);
        }
    }

    // Dynamic resource allocation --------------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a ResourceSlice.
        apply_resource_slice, remove_resource_slice, ResourceSlice, resource_slices, cluster, ResourceSlice::clone => ResourceSlice
    );
    keep!(
        /// Adds or replaces a ResourceClaim.
        apply_resource_claim, remove_resource_claim, ResourceClaim, resource_claims, namespaced, ResourceClaim::clone => ResourceClaim
    );
    keep!(
        /// Adds or replaces a DeviceClass.
        apply_device_class, remove_device_class, DeviceClass, device_classes, cluster, DeviceClass::clone => DeviceClass
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
