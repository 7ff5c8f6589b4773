//! An immutable view of the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};

use super::{
    ClusterConfig, ControllerSelector, DaemonSet, Labels, Named, Node, NodeState, StorageClass,
    Volume, VolumeClaim, named,
};
use crate::instance_type::InstanceType;
use crate::pod::Pod;
use crate::resources::Resources;

/// The pods bound to a node name.
#[derive(Clone, Debug, Default)]
pub struct NodePods {
    pods: Vec<Arc<Pod>>,
    requests: Resources,
    daemon_requests: Resources,
}

impl NodePods {
    /// Returns the pods, sorted by namespace and name.
    pub fn pods(&self) -> &[Arc<Pod>] {
        &self.pods
    }

    /// Returns the requests of all pods that have not terminated, DaemonSets' pods included.
    pub fn requests(&self) -> &Resources {
        &self.requests
    }

    /// Returns the part of [`Self::requests`] that belongs to DaemonSets.
    pub fn daemon_requests(&self) -> &Resources {
        &self.daemon_requests
    }

    fn position(&self, pod: &Pod) -> Result<usize, usize> {
        self.pods.binary_search_by(|other| {
            (&other.key.namespace, &other.key.name).cmp(&(&pod.key.namespace, &pod.key.name))
        })
    }

    fn insert(&mut self, pod: &Arc<Pod>) {
        if let Err(at) = self.position(pod) {
            self.pods.insert(at, pod.clone());
            self.sum();
        }
    }

    /// Adds pods and recomputes the sums once.
    fn extend(&mut self, pods: Vec<Arc<Pod>>) {
        self.pods.extend(pods);
        self.pods
            .sort_by(|a, b| (&a.key.namespace, &a.key.name).cmp(&(&b.key.namespace, &b.key.name)));
        self.sum();
    }

    fn remove(&mut self, pod: &Pod) {
        if let Ok(at) = self.position(pod) {
            self.pods.remove(at);
            self.sum();
        }
    }

    /// Recomputes the sums from all pods, so that saturation at the limits of i64 has no lasting effect.
    fn sum(&mut self) {
        self.requests = Resources::new();
        self.daemon_requests = Resources::new();
        for pod in self.pods.iter().filter(|pod| !pod.is_terminal()) {
            self.requests.add_assign(&pod.shape.requests);
            if pod.is_owned_by_daemon_set() {
                self.daemon_requests.add_assign(&pod.shape.requests);
            }
        }
    }
}

type Map<T> = RedBlackTreeMapSync<String, Arc<T>>;
type NamespacedMap<T> = RedBlackTreeMapSync<Named, Arc<T>>;

/// The state of the cluster, in persistent maps: cloning is O(1).
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) config: Arc<ClusterConfig>,
    pub(super) epoch: u64,
    pub(super) pods: HashTrieMapSync<Named, Arc<Pod>>,
    pub(super) unbound: NamespacedMap<Pod>,
    pub(super) by_node: HashTrieMapSync<String, Arc<NodePods>>,
    pub(super) daemon_pods: HashTrieMapSync<String, Arc<Pod>>,
    pub(super) raw_nodes: Map<Node>,
    pub(super) claims: Map<NodeClaim>,
    /// Nodes by key: `node/<name>`, or `claim/<name>` while there is no Node.
    pub(super) nodes: RedBlackTreeMapSync<String, Arc<NodeState>>,
    /// Provider id to the names of Node and NodeClaim.
    pub(super) by_provider_id: HashTrieMapSync<String, (Option<String>, Option<String>)>,
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
    pub(super) resource_slices: Map<ResourceSlice>,
    pub(super) resource_claims: NamespacedMap<ResourceClaim>,
    pub(super) device_classes: Map<DeviceClass>,
}

