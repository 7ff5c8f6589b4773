//! An immutable view of the cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use jiff::{SignedDuration, Timestamp};
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use karpenter_api::v1::NodePool;
use karpenter_api::v1alpha1::NodeOverlay;

use super::index::named;
use super::state::State;
use super::{
    ClusterConfig, ControllerSelector, Labels, NodePods, NodeState, StorageClass, Volume,
    VolumeAttachment, VolumeClaim,
};
use crate::instance_type::InstanceType;
use crate::pod::{Pod, UnixSecond};

/// The cluster at one moment. Immutable; cloning is O(1).
///
/// ```
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use serde_json::json;
///
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// for name in ["one", "two"] {
///     cluster.apply_node(&serde_json::from_value(json!({ "metadata": { "name": name } }))?);
/// }
/// let snapshot = cluster.snapshot();
///
/// // Later changes are not visible in it.
/// cluster.remove_node("two");
/// assert_eq!(snapshot.nodes().count(), 2);
///
/// // A copy without a node; it shares all other data.
/// assert_eq!(snapshot.without(&["one"]).nodes().count(), 1);
///
/// // For other simulations, create a cluster from a fork.
/// let mut simulated = Cluster::from(snapshot.fork());
/// simulated.apply_node(&serde_json::from_value(json!({ "metadata": { "name": "three" } }))?);
/// assert_eq!(simulated.snapshot().nodes().count(), 3);
/// assert_eq!(snapshot.nodes().count(), 2);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) state: State,
    /// The nodes with their pods, in the order of [`Self::nodes`], once a pass over all nodes has asked for them.
    table: Arc<OnceLock<Box<[TableRow]>>>,
}

/// A node and the pods bound to its name.
#[derive(Clone, Debug)]
pub(crate) struct TableRow {
    pub(crate) state: Arc<NodeState>,
    pub(crate) pods: Option<Arc<NodePods>>,
}

impl Snapshot {
    pub(super) fn new(state: State) -> Self {
        Self {
            state,
            table: Arc::default(),
        }
    }

    /// Returns the nodes in the order of [`Self::nodes`], with their pods. The first call reads the maps of the model; every later
    /// one reads memory in order, so that a pass can look at all nodes repeatedly.
    pub(crate) fn node_table(&self) -> &[TableRow] {
        self.table.get_or_init(|| {
            let mut rows = Vec::with_capacity(self.state.nodes.len());
            let mut bound = self.bound_pods().peekable();
            for state in self.state.nodes.iter() {
                let name = state.name();
                // Both are in the order of names, until NodeClaims follow.
                let pods = match state.node.is_some() {
                    true => {
                        while bound.next_if(|(other, _)| ***other < *name).is_some() {}
                        bound
                            .next_if(|(other, _)| ***other == *name)
                            .map(|(_, pods)| pods)
                    }
                    false => self.node_pods(name),
                };
                rows.push(TableRow {
                    pods: pods.cloned(),
                    state: state.clone(),
                });
            }
            rows.into()
        })
    }

    /// Returns a copy whose state can be changed.
    fn unshared(&self) -> Self {
        Self::new(self.state.clone())
    }

    pub(super) fn into_state(self) -> State {
        self.state
    }

