use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::{self, Cluster, ClusterConfig, Delta};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::Pod;
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};
use rustc_hash::FxHashSet;
use tokio::sync::{SetOnce, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::view::{Change, NodeClass, View, class_key};

/// Callback for every change, after the view that contains it is published. Called on the model's task: it must be quick.
pub type Subscriber = Box<dyn Fn(&Change, &View) + Send>;

/// An update of the model.
pub(super) type Update = Box<dyn FnOnce(&mut State) + Send>;

/// Reads views and sends updates. Cheap to clone.
#[derive(Clone)]
pub struct ModelHandle {
    updates: mpsc::Sender<Update>,
    view: Arc<ArcSwap<View>>,
    version: watch::Receiver<u64>,
    synced: Arc<SetOnce<()>>,
}

impl fmt::Debug for ModelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelHandle")
    }
}

/// The model did not apply an update because the operator is stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the model has stopped")]
pub struct Stopped;

impl ModelHandle {
    /// Returns the latest view.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Returns a receiver of view versions; its first wait returns at once.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }

    /// Waits until every kind has been listed; forever, if the model stops before.
    ///
    /// Waiters are woken in the order of their calls: a `watch` wakes them in any order, and simulations would not repeat.
    pub async fn synced(&self) {
        self.synced.wait().await;
    }

    pub(super) fn sender(&self) -> mpsc::Sender<Update> {
        self.updates.clone()
    }

    /// Applies an update and waits until a view with it is published.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn update<R: Send + 'static>(
        &self,
        apply: impl FnOnce(&mut State) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let (done, result) = oneshot::channel();
        let update: Update = Box::new(move |state| {
            let value = apply(state);
            state.after_publication.push(Box::new(move || {
                // The caller may have been dropped while waiting; the update is applied all the same.
                let _ = done.send(value);
            }));
        });
        self.updates.send(update).await.map_err(|_| Stopped)?;
        result.await.map_err(|_| Stopped)
    }

    /// Protects nodes that pods were nominated to from disruption.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn nominate(&self, nodes: Vec<String>, until: Timestamp) -> Result<(), Stopped> {
        self.update(move |state| {
            for node in nodes {
                state.cluster.nominate(&node, until);
            }
        })
        .await
    }

    /// Marks or unmarks nodes that a command is about to delete.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn mark_for_deletion(
        &self,
        provider_ids: Vec<String>,
        mark: bool,
    ) -> Result<(), Stopped> {
        self.update(move |state| {
            let ids: Vec<&str> = provider_ids.iter().map(String::as_str).collect();
            if mark {
                state.cluster.mark_for_deletion(&ids);
            } else {
                state.cluster.unmark_for_deletion(&ids);
            }
        })
        .await
    }

    /// Adds a NodeClaim that was just created to the model, so that the next plan counts it.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn created_node_claim(&self, claim: NodeClaim) -> Result<(), Stopped> {
        self.update(move |state| {
            // The watch may have been faster, and may have a newer version.
            if state.cluster_has_claim(claim.name(), claim.uid()) {
                return;
            }
            state.apply_node_claim(claim);
        })
        .await
    }

    /// Sets the instance types that the provider offers for a NodePool.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn set_instance_types(
        &self,
        pool: String,
        types: Result<Arc<[InstanceType]>, String>,
    ) -> Result<(), Stopped> {
        self.update(move |state| {
            state.cluster.set_instance_types(&pool, types);
        })
        .await
    }

    /// Removes the instance types of a NodePool: they are not known yet.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn forget_instance_types(&self, pool: String) -> Result<(), Stopped> {
        self.update(move |state| {
            state.cluster.forget_instance_types(&pool);
        })
        .await
    }
}

/// The state of the model, owned by its task.
pub struct State {
    /// The engine's model of the cluster.
    pub cluster: Cluster,
    classes: RedBlackTreeMapSync<String, Arc<NodeClass>>,
    refusals: HashTrieMapSync<String, Arc<str>>,
    awaited: FxHashSet<&'static str>,
    changes: Vec<Change>,
    after_publication: Vec<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("awaited", &self.awaited)
            .finish_non_exhaustive()
    }
}