impl State {
    pub(super) fn new(config: ClusterConfig) -> Self {
        Self {
            config: Arc::new(config),
            epoch: 0,
            pods: HashTrieMapSync::new_sync(),
            unbound: RedBlackTreeMapSync::new_sync(),
            by_node: HashTrieMapSync::new_sync(),
            daemon_pods: HashTrieMapSync::new_sync(),
            raw_nodes: RedBlackTreeMapSync::new_sync(),
            claims: RedBlackTreeMapSync::new_sync(),
            nodes: RedBlackTreeMapSync::new_sync(),
            by_provider_id: HashTrieMapSync::new_sync(),
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
                    if pods.pods.is_empty() {
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
        let new = self.raw_nodes.get(name).cloned();
        let ids = [
            old.and_then(|node| node.provider_id.clone()),
            new.as_ref().and_then(|node| node.provider_id.clone()),
        ];
        if ids[0] != ids[1]
            && let Some(id) = &ids[0]
        {
            self.link(id, |link| link.0 = None);
        }
        if let Some(id) = &ids[1] {
            let present = new.is_some().then(|| name.to_owned());
            self.link(id, |link| link.0 = present);
        }
        let mut marks = None;
        for claim in ids
            .iter()
            .flatten()
            .filter_map(|id| self.claim_of(id))
            .collect::<Vec<_>>()
        {
            let key = format!("claim/{claim}");
            marks = marks.or_else(|| self.nodes.get(&key).cloned());
            self.nodes.remove_mut(&key);
            self.place_claim(&claim, None);
        }
        self.place_node(name, marks.as_deref());
    }

    /// Updates `nodes` after NodeClaim `name` changed from `old`.
    pub(super) fn merge_claim(&mut self, name: &str, old: Option<&NodeClaim>) {
        let id = |claim: &NodeClaim| claim.status.provider_id.clone().filter(|id| !id.is_empty());
        let new = self.claims.get(name).cloned();
        let ids = [old.and_then(id), new.as_deref().and_then(id)];
        if ids[0] != ids[1]
            && let Some(id) = &ids[0]
        {
            self.link(id, |link| link.1 = None);
        }
        if let Some(id) = &ids[1] {
            let present = new.is_some().then(|| name.to_owned());
            self.link(id, |link| link.1 = present);
        }
        let key = format!("claim/{name}");
        let marks = self.nodes.get(&key).cloned();
        self.nodes.remove_mut(&key);
        for node in ids
            .iter()
            .flatten()
            .filter_map(|id| self.node_of(id))
            .collect::<Vec<_>>()
        {
            self.place_node(&node, marks.as_deref());
        }
        self.place_claim(name, marks.as_deref());
    }

    fn link(&mut self, id: &str, change: impl FnOnce(&mut (Option<String>, Option<String>))) {
        let mut link = self.by_provider_id.get(id).cloned().unwrap_or_default();
        change(&mut link);
        if link == (None, None) {
            self.by_provider_id.remove_mut(id);
        } else {
            self.by_provider_id.insert_mut(id.to_owned(), link);
        }
    }

    fn claim_of(&self, id: &str) -> Option<String> {
        self.by_provider_id.get(id).and_then(|link| link.1.clone())
    }

    fn node_of(&self, id: &str) -> Option<String> {
        self.by_provider_id.get(id).and_then(|link| link.0.clone())
    }

    /// Stores the state of a Node.
    fn place_node(&mut self, name: &str, marks: Option<&NodeState>) {
        let key = format!("node/{name}");
        let old = self.nodes.get(&key).cloned();
        let Some(node) = self.raw_nodes.get(name).cloned() else {
            self.nodes.remove_mut(&key);
            return;
        };
        // Without a provider ID the Node cannot be matched to its NodeClaim, which counts the same resources already.
        // UPSTREAM: pkg/controllers/state/cluster.go, UpdateNode
        let pool = node.labels.get(karpenter_api::labels::NODE_POOL);
        if node.provider_id.is_none() && pool.is_some_and(|pool| !pool.is_empty()) {
            self.nodes.remove_mut(&key);
            return;
        }
        let claim = node
            .provider_id
            .as_deref()
            .and_then(|id| self.claim_of(id))
            .and_then(|claim| self.claims.get(&claim))
            .cloned();
        let labeled = self.config.node_classes.iter().any(|kind| {
            node.labels
                .contains_key(&karpenter_api::labels::node_class(&kind.group, &kind.kind))
        });
        let marks = old.as_deref().or(marks);
        let state = NodeState {
            managed: claim.is_some() || labeled,
            node: Some(node),
            claim,
            marked_for_deletion: marks.is_some_and(|marks| marks.marked_for_deletion),
            nominated_until: marks.and_then(|marks| marks.nominated_until),
        };
        self.nodes.insert_mut(key, Arc::new(state));
    }

    /// Stores the state of a NodeClaim without a Node.
    fn place_claim(&mut self, name: &str, marks: Option<&NodeState>) {
        let Some(claim) = self.claims.get(name).cloned() else {
            return;
        };
        let id = claim
            .status
            .provider_id
            .as_deref()
            .filter(|id| !id.is_empty());
        if id.is_some_and(|id| self.node_of(id).is_some()) {
            return;
        }
        let state = NodeState {
            node: None,
            claim: Some(claim),
            managed: true,
            marked_for_deletion: marks.is_some_and(|marks| marks.marked_for_deletion),
            nominated_until: marks.and_then(|marks| marks.nominated_until),
        };
        self.nodes
            .insert_mut(format!("claim/{name}"), Arc::new(state));
    }

    fn node_key(&self, name: &str) -> Option<String> {
        let direct = ["node", "claim"]
            .iter()
            .map(|kind| format!("{kind}/{name}"))
            .find(|key| self.nodes.contains_key(key));
        direct.or_else(|| {
            let id = self.claims.get(name)?.status.provider_id.as_deref()?;
            Some(format!("node/{}", self.node_of(id)?))
        })
    }

    /// Changes the state of a node, if there is one; `name` is that of its Node or NodeClaim.
    pub(super) fn change_node(&mut self, name: &str, change: impl FnOnce(&mut NodeState)) {
        if let Some(key) = self.node_key(name)
            && let Some(state) = self.nodes.get(&key)
        {
            let mut state = NodeState::clone(state);
            change(&mut state);
            self.nodes.insert_mut(key, Arc::new(state));
            self.epoch += 1;
        }
    }

    pub(super) fn change_node_by_provider_id(
        &mut self,
        provider_id: &str,
        change: impl FnOnce(&mut NodeState),
    ) {
        let link = self.by_provider_id.get(provider_id);
        if let Some(name) = link.and_then(|link| link.0.clone().or_else(|| link.1.clone())) {
            self.change_node(&name, change);
        }
    }
}

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
    state: State,
}

impl Snapshot {
    pub(super) fn new(state: State) -> Self {
        Self { state }
    }

