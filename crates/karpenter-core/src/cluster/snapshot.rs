//! An immutable view of the cluster.

use std::{collections::BTreeMap, sync::Arc};

use karpenter_api::{
    k8s_openapi::api::{
        policy::v1::PodDisruptionBudget,
        resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
    },
    v1::{NodeClaim, NodePool},
    v1alpha1::NodeOverlay,
};
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};

use super::{
    Change, ClusterConfig, ControllerSelector, DaemonSet, Labels, Named, Node, NodeState,
    StorageClass, Volume, VolumeClaim, named,
};
use crate::{instance_type::InstanceType, pod::Pod, resources::Resources};

/// The pods bound to a node name.
#[derive(Clone, Debug, Default)]
pub struct NodePods {
    pods: Vec<Arc<Pod>>,
    requests: Resources,
    daemon_requests: Resources,
}

impl NodePods {
    /// The pods, sorted by namespace and name.
    pub fn pods(&self) -> &[Arc<Pod>] {
        &self.pods
    }

    /// What pods that have not ended ask for, DaemonSets' included.
    pub fn requests(&self) -> &Resources {
        &self.requests
    }

    /// The part of [`Self::requests`] that belongs to DaemonSets.
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

    /// Adds pods and sums up once.
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

    /// Adds up afresh, so that saturation at the limits of i64 cannot leave a trace.
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

/// Everything known, in persistent maps: cloning is O(1).
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
    /// Machines by key: `node/<name>`, or `claim/<name>` while there is no Node.
    pub(super) machines: RedBlackTreeMapSync<String, Arc<NodeState>>,
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
            machines: RedBlackTreeMapSync::new_sync(),
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

    /// Brings machines up to date after Node `name` changed from `old`.
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
            marks = marks.or_else(|| self.machines.get(&key).cloned());
            self.machines.remove_mut(&key);
            self.place_claim(&claim, None);
        }
        self.place_node(name, marks.as_deref());
    }

    /// Brings machines up to date after NodeClaim `name` changed from `old`.
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
        let marks = self.machines.get(&key).cloned();
        self.machines.remove_mut(&key);
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

    /// The machine of a Node.
    fn place_node(&mut self, name: &str, marks: Option<&NodeState>) {
        let key = format!("node/{name}");
        let old = self.machines.get(&key).cloned();
        let Some(node) = self.raw_nodes.get(name).cloned() else {
            self.machines.remove_mut(&key);
            return;
        };
        let claim = node
            .provider_id
            .as_deref()
            .and_then(|id| self.claim_of(id))
            .and_then(|claim| self.claims.get(&claim))
            .cloned();
        let labelled = self.config.node_classes.iter().any(|kind| {
            node.labels
                .contains_key(&karpenter_api::labels::node_class(&kind.group, &kind.kind))
        });
        let marks = old.as_deref().or(marks);
        let state = NodeState {
            managed: claim.is_some() || labelled,
            node: Some(node),
            claim,
            marked_for_deletion: marks.is_some_and(|marks| marks.marked_for_deletion),
            nominated_until: marks.and_then(|marks| marks.nominated_until),
        };
        self.machines.insert_mut(key, Arc::new(state));
    }

    /// The machine of a NodeClaim that has no Node.
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
        self.machines
            .insert_mut(format!("claim/{name}"), Arc::new(state));
    }

    fn machine_key(&self, name: &str) -> Option<String> {
        let direct = ["node", "claim"]
            .iter()
            .map(|kind| format!("{kind}/{name}"))
            .find(|key| self.machines.contains_key(key));
        direct.or_else(|| {
            let id = self.claims.get(name)?.status.provider_id.as_deref()?;
            Some(format!("node/{}", self.node_of(id)?))
        })
    }

    pub(super) fn change_node(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut NodeState),
    ) -> Change {
        let Some((key, machine)) = self.machine_key(name).and_then(|key| {
            self.machines
                .get(&key)
                .cloned()
                .map(|machine| (key, machine))
        }) else {
            return Change::Unchanged;
        };
        let mut machine = NodeState::clone(&machine);
        change(&mut machine);
        self.machines.insert_mut(key, Arc::new(machine));
        Change::Updated
    }

    pub(super) fn change_machine(
        &mut self,
        provider_id: &str,
        change: impl FnOnce(&mut NodeState),
    ) -> Change {
        let Some(name) = self
            .by_provider_id
            .get(provider_id)
            .and_then(|link| link.0.clone().or_else(|| link.1.clone()))
        else {
            return Change::Unchanged;
        };
        self.change_node(&name, change)
    }
}

