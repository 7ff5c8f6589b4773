//! What changed between two snapshots of a cluster, as lines, and how a removal is made again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::pod::Pod;

use super::super::objects;
use super::super::rows::{Change, Devices, Line, MarksRow, Removed, Selector, Storage};
use super::super::write::{Sink, Tables, daemon_set};

/// Passes on what leads from one snapshot to another of the same cluster. Objects are compared by address: what the model did not
/// replace has not changed.
pub(super) fn between(
    before: &Snapshot,
    after: &Snapshot,
    tables: &mut Tables,
    sink: &mut Sink<'_>,
) -> io::Result<()> {
    let mut out = Out { sink, tables };
    pods(before, after, &mut out)?;
    nodes(before, after, &mut out)?;
    pools(before, after, &mut out)?;
    daemon_sets(before, after, &mut out)?;
    selectors(before, after, &mut out)?;
    storage(before, after, &mut out)?;
    devices(before, after, &mut out)?;
    marks(before, after, &mut out)
}

/// The lines of changes.
struct Out<'a, 'b> {
    sink: &'a mut Sink<'b>,
    tables: &'a mut Tables,
}

impl Out<'_, '_> {
    fn set(&mut self, line: Line) -> io::Result<()> {
        (self.sink)(Line::Changes(Box::new(Change::Set(line))))
    }

    fn removed(&mut self, removed: Removed) -> io::Result<()> {
        (self.sink)(Line::Changes(Box::new(Change::Remove(removed))))
    }

    fn introduce(&mut self, pod: &Arc<Pod>) -> io::Result<()> {
        let sink = &mut *self.sink;
        let mut set = |line| sink(Line::Changes(Box::new(Change::Set(line))));
        self.tables.introduce(pod, &mut set)
    }