    pub(super) fn into_state(self) -> State {
        self.state
    }

    /// Returns a copy for simulations. O(1).
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Returns a copy without these nodes (Node or NodeClaim names). Their pods stay bound to the removed names.
    #[must_use]
    pub fn without(&self, nodes: &[&str]) -> Self {
        let mut copy = self.clone();
        for name in nodes {
            if let Some(key) = copy.state.node_key(name) {
                copy.state.nodes.remove_mut(&key);
            }
        }
        copy
    }

    /// Returns a copy in which pending pods are bound to the nodes (Node or NodeClaim names) they were nominated to, so that they use
    /// resources there and are not pending.
    ///
    /// kube-scheduler calls this assuming a pod. The pods of a NodeClaim without a Node are bound to the NodeClaim's name.
    #[must_use]
    pub fn with_nominated(&self, nominated: &[(Arc<Pod>, String)]) -> Self {
        let mut copy = self.clone();
        let mut by_target: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for (pod, target) in nominated {
            let target = self
                .node(target)
                .map_or(target.as_str(), |node| node.name());
            let mut bound = Pod::clone(pod);
            bound.node_name = Some(target.to_owned());
            let bound = Arc::new(bound);
            copy.state.unbind(pod);
            let key = named(&pod.key.namespace, &pod.key.name);
            copy.state.pods.insert_mut(key, bound.clone());
            by_target.entry(target.to_owned()).or_default().push(bound);
        }
        for (target, bound) in by_target {
            let present = copy.state.by_node.get(&target);
            let mut pods = present
                .map(|pods| NodePods::clone(pods))
                .unwrap_or_default();
            pods.extend(bound);
            copy.state.by_node.insert_mut(target, Arc::new(pods));
        }
        copy
    }