impl State {
    pub(crate) fn new(config: ClusterConfig, awaited: &[&'static str]) -> Self {
        Self {
            cluster: Cluster::new(config),
            classes: RedBlackTreeMapSync::new_sync(),
            refusals: HashTrieMapSync::new_sync(),
            awaited: awaited.iter().copied().collect(),
            changes: Vec::new(),
            after_publication: Vec::new(),
        }
    }

    pub(crate) fn view(&self) -> View {
        View {
            snapshot: self.cluster.snapshot(),
            classes: self.classes.clone(),
            refusals: self.refusals.clone(),
            synced: self.awaited.is_empty(),
        }
    }

    /// Queues a change for the subscribers.
    pub fn changed(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Records that a kind has been listed completely.
    pub fn listed(&mut self, kind: &'static str) {
        if self.awaited.remove(kind) && self.awaited.is_empty() {
            self.changes.push(Change::Synced);
        }
    }

    fn cluster_has_claim(&self, name: &str, uid: &str) -> bool {
        self.cluster
            .snapshot()
            .node_claim(name)
            .is_some_and(|known| known.uid() == uid)
    }

    /// Adds or replaces a pod.
    pub fn apply_pod(&mut self, pod: Pod) {
        let delta = self.cluster.insert_pod(pod);
        self.pod_changed(delta);
    }

    fn pod_changed(&mut self, delta: Delta<Pod>) {
        if delta.is_change() {
            let Delta { before, after } = delta;
            self.changes.push(Change::Pod { before, after });
        }
    }

    /// Stores why kube-scheduler did not schedule a provisionable pod, without a [`Change`], because kube-scheduler writes
    /// another message whenever the number of nodes changes.
    pub fn refused(&mut self, pod: &Pod, message: Option<String>) {
        match message.filter(|_| pod.is_provisionable()) {
            Some(message) => {
                let uid = pod.key.uid.clone();
                self.refusals.insert_mut(uid, message.into());
            }
            None => {
                self.refusals.remove_mut(&pod.key.uid);
            }
        }
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        let delta = self.cluster.remove_pod(namespace, name);
        if let Some(pod) = &delta.before {
            self.refusals.remove_mut(&pod.key.uid);
        }
        self.pod_changed(delta);
    }

    /// Adds or replaces a Node.
    pub fn apply_node(&mut self, node: Node) {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let delta = self.cluster.insert_node(Arc::new(node));
        self.node_changed(name, delta);
    }

    /// Removes a Node.
    pub fn remove_node(&mut self, name: &str) {
        let delta = self.cluster.remove_node(name);
        self.node_changed(name.into(), delta);
    }

    fn node_changed(&mut self, name: Arc<str>, delta: Delta<Node>) {
        if delta.is_change() {
            let Delta { before, after } = delta;
            self.changes.push(Change::Node {
                name,
                before,
                after,
            });
        }
    }

    /// Adds or replaces a NodeClaim.
    pub fn apply_node_claim(&mut self, claim: NodeClaim) {
        let name: Arc<str> = claim.name().into();
        let delta = self.cluster.insert_node_claim(Arc::new(claim));
        self.node_claim_changed(name, delta);
    }

    /// Removes a NodeClaim.
    pub fn remove_node_claim(&mut self, name: &str) {
        let delta = self.cluster.remove_node_claim(name);
        self.node_claim_changed(name.into(), delta);
    }

    fn node_claim_changed(&mut self, name: Arc<str>, delta: Delta<NodeClaim>) {
        if delta.is_change() {
            let Delta { before, after } = delta;
            self.changes.push(Change::NodeClaim {
                name,
                before,
                after,
            });
        }
    }

    /// Adds or replaces a NodePool.
    pub fn apply_node_pool(&mut self, pool: &NodePool) {
        let delta = self.cluster.apply_node_pool(pool);
        self.node_pool_changed(pool.name(), delta);
    }

    /// Removes a NodePool.
    pub fn remove_node_pool(&mut self, name: &str) {
        let delta = self.cluster.remove_node_pool(name);
        self.node_pool_changed(name, delta);
    }

    fn node_pool_changed(&mut self, name: &str, delta: Delta<NodePool>) {
        if delta.is_change() {
            let Delta { before, after } = delta;
            self.changes.push(Change::NodePool {
                name: name.into(),
                before,
                after,
            });
        }
    }

    /// Adds or replaces a NodeClass.
    pub fn apply_node_class(&mut self, class: NodeClass) {
        let key = class_key(
            &class.reference.group,
            &class.reference.kind,
            &class.reference.name,
        );
        if self.classes.get(&key).is_some_and(|known| **known == class) {
            return;
        }
        let class = Arc::new(class);
        self.classes.insert_mut(key, Arc::clone(&class));
        self.changes.push(Change::NodeClass {
            reference: class.reference.clone(),
            after: Some(class),
        });
    }

    /// Removes a NodeClass.
    pub fn remove_node_class(&mut self, group: &str, kind: &str, name: &str) {
        let key = class_key(group, kind, name);
        if let Some(known) = self.classes.get(&key).cloned() {
            self.classes.remove_mut(&key);
            self.changes.push(Change::NodeClass {
                reference: known.reference.clone(),
                after: None,
            });
        }
    }

    /// Adds or replaces a VolumeAttachment.
    pub fn apply_attachment(&mut self, attachment: &VolumeAttachment) {
        let delta = self.cluster.apply_volume_attachment(attachment);
        self.attachment_changed(delta);
    }

    /// Removes a VolumeAttachment.
    pub fn remove_attachment(&mut self, name: &str) {
        let delta = self.cluster.remove_volume_attachment(name);
        self.attachment_changed(delta);
    }

    fn attachment_changed(&mut self, delta: Delta<cluster::VolumeAttachment>) {
        if delta.is_change()
            && let Some(known) = delta.after.or(delta.before)
        {
            let node = known.node.as_str().into();
            self.changes.push(Change::VolumeAttachment { node });
        }
    }
}

/// The model's task, ready to run.
pub struct Model {
    state: State,
    updates: mpsc::Receiver<Update>,
    view: Arc<ArcSwap<View>>,
    version: watch::Sender<u64>,
    synced: Arc<SetOnce<()>>,
    subscribers: Vec<Subscriber>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Model {
    const QUEUE: usize = 4096;
    /// Most updates in one view: a burst is published together, but readers never starve.
    const BATCH: usize = 1024;

    /// Creates a model that is in sync once every kind of `awaited` has been listed.
    #[must_use]
    pub fn new(config: ClusterConfig, awaited: &[&'static str]) -> (Self, ModelHandle) {
        let (sender, updates) = mpsc::channel(Self::QUEUE);
        let state = State::new(config, awaited);
        let view = Arc::new(ArcSwap::from_pointee(state.view()));
        let (version, versions) = watch::channel(0);
        let synced = Arc::new(SetOnce::new());
        let handle = ModelHandle {
            updates: sender,
            view: Arc::clone(&view),
            version: versions,
            synced: Arc::clone(&synced),
        };
        (
            Self {
                state,
                updates,
                view,
                version,
                synced,
                subscribers: Vec::new(),
            },
            handle,
        )
    }

    /// Calls `subscriber` for every change from now on.
    pub fn subscribe(&mut self, subscriber: Subscriber) {
        self.subscribers.push(subscriber);
    }

    /// Applies updates until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let first = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                update = self.updates.recv() => update,
            };
            let Some(first) = first else { return };
            first(&mut self.state);
            for _ in 1..Self::BATCH {
                match self.updates.try_recv() {
                    Ok(update) => update(&mut self.state),
                    Err(_) => break,
                }
            }
            self.publish();
        }
    }

    fn publish(&mut self) {
        let view = Arc::new(self.state.view());
        self.view.store(Arc::clone(&view));
        for change in std::mem::take(&mut self.state.changes) {
            for subscriber in &self.subscribers {
                subscriber(&change, &view);
            }
        }
        self.version.send_modify(|version| *version += 1);
        if view.is_synced() {
            // Only the first call sets it.
            let _ = self.synced.set(());
        }
        for acknowledge in std::mem::take(&mut self.state.after_publication) {
            acknowledge();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "uid": name}, "spec": {}}))
            .unwrap()
    }

    /// Conformance: DIS-008, DIS-010
    #[test]
    fn the_model_is_in_sync_once_every_kind_was_listed_whatever_the_nodes_are_like() {
        let mut state = State::new(ClusterConfig::default(), &["Node", "NodeClaim"]);
        state.apply_node(node("without-provider-id"));
        state.listed("Node");
        assert!(!state.view().is_synced(), "nodeclaims are not listed");
        state.listed("NodeClaim");
        assert!(state.view().is_synced());
        assert_eq!(
            state
                .changes
                .iter()
                .filter(|c| matches!(c, Change::Synced))
                .count(),
            1
        );
        state.apply_node(node("new"));
        assert!(state.view().is_synced());
        assert_eq!(state.view().nodes().count(), 2);
    }
}