    /// Returns a copy for simulations. O(1).
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Reports whether both snapshots are of clusters with the same configuration.
    pub(crate) fn has_config_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state.config, &other.state.config)
    }

    /// Returns a copy without these nodes (Node or NodeClaim names). Their pods stay bound to the removed names.
    #[must_use]
    pub fn without(&self, nodes: &[&str]) -> Self {
        let mut copy = self.unshared();
        for name in nodes {
            copy.state.nodes.remove(name);
        }
        copy
    }

    /// Returns a copy in which pending pods are bound to the nodes (Node or NodeClaim names) they were nominated to, so that they use
    /// resources there and are not pending.
    ///
    /// kube-scheduler calls this assuming a pod. The pods of a NodeClaim without a Node are bound to the NodeClaim's name.
    #[must_use]
    pub fn with_nominated(&self, nominated: &[(Arc<Pod>, String)]) -> Self {
        if nominated.is_empty() {
            return self.clone();
        }
        let mut copy = self.unshared();
        let bound = nominated.iter().map(|(pod, target)| {
            let node = self.node(target);
            let mut bound = Pod::clone(pod);
            bound.node_name = Some(node.map_or(target.as_str(), |node| node.name()).into());
            Arc::new(bound)
        });
        copy.state.pods.insert_all(bound);
        copy
    }

    /// Returns a copy in which pods that kube-scheduler has not tried yet, because of its backlog, count as unschedulable, if they were
    /// created before a time.
    ///
    /// kube-scheduler tries pods in the order of their creation, so it is behind with pods that were created since the last one that it
    /// found no node for, and not long after it. It holds back other pods for a reason of its own, such as an incomplete gang. Pods
    /// that could preempt others are left alone, too: they may need no node.
    #[must_use]
    pub fn with_untried(&self, created_before: Timestamp) -> Self {
        let second = SignedDuration::from_secs(1);
        let tried = self.pending_pods().filter_map(|pod| pod.created_at);
        let Some(last) = tried.max().map(UnixSecond::time) else {
            return self.clone();
        };
        // The time of creation has whole seconds.
        let is_next = |pod: &&Arc<Pod>| {
            let created = pod.created_at.map(UnixSecond::time);
            created.is_some_and(|at| {
                let after = at.duration_since(last);
                at < created_before && after >= -second && after <= 60 * second
            })
        };
        let untried = self.unbound_pods().filter(|pod| pod.is_untried());
        let untried: Vec<_> = untried.filter(is_next).cloned().collect();
        if untried.is_empty() {
            return self.clone();
        }
        let mut copy = self.unshared();
        let bound = self.pods().filter(|pod| pod.node_name.is_some());
        let lowest = bound.map(|pod| pod.shape.priority).min();
        for pod in untried {
            if lowest.is_none_or(|lowest| pod.shape.priority <= lowest) {
                let mut tried = Pod::clone(&pod);
                tried.unschedulable = true;
                copy.state.pods.insert(Arc::new(tried));
            }
        }
        copy
    }

    /// Returns a copy without these pods.
    #[must_use]
    pub fn without_pods(&self, pods: &[Arc<Pod>]) -> Self {
        let mut copy = self.unshared();
        for pod in pods {
            copy.state.pods.remove(&pod.key.namespace, &pod.key.name);
        }
        copy
    }

    /// Returns the number of changes that can affect consolidation: if two snapshots of one cluster have the same number,
    /// consolidation has the same result for both, except for the passage of time.
    ///
    /// Changes of pod readiness do not count: their consequences appear in the status of PodDisruptionBudgets.
    pub fn epoch(&self) -> u64 {
        self.state.epoch
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ClusterConfig {
        &self.state.config
    }

    /// Iterates over Nodes by name, then over NodeClaims without a Node by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<NodeState>> {
        let table = self.table.get();
        let in_maps = table.is_none().then(|| self.state.nodes.iter());
        let in_table = table.into_iter().flatten().map(|row| &row.state);
        in_table.chain(in_maps.into_iter().flatten())
    }

    /// Iterates over pods for which kube-scheduler found no node.
    pub fn pending_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.unbound_pods().filter(|pod| pod.is_provisionable())
    }

    /// Iterates over pods of deleting nodes that must be rescheduled, by node name.
    pub fn pods_of_deleting_nodes(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.nodes()
            .filter(|state| state.is_deleting())
            .filter_map(|state| state.node.as_ref())
            .flat_map(|node| self.pods_on(&node.name))
            .filter(|pod| pod.is_reschedulable())
    }

    /// Iterates over NodePools by name.
    pub fn node_pools(&self) -> impl Iterator<Item = &Arc<NodePool>> {
        self.state.catalogue.pools.values()
    }

    /// Returns a NodePool.
    pub fn node_pool(&self, name: &str) -> Option<&Arc<NodePool>> {
        self.state.catalogue.pools.get(name)
    }

    /// Iterates over NodeOverlays by name.
    pub fn node_overlays(&self) -> impl Iterator<Item = &Arc<NodeOverlay>> {
        self.state.catalogue.overlays.values()
    }

    /// Returns the instance types of a NodePool before NodeOverlays, or the provider's error; `None` if they are not known yet.
    pub fn instance_types(&self, pool: &str) -> Option<&Result<Arc<[InstanceType]>, String>> {
        self.state.catalogue.instance_types.get(pool)
    }

    /// Iterates over the names of the NodePools whose instance types were set; such a NodePool need not exist.
    pub fn instance_type_pools(&self) -> impl Iterator<Item = &str> {
        self.state
            .catalogue
            .instance_types
            .keys()
            .map(String::as_str)
    }

    /// Iterates over PodDisruptionBudgets by namespace and name.
    pub fn pdbs(&self) -> impl Iterator<Item = &Arc<PodDisruptionBudget>> {
        self.state.workloads.pdbs.values()
    }

    /// Iterates over the PodDisruptionBudgets of a namespace, by name.
    pub fn pdbs_of(&self, namespace: &str) -> impl Iterator<Item = &Arc<PodDisruptionBudget>> {
        let from = named(namespace, "");
        let namespace = namespace.to_owned();
        let following = self.state.workloads.pdbs.range(from..);
        following
            .take_while(move |(key, _)| key.0 == namespace)
            .map(|(_, budget)| budget)
    }

    /// Iterates over the selectors of the Services of a namespace, by name; `None` selects nothing.
    pub fn service_selectors(&self, namespace: &str) -> impl Iterator<Item = &Option<Labels>> {
        let from = named(namespace, "");
        self.state
            .workloads
            .services
            .range(from..)
            .take_while({
                let namespace = namespace.to_owned();
                move |(key, _)| key.0 == namespace
            })
            .map(|(_, selector)| selector.as_ref())
    }

    /// Returns the pod selector of a workload controller.
    pub fn controller_selector(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<&ControllerSelector> {
        let map = match kind {
            "ReplicaSet" => &self.state.workloads.replica_sets,
            "StatefulSet" => &self.state.workloads.stateful_sets,
            "ReplicationController" => &self.state.workloads.replication_controllers,
            _ => return None,
        };
        map.get(&named(namespace, name)).map(AsRef::as_ref)
    }

    /// Iterates over namespaces with their labels, by name.
    pub fn namespaces(&self) -> impl Iterator<Item = (&String, &Labels)> {
        self.state
            .workloads
            .namespaces
            .iter()
            .map(|(name, labels)| (name, labels.as_ref()))
    }

    /// Returns the labels of a namespace.
    pub fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.state.workloads.namespaces.get(name).map(AsRef::as_ref)
    }

    /// Returns a PersistentVolumeClaim.
    pub fn volume_claim(&self, namespace: &str, name: &str) -> Option<&VolumeClaim> {
        self.state
            .storage
            .claims
            .get(&named(namespace, name))
            .map(AsRef::as_ref)
    }

    /// Returns a PersistentVolume.
    pub fn volume(&self, name: &str) -> Option<&Volume> {
        self.state.storage.volumes.get(name).map(AsRef::as_ref)
    }

    /// Returns a StorageClass.
    pub fn storage_class(&self, name: &str) -> Option<&StorageClass> {
        self.state.storage.classes.get(name).map(AsRef::as_ref)
    }

    /// Returns the newest default StorageClass; of equally old ones the first by name.
    pub fn default_storage_class(&self) -> Option<&StorageClass> {
        let classes = self.state.storage.classes.values();
        let default = classes.filter(|class| class.default);
        default.map(AsRef::as_ref).min_by(|a, b| {
            b.created_at
                .cmp(&a.created_at)
                .then_with(|| a.name.cmp(&b.name))
        })
    }

    /// Returns how many volumes each CSI driver can attach to a node.
    pub fn attach_limits(&self, node: &str) -> Option<&BTreeMap<String, u32>> {
        self.state.storage.csi_nodes.get(node).map(AsRef::as_ref)
    }

    /// Iterates over the VolumeAttachments of a node, by name.
    pub fn volume_attachments_on(
        &self,
        node: &str,
    ) -> impl Iterator<Item = &Arc<VolumeAttachment>> {
        let names = self.state.storage.attachments_by_node.names(node);
        names.filter_map(|name| self.state.storage.attachments.get(&**name))
    }

    /// Iterates over ResourceSlices by name.
    pub fn resource_slices(&self) -> impl Iterator<Item = &Arc<ResourceSlice>> {
        self.state.devices.slices.values()
    }

    /// Returns a ResourceClaim.
    pub fn resource_claim(&self, namespace: &str, name: &str) -> Option<&Arc<ResourceClaim>> {
        self.state.devices.claims.get(&named(namespace, name))
    }

    /// Iterates over ResourceClaims by namespace and name.
    pub fn resource_claims(&self) -> impl Iterator<Item = &Arc<ResourceClaim>> {
        self.state.devices.claims.values()
    }

    /// Iterates over DeviceClasses by name.
    pub fn device_classes(&self) -> impl Iterator<Item = &Arc<DeviceClass>> {
        self.state.devices.classes.values()
    }

    /// Returns a DeviceClass.
    pub fn device_class(&self, name: &str) -> Option<&Arc<DeviceClass>> {
        self.state.devices.classes.get(name)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_fixtures::{node, node_claim, pod};

    use super::*;
    use crate::cluster::Cluster;

    /// Returns the names of the nodes with those of their pods, by the table and by the maps.
    fn rows(snapshot: &Snapshot) -> [Vec<(String, Vec<String>)>; 2] {
        let names = |pods: &[Arc<Pod>]| pods.iter().map(|pod| pod.key.name.clone()).collect();
        let in_maps = snapshot.state.nodes.iter().map(|state| {
            let name = state.name().to_owned();
            (name, names(snapshot.pods_on(state.name())))
        });
        let in_table = snapshot.node_table().iter().map(|row| {
            let pods = row.pods.as_ref().map(|pods| names(pods.pods()));
            (row.state.name().to_owned(), pods.unwrap_or_default())
        });
        [in_table.collect(), in_maps.collect()]
    }

    #[test]
    fn the_table_has_the_nodes_and_pods_of_a_snapshot_and_copies_their_own() {
        let mut cluster = Cluster::new(ClusterConfig::default());
        for name in ["a", "a-b", "a.b", "b", "d"] {
            cluster.apply_node(&node(name).build());
        }
        for name in ["a-claim", "b", "c"] {
            cluster.apply_node_claim(&node_claim(name).build());
        }
        // `c` is a NodeClaim, `gone` is nothing.
        for (name, node) in [
            ("1", "a.b"),
            ("2", "b"),
            ("3", "gone"),
            ("4", "b"),
            ("5", "c"),
        ] {
            cluster.apply_pod(&pod(name).on(node).build());
        }
        cluster.apply_pod(&pod("6").build());
        let snapshot = cluster.snapshot();
        let [in_table, in_maps] = rows(&snapshot);
        assert_eq!(in_table, in_maps);
        let of = |row: &(String, Vec<String>)| format!("{} {}", row.0, row.1.concat());
        let texts: Vec<String> = in_table.iter().map(of).collect();
        let expected = [
            "a ", "a-b ", "a.b 1", "b 24", "d ", "a-claim ", "b 24", "c 5",
        ];
        assert_eq!(texts, expected);

        // The table of a snapshot that was read is not that of its changed copies.
        let pending = snapshot.pod("default", "6").unwrap().clone();
        let moved = snapshot.with_nominated(&[(pending, "d".to_owned())]);
        let fewer = snapshot.without(&["a"]);
        let first = snapshot.pod("default", "1").unwrap().clone();
        let emptied = snapshot.without_pods(&[first]);
        let mut forked = Cluster::from(snapshot.fork());
        forked.remove_node("d");
        for copy in [&moved, &fewer, &emptied, &forked.snapshot()] {
            let [in_table, in_maps] = rows(copy);
            assert_eq!(in_table, in_maps);
            assert_ne!(in_table, rows(&snapshot)[0]);
        }
        assert_eq!(snapshot.nodes().count(), 8);
    }
}
