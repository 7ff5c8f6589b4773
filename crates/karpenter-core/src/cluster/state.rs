//! The maps of the model, and how Nodes, NodeClaims and pods are merged in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};

use super::index::Index;
use super::pods::Pods;
use super::{
    ClusterConfig, ControllerSelector, DaemonSet, Labels, Named, Node, NodePods, NodeState,
    StorageClass, Volume, VolumeAttachment, VolumeClaim, named,
};
use crate::instance_type::InstanceType;
use crate::pod::Pod;

type Map<T> = RedBlackTreeMapSync<String, Arc<T>>;
type NamespacedMap<T> = RedBlackTreeMapSync<Named, Arc<T>>;

/// A Node: the object, which controllers patch, and the fields that decisions depend on.
#[derive(Clone, Debug)]
pub(super) struct StoredNode {
    pub(super) object: Arc<corev1::Node>,
    pub(super) parsed: Arc<Node>,
}

/// Returns the provider id of a NodeClaim, once it is launched.
fn provider_id(claim: &NodeClaim) -> Option<&str> {
    let id = claim.status.provider_id.as_deref();
    id.filter(|id| !id.is_empty())
}

/// Returns the copy of a value that is shared.
fn shared(values: &mut RedBlackTreeMapSync<Arc<str>, ()>, value: &str) -> Arc<str> {
    if let Some((known, ())) = values.get_key_value(value) {
        return known.clone();
    }
    let new: Arc<str> = value.into();
    values.insert_mut(new.clone(), ());
    new
}

/// The state of the cluster, in persistent maps: cloning is O(1).
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) config: Arc<ClusterConfig>,
    /// Those of the configuration, shared by all nodes.
    ephemeral: Arc<[corev1::Taint]>,
    pub(super) epoch: u64,
    pub(super) pods: Pods,
    pub(super) unbound: NamespacedMap<Pod>,
    /// By name, so that the pods of all nodes are found in the order of the nodes.
    pub(super) by_node: RedBlackTreeMapSync<Arc<str>, Arc<NodePods>>,
    pub(super) daemon_pods: HashTrieMapSync<String, Arc<Pod>>,
    pub(super) stored_nodes: RedBlackTreeMapSync<String, StoredNode>,
    pub(super) claims: Map<NodeClaim>,
    /// Nodes by the name of their Node.
    pub(super) nodes: Map<NodeState>,
    /// Nodes without a Node, by the name of their NodeClaim.
    pub(super) joining: Map<NodeState>,
    /// The NodePools, instance types, capacity types and zones that labels of nodes name, one copy of each.
    label_values: RedBlackTreeMapSync<Arc<str>, ()>,
    /// Names of Nodes by provider id: usually one, but two while an instance registers with another name.
    pub(super) nodes_by_id: Index,
    /// Names of NodeClaims by provider id.
    pub(super) claims_by_id: Index,
    /// Names of NodeClaims by NodePool.
    pub(super) claims_by_pool: Index,
    pub(super) pools: Map<NodePool>,
    pub(super) overlays: Map<NodeOverlay>,
    pub(super) instance_types: RedBlackTreeMapSync<String, Result<Arc<[InstanceType]>, String>>,
    pub(super) daemon_sets: NamespacedMap<DaemonSet>,
    pub(super) pdbs: NamespacedMap<PodDisruptionBudget>,
    pub(super) services: NamespacedMap<Option<Labels>>,
    pub(super) replica_sets: NamespacedMap<ControllerSelector>,
    pub(super) stateful_sets: NamespacedMap<ControllerSelector>,
    pub(super) replication_controllers: NamespacedMap<ControllerSelector>,
    pub(super) namespaces: Map<Labels>,
    pub(super) volume_claims: NamespacedMap<VolumeClaim>,
    pub(super) volumes: Map<Volume>,
    pub(super) storage_classes: Map<StorageClass>,
    pub(super) csi_nodes: Map<BTreeMap<String, u32>>,
    pub(super) volume_attachments: Map<VolumeAttachment>,
    /// Names of VolumeAttachments by node.
    pub(super) volume_attachments_by_node: Index,
    pub(super) resource_slices: Map<ResourceSlice>,
    pub(super) resource_claims: NamespacedMap<ResourceClaim>,
    pub(super) device_classes: Map<DeviceClass>,
}