    /// Returns a copy without these pods.
    #[must_use]
    pub fn without_pods(&self, pods: &[Arc<Pod>]) -> Self {
        let mut copy = self.clone();
        for pod in pods {
            copy.state.unbind(pod);
            let key = named(&pod.key.namespace, &pod.key.name);
            copy.state.pods.remove_mut(&key);
        }
        copy
    }

    /// Returns the number of changes that can affect consolidation: if two snapshots of one cluster have the same number,
    /// consolidation has the same result for both, time apart.
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
        let of = |prefix: &'static str| {
            self.state
                .nodes
                .iter()
                .filter(move |(key, _)| key.starts_with(prefix))
                .map(|(_, state)| state)
        };
        of("node/").chain(of("claim/"))
    }

    /// Returns the node with this Node or NodeClaim name.
    pub fn node(&self, name: &str) -> Option<&Arc<NodeState>> {
        self.state.nodes.get(&self.state.node_key(name)?)
    }

    /// Returns the node with this provider id.
    pub fn node_by_provider_id(&self, provider_id: &str) -> Option<&Arc<NodeState>> {
        let link = self.state.by_provider_id.get(provider_id)?;
        self.node(link.0.as_deref().or(link.1.as_deref())?)
    }

    /// Returns the pods bound to a Node.
    pub fn pods_on(&self, node: &str) -> &[Arc<Pod>] {
        self.state
            .by_node
            .get(node)
            .map(|pods| pods.pods())
            .unwrap_or_default()
    }

    /// Returns the pods bound to a Node, with the sums of their requests.
    pub fn node_pods(&self, node: &str) -> Option<&Arc<NodePods>> {
        self.state.by_node.get(node)
    }

    /// Iterates over node names with the pods bound to them, in no particular order. A name need not have a Node.
    pub fn bound_pods(&self) -> impl Iterator<Item = (&String, &Arc<NodePods>)> {
        self.state.by_node.iter()
    }

    /// Iterates over pods without a node, by namespace and name.
    pub fn unbound_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.state.unbound.values()
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

    /// Returns a pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Arc<Pod>> {
        self.state.pods.get(&named(namespace, name))
    }

    /// Iterates over all pods, in no particular order.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.state.pods.values()
    }

    /// Returns the number of pods.
    pub fn pod_count(&self) -> usize {
        self.state.pods.size()
    }

    /// Iterates over NodePools by name.
    pub fn node_pools(&self) -> impl Iterator<Item = &Arc<NodePool>> {
        self.state.pools.values()
    }

    /// Returns a NodePool.
    pub fn node_pool(&self, name: &str) -> Option<&Arc<NodePool>> {
        self.state.pools.get(name)
    }

    /// Iterates over NodeClaims by name.
    pub fn node_claims(&self) -> impl Iterator<Item = &Arc<NodeClaim>> {
        self.state.claims.values()
    }

    /// Returns a NodeClaim.
    pub fn node_claim(&self, name: &str) -> Option<&Arc<NodeClaim>> {
        self.state.claims.get(name)
    }

    /// Iterates over NodeOverlays by name.
    pub fn node_overlays(&self) -> impl Iterator<Item = &Arc<NodeOverlay>> {
        self.state.overlays.values()
    }

    /// Returns the instance types of a NodePool before NodeOverlays, or the provider's error; `None` if they are not known yet.
    pub fn instance_types(&self, pool: &str) -> Option<&Result<Arc<[InstanceType]>, String>> {
        self.state.instance_types.get(pool)
    }

    /// Iterates over DaemonSets by namespace and name, each with its newest pod, if there is one.
    pub fn daemon_sets(&self) -> impl Iterator<Item = (&Arc<DaemonSet>, Option<&Arc<Pod>>)> {
        self.state
            .daemon_sets
            .values()
            .map(|set| (set, self.state.daemon_pods.get(&set.uid)))
    }

    /// Iterates over PodDisruptionBudgets by namespace and name.
    pub fn pdbs(&self) -> impl Iterator<Item = &Arc<PodDisruptionBudget>> {
        self.state.pdbs.values()
    }

    /// Iterates over the PodDisruptionBudgets of a namespace, by name.
    pub fn pdbs_of(&self, namespace: &str) -> impl Iterator<Item = &Arc<PodDisruptionBudget>> {
        let from = named(namespace, "");
        let namespace = namespace.to_owned();
        let following = self.state.pdbs.range(from..);
        following
            .take_while(move |(key, _)| key.0 == namespace)
            .map(|(_, budget)| budget)
    }

    /// Iterates over the selectors of the Services of a namespace, by name; `None` selects nothing.
    pub fn service_selectors(&self, namespace: &str) -> impl Iterator<Item = &Option<Labels>> {
        let from = named(namespace, "");
        self.state
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
            "ReplicaSet" => &self.state.replica_sets,
            "StatefulSet" => &self.state.stateful_sets,
            "ReplicationController" => &self.state.replication_controllers,
            _ => return None,
        };
        map.get(&named(namespace, name)).map(AsRef::as_ref)
    }

    /// Iterates over namespaces with their labels, by name.
    pub fn namespaces(&self) -> impl Iterator<Item = (&String, &Labels)> {
        self.state
            .namespaces
            .iter()
            .map(|(name, labels)| (name, labels.as_ref()))
    }

    /// Returns the labels of a namespace.
    pub fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.state.namespaces.get(name).map(AsRef::as_ref)
    }

    /// Returns a PersistentVolumeClaim.
    pub fn volume_claim(&self, namespace: &str, name: &str) -> Option<&VolumeClaim> {
        self.state
            .volume_claims
            .get(&named(namespace, name))
            .map(AsRef::as_ref)
    }

    /// Returns a PersistentVolume.
    pub fn volume(&self, name: &str) -> Option<&Volume> {
        self.state.volumes.get(name).map(AsRef::as_ref)
    }

    /// Returns a StorageClass.
    pub fn storage_class(&self, name: &str) -> Option<&StorageClass> {
        self.state.storage_classes.get(name).map(AsRef::as_ref)
    }

    /// Returns the newest default StorageClass; of equally old ones the first by name.
    pub fn default_storage_class(&self) -> Option<&StorageClass> {
        let default = self
            .state
            .storage_classes
            .values()
            .filter(|class| class.default);
        default.map(AsRef::as_ref).min_by(|a, b| {
            b.created_at
                .cmp(&a.created_at)
                .then_with(|| a.name.cmp(&b.name))
        })
    }

    /// Returns how many volumes each CSI driver can attach to a node.
    pub fn attach_limits(&self, node: &str) -> Option<&BTreeMap<String, u32>> {
        self.state.csi_nodes.get(node).map(AsRef::as_ref)
    }

    /// Iterates over ResourceSlices by name.
    pub fn resource_slices(&self) -> impl Iterator<Item = &Arc<ResourceSlice>> {
        self.state.resource_slices.values()
    }

    /// Returns a ResourceClaim.
    pub fn resource_claim(&self, namespace: &str, name: &str) -> Option<&Arc<ResourceClaim>> {
        self.state.resource_claims.get(&named(namespace, name))
    }

    /// Iterates over ResourceClaims by namespace and name.
    pub fn resource_claims(&self) -> impl Iterator<Item = &Arc<ResourceClaim>> {
        self.state.resource_claims.values()
    }

    /// Iterates over DeviceClasses by name.
    pub fn device_classes(&self) -> impl Iterator<Item = &Arc<DeviceClass>> {
        self.state.device_classes.values()
    }

    /// Returns a DeviceClass.
    pub fn device_class(&self, name: &str) -> Option<&Arc<DeviceClass>> {
        self.state.device_classes.get(name)
    }
}