    /// Passes on which objects of a kind are gone, and which are new or have another address.
    fn kind<'a, K: Ord, T: ?Sized + 'a>(
        &mut self,
        before: impl Iterator<Item = (K, &'a T)>,
        after: impl Iterator<Item = (K, &'a T)>,
        removed: impl Fn(K) -> Removed,
        set: impl Fn(&K, &'a T) -> Line,
    ) -> io::Result<()> {
        let before: BTreeMap<K, &T> = before.collect();
        let after: BTreeMap<K, &T> = after.collect();
        for (key, object) in &after {
            let was = before.get(key);
            if was.is_none_or(|was| !std::ptr::addr_eq(*was, *object)) {
                self.set(set(key, object))?;
            }
        }
        let gone = before
            .into_iter()
            .filter(|(key, _)| !after.contains_key(key));
        gone.map(|(key, _)| removed(key))
            .try_for_each(|gone| self.removed(gone))
    }
}

fn name_of(pod: &Pod) -> (&str, &str) {
    (&pod.key.namespace, &pod.key.name)
}

fn pods(before: &Snapshot, after: &Snapshot, out: &mut Out<'_, '_>) -> io::Result<()> {
    let missing = |pod: &&Arc<Pod>| {
        let (namespace, name) = name_of(pod);
        after.pod(namespace, name).is_none()
    };
    let gone: BTreeSet<_> = before
        .pods()
        .filter(missing)
        .map(|it| name_of(it))
        .collect();
    for (namespace, name) in gone {
        out.removed(Removed::Pod(namespace.to_owned(), name.to_owned()))?;
    }
    let changed = after.pods().filter(|pod| {
        let (namespace, name) = name_of(pod);
        let was = before.pod(namespace, name);
        was.is_none_or(|was| !Arc::ptr_eq(was, pod))
    });
    let changed: BTreeMap<_, _> = changed.map(|pod| (name_of(pod), pod)).collect();
    for pod in changed.into_values() {
        out.introduce(pod)?;
        let row = out.tables.row(pod);
        out.set(Line::Pods(Box::new(row)))?;
    }
    Ok(())
}

/// Returns an object with its name.
macro_rules! by_name {
    ($objects:expr) => {
        $objects.map(|it| (it.metadata.name.as_deref().unwrap_or_default(), &**it))
    };
}

/// Returns an object with its namespace and name.
macro_rules! by_namespace {
    ($objects:expr) => {
        $objects.map(|it| {
            let meta = &it.metadata;
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            ((namespace, meta.name.as_deref().unwrap_or_default()), &**it)
        })
    };
}

/// The namespace and the name of an object.
type Key<'a> = (&'a str, &'a str);

fn owned((namespace, name): Key<'_>) -> (String, String) {
    (namespace.to_owned(), name.to_owned())
}

/// Makes the constructor of a removal take a [`Key`].
fn namespaced(removed: fn(String, String) -> Removed) -> impl Fn(Key<'_>) -> Removed {
    move |key| {
        let (namespace, name) = owned(key);
        removed(namespace, name)
    }
}

/// Makes the constructor of a removal take a name.
fn named(removed: fn(String) -> Removed) -> impl Fn(&str) -> Removed {
    move |name| removed(name.to_owned())
}

fn nodes(before: &Snapshot, after: &Snapshot, out: &mut Out<'_, '_>) -> io::Result<()> {
    out.kind(
        by_name!(before.node_objects()),
        by_name!(after.node_objects()),
        named(Removed::Node),
        |_, node| Line::Nodes(Box::new(objects::node(node))),
    )?;
    out.kind(
        by_name!(before.node_claims()),
        by_name!(after.node_claims()),
        named(Removed::NodeClaim),
        |_, claim| Line::NodeClaims(Box::new(objects::node_claim(claim))),
    )
}

fn pools(before: &Snapshot, after: &Snapshot, out: &mut Out<'_, '_>) -> io::Result<()> {
    out.kind(
        by_name!(before.node_pools()),
        by_name!(after.node_pools()),
        named(Removed::NodePool),
        |_, pool| Line::NodePools(Box::new(objects::node_pool(pool))),
    )?;
    out.kind(
        by_name!(before.node_overlays()),
        by_name!(after.node_overlays()),
        named(Removed::NodeOverlay),
        |_, overlay| Line::Overlays(Box::new(objects::node_overlay(overlay))),
    )?;
    for pool in before.instance_type_pools() {
        if after.instance_types(pool).is_none() {
            out.removed(Removed::InstanceTypes(pool.to_owned()))?;
        }
    }
    for pool in after.instance_type_pools() {
        let Some(types) = after.instance_types(pool) else {
            continue;
        };
        let same = match (before.instance_types(pool), types) {
            (Some(Ok(was)), Ok(is)) => Arc::ptr_eq(was, is),
            (Some(Err(was)), Err(is)) => was == is,
            _ => false,
        };
        if !same {
            let sink = &mut *out.sink;
            let mut set = |line| sink(Line::Changes(Box::new(Change::Set(line))));
            let row = out.tables.pool_types(pool, types, &mut set)?;
            out.set(Line::Catalogue(row))?;
        }
    }
    Ok(())
}

fn daemon_sets(before: &Snapshot, after: &Snapshot, out: &mut Out<'_, '_>) -> io::Result<()> {
    let all = |snapshot: &Snapshot| -> BTreeMap<(String, String), _> {
        let sets = snapshot.daemon_sets();
        let sets = sets.map(|(set, newest)| {
            let key = (set.namespace.clone(), set.name.clone());
            (key, (Arc::clone(set), newest.cloned()))
        });
        sets.collect()
    };
    let (before, after) = (all(before), all(after));
    for (namespace, name) in before.keys().filter(|key| !after.contains_key(*key)) {
        out.removed(Removed::DaemonSet(namespace.clone(), name.clone()))?;
    }
    for (key, (set, newest)) in &after {
        let same = before.get(key).is_some_and(|(was, old)| {
            let address = |pod: &Option<Arc<Pod>>| pod.as_ref().map(Arc::as_ptr);
            Arc::ptr_eq(was, set) && address(old) == address(newest)
        });
        if !same {
            for pod in std::iter::once(&set.template).chain(newest) {
                out.introduce(pod)?;
            }
            let row = daemon_set(set, newest.as_deref(), out.tables);
            out.set(Line::DaemonSets(Box::new(row)))?;
        }
    }
    Ok(())
}

fn selectors(before: &Snapshot, after: &Snapshot, out: &mut Out<'_, '_>) -> io::Result<()> {
    let services = |(namespace, name, selector)| ((namespace, name), selector);
    out.kind(
        before.all_service_selectors().map(services),
        after.all_service_selectors().map(services),
        namespaced(Removed::Service),
        |key, selector| {
            let (namespace, name) = owned(*key);
            let selector = Option::clone(selector);
            Line::Selectors(Selector::Service {
                namespace,
                name,
                selector,
            })
        },
    )?;
    let controllers = |(kind, namespace, name, selector)| ((kind, namespace, name), selector);
    out.kind(
        before.controller_selectors().map(controllers),
        after.controller_selectors().map(controllers),
        |(kind, namespace, name)| {
            let (namespace, name) = owned((namespace, name));
            Removed::Controller(kind.to_owned(), namespace, name)
        },
        |(kind, namespace, name), selector| {
            Line::Selectors(Selector::Controller {
                kind: (*kind).to_owned(),
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
                selector: Clone::clone(selector),
            })
        },
    )?;
    out.kind(
        before.namespaces().map(|(name, it)| (name.as_str(), it)),
        after.namespaces().map(|(name, it)| (name.as_str(), it)),
        named(Removed::Namespace),
        |name, labels| {
            Line::Selectors(Selector::Namespace {
                name: (*name).to_owned(),
                labels: labels.clone(),
            })
        },
    )
}

fn storage(before: &Snapshot, after: &Snapshot, out: &mut Out<'_, '_>) -> io::Result<()> {
    out.kind(
        (before.volume_claims()).map(|it| ((it.namespace.as_str(), it.name.as_str()), it)),
        (after.volume_claims()).map(|it| ((it.namespace.as_str(), it.name.as_str()), it)),
        namespaced(Removed::VolumeClaim),
        |_, claim| Line::Storage(Storage::Claim(claim.clone())),
    )?;
    out.kind(
        before.volumes().map(|it| (it.name.as_str(), it)),
        after.volumes().map(|it| (it.name.as_str(), it)),
        named(Removed::Volume),
        |_, volume| Line::Storage(Storage::Volume(volume.clone())),
    )?;
    out.kind(
        before.storage_classes().map(|it| (it.name.as_str(), it)),
        after.storage_classes().map(|it| (it.name.as_str(), it)),
        named(Removed::StorageClass),
        |_, class| Line::Storage(Storage::Class(class.clone())),
    )?;
    out.kind(
        before.all_attach_limits(),
        after.all_attach_limits(),
        named(Removed::AttachLimits),
        |node, drivers| {
            Line::Storage(Storage::AttachLimits {
                node: (*node).to_owned(),
                drivers: drivers.clone(),
            })
        },
    )?;
    out.kind(
        before.volume_attachments().map(|it| (it.name.as_str(), it)),
        after.volume_attachments().map(|it| (it.name.as_str(), it)),
        named(Removed::VolumeAttachment),
        |_, attachment| Line::Storage(Storage::Attachment(attachment.clone())),
    )
}

fn devices(before: &Snapshot, after: &Snapshot, out: &mut Out<'_, '_>) -> io::Result<()> {
    let line = |device| Line::Devices(Box::new(device));
    out.kind(
        by_name!(before.resource_slices()),
        by_name!(after.resource_slices()),
        named(Removed::ResourceSlice),
        |_, slice| line(Devices::Slice(objects::resource_slice(slice))),
    )?;
    out.kind(
        by_namespace!(before.resource_claims()),
        by_namespace!(after.resource_claims()),
        namespaced(Removed::ResourceClaim),
        |_, claim| line(Devices::Claim(objects::resource_claim(claim))),
    )?;
    out.kind(
        by_name!(before.device_classes()),
        by_name!(after.device_classes()),
        named(Removed::DeviceClass),
        |_, class| line(Devices::Class(objects::device_class(class))),
    )?;
    out.kind(
        by_namespace!(before.pdbs()),
        by_namespace!(after.pdbs()),
        namespaced(Removed::Pdb),
        |_, budget| Line::Pdbs(Box::new(objects::pdb(budget))),
    )
}

/// Marks come last: they are those of nodes that exist by then.
fn marks(before: &Snapshot, after: &Snapshot, out: &mut Out<'_, '_>) -> io::Result<()> {
    let of = |snapshot: &Snapshot| -> BTreeMap<(bool, String), MarksRow> {
        let all = snapshot.marks();
        all.map(|marks| ((marks.claim, marks.name.clone()), MarksRow::from(marks)))
            .collect()
    };
    let (before, after) = (of(before), of(after));
    for (claim, name) in before.keys() {
        if !after.contains_key(&(*claim, name.clone())) {
            out.set(Line::Marks(MarksRow {
                claim: *claim,
                name: name.clone(),
                for_deletion: false,
                nominated_until: None,
            }))?;
        }
    }
    for (key, row) in after {
        if before.get(&key) != Some(&row) {
            out.set(Line::Marks(row))?;
        }
    }
    Ok(())
}

/// Removes an object from a cluster.
pub(super) fn remove(cluster: &mut Cluster, removed: &Removed) {
    match removed {
        Removed::Pod(namespace, name) => drop(cluster.remove_pod(namespace, name)),
        Removed::Node(name) => drop(cluster.remove_node(name)),
        Removed::NodeClaim(name) => drop(cluster.remove_node_claim(name)),
        Removed::NodePool(name) => drop(cluster.remove_node_pool(name)),
        Removed::NodeOverlay(name) => drop(cluster.remove_node_overlay(name)),
        Removed::InstanceTypes(pool) => cluster.forget_instance_types(pool),
        Removed::DaemonSet(namespace, name) => drop(cluster.remove_daemon_set(namespace, name)),
        Removed::Pdb(namespace, name) => drop(cluster.remove_pdb(namespace, name)),
        Removed::Service(namespace, name) => drop(cluster.remove_service(namespace, name)),
        Removed::Controller(kind, namespace, name) => match kind.as_str() {
            "ReplicaSet" => drop(cluster.remove_replica_set(namespace, name)),
            "StatefulSet" => drop(cluster.remove_stateful_set(namespace, name)),
            _ => drop(cluster.remove_replication_controller(namespace, name)),
        },
        Removed::Namespace(name) => drop(cluster.remove_namespace(name)),
        Removed::VolumeClaim(namespace, name) => {
            drop(cluster.remove_volume_claim(namespace, name));
        }
        Removed::Volume(name) => drop(cluster.remove_volume(name)),
        Removed::StorageClass(name) => drop(cluster.remove_storage_class(name)),
        Removed::AttachLimits(node) => drop(cluster.remove_csi_node(node)),
        Removed::VolumeAttachment(name) => drop(cluster.remove_volume_attachment(name)),
        Removed::ResourceSlice(name) => drop(cluster.remove_resource_slice(name)),
        Removed::ResourceClaim(namespace, name) => {
            drop(cluster.remove_resource_claim(namespace, name));
        }
        Removed::DeviceClass(name) => drop(cluster.remove_device_class(name)),
    }
}
