//! The kinds of objects in a bundle: where a snapshot has them, what is written of them, and how a cluster takes and removes them.

use std::collections::BTreeMap;
use std::io;

use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_core::cluster::{
    Cluster, ControllerSelector, Labels, Snapshot, StorageClass, Volume, VolumeAttachment,
    VolumeClaim,
};
use serde::{Deserialize, Serialize};

use super::error::Problem;
use super::objects;
use super::out::Out;
use super::rows::{Line, Removed};

/// The namespace and the name of an object; a cluster-scoped one has an empty namespace.
type Key<'a> = (&'a str, &'a str);

/// The labels of a Namespace, or those that a Service selects.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Labeled {
    namespace: String,
    name: String,
    labels: Option<Labels>,
}

/// What a workload controller selects.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selecting {
    namespace: String,
    name: String,
    selector: ControllerSelector,
}

/// How many volumes each CSI driver can attach to a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttachLimits {
    node: String,
    drivers: BTreeMap<String, u32>,
}

fn labeled((namespace, name): &Key<'_>, labels: Option<Labels>) -> Labeled {
    Labeled {
        namespace: (*namespace).to_owned(),
        name: (*name).to_owned(),
        labels,
    }
}

fn selecting((namespace, name): &Key<'_>, selector: &ControllerSelector) -> Selecting {
    Selecting {
        namespace: (*namespace).to_owned(),
        name: (*name).to_owned(),
        selector: selector.clone(),
    }
}

/// Iterates over the selectors of the controllers of a kind.
fn controllers<'a>(
    snapshot: &'a Snapshot,
    kind: &'static str,
) -> impl Iterator<Item = (Key<'a>, &'a ControllerSelector)> {
    let all = snapshot.controller_selectors();
    all.filter(move |it| it.0 == kind)
        .map(|(_, namespace, name, selector)| ((namespace, name), selector))
}

fn key(meta: &ObjectMeta) -> Key<'_> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    (namespace, meta.name.as_deref().unwrap_or_default())
}

/// Checks that an object has a name.
fn named(meta: &ObjectMeta) -> Result<(), Problem> {
    match meta.name.as_deref() {
        Some(name) if !name.is_empty() => Ok(()),
        _ => Err(("v.metadata.name", "must not be empty".to_owned())),
    }
}

/// Defines the kinds. Of each: its type in a bundle; its objects in a snapshot, with their keys; what is written of an object; how it
/// is added to a cluster, and how it is removed.
macro_rules! kinds {
    (
        ($snapshot:ident, $key:ident, $object:ident, $row:ident, $cluster:ident, $namespace:ident, $name:ident)
        $($kind:ident($type:ty): $all:expr, $write:expr, $insert:expr, $remove:expr;)+
    ) => {
        /// An object.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(super) enum Object {
            $($kind(Box<$type>),)+
        }

        impl Object {
            /// Adds the object to a cluster, or replaces it there.
            pub(super) fn insert(self, $cluster: &mut Cluster) -> Result<(), Problem> {
                match self {
                    $(Self::$kind($row) => {
                        $insert;
                    })+
                }
                Ok(())
            }
        }

        /// A kind of objects that can be removed.
        #[derive(Clone, Copy, Debug, Serialize, Deserialize)]
        pub(super) enum Kind {
            Pods,
            InstanceTypes,
            DaemonSets,
            $($kind,)+
        }

        impl Kind {
            /// Removes an object from a cluster.
            pub(super) fn remove(self, $cluster: &mut Cluster, $namespace: &str, $name: &str) {
                match self {
                    Self::Pods => drop($cluster.remove_pod($namespace, $name)),
                    Self::InstanceTypes => $cluster.forget_instance_types($name),
                    Self::DaemonSets => drop($cluster.remove_daemon_set($namespace, $name)),
                    $(Self::$kind => drop($remove),)+
                }
            }
        }

        /// Passes on which objects are new, changed or gone.
        #[expect(unused_variables, reason = "an object with its own name needs no key")]
        pub(super) fn between(
            before: &Snapshot,
            after: &Snapshot,
            out: &mut Out<'_, '_>,
        ) -> io::Result<()> {
            $({
                let $snapshot = before;
                let was = $all;
                let $snapshot = after;
                changed(out, was, $all, Kind::$kind, |$key, $object| {
                    Object::$kind(Box::new($write))
                })?;
            })+
            Ok(())
        }
    };
}

/// Passes on which objects of a kind are gone, and which are new or have another address.
fn changed<'a, T: 'a>(
    out: &mut Out<'_, '_>,
    before: impl Iterator<Item = (Key<'a>, &'a T)>,
    after: impl Iterator<Item = (Key<'a>, &'a T)>,
    kind: Kind,
    write: impl Fn(&Key<'_>, &'a T) -> Object,
) -> io::Result<()> {
    let before: BTreeMap<Key<'_>, &T> = before.collect();
    let after: BTreeMap<Key<'_>, &T> = after.collect();
    for (key, object) in &after {
        let was = before.get(key);
        if was.is_none_or(|was| !std::ptr::addr_eq(*was, *object)) {
            out.line(Line::Objects(write(key, object)))?;
        }
    }
    let mut gone = before.keys().filter(|key| !after.contains_key(*key));
    gone.try_for_each(|(namespace, name)| out.line(Removed::line(kind, namespace, name)))
}

