//! The contents of a cluster as parsed values, to write a snapshot and to build the cluster again from what was written.
//!
//! [`Cluster::apply_pod`] and its siblings take the objects of the API server. A written snapshot has what they were parsed to.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::index::named;
use super::{
    Cluster, ControllerSelector, DaemonSet, Labels, NodeState, Snapshot, StorageClass, Volume,
    VolumeAttachment, VolumeClaim, delta,
};
use crate::pod::Pod;

/// The marks of a node that are not on its objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Marks {
    /// Whether [`Self::name`] is that of a NodeClaim without a Node.
    pub claim: bool,
    /// Name of the Node, or of the NodeClaim.
    pub name: String,
    /// Whether a disruption command is about to delete it.
    pub for_deletion: bool,
    /// The time until which pods are nominated to it.
    pub nominated_until: Option<Timestamp>,
}

impl Marks {
    fn of(node: &NodeState) -> Option<Self> {
        let is_marked = node.marked_for_deletion || node.nominated_until.is_some();
        is_marked.then(|| Self {
            claim: node.node.is_none(),
            name: node.name().to_owned(),
            for_deletion: node.marked_for_deletion,
            nominated_until: node.nominated_until,
        })
    }
}

/// The kinds of workload controllers that have a selector.
const CONTROLLERS: [&str; 3] = ["ReplicaSet", "ReplicationController", "StatefulSet"];

impl Snapshot {
    /// Iterates over the marks of nodes, in the order of [`Self::nodes`].
    pub fn marks(&self) -> impl Iterator<Item = Marks> {
        self.nodes().filter_map(|node| Marks::of(node))
    }

    /// Iterates over the selectors of Services by namespace and name; `None` selects nothing.
    pub fn all_service_selectors(&self) -> impl Iterator<Item = (&str, &str, &Option<Labels>)> {
        let all = self.state.workloads.services.iter();
        all.map(|(key, selector)| (key.0.as_str(), key.1.as_str(), selector.as_ref()))
    }

    /// Iterates over the selectors of workload controllers by kind, namespace and name.
    pub fn controller_selectors(
        &self,
    ) -> impl Iterator<Item = (&'static str, &str, &str, &ControllerSelector)> {
        let workloads = &self.state.workloads;
        let maps = [
            &workloads.replica_sets,
            &workloads.replication_controllers,
            &workloads.stateful_sets,
        ];
        let all = CONTROLLERS.into_iter().zip(maps);
        all.flat_map(|(kind, map)| {
            map.iter().map(move |(key, selector)| {
                (kind, key.0.as_str(), key.1.as_str(), selector.as_ref())
            })
        })
    }

    /// Iterates over PersistentVolumeClaims by namespace and name.
    pub fn volume_claims(&self) -> impl Iterator<Item = &VolumeClaim> {
        self.state.storage.claims.values().map(AsRef::as_ref)
    }

    /// Iterates over PersistentVolumes by name.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.state.storage.volumes.values().map(AsRef::as_ref)
    }

    /// Iterates over StorageClasses by name.
    pub fn storage_classes(&self) -> impl Iterator<Item = &StorageClass> {
        self.state.storage.classes.values().map(AsRef::as_ref)
    }

    /// Iterates over nodes by name, with how many volumes each CSI driver can attach.
    pub fn all_attach_limits(&self) -> impl Iterator<Item = (&str, &BTreeMap<String, u32>)> {
        let all = self.state.storage.csi_nodes.iter();
        all.map(|(node, limits)| (node.as_str(), limits.as_ref()))
    }

    /// Iterates over VolumeAttachments by name.
    pub fn volume_attachments(&self) -> impl Iterator<Item = &VolumeAttachment> {
        self.state.storage.attachments.values().map(AsRef::as_ref)
    }
}

impl Cluster {
    /// Continues the numbers of [`Snapshot::epoch`] from a written snapshot.
    #[must_use]
    pub fn with_epoch(mut self, epoch: u64) -> Self {
        self.state.epoch = epoch;
        self
    }

    /// Adds or replaces a parsed DaemonSet.
    pub fn insert_daemon_set(&mut self, mut set: DaemonSet) {
        set.template = Arc::new(self.shared(Pod::clone(&set.template)));
        let key = named(&set.namespace, &set.name);
        let delta = delta::store(&mut self.state.workloads.daemon_sets, key, set);
        self.counted(delta);
    }

