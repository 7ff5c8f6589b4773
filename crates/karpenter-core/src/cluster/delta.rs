//! What an update changed.

use std::borrow::Borrow;
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;

/// An object before and after an update of the model.
///
/// An update that changed nothing has the stored version on both sides, or `None` if there is no such object.
///
/// ```
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use serde_json::json;
///
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// let namespace = serde_json::from_value(json!({ "metadata": { "name": "shop", "labels": { "team": "a" } } }))?;
/// let added = cluster.apply_namespace(&namespace);
/// assert!(added.before.is_none() && added.after.is_some());
/// assert!(!cluster.apply_namespace(&namespace).is_change());
///
/// let removed = cluster.remove_namespace("shop");
/// assert_eq!(removed.before, added.after);
/// assert!(removed.after.is_none());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug)]
pub struct Delta<T: ?Sized> {
    /// The version before the update; `None` if the object was added.
    pub before: Option<Arc<T>>,
    /// The version after the update; `None` if the object was removed.
    pub after: Option<Arc<T>>,
}

impl<T: ?Sized> Clone for Delta<T> {
    fn clone(&self) -> Self {
        Self {
            before: self.before.clone(),
            after: self.after.clone(),
        }
    }
}

impl<T: ?Sized> Delta<T> {
    /// Returns the delta of an update that changed nothing.
    pub(super) fn unchanged(stored: Option<Arc<T>>) -> Self {
        Self {
            before: stored.clone(),
            after: stored,
        }
    }

    /// Returns the delta of the removal of `stored`.
    pub(super) fn removed(stored: Option<Arc<T>>) -> Self {
        Self {
            before: stored,
            after: None,
        }
    }

    /// Reports whether the update changed the model. O(1): both sides of an update without effect are the same `Arc`.
    pub fn is_change(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
            (None, None) => false,
            _ => true,
        }
    }
}

/// Stores `new`, unless the stored version is equal.
pub(super) fn store<K: Ord, T: PartialEq>(
    map: &mut RedBlackTreeMapSync<K, Arc<T>>,
    key: K,
    new: T,
) -> Delta<T> {
    let before = map.get(&key);
    if before.is_some_and(|stored| **stored == new) {
        return Delta::unchanged(before.cloned());
    }
    let (before, after) = (before.cloned(), Arc::new(new));
    map.insert_mut(key, after.clone());
    Delta {
        before,
        after: Some(after),
    }
}