kinds! {
    (snapshot, key, object, row, cluster, namespace, name)

    Nodes(corev1::Node):
        snapshot.node_objects().map(|it| (self::key(&it.metadata), &**it)),
        objects::node(object),
        { named(&row.metadata)?; cluster.insert_node((*row).into()) },
        cluster.remove_node(name);
    NodeClaims(NodeClaim):
        snapshot.node_claims().map(|it| (self::key(&it.metadata), &**it)),
        objects::node_claim(object),
        { named(&row.metadata)?; cluster.insert_node_claim((*row).into()) },
        cluster.remove_node_claim(name);
    NodePools(NodePool):
        snapshot.node_pools().map(|it| (self::key(&it.metadata), &**it)),
        objects::node_pool(object),
        { named(&row.metadata)?; cluster.apply_node_pool(&row) },
        cluster.remove_node_pool(name);
    NodeOverlays(NodeOverlay):
        snapshot.node_overlays().map(|it| (self::key(&it.metadata), &**it)),
        objects::node_overlay(object),
        cluster.apply_node_overlay(&row),
        cluster.remove_node_overlay(name);
    Pdbs(PodDisruptionBudget):
        snapshot.pdbs().map(|it| (self::key(&it.metadata), &**it)),
        objects::pdb(object),
        cluster.apply_pdb(&row),
        cluster.remove_pdb(namespace, name);
    Namespaces(Labeled):
        snapshot.namespaces().map(|(name, it)| (("", name.as_str()), it)),
        labeled(key, Some(object.clone())),
        cluster.insert_namespace(&row.name, row.labels.unwrap_or_default()),
        cluster.remove_namespace(name);
    Services(Labeled):
        snapshot.all_service_selectors().map(|(namespace, name, it)| ((namespace, name), it)),
        labeled(key, object.clone()),
        cluster.insert_service_selector(&row.namespace, &row.name, row.labels),
        cluster.remove_service(namespace, name);
    ReplicaSets(Selecting):
        controllers(snapshot, "ReplicaSet"),
        selecting(key, object),
        cluster.insert_controller_selector("ReplicaSet", &row.namespace, &row.name, row.selector),
        cluster.remove_replica_set(namespace, name);
    StatefulSets(Selecting):
        controllers(snapshot, "StatefulSet"),
        selecting(key, object),
        cluster.insert_controller_selector("StatefulSet", &row.namespace, &row.name, row.selector),
        cluster.remove_stateful_set(namespace, name);
    ReplicationControllers(Selecting):
        controllers(snapshot, "ReplicationController"),
        selecting(key, object),
        cluster.insert_controller_selector("ReplicationController", &row.namespace, &row.name, row.selector),
        cluster.remove_replication_controller(namespace, name);
    VolumeClaims(VolumeClaim):
        snapshot.volume_claims().map(|it| ((it.namespace.as_str(), it.name.as_str()), it)),
        object.clone(),
        cluster.insert_volume_claim(*row),
        cluster.remove_volume_claim(namespace, name);
    Volumes(Volume):
        snapshot.volumes().map(|it| (("", it.name.as_str()), it)),
        object.clone(),
        cluster.insert_volume(*row),
        cluster.remove_volume(name);
    StorageClasses(StorageClass):
        snapshot.storage_classes().map(|it| (("", it.name.as_str()), it)),
        object.clone(),
        cluster.insert_storage_class(*row),
        cluster.remove_storage_class(name);
    AttachLimits(AttachLimits):
        snapshot.all_attach_limits().map(|(node, it)| (("", node), it)),
        AttachLimits { node: key.1.to_owned(), drivers: object.clone() },
        cluster.insert_attach_limits(&row.node, row.drivers),
        cluster.remove_csi_node(name);
    VolumeAttachments(VolumeAttachment):
        snapshot.volume_attachments().map(|it| (("", it.name.as_str()), it)),
        object.clone(),
        cluster.insert_volume_attachment(*row),
        cluster.remove_volume_attachment(name);
    ResourceSlices(ResourceSlice):
        snapshot.resource_slices().map(|it| (self::key(&it.metadata), &**it)),
        objects::resource_slice(object),
        cluster.apply_resource_slice(&row),
        cluster.remove_resource_slice(name);
    ResourceClaims(ResourceClaim):
        snapshot.resource_claims().map(|it| (self::key(&it.metadata), &**it)),
        objects::resource_claim(object),
        cluster.apply_resource_claim(&row),
        cluster.remove_resource_claim(namespace, name);
    DeviceClasses(DeviceClass):
        snapshot.device_classes().map(|it| (self::key(&it.metadata), &**it)),
        objects::device_class(object),
        cluster.apply_device_class(&row),
        cluster.remove_device_class(name);
}