    /// Sets the newest pod of the DaemonSet with this uid; the pod need not exist any more.
    pub fn insert_daemon_pod(&mut self, uid: &str, pod: Pod) {
        let known = self.state.pods.get(&pod.key.namespace, &pod.key.name);
        let pod = match known {
            Some(known) if **known == pod => known.clone(),
            _ => Arc::new(self.shared(pod)),
        };
        self.state.pods.insert_daemon_pod(uid, pod);
    }

    /// Adds or replaces the selector of a Service.
    pub fn insert_service_selector(
        &mut self,
        namespace: &str,
        name: &str,
        selector: Option<Labels>,
    ) {
        let key = named(namespace, name);
        let delta = delta::store(&mut self.state.workloads.services, key, selector);
        self.counted(delta);
    }

    /// Adds or replaces the selector of a ReplicaSet, StatefulSet or ReplicationController; another kind has none.
    pub fn insert_controller_selector(
        &mut self,
        kind: &str,
        namespace: &str,
        name: &str,
        selector: ControllerSelector,
    ) {
        let map = match kind {
            "ReplicaSet" => &mut self.state.workloads.replica_sets,
            "StatefulSet" => &mut self.state.workloads.stateful_sets,
            "ReplicationController" => &mut self.state.workloads.replication_controllers,
            _ => return,
        };
        let delta = delta::store(map, named(namespace, name), selector);
        self.counted(delta);
    }

    /// Adds or replaces the labels of a namespace.
    pub fn insert_namespace(&mut self, name: &str, labels: Labels) {
        let delta = delta::store(
            &mut self.state.workloads.namespaces,
            name.to_owned(),
            labels,
        );
        self.counted(delta);
    }

    /// Adds or replaces a parsed PersistentVolumeClaim.
    pub fn insert_volume_claim(&mut self, claim: VolumeClaim) {
        let key = named(&claim.namespace, &claim.name);
        let delta = delta::store(&mut self.state.storage.claims, key, claim);
        self.counted(delta);
    }

    /// Adds or replaces a parsed PersistentVolume.
    pub fn insert_volume(&mut self, volume: Volume) {
        let key = volume.name.clone();
        let delta = delta::store(&mut self.state.storage.volumes, key, volume);
        self.counted(delta);
    }

    /// Adds or replaces a parsed StorageClass.
    pub fn insert_storage_class(&mut self, class: StorageClass) {
        let key = class.name.clone();
        let delta = delta::store(&mut self.state.storage.classes, key, class);
        self.counted(delta);
    }

    /// Sets how many volumes each CSI driver can attach to a node.
    pub fn insert_attach_limits(&mut self, node: &str, limits: BTreeMap<String, u32>) {
        let delta = delta::store(&mut self.state.storage.csi_nodes, node.to_owned(), limits);
        self.counted(delta);
    }

    /// Adds or replaces a parsed VolumeAttachment.
    pub fn insert_volume_attachment(&mut self, attachment: VolumeAttachment) {
        let key = attachment.name.clone();
        let delta = delta::store(&mut self.state.storage.attachments, key, attachment);
        self.index_attachment(&delta);
    }

    /// Adds or replaces many pods. The pods of a node are added at once, which takes linear time.
    pub fn insert_pods(&mut self, pods: impl IntoIterator<Item = Pod>) {
        let pods = pods.into_iter().map(|pod| Arc::new(self.shared(pod)));
        let pods: Vec<Arc<Pod>> = pods.collect();
        self.state.epoch += pods.len() as u64;
        self.state.pods.insert_all(pods);
    }

    /// Returns the pod with its shape, limits, owners and node name shared with other pods.
    pub(super) fn shared(&mut self, mut pod: Pod) -> Pod {
        if let Some(node) = &mut pod.node_name
            && let Some(known) = self.state.pods.node_name(node)
        {
            node.clone_from(known);
        }
        pod.shape = self.shapes.share(pod.shape);
        pod.limits = self.limits.share(pod.limits);
        pod.owners = self.owners.share(pod.owners);
        pod
    }
}
