//! What changed between two snapshots of a cluster, as lines.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use karpenter_core::cluster::{Marks, Snapshot};
use karpenter_core::pod::Pod;

use super::objects;
use super::rows::{Devices, Line, MarksRow, Removed, Selector, Storage};
use super::write::Out;

/// Passes on what leads from one snapshot to another of the same cluster. Objects are compared by address: what the model did not
/// replace has not changed.
pub(super) fn between(
    before: &Snapshot,
    after: &Snapshot,
    out: &mut Out<'_, '_>,
) -> io::Result<()> {
    pods(before, after, out)?;
    nodes(before, after, out)?;
    pools(before, after, out)?;
    daemon_sets(before, after, out)?;
    selectors(before, after, out)?;
    storage(before, after, out)?;
    devices(before, after, out)?;
    marks(before, after, out)
}

impl Out<'_, '_> {
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
                self.line(set(key, object))?;
            }
        }
        let gone = before
            .into_iter()
            .filter(|(key, _)| !after.contains_key(key));
        gone.map(|(key, _)| removed(key))
            .try_for_each(|gone| self.line(Line::Removed(gone)))
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
        out.line(Line::Removed(Removed::Pod(
            namespace.to_owned(),
            name.to_owned(),
        )))?;
    }
    let changed = after.pods().filter(|pod| {
        let (namespace, name) = name_of(pod);
        let was = before.pod(namespace, name);
        was.is_none_or(|was| !Arc::ptr_eq(was, pod))
    });
    let changed: BTreeMap<_, _> = changed.map(|pod| (name_of(pod), pod)).collect();
    for pod in changed.into_values() {
        let row = out.pod(pod)?;
        out.line(Line::Pods(Box::new(row)))?;
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
            out.line(Line::Removed(Removed::InstanceTypes(pool.to_owned())))?;
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
            let row = out.pool_types(pool, types)?;
            out.line(Line::Catalogue(row))?;
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
        out.line(Line::Removed(Removed::DaemonSet(
            namespace.clone(),
            name.clone(),
        )))?;
    }
    for (key, (set, newest)) in &after {
        let same = before.get(key).is_some_and(|(was, old)| {
            let address = |pod: &Option<Arc<Pod>>| pod.as_ref().map(Arc::as_ptr);
            Arc::ptr_eq(was, set) && address(old) == address(newest)
        });
        if !same {
            let row = out.daemon_set(set, newest.as_deref())?;
            out.line(Line::DaemonSets(Box::new(row)))?;
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
    let of = |snapshot: &Snapshot| -> BTreeMap<(bool, String), Marks> {
        let all = snapshot.marks();
        all.map(|marks| ((marks.claim, marks.name.clone()), marks))
            .collect()
    };
    let (before, after) = (of(before), of(after));
    for (key, marks) in &before {
        if !after.contains_key(key) {
            out.line(Line::Marks(MarksRow(Marks {
                for_deletion: false,
                nominated_until: None,
                ..marks.clone()
            })))?;
        }
    }
    for (key, marks) in after {
        if before.get(&key) != Some(&marks) {
            out.line(Line::Marks(MarksRow(marks)))?;
        }
    }
    Ok(())
}
