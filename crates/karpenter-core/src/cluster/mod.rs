//! The engine's model of the cluster.
//!
//! [`Cluster`] is a synchronous state machine with one writer: objects are applied as the API server returns them, in any order,
//! and [`Cluster::snapshot`] returns an immutable view in O(1). Data is structurally shared: a snapshot costs nothing until the
//! cluster changes, and then only what changed.

mod node;
mod shared;
mod snapshot;
mod storage;
mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::k8s_openapi::api::apps::v1 as apps;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use karpenter_api::k8s_openapi::api::storage::v1::{CSINode, StorageClass as KubeStorageClass};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_api::validation::WellKnown;

pub use node::{Node, NodeState};
pub use snapshot::{NodePods, Snapshot};
pub use storage::{StorageClass, Volume, VolumeClaim, translate_in_tree};
pub use workload::{ControllerSelector, DaemonSet};

use crate::instance_type::InstanceType;
use crate::offering::DEFAULT_RESERVATION_ID;
use crate::pod::{LabelSelector, Owner, Pod, Shape};
use crate::provider::NodeClassKind;
use crate::resources::Resources;
use shared::Shared;
use snapshot::State;

/// The properties of the provider that the model depends on.
#[derive(Clone, Debug)]
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
        }
    }
}

/// The effect of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No relevant field changed.
    Unchanged,
    /// The object was added.
    Added,
    /// The object was updated.
    Updated,
    /// The object was removed.
    Removed,
}

impl Change {
    /// Reports whether the update changed the model.
    pub fn is_change(self) -> bool {
        self != Self::Unchanged
    }

    fn of<T: PartialEq>(old: Option<&T>, new: &T) -> Self {
        match old {
            None => Self::Added,
            Some(old) if old == new => Self::Unchanged,
            Some(_) => Self::Updated,
        }
    }
}

