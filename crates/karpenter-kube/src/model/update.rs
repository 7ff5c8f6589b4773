//! The updates of the model: all that can change it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_core::cluster::Cluster;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::Pod;
use tokio::sync::oneshot;

use super::view::NodeClass;

/// An update in the queue.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) update: Update,
    /// Notified once the update is applied.
    pub(super) applied: Option<oneshot::Sender<()>>,
    /// Notified once a view with the update is published.
    pub(super) published: Option<oneshot::Sender<()>>,
}

/// An update of the model.
#[derive(Debug)]
pub(super) enum Update {
    /// A watch reported an object.
    Apply(Object),
    /// A watch reported the deletion of an object.
    Remove(ObjectKind, Key),
    /// Objects of a list that is not complete yet.
    Portion(Vec<Object>),
    /// The end of a list.
    Listed {
        kind: ObjectKind,
        /// Objects that earlier lists or events contained, and this list does not.
        deleted: Vec<Key>,
        /// The last objects of the list.
        objects: Vec<Object>,
    },
    /// A NodeClaim was created by this process.
    CreatedNodeClaim(Arc<NodeClaim>),
    /// A NodeClaim with this name and uid, which has no instance, does not exist in the API server.
    MissingNodeClaim { name: Arc<str>, uid: String },
    /// Pods are nominated to nodes (Node or NodeClaim names), which are not disrupted before `until`.
    Nominate {
        nodes: Vec<String>,
        until: Timestamp,
    },
    /// Nodes are marked or unmarked for deletion by a disruption command.
    MarkForDeletion {
        provider_ids: Vec<String>,
        mark: bool,
    },
    /// The instance types that the provider offers for a NodePool, or its error.
    SetInstanceTypes {
        pool: String,
        types: Result<Arc<[InstanceType]>, String>,
    },
    /// The instance types of a NodePool are not known yet.
    ForgetInstanceTypes { pool: String },
}

/// `namespace/name`; compact, because a large cluster has many.
pub(super) type Key = Box<str>;

/// An object of a watch.
#[derive(Debug)]
pub(super) enum Object {
    Pod {
        /// Parsed by the watcher, not on the model's task.
        pod: Box<Pod>,
        /// Why kube-scheduler did not schedule it.
        refusal: Option<String>,
    },
    Node(Arc<Node>),
    NodeClaim(Arc<NodeClaim>),
    NodePool(Box<NodePool>),
    NodeClass(Arc<NodeClass>),
    VolumeAttachment(Box<VolumeAttachment>),
    Other(OtherObject),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Pod,
    Node,
    NodeClaim,
    NodePool,
    /// A kind of NodeClasses.
    NodeClass {
        group: String,
        kind: String,
    },
    VolumeAttachment,
    Other(OtherKind),
}

impl ObjectKind {
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::NodeClaim => "NodeClaim",
            Self::NodePool => "NodePool",
            Self::NodeClass { .. } => "NodeClass",
            Self::VolumeAttachment => "VolumeAttachment",
            Self::Other(kind) => kind.as_str(),
        }
    }
}

/// Defines the kinds whose subscribers learn no more than that an object changed, and the functions of [`Cluster`] for them.
macro_rules! other_kinds {
    ($($kind:ident: $apply:ident, $remove:ident, $scope:ident;)+) => {
        /// An object of a kind whose content only the engine reads.
        #[derive(Debug)]
        pub(super) enum OtherObject {
            $($kind(Box<$kind>),)+
        }

        impl OtherObject {
            /// Adds or replaces the object; reports whether that changed the cluster.
            pub(super) fn apply(&self, cluster: &mut Cluster) -> bool {
                match self {
                    $(Self::$kind(object) => cluster.$apply(object).is_change(),)+
                }
            }

            pub(super) fn kind(&self) -> OtherKind {
                match self {
                    $(Self::$kind(_) => OtherKind::$kind,)+
                }
            }
        }

        $(impl From<$kind> for Object {
            fn from(object: $kind) -> Self {
                Self::Other(OtherObject::$kind(Box::new(object)))
            }
        })+

        /// A kind whose content only the engine reads.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum OtherKind {
            $($kind,)+
        }

        impl OtherKind {
            pub(super) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)+
                }
            }

            /// Removes an object; reports whether that changed the cluster.
            pub(super) fn remove(self, cluster: &mut Cluster, namespace: &str, name: &str) -> bool {
                match self {
                    $(Self::$kind => other_kinds!(@ $scope cluster.$remove(namespace, name)),)+
                }
            }
        }
    };
    (@ namespaced $cluster:ident.$remove:ident($namespace:ident, $name:ident)) => {
        $cluster.$remove($namespace, $name).is_change()
    };
    (@ cluster $cluster:ident.$remove:ident($namespace:ident, $name:ident)) => {
        $cluster.$remove($name).is_change()
    };
}

other_kinds! {
    NodeOverlay: apply_node_overlay, remove_node_overlay, cluster;
    DaemonSet: apply_daemon_set, remove_daemon_set, namespaced;
    PodDisruptionBudget: apply_pdb, remove_pdb, namespaced;
    PersistentVolumeClaim: apply_volume_claim, remove_volume_claim, namespaced;
    PersistentVolume: apply_volume, remove_volume, cluster;
    StorageClass: apply_storage_class, remove_storage_class, cluster;
    CSINode: apply_csi_node, remove_csi_node, cluster;
    Namespace: apply_namespace, remove_namespace, cluster;
    Service: apply_service, remove_service, namespaced;
    ReplicaSet: apply_replica_set, remove_replica_set, namespaced;
    StatefulSet: apply_stateful_set, remove_stateful_set, namespaced;
    ReplicationController: apply_replication_controller, remove_replication_controller, namespaced;
    ResourceSlice: apply_resource_slice, remove_resource_slice, cluster;
    ResourceClaim: apply_resource_claim, remove_resource_claim, namespaced;
    DeviceClass: apply_device_class, remove_device_class, cluster;
}

impl From<NodeClaim> for Object {
    fn from(claim: NodeClaim) -> Self {
        Self::NodeClaim(Arc::new(claim))
    }
}

impl From<NodePool> for Object {
    fn from(pool: NodePool) -> Self {
        Self::NodePool(Box::new(pool))
    }
}

impl From<VolumeAttachment> for Object {
    fn from(attachment: VolumeAttachment) -> Self {
        Self::VolumeAttachment(Box::new(attachment))
    }
}