impl State {
    pub(super) fn new(config: ClusterConfig) -> Self {
        Self {
            ephemeral: config.ephemeral_taints.clone().into(),
            config: Arc::new(config),
            epoch: 0,
            pods: Pods::new(),
            unbound: RedBlackTreeMapSync::new_sync(),
            by_node: RedBlackTreeMapSync::new_sync(),
            daemon_pods: HashTrieMapSync::new_sync(),
            stored_nodes: RedBlackTreeMapSync::new_sync(),
            claims: RedBlackTreeMapSync::new_sync(),
            nodes: RedBlackTreeMapSync::new_sync(),
            joining: RedBlackTreeMapSync::new_sync(),
            label_values: RedBlackTreeMapSync::new_sync(),
            nodes_by_id: Index::new(),
            claims_by_id: Index::new(),
            claims_by_pool: Index::new(),
            pools: RedBlackTreeMapSync::new_sync(),
            overlays: RedBlackTreeMapSync::new_sync(),
            instance_types: RedBlackTreeMapSync::new_sync(),
            daemon_sets: RedBlackTreeMapSync::new_sync(),
            pdbs: RedBlackTreeMapSync::new_sync(),
            services: RedBlackTreeMapSync::new_sync(),
            replica_sets: RedBlackTreeMapSync::new_sync(),
            stateful_sets: RedBlackTreeMapSync::new_sync(),
            replication_controllers: RedBlackTreeMapSync::new_sync(),
            namespaces: RedBlackTreeMapSync::new_sync(),
            volume_claims: RedBlackTreeMapSync::new_sync(),
            volumes: RedBlackTreeMapSync::new_sync(),
            storage_classes: RedBlackTreeMapSync::new_sync(),
            csi_nodes: RedBlackTreeMapSync::new_sync(),
            volume_attachments: RedBlackTreeMapSync::new_sync(),
            volume_attachments_by_node: Index::new(),
            resource_slices: RedBlackTreeMapSync::new_sync(),
            resource_claims: RedBlackTreeMapSync::new_sync(),
            device_classes: RedBlackTreeMapSync::new_sync(),
        }
    }

    pub(super) fn bind(&mut self, pod: &Arc<Pod>) {
        match &pod.node_name {
            None => {
                self.unbound
                    .insert_mut(named(&pod.key.namespace, &pod.key.name), pod.clone());
            }
            Some(node) => {
                let mut pods = self
                    .by_node
                    .get(node)
                    .map(|pods| NodePods::clone(pods))
                    .unwrap_or_default();
                pods.insert(pod);
                self.by_node.insert_mut(node.clone(), Arc::new(pods));
            }
        }
        self.remember_daemon_pod(pod);
    }

    /// Remembers the newest pod of each DaemonSet.
    pub(super) fn remember_daemon_pod(&mut self, pod: &Arc<Pod>) {
        if let Some(set) = pod
            .owners
            .iter()
            .find(|owner| owner.kind == "DaemonSet" && owner.controller)
        {
            let age = |pod: &Pod| (pod.created_at, pod.key.uid.clone());
            let newest = self
                .daemon_pods
                .get(&set.uid)
                .is_none_or(|known| age(known) <= age(pod));
            if newest {
                self.daemon_pods.insert_mut(set.uid.clone(), pod.clone());
            }
        }
    }

    pub(super) fn unbind(&mut self, pod: &Pod) {
        match &pod.node_name {
            None => {
                self.unbound
                    .remove_mut(&named(&pod.key.namespace, &pod.key.name));
            }
            Some(node) => {
                if let Some(pods) = self.by_node.get(node) {
                    let mut pods = NodePods::clone(pods);
                    pods.remove(pod);
                    if pods.pods().is_empty() {
                        self.by_node.remove_mut(node);
                    } else {
                        self.by_node.insert_mut(node.clone(), Arc::new(pods));
                    }
                }
            }
        }
    }

    /// Updates `nodes` after Node `name` changed from `old`.
    pub(super) fn merge_node(&mut self, name: &str, old: Option<&Node>) {
        let new = self.stored_nodes.get(name).map(|node| node.parsed.clone());
        let from = old.and_then(|node| node.provider_id.as_deref());
        let to = new.as_ref().and_then(|node| node.provider_id.as_deref());
        let mut marks = None;
        if from != to {
            self.nodes_by_id.update(name, from, to);
            let ids = from.into_iter().chain(to);
            let claims = ids.flat_map(|id| self.claims_by_id.names(id)).cloned();
            for claim in claims.collect::<Vec<_>>() {
                marks = marks.or_else(|| self.joining.get(&*claim).cloned());
                self.joining.remove_mut(&*claim);
                self.place_claim(&claim, None);
            }
        }
        self.place_node(name, marks.as_deref());
    }