/// Removes what is stored under `key`.
pub(super) fn take<K, Q, T>(map: &mut RedBlackTreeMapSync<K, Arc<T>>, key: &Q) -> Delta<T>
where
    K: Borrow<Q> + Ord,
    Q: Ord + ?Sized,
{
    let before = map.get(key).cloned();
    if before.is_some() {
        map.remove_mut(key);
    }
    Delta::removed(before)
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{Cluster, ClusterConfig};

    /// Applies and removes two versions of an object of kind `K`, of which the model stores `T`; `counted` says whether
    /// [`Snapshot::epoch`](crate::cluster::Snapshot::epoch) counts the changes.
    fn check<K: DeserializeOwned, T: PartialEq + Debug>(
        counted: bool,
        apply: fn(&mut Cluster, &K) -> Delta<T>,
        remove: fn(&mut Cluster) -> Delta<T>,
        stored: fn(&K) -> T,
        versions: [Value; 2],
    ) {
        let kind = std::any::type_name::<K>();
        let [first, second] = versions.map(|mut version| {
            version["metadata"]["name"] = json!("a");
            version["metadata"]["namespace"] = json!("n");
            serde_json::from_value::<K>(version).unwrap()
        });
        let (one, two) = (stored(&first), stored(&second));
        assert_ne!(one, two, "{kind}: the versions must differ");
        let mut cluster = Cluster::new(ClusterConfig::default());
        let mut epoch = cluster.snapshot().epoch();
        let mut expect = |cluster: &Cluster, delta: Delta<T>, before, after, change: bool| {
            assert_eq!(delta.before.as_deref(), before, "{kind}: before");
            assert_eq!(delta.after.as_deref(), after, "{kind}: after");
            assert_eq!(delta.is_change(), change, "{kind}: is_change");
            let now = cluster.snapshot().epoch();
            assert_eq!(now > epoch, change && counted, "{kind}: epoch");
            epoch = now;
        };
        let delta = apply(&mut cluster, &first);
        expect(&cluster, delta, None, Some(&one), true);
        let delta = apply(&mut cluster, &first);
        expect(&cluster, delta, Some(&one), Some(&one), false);
        let delta = apply(&mut cluster, &second);
        expect(&cluster, delta, Some(&one), Some(&two), true);
        let delta = remove(&mut cluster);
        expect(&cluster, delta, Some(&two), None, true);
        let delta = remove(&mut cluster);
        expect(&cluster, delta, None, None, false);
    }

    /// Checks kinds: the method that applies an object, the one that removes it, what is stored of it, and two versions.
    macro_rules! check {
        ($($apply:ident, $remove:ident($($name:literal),+), $stored:expr, $versions:expr;)*) => {$(
            check(true, Cluster::$apply, |cluster| cluster.$remove($($name),+), $stored, $versions);
        )*};
    }

    #[test]
    fn every_update_returns_the_versions_before_and_after_it() {
        use karpenter_api::v1::NodeClaim;

        use super::super::*;
        use crate::pod::Pod;

        let of_spec = |spec: Value| json!({ "spec": spec });
        let labeled = |team: &str| json!({ "metadata": { "labels": { "team": team } } });
        let selecting = |app: &str| of_spec(json!({ "selector": { "app": app } }));
        let matching = |team: &str| {
            let selector = json!({ "matchLabels": { "team": team } });
            of_spec(json!({ "selector": selector, "serviceName": "s", "template": {} }))
        };
        let identified = |uid: &str| json!({ "metadata": { "uid": uid }, "spec": {} });
        let class = json!({ "group": "g", "kind": "K", "name": "c" });
        check! {
            apply_pod, remove_pod("n", "a"), Pod::parse, ["1", "2"].map(|cpu| {
                of_spec(json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] }))
            });
            apply_node, remove_node("a"), corev1::Node::clone, ["1", "2"].map(labeled);
            apply_node_claim, remove_node_claim("a"), NodeClaim::clone, ["", "x://a"].map(|id| {
                json!({ "spec": { "nodeClassRef": class, "requirements": [] }, "status": { "providerID": id } })
            });
            apply_node_pool, remove_node_pool("a"), NodePool::clone, [1, 2].map(|weight| {
                let template = json!({ "spec": { "nodeClassRef": class, "requirements": [] } });
                of_spec(json!({ "weight": weight, "template": template }))
            });
            apply_node_overlay, remove_node_overlay("a"), NodeOverlay::clone, ["1", "2"].map(|price| {
                of_spec(json!({ "price": price, "requirements": [] }))
            });
            apply_daemon_set, remove_daemon_set("n", "a"), DaemonSet::parse, ["1", "2"].map(|uid| {
                json!({ "metadata": { "uid": uid } })
            });
            apply_pdb, remove_pdb("n", "a"), PodDisruptionBudget::clone, [1, 2].map(|min| {
                of_spec(json!({ "minAvailable": min }))
            });
            apply_service, remove_service("n", "a"), workload::service_selector, ["1", "2"].map(selecting);
            apply_replica_set, remove_replica_set("n", "a"), workload::replica_set_selector, ["1", "2"].map(matching);
            apply_stateful_set, remove_stateful_set("n", "a"), workload::stateful_set_selector, ["1", "2"].map(matching);
            apply_replication_controller, remove_replication_controller("n", "a"),
                workload::replication_controller_selector, ["1", "2"].map(selecting);
            apply_namespace, remove_namespace("a"), workload::namespace_labels, ["1", "2"].map(labeled);
            apply_volume_claim, remove_volume_claim("n", "a"), VolumeClaim::parse, ["1", "2"].map(|volume| {
                of_spec(json!({ "volumeName": volume }))
            });
            apply_volume, remove_volume("a"), Volume::parse, ["1", "2"].map(|driver| {
                of_spec(json!({ "csi": { "driver": driver, "volumeHandle": "v" } }))
            });
            apply_storage_class, remove_storage_class("a"), StorageClass::parse, ["1", "2"].map(|driver| {
                json!({ "provisioner": driver })
            });
            apply_csi_node, remove_csi_node("a"), storage::attach_limits, [1, 2].map(|count| {
                of_spec(json!({ "drivers": [{ "name": "d", "nodeID": "i", "allocatable": { "count": count } }] }))
            });
            apply_resource_slice, remove_resource_slice("a"), ResourceSlice::clone, [1, 2].map(|generation| {
                let pool = json!({ "name": "p", "generation": generation, "resourceSliceCount": 1 });
                of_spec(json!({ "driver": "d", "pool": pool }))
            });
            apply_resource_claim, remove_resource_claim("n", "a"), ResourceClaim::clone, ["1", "2"].map(identified);
            apply_device_class, remove_device_class("a"), DeviceClass::clone, ["1", "2"].map(identified);
        }
        check(
            false,
            Cluster::apply_volume_attachment,
            |cluster| cluster.remove_volume_attachment("a"),
            VolumeAttachment::parse,
            ["1", "2"]
                .map(|node| of_spec(json!({ "attacher": "d", "nodeName": node, "source": {} }))),
        );
    }

    #[test]
    fn the_version_after_an_update_is_the_one_in_the_snapshot() {
        let mut cluster = Cluster::new(ClusterConfig::default());
        let namespaced = json!({ "metadata": { "name": "a", "namespace": "n" } });
        let pod = cluster.apply_pod(&serde_json::from_value(namespaced).unwrap());
        let snapshot = cluster.snapshot();
        let stored = snapshot.pod("n", "a").unwrap();
        assert!(Arc::ptr_eq(&pod.after.unwrap(), stored));
        let claim = json!({
            "metadata": { "name": "a" },
            "spec": { "nodeClassRef": { "group": "g", "kind": "K", "name": "c" }, "requirements": [] },
        });
        let claim = cluster.apply_node_claim(&serde_json::from_value(claim).unwrap());
        let snapshot = cluster.snapshot();
        let stored = snapshot.node_claim("a").unwrap();
        assert!(Arc::ptr_eq(&claim.after.unwrap(), stored));
    }
}
