//! What changed between two snapshots of a cluster, as lines.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use karpenter_core::cluster::{Marks, Snapshot};
use karpenter_core::pod::Pod;

use super::kinds::{self, Kind};
use super::out::Out;
use super::rows::{Line, Removed};

/// Passes on what leads from one snapshot to another of the same cluster. Objects are compared by address: what the model did not
/// replace has not changed.
pub(super) fn between(
    before: &Snapshot,
    after: &Snapshot,
    out: &mut Out<'_, '_>,
) -> io::Result<()> {
    pods(before, after, out)?;
    kinds::between(before, after, out)?;
    instance_types(before, after, out)?;
    daemon_sets(before, after, out)?;
    marks(before, after, out)
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
        out.line(Removed::line(Kind::Pods, namespace, name))?;
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

fn instance_types(before: &Snapshot, after: &Snapshot, out: &mut Out<'_, '_>) -> io::Result<()> {
    for pool in before.instance_type_pools() {
        if after.instance_types(pool).is_none() {
            out.line(Removed::line(Kind::InstanceTypes, "", pool))?;
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
        out.line(Removed::line(Kind::DaemonSets, namespace, name))?;
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
            out.line(Line::Marks(Marks {
                for_deletion: false,
                nominated_until: None,
                ..marks.clone()
            }))?;
        }
    }
    for (key, marks) in after {
        if before.get(&key) != Some(&marks) {
            out.line(Line::Marks(marks))?;
        }
    }
    Ok(())
}