    /// Updates `nodes` after NodeClaim `name` changed from `old`.
    pub(super) fn merge_claim(&mut self, name: &str, old: Option<&NodeClaim>) {
        let new = self.claims.get(name).cloned();
        let (from, to) = (
            old.and_then(provider_id),
            new.as_deref().and_then(provider_id),
        );
        self.claims_by_id.update(name, from, to);
        self.claims_by_pool.update(
            name,
            old.and_then(NodeClaim::node_pool),
            new.as_deref().and_then(NodeClaim::node_pool),
        );
        let marks = self.joining.get(name).cloned();
        self.joining.remove_mut(name);
        let ids = from.filter(|_| from != to).into_iter().chain(to);
        let nodes = ids.flat_map(|id| self.nodes_by_id.names(id)).cloned();
        for node in nodes.collect::<Vec<_>>() {
            self.place_node(&node, marks.as_deref());
        }
        self.place_claim(name, marks.as_deref());
    }

    /// Stores the state of a Node.
    fn place_node(&mut self, name: &str, marks: Option<&NodeState>) {
        let old = self.nodes.get(name).cloned();
        let stored = self.stored_nodes.get(name);
        let Some(node) = stored.map(|stored| stored.parsed.clone()) else {
            self.nodes.remove_mut(name);
            return;
        };
        // Without a provider ID the Node cannot be matched to its NodeClaim, which counts the same resources already.
        // UPSTREAM: pkg/controllers/state/cluster.go, UpdateNode
        let pool = node.labels.get(karpenter_api::labels::NODE_POOL);
        if node.provider_id.is_none() && pool.is_some_and(|pool| !pool.is_empty()) {
            self.nodes.remove_mut(name);
            return;
        }
        let claim = node
            .provider_id
            .as_deref()
            .and_then(|id| self.claims_by_id.first(id))
            .and_then(|claim| self.claims.get(claim))
            .cloned();
        let labeled = self.config.node_classes.iter().any(|kind| {
            node.labels
                .contains_key(&karpenter_api::labels::node_class(&kind.group, &kind.kind))
        });
        let marks = old.as_deref().or(marks);
        let managed = claim.is_some() || labeled;
        let share = |value: &str| shared(&mut self.label_values, value);
        let state = NodeState::new(Some(node), claim, managed, &self.ephemeral, marks, share);
        self.nodes.insert_mut(name.to_owned(), Arc::new(state));
    }

    /// Stores the state of a NodeClaim without a Node.
    fn place_claim(&mut self, name: &str, marks: Option<&NodeState>) {
        let Some(claim) = self.claims.get(name).cloned() else {
            return;
        };
        if provider_id(&claim).is_some_and(|id| self.nodes_by_id.first(id).is_some()) {
            return;
        }
        let share = |value: &str| shared(&mut self.label_values, value);
        let state = NodeState::new(None, Some(claim), true, &self.ephemeral, marks, share);
        self.joining.insert_mut(name.to_owned(), Arc::new(state));
    }

    /// Returns the node with this Node or NodeClaim name.
    pub(super) fn node(&self, name: &str) -> Option<&Arc<NodeState>> {
        let direct = self.nodes.get(name).or_else(|| self.joining.get(name));
        direct.or_else(|| {
            let id = provider_id(self.claims.get(name)?)?;
            self.nodes.get(self.nodes_by_id.first(id)?)
        })
    }

    /// Removes a node, but not its Node or NodeClaim.
    pub(super) fn remove_state(&mut self, state: &NodeState) {
        self.states_like(state).remove_mut(state.name());
    }

    /// Returns the map of nodes with a Node, or without one, as this one has.
    fn states_like(&mut self, state: &NodeState) -> &mut Map<NodeState> {
        match state.node.is_some() {
            true => &mut self.nodes,
            false => &mut self.joining,
        }
    }

    /// Changes the state of a node, if there is one; `name` is that of its Node or NodeClaim.
    pub(super) fn change_node(&mut self, name: &str, change: impl FnOnce(&mut NodeState)) {
        if let Some(state) = self.node(name).cloned() {
            self.change_state(&state, change);
        }
    }

    /// Changes the state of a node.
    pub(super) fn change_state(&mut self, state: &NodeState, change: impl FnOnce(&mut NodeState)) {
        let mut changed = NodeState::clone(state);
        change(&mut changed);
        let name = state.name().to_owned();
        self.states_like(state).insert_mut(name, Arc::new(changed));
        self.epoch += 1;
    }

    pub(super) fn change_node_by_provider_id(
        &mut self,
        provider_id: &str,
        change: impl FnOnce(&mut NodeState),
    ) {
        if let Some(name) = self.name_by_provider_id(provider_id).map(str::to_owned) {
            self.change_node(&name, change);
        }
    }

    /// Returns the name of the Node with this provider id, or of its NodeClaim while there is no Node.
    pub(super) fn name_by_provider_id(&self, id: &str) -> Option<&str> {
        let node = self.nodes_by_id.first(id);
        node.or_else(|| self.claims_by_id.first(id))
    }
}
