use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::Pod;
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};
use rustc_hash::FxHashSet;
use tokio::sync::{SetOnce, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::view::{AttachmentRecord, Change, Index, NodeClass, View, class_key};

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
    nodes: RedBlackTreeMapSync<Arc<str>, Arc<Node>>,
    nodes_by_id: Index,
    claims_by_id: Index,
    claims_by_pool: Index,
    classes: RedBlackTreeMapSync<String, Arc<NodeClass>>,
    attachments: RedBlackTreeMapSync<Arc<str>, Arc<AttachmentRecord>>,
    attachments_by_node: Index,
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
            nodes: RedBlackTreeMapSync::new_sync(),
            nodes_by_id: Index::new_sync(),
            claims_by_id: Index::new_sync(),
            claims_by_pool: Index::new_sync(),
            classes: RedBlackTreeMapSync::new_sync(),
            attachments: RedBlackTreeMapSync::new_sync(),
            attachments_by_node: Index::new_sync(),
            refusals: HashTrieMapSync::new_sync(),
            awaited: awaited.iter().copied().collect(),
            changes: Vec::new(),
            after_publication: Vec::new(),
        }
    }

    pub(crate) fn view(&self) -> View {
        View {
            snapshot: self.cluster.snapshot(),
            nodes: self.nodes.clone(),
            nodes_by_id: self.nodes_by_id.clone(),
            claims_by_id: self.claims_by_id.clone(),
            claims_by_pool: self.claims_by_pool.clone(),
            classes: self.classes.clone(),
            attachments: self.attachments.clone(),
            attachments_by_node: self.attachments_by_node.clone(),
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
        let before = self
            .cluster
            .snapshot()
            .pod(&pod.key.namespace, &pod.key.name)
            .cloned();
        let (namespace, name) = (pod.key.namespace.clone(), pod.key.name.clone());
        if self.cluster.insert_pod(pod).is_change() {
            let after = self.cluster.snapshot().pod(&namespace, &name).cloned();
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
        let before = self.cluster.snapshot().pod(namespace, name).cloned();
        if let Some(pod) = &before {
            self.refusals.remove_mut(&pod.key.uid);
        }
        if self.cluster.remove_pod(namespace, name).is_change() {
            self.changes.push(Change::Pod {
                before,
                after: None,
            });
        }
    }

    /// Adds or replaces a Node.
    pub fn apply_node(&mut self, node: Node) {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let after = Arc::new(node);
        let before = self.nodes.get(&name).cloned();
        if before.as_ref() == Some(&after) {
            return;
        }
        self.cluster.apply_node(&after);
        reindex(
            &mut self.nodes_by_id,
            &name,
            before.as_deref().and_then(node_provider_id),
            node_provider_id(&after),
        );
        self.nodes.insert_mut(Arc::clone(&name), Arc::clone(&after));
        self.changes.push(Change::Node {
            name,
            before,
            after: Some(after),
        });
    }

    /// Removes a Node.
    pub fn remove_node(&mut self, name: &str) {
        self.cluster.remove_node(name);
        if let Some(before) = self.nodes.get(name).cloned() {
            let name: Arc<str> = name.into();
            reindex(
                &mut self.nodes_by_id,
                &name,
                node_provider_id(&before),
                None,
            );
            self.nodes.remove_mut(&name);
            self.changes.push(Change::Node {
                name,
                before: Some(before),
                after: None,
            });
        }
    }

    /// Adds or replaces a NodeClaim.
    pub fn apply_node_claim(&mut self, claim: NodeClaim) {
        let name: Arc<str> = claim.name().into();
        let before = self.cluster.snapshot().node_claim(&name).cloned();
        let claim = Arc::new(claim);
        if self
            .cluster
            .insert_node_claim(Arc::clone(&claim))
            .is_change()
        {
            reindex(
                &mut self.claims_by_id,
                &name,
                before.as_deref().and_then(claim_provider_id),
                claim_provider_id(&claim),
            );
            reindex(
                &mut self.claims_by_pool,
                &name,
                before.as_deref().and_then(NodeClaim::node_pool),
                claim.node_pool(),
            );
            self.changes.push(Change::NodeClaim {
                name,
                before,
                after: Some(claim),
            });
        }
    }

    /// Removes a NodeClaim.
    pub fn remove_node_claim(&mut self, name: &str) {
        let before = self.cluster.snapshot().node_claim(name).cloned();
        if self.cluster.remove_node_claim(name).is_change() {
            let name: Arc<str> = name.into();
            reindex(
                &mut self.claims_by_id,
                &name,
                before.as_deref().and_then(claim_provider_id),
                None,
            );
            reindex(
                &mut self.claims_by_pool,
                &name,
                before.as_deref().and_then(NodeClaim::node_pool),
                None,
            );
            self.changes.push(Change::NodeClaim {
                name,
                before,
                after: None,
            });
        }
    }

    /// Adds or replaces a NodePool.
    pub fn apply_node_pool(&mut self, pool: &NodePool) {
        let before = self.cluster.snapshot().node_pool(pool.name()).cloned();
        if self.cluster.apply_node_pool(pool).is_change() {
            let after = self.cluster.snapshot().node_pool(pool.name()).cloned();
            self.changes.push(Change::NodePool {
                name: pool.name().into(),
                before,
                after,
            });
        }
    }

    /// Removes a NodePool.
    pub fn remove_node_pool(&mut self, name: &str) {
        let before = self.cluster.snapshot().node_pool(name).cloned();
        if self.cluster.remove_node_pool(name).is_change() {
            self.changes.push(Change::NodePool {
                name: name.into(),
                before,
                after: None,
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
    pub fn apply_attachment(&mut self, record: AttachmentRecord) {
        let name: Arc<str> = record.name.as_str().into();
        let before = self.attachments.get(&name).cloned();
        reindex(
            &mut self.attachments_by_node,
            &name,
            before.as_ref().map(|r| &*r.node),
            Some(&record.node),
        );
        self.changes.push(Change::VolumeAttachment {
            node: Arc::clone(&record.node),
        });
        self.attachments.insert_mut(name, Arc::new(record));
    }

    /// Removes a VolumeAttachment.
    pub fn remove_attachment(&mut self, name: &str) {
        if let Some(before) = self.attachments.get(name).cloned() {
            let name: Arc<str> = name.into();
            reindex(
                &mut self.attachments_by_node,
                &name,
                Some(&before.node),
                None,
            );
            self.attachments.remove_mut(&name);
            self.changes.push(Change::VolumeAttachment {
                node: Arc::clone(&before.node),
            });
        }
    }
}

fn node_provider_id(node: &Node) -> Option<&str> {
    node.spec
        .as_ref()?
        .provider_id
        .as_deref()
        .filter(|id| !id.is_empty())
}

fn claim_provider_id(claim: &NodeClaim) -> Option<&str> {
    claim
        .status
        .provider_id
        .as_deref()
        .filter(|id| !id.is_empty())
}

/// Moves `name` from one key of an index to another; the names of a key stay sorted.
fn reindex(index: &mut Index, name: &Arc<str>, from: Option<&str>, to: Option<&str>) {
    if from == to {
        return;
    }
    if let Some(from) = from
        && let Some(names) = index.get(from)
    {
        let rest: Vec<_> = names.iter().filter(|n| *n != name).cloned().collect();
        if rest.is_empty() {
            index.remove_mut(from);
        } else {
            index.insert_mut(from.into(), rest.into());
        }
    }
    if let Some(to) = to {
        let mut names: Vec<_> = index.get(to).map(|n| n.to_vec()).unwrap_or_default();
        if let Err(at) = names.binary_search(name) {
            names.insert(at, Arc::clone(name));
        }
        index.insert_mut(to.into(), names.into());
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