/// The model of the cluster; see the module documentation.
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
    ($(#[$doc:meta])* $apply:ident, $remove:ident, $kind:ty, $map:ident, namespaced, $parse:expr) => {
        $(#[$doc])*
        pub fn $apply(&mut self, object: &$kind) -> Change {
            let key = named(object.metadata.namespace.as_deref().unwrap_or_default(), object.metadata.name.as_deref().unwrap_or_default());
            let parsed = Arc::new(($parse)(object));
            let change = Change::of(self.state.$map.get(&key), &parsed);
            if change.is_change() {
                self.state.$map.insert_mut(key, parsed);
            }
            self.counted(change)
        }
        /// Removes the object from the model.
        pub fn $remove(&mut self, namespace: &str, name: &str) -> Change {
            let removed = self.state.$map.remove_mut(&named(namespace, name));
            self.counted(if removed { Change::Removed } else { Change::Unchanged })
        }
    };
    ($(#[$doc:meta])* $apply:ident, $remove:ident, $kind:ty, $map:ident, cluster, $parse:expr) => {
        $(#[$doc])*
        pub fn $apply(&mut self, object: &$kind) -> Change {
            let key = object.metadata.name.clone().unwrap_or_default();
            let parsed = Arc::new(($parse)(object));
            let change = Change::of(self.state.$map.get(&key), &parsed);
            if change.is_change() {
                self.state.$map.insert_mut(key, parsed);
            }
            self.counted(change)
        }
        /// Removes the object from the model.
        pub fn $remove(&mut self, name: &str) -> Change {
            let removed = self.state.$map.remove_mut(name);
            self.counted(if removed { Change::Removed } else { Change::Unchanged })
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
    fn counted(&mut self, change: Change) -> Change {
        self.state.epoch += u64::from(change.is_change());
        change
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ClusterConfig {
        &self.state.config
    }

    // Pods -------------------------------------------------------------------------------------------------------------

    /// Adds or replaces a pod.
    pub fn apply_pod(&mut self, pod: &corev1::Pod) -> Change {
        self.insert_pod(Pod::parse(pod))
    }

    /// Adds or replaces a parsed pod.
    pub fn insert_pod(&mut self, mut pod: Pod) -> Change {
        pod.shape = self.shapes.share(pod.shape);
        pod.limits = self.limits.share(pod.limits);
        pod.owners = self.owners.share(pod.owners);
        let key = named(&pod.key.namespace, &pod.key.name);
        let pod = Arc::new(pod);
        let old = self.state.pods.get(&key).cloned();
        let change = Change::of(old.as_ref(), &pod);
        if change.is_change() {
            let same = old.as_deref().is_some_and(|old| only_progress(old, &pod));
            self.state.epoch += u64::from(!same);
            if let Some(old) = old {
                self.state.unbind(&old);
            }
            self.state.bind(&pod);
            self.state.pods.insert_mut(key, pod);
        }
        change
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, namespace: &str, name: &str) -> Change {
        let key = named(namespace, name);
        let Some(old) = self.state.pods.get(&key).cloned() else {
            return Change::Unchanged;
        };
        self.state.unbind(&old);
        self.state.pods.remove_mut(&key);
        self.counted(Change::Removed)
    }

    // Nodes and NodeClaims ---------------------------------------------------------------------------------------------

    /// Adds or replaces a Node.
    pub fn apply_node(&mut self, node: &corev1::Node) -> Change {
        let node = Arc::new(Node::parse(node));
        let old = self.state.raw_nodes.get(&node.name).cloned();
        let change = Change::of(old.as_ref(), &node);
        if change.is_change() {
            let name = node.name.clone();
            self.state.raw_nodes.insert_mut(name.clone(), node);
            self.state.merge_node(&name, old.as_deref());
        }
        self.counted(change)
    }

    /// Removes a Node.
    pub fn remove_node(&mut self, name: &str) -> Change {
        let Some(old) = self.state.raw_nodes.get(name).cloned() else {
            return Change::Unchanged;
        };
        self.state.raw_nodes.remove_mut(name);
        self.state.merge_node(name, Some(&old));
        self.counted(Change::Removed)
    }

    /// Adds or replaces a NodeClaim.
    pub fn apply_node_claim(&mut self, claim: &NodeClaim) -> Change {
        self.insert_node_claim(Arc::new(claim.clone()))
    }

    /// Adds or replaces a NodeClaim that is already in an `Arc`.
    pub fn insert_node_claim(&mut self, claim: Arc<NodeClaim>) -> Change {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let old = self.state.claims.get(&name).cloned();
        let change = Change::of(old.as_ref(), &claim);
        if change.is_change() {
            self.state.claims.insert_mut(name.clone(), claim);
            self.state.merge_claim(&name, old.as_deref());
        }
        self.counted(change)
    }

    /// Removes a NodeClaim.
    pub fn remove_node_claim(&mut self, name: &str) -> Change {
        let Some(old) = self.state.claims.get(name).cloned() else {
            return Change::Unchanged;
        };
        self.state.claims.remove_mut(name);
        self.state.merge_claim(name, Some(&old));
        self.counted(Change::Removed)
    }

    /// Records that pods are nominated to `node` (a Node or NodeClaim name) until `until`.
    pub fn nominate(&mut self, node: &str, until: Timestamp) -> Change {
        let change = self
            .state
            .change_node(node, |state| state.nominated_until = Some(until));
        self.counted(change)
    }

    /// Marks nodes that a disruption command is about to delete. Pods are not placed on them, and limits do not count them.
    pub fn mark_for_deletion(&mut self, provider_ids: &[&str]) -> Change {
        self.mark(provider_ids, true)
    }

    /// Reverts [`Self::mark_for_deletion`].
    pub fn unmark_for_deletion(&mut self, provider_ids: &[&str]) -> Change {
        self.mark(provider_ids, false)
    }

    fn mark(&mut self, provider_ids: &[&str], mark: bool) -> Change {
        let mut change = Change::Unchanged;
        for id in provider_ids {
            if self
                .state
                .change_node_by_provider_id(id, |state| state.marked_for_deletion = mark)
                .is_change()
            {
                change = Change::Updated;
            }
        }
        self.counted(change)
    }

    // NodePools and their instance types -------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a NodePool.
        apply_node_pool, remove_node_pool, NodePool, pools, cluster, NodePool::clone
    );

    keep!(
        /// Adds or replaces a NodeOverlay.
        apply_node_overlay, remove_node_overlay, NodeOverlay, overlays, cluster, NodeOverlay::clone
    );

    /// Sets the instance types of a NodePool, or the provider's error.
    pub fn set_instance_types(
        &mut self,
        pool: &str,
        types: Result<Arc<[InstanceType]>, String>,
    ) -> Change {
        let same = match (self.state.instance_types.get(pool), &types) {
            (Some(Ok(old)), Ok(new)) => Arc::ptr_eq(old, new),
            (Some(Err(old)), Err(new)) => old == new,
            _ => false,
        };
        if same {
            return Change::Unchanged;
        }
        self.state.instance_types.insert_mut(pool.to_owned(), types);
        self.counted(Change::Updated)
    }

    /// Removes the instance types of a NodePool: they are not known yet, or no longer.
    pub fn forget_instance_types(&mut self, pool: &str) -> Change {
        if self.state.instance_types.remove_mut(pool) {
            self.counted(Change::Removed)
        } else {
            Change::Unchanged
        }
    }

    // Workloads --------------------------------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a DaemonSet.
        apply_daemon_set, remove_daemon_set, apps::DaemonSet, daemon_sets, namespaced, DaemonSet::parse
    );
    keep!(
        /// Adds or replaces a PodDisruptionBudget.
        apply_pdb, remove_pdb, PodDisruptionBudget, pdbs, namespaced, PodDisruptionBudget::clone
    );
    keep!(
        /// Adds or replaces a Service.
        apply_service, remove_service, corev1::Service, services, namespaced, workload::service_selector
    );
    keep!(
        /// Adds or replaces a ReplicaSet.
        apply_replica_set, remove_replica_set, apps::ReplicaSet, replica_sets, namespaced,
        |set: &apps::ReplicaSet| ControllerSelector::Selector(LabelSelector::parse(set.spec.as_ref().map(|spec| &spec.selector)))
    );
    keep!(
        /// Adds or replaces a StatefulSet.
        apply_stateful_set, remove_stateful_set, apps::StatefulSet, stateful_sets, namespaced,
        |set: &apps::StatefulSet| ControllerSelector::Selector(LabelSelector::parse(set.spec.as_ref().map(|spec| &spec.selector)))
    );
    keep!(
        /// Adds or replaces a ReplicationController.
        apply_replication_controller, remove_replication_controller, corev1::ReplicationController, replication_controllers, namespaced,
        |set: &corev1::ReplicationController| {
            ControllerSelector::Labels(set.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default())
        }
    );
    keep!(
        /// Adds or replaces a Namespace.
        apply_namespace, remove_namespace, corev1::Namespace, namespaces, cluster,
        |namespace: &corev1::Namespace| namespace.metadata.labels.clone().unwrap_or_default()
    );

    // Storage ----------------------------------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a PersistentVolumeClaim.
        apply_volume_claim, remove_volume_claim, corev1::PersistentVolumeClaim, volume_claims, namespaced, VolumeClaim::parse
    );
    keep!(
        /// Adds or replaces a PersistentVolume.
        apply_volume, remove_volume, corev1::PersistentVolume, volumes, cluster, Volume::parse
    );
    keep!(
        /// Adds or replaces a StorageClass.
        apply_storage_class, remove_storage_class, KubeStorageClass, storage_classes, cluster, StorageClass::parse
    );
    keep!(
        /// Adds or replaces a CSINode.
        apply_csi_node, remove_csi_node, CSINode, csi_nodes, cluster, storage::attach_limits
    );

    // Dynamic resource allocation --------------------------------------------------------------------------------------

    keep!(
        /// Adds or replaces a ResourceSlice.
        apply_resource_slice, remove_resource_slice, ResourceSlice, resource_slices, cluster, ResourceSlice::clone
    );
    keep!(
        /// Adds or replaces a ResourceClaim.
        apply_resource_claim, remove_resource_claim, ResourceClaim, resource_claims, namespaced, ResourceClaim::clone
    );
    keep!(
        /// Adds or replaces a DeviceClass.
        apply_device_class, remove_device_class, DeviceClass, device_classes, cluster, DeviceClass::clone
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