/// The cluster at one moment. Cloning is O(1); nothing in it changes.
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
/// // What happens later does not show in it.
/// cluster.remove_node("two");
/// assert_eq!(snapshot.nodes().count(), 2);
///
/// // What if a machine were gone? A fork answers, and costs what it touches.
/// assert_eq!(snapshot.without(&["one"]).nodes().count(), 1);
///
/// // To try anything else, go on from a fork as from a cluster of one's own.
/// let mut imagined = Cluster::from(snapshot.fork());
/// imagined.apply_node(&serde_json::from_value(json!({ "metadata": { "name": "three" } }))?);
/// assert_eq!(imagined.snapshot().nodes().count(), 3);
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

    /// A copy to try something on. O(1).
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// A copy without these machines (Node or NodeClaim names). Their pods stay, bound to a node that is gone.
    #[must_use]
    pub fn without(&self, nodes: &[&str]) -> Self {
        let mut copy = self.clone();
        for name in nodes {
            if let Some(key) = copy.state.machine_key(name) {
                copy.state.machines.remove_mut(&key);
            }
        }
        copy
    }

    /// A copy in which waiting pods are bound to the nodes (Node or NodeClaim names) they were nominated to, so that they take
    /// up room there and are not pending.
    ///
    /// kube-scheduler calls this assuming a pod. A NodeClaim without a Node holds its pods under its own name.
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

    /// A copy without these pods.
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

    /// Counts the changes that consolidation could answer differently after: of two snapshots of one cluster with the same
    /// number, what paid in neither pays in the other, time apart.
    ///
    /// Pods that become ready or stop being it do not count: what follows from it, budgets of pods say in their status.
    pub fn epoch(&self) -> u64 {
        self.state.epoch
    }

    /// The configuration.
    pub fn config(&self) -> &ClusterConfig {
        &self.state.config
    }

    /// Machines: Nodes by name, then NodeClaims without a Node by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<NodeState>> {
        let of = |prefix: &'static str| {
            self.state
                .machines
                .iter()
                .filter(move |(key, _)| key.starts_with(prefix))
                .map(|(_, machine)| machine)
        };
        of("node/").chain(of("claim/"))
    }

    /// The machine with this Node or NodeClaim name.
    pub fn node(&self, name: &str) -> Option<&Arc<NodeState>> {
        self.state.machines.get(&self.state.machine_key(name)?)
    }

    /// The machine with this provider id.
    pub fn machine(&self, provider_id: &str) -> Option<&Arc<NodeState>> {
        let link = self.state.by_provider_id.get(provider_id)?;
        self.node(link.0.as_deref().or(link.1.as_deref())?)
    }

    /// The pods bound to a Node.
    pub fn pods_on(&self, node: &str) -> &[Arc<Pod>] {
        self.state
            .by_node
            .get(node)
            .map(|pods| pods.pods())
            .unwrap_or_default()
    }

    /// The pods bound to a Node, with what they add up to.
    pub fn node_pods(&self, node: &str) -> Option<&Arc<NodePods>> {
        self.state.by_node.get(node)
    }

    /// Names that pods are bound to, with those pods, in no particular order. A name need not have a Node.
    pub fn bound_pods(&self) -> impl Iterator<Item = (&String, &Arc<NodePods>)> {
        self.state.by_node.iter()
    }

    /// Pods without a node, by namespace and name.
    pub fn unbound_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.state.unbound.values()
    }

    /// Pods that need a node: kube-scheduler found none for them.
    pub fn pending_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.unbound_pods().filter(|pod| pod.is_provisionable())
    }

    /// Pods of machines that are going away and that will need another node, by node name.
    pub fn pods_of_deleting_nodes(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.nodes()
            .filter(|machine| machine.is_deleting())
            .filter_map(|machine| machine.node.as_ref())
            .flat_map(|node| self.pods_on(&node.name))
            .filter(|pod| pod.is_reschedulable())
    }

    /// A pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Arc<Pod>> {
        self.state.pods.get(&named(namespace, name))
    }

    /// All pods, in no particular order.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.state.pods.values()
    }

    /// The number of pods.
    pub fn pod_count(&self) -> usize {
        self.state.pods.size()
    }

    /// NodePools by name.
    pub fn node_pools(&self) -> impl Iterator<Item = &Arc<NodePool>> {
        self.state.pools.values()
    }

    /// A NodePool.
    pub fn node_pool(&self, name: &str) -> Option<&Arc<NodePool>> {
        self.state.pools.get(name)
    }

    /// NodeClaims by name.
    pub fn node_claims(&self) -> impl Iterator<Item = &Arc<NodeClaim>> {
        self.state.claims.values()
    }

    /// A NodeClaim.
    pub fn node_claim(&self, name: &str) -> Option<&Arc<NodeClaim>> {
        self.state.claims.get(name)
    }

    /// NodeOverlays by name.
    pub fn node_overlays(&self) -> impl Iterator<Item = &Arc<NodeOverlay>> {
        self.state.overlays.values()
    }

    /// What the provider offers for a NodePool, before overlays; `None` if it has not been asked yet.
    pub fn instance_types(&self, pool: &str) -> Option<&Result<Arc<[InstanceType]>, String>> {
        self.state.instance_types.get(pool)
    }

    /// DaemonSets by namespace and name, each with its newest pod, if one was seen.
    pub fn daemon_sets(&self) -> impl Iterator<Item = (&Arc<DaemonSet>, Option<&Arc<Pod>>)> {
        self.state
            .daemon_sets
            .values()
            .map(|set| (set, self.state.daemon_pods.get(&set.uid)))
    }

    /// PodDisruptionBudgets by namespace and name.
    pub fn pdbs(&self) -> impl Iterator<Item = &Arc<PodDisruptionBudget>> {
        self.state.pdbs.values()
    }

    /// PodDisruptionBudgets of a namespace, by name.
    pub fn pdbs_of(&self, namespace: &str) -> impl Iterator<Item = &Arc<PodDisruptionBudget>> {
        let from = named(namespace, "");
        let namespace = namespace.to_owned();
        let rest = self.state.pdbs.range(from..);
        rest.take_while(move |(key, _)| key.0 == namespace)
            .map(|(_, budget)| budget)
    }

    /// Selectors of the Services of a namespace, by name; `None` selects nothing.
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

    /// What a workload controller selects its pods by.
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

    /// Namespaces with their labels, by name.
    pub fn namespaces(&self) -> impl Iterator<Item = (&String, &Labels)> {
        self.state
            .namespaces
            .iter()
            .map(|(name, labels)| (name, labels.as_ref()))
    }

    /// Labels of a namespace.
    pub fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.state.namespaces.get(name).map(AsRef::as_ref)
    }

    /// A PersistentVolumeClaim.
    pub fn volume_claim(&self, namespace: &str, name: &str) -> Option<&VolumeClaim> {
        self.state
            .volume_claims
            .get(&named(namespace, name))
            .map(AsRef::as_ref)
    }

    /// A PersistentVolume.
    pub fn volume(&self, name: &str) -> Option<&Volume> {
        self.state.volumes.get(name).map(AsRef::as_ref)
    }

    /// A StorageClass.
    pub fn storage_class(&self, name: &str) -> Option<&StorageClass> {
        self.state.storage_classes.get(name).map(AsRef::as_ref)
    }

    /// The newest default StorageClass; ties go to the first name.
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

    /// How many volumes each CSI driver can attach to a node.
    pub fn attach_limits(&self, node: &str) -> Option<&BTreeMap<String, u32>> {
        self.state.csi_nodes.get(node).map(AsRef::as_ref)
    }

    /// ResourceSlices by name.
    pub fn resource_slices(&self) -> impl Iterator<Item = &Arc<ResourceSlice>> {
        self.state.resource_slices.values()
    }

    /// A ResourceClaim.
    pub fn resource_claim(&self, namespace: &str, name: &str) -> Option<&Arc<ResourceClaim>> {
        self.state.resource_claims.get(&named(namespace, name))
    }

    /// ResourceClaims by namespace and name.
    pub fn resource_claims(&self) -> impl Iterator<Item = &Arc<ResourceClaim>> {
        self.state.resource_claims.values()
    }

    /// DeviceClasses by name.
    pub fn device_classes(&self) -> impl Iterator<Item = &Arc<DeviceClass>> {
        self.state.device_classes.values()
    }

    /// A DeviceClass.
    pub fn device_class(&self, name: &str) -> Option<&Arc<DeviceClass>> {
        self.state.device_classes.get(name)
    }
}
