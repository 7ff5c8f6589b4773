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

    /// Applies and removes two versions of an object of kind `K`, of which the model stores `T`.
    struct Case<K, T> {
        apply: fn(&mut Cluster, &K) -> Delta<T>,
        remove: fn(&mut Cluster) -> Delta<T>,
        /// What the model stores of an object.
        stored: fn(&K) -> T,
        /// Two versions, with name `a` in namespace `n`.
        versions: [Value; 2],
    }

    impl<K: DeserializeOwned, T: PartialEq + Debug> Case<K, T> {
        fn check(self) {
            self.check_counting(true);
        }

        /// Checks a kind that [`Snapshot::epoch`] does not count.
        ///
        /// [`Snapshot::epoch`]: crate::cluster::Snapshot::epoch
        fn check_uncounted(self) {
            self.check_counting(false);
        }

        fn check_counting(self, counted: bool) {
            let kind = std::any::type_name::<K>();
            let [first, second] = self.versions.map(|mut version| {
                version["metadata"]["name"] = json!("a");
                version["metadata"]["namespace"] = json!("n");
                serde_json::from_value::<K>(version).unwrap()
            });
            let (one, two) = ((self.stored)(&first), (self.stored)(&second));
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
            let delta = (self.apply)(&mut cluster, &first);
            expect(&cluster, delta, None, Some(&one), true);
            let delta = (self.apply)(&mut cluster, &first);
            expect(&cluster, delta, Some(&one), Some(&one), false);
            let delta = (self.apply)(&mut cluster, &second);
            expect(&cluster, delta, Some(&one), Some(&two), true);
            let delta = (self.remove)(&mut cluster);
            expect(&cluster, delta, Some(&two), None, true);
            let delta = (self.remove)(&mut cluster);
            expect(&cluster, delta, None, None, false);
        }
    }

    #[test]
    fn every_update_returns_the_versions_before_and_after_it() {
        use super::super::*;
        let labeled = |team: &str| json!({ "metadata": { "labels": { "team": team } } });
        let selecting = |team: &str| json!({ "spec": { "selector": { "matchLabels": { "team": team } }, "serviceName": "s", "template": {} } });
        let class = json!({ "group": "g", "kind": "K", "name": "c" });
        Case {
            apply: Cluster::apply_pod,
            remove: |cluster| cluster.remove_pod("n", "a"),
            stored: Pod::parse,
            versions: ["1", "2"].map(|cpu| {
                json!({ "metadata": {}, "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] } })
            }),
        }
        .check();
        Case {
            apply: Cluster::apply_node,
            remove: |cluster| cluster.remove_node("a"),
            stored: corev1::Node::clone,
            versions: ["1", "2"].map(labeled),
        }
        .check();
        Case {
            apply: Cluster::apply_node_claim,
            remove: |cluster| cluster.remove_node_claim("a"),
            stored: NodeClaim::clone,
            versions: ["", "x://a"].map(|id| {
                json!({ "metadata": {}, "spec": { "nodeClassRef": class, "requirements": [] }, "status": { "providerID": id } })
            }),
        }
        .check();
        Case {
            apply: Cluster::apply_node_pool,
            remove: |cluster| cluster.remove_node_pool("a"),
            stored: NodePool::clone,
            versions: [1, 2].map(|weight| {
                json!({ "metadata": {}, "spec": { "weight": weight, "template": { "spec": { "nodeClassRef": class, "requirements": [] } } } })
            }),
        }
        .check();
        Case {
            apply: Cluster::apply_node_overlay,
            remove: |cluster| cluster.remove_node_overlay("a"),
            stored: NodeOverlay::clone,
            versions: ["1", "2"].map(
                |price| json!({ "metadata": {}, "spec": { "price": price, "requirements": [] } }),
            ),
        }
        .check();
        Case {
            apply: Cluster::apply_daemon_set,
            remove: |cluster| cluster.remove_daemon_set("n", "a"),
            stored: DaemonSet::parse,
            versions: ["1", "2"].map(|uid| json!({ "metadata": { "uid": uid } })),
        }
        .check();
        Case {
            apply: Cluster::apply_pdb,
            remove: |cluster| cluster.remove_pdb("n", "a"),
            stored: PodDisruptionBudget::clone,
            versions: [1, 2].map(|min| json!({ "metadata": {}, "spec": { "minAvailable": min } })),
        }
        .check();
        Case {
            apply: Cluster::apply_service,
            remove: |cluster| cluster.remove_service("n", "a"),
            stored: workload::service_selector,
            versions: ["1", "2"]
                .map(|app| json!({ "metadata": {}, "spec": { "selector": { "app": app } } })),
        }
        .check();
        Case {
            apply: Cluster::apply_replica_set,
            remove: |cluster| cluster.remove_replica_set("n", "a"),
            stored: workload::replica_set_selector,
            versions: ["1", "2"].map(selecting),
        }
        .check();
        Case {
            apply: Cluster::apply_stateful_set,
            remove: |cluster| cluster.remove_stateful_set("n", "a"),
            stored: workload::stateful_set_selector,
            versions: ["1", "2"].map(selecting),
        }
        .check();
        Case {
            apply: Cluster::apply_replication_controller,
            remove: |cluster| cluster.remove_replication_controller("n", "a"),
            stored: workload::replication_controller_selector,
            versions: ["1", "2"]
                .map(|app| json!({ "metadata": {}, "spec": { "selector": { "app": app } } })),
        }
        .check();
        Case {
            apply: Cluster::apply_namespace,
            remove: |cluster| cluster.remove_namespace("a"),
            stored: workload::namespace_labels,
            versions: ["1", "2"].map(labeled),
        }
        .check();
        Case {
            apply: Cluster::apply_volume_claim,
            remove: |cluster| cluster.remove_volume_claim("n", "a"),
            stored: VolumeClaim::parse,
            versions: ["1", "2"]
                .map(|volume| json!({ "metadata": {}, "spec": { "volumeName": volume } })),
        }
        .check();
        Case {
            apply: Cluster::apply_volume,
            remove: |cluster| cluster.remove_volume("a"),
            stored: Volume::parse,
            versions: ["1", "2"].map(|driver| {
                json!({ "metadata": {}, "spec": { "csi": { "driver": driver, "volumeHandle": "v" } } })
            }),
        }
        .check();
        Case {
            apply: Cluster::apply_storage_class,
            remove: |cluster| cluster.remove_storage_class("a"),
            stored: StorageClass::parse,
            versions: ["1", "2"].map(|driver| json!({ "metadata": {}, "provisioner": driver })),
        }
        .check();
        Case {
            apply: Cluster::apply_csi_node,
            remove: |cluster| cluster.remove_csi_node("a"),
            stored: storage::attach_limits,
            versions: [1, 2].map(|count| {
                let driver =
                    json!({ "name": "d", "nodeID": "i", "allocatable": { "count": count } });
                json!({ "metadata": {}, "spec": { "drivers": [driver] } })
            }),
        }
        .check();
        Case {
            apply: Cluster::apply_volume_attachment,
            remove: |cluster| cluster.remove_volume_attachment("a"),
            stored: VolumeAttachment::parse,
            versions: ["1", "2"].map(|node| {
                json!({ "metadata": {}, "spec": { "attacher": "d", "nodeName": node, "source": {} } })
            }),
        }
        .check_uncounted();
        Case {
            apply: Cluster::apply_resource_slice,
            remove: |cluster| cluster.remove_resource_slice("a"),
            stored: ResourceSlice::clone,
            versions: [1, 2].map(|generation| {
                let pool =
                    json!({ "name": "p", "generation": generation, "resourceSliceCount": 1 });
                json!({ "metadata": {}, "spec": { "driver": "d", "pool": pool } })
            }),
        }
        .check();
        Case {
            apply: Cluster::apply_resource_claim,
            remove: |cluster| cluster.remove_resource_claim("n", "a"),
            stored: ResourceClaim::clone,
            versions: ["1", "2"].map(|uid| json!({ "metadata": { "uid": uid }, "spec": {} })),
        }
        .check();
        Case {
            apply: Cluster::apply_device_class,
            remove: |cluster| cluster.remove_device_class("a"),
            stored: DeviceClass::clone,
            versions: ["1", "2"].map(|uid| json!({ "metadata": { "uid": uid }, "spec": {} })),
        }
        .check();
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
