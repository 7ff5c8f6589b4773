//! The state of the model: the engine's cluster, what only controllers read, and the changes that are not published yet.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::{self, Cluster, ClusterConfig, Delta};
use karpenter_core::pod::Pod;
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};
use rustc_hash::FxHashSet;

use super::update::{Object, ObjectKind, Update};
use super::view::{Change, NodeClass, View, class_key};

/// The state of the model.
// INVARIANT: only the model's task has one. All other code reads views and queues updates.
pub(crate) struct State {
    pub(crate) cluster: Cluster,
    classes: RedBlackTreeMapSync<String, Arc<NodeClass>>,
    refusals: HashTrieMapSync<String, Arc<str>>,
    awaited: FxHashSet<&'static str>,
    changes: Vec<Change>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("awaited", &self.awaited)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Creates the state of an empty cluster, which is in sync once every kind of `awaited` has been listed.
    pub(crate) fn new(config: ClusterConfig, awaited: &[&'static str]) -> Self {
        Self {
            cluster: Cluster::new(config),
            classes: RedBlackTreeMapSync::new_sync(),
            refusals: HashTrieMapSync::new_sync(),
            awaited: awaited.iter().copied().collect(),
            changes: Vec::new(),
        }
    }

    /// Returns the state as it is now. O(1).
    pub(crate) fn view(&self) -> View {
        View {
            snapshot: self.cluster.snapshot(),
            classes: self.classes.clone(),
            refusals: self.refusals.clone(),
            synced: self.is_synced(),
        }
    }

    /// Reports whether every awaited kind has been listed.
    pub(super) fn is_synced(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Returns the changes since the last call, in order.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn update(&mut self, update: Update) {
        match update {
            Update::Apply(object) => self.apply(object),
            Update::Remove(kind, key) => self.remove(&kind, &key),
            Update::Portion(objects) => objects.into_iter().for_each(|o| self.apply(o)),
            Update::Listed {
                kind,
                deleted,
                objects,
            } => {
                deleted.iter().for_each(|key| self.remove(&kind, key));
                objects.into_iter().for_each(|o| self.apply(o));
                self.listed(kind.as_str());
            }
            Update::CreatedNodeClaim(claim) => {
                // The watch may have been faster, and may have a newer version.
                let known = self.cluster.snapshot().node_claim(claim.name()).cloned();
                if known.is_none_or(|known| known.uid() != claim.uid()) {
                    self.apply_node_claim(claim);
                }
            }
            Update::MissingNodeClaim { name, uid } => {
                let known = self.cluster.snapshot().node_claim(&name).cloned();
                let is_missing = |known: &NodeClaim| {
                    let id = known.status.provider_id.as_deref();
                    known.uid() == uid && id.is_none_or(str::is_empty)
                };
                if known.as_deref().is_some_and(is_missing) {
                    self.remove_node_claim(&name);
                }
            }
            Update::Nominate { nodes, until } => {
                for node in nodes {
                    self.cluster.nominate(&node, until);
                }
            }
            Update::MarkForDeletion { provider_ids, mark } => {
                let ids: Vec<&str> = provider_ids.iter().map(String::as_str).collect();
                if mark {
                    self.cluster.mark_for_deletion(&ids);
                } else {
                    self.cluster.unmark_for_deletion(&ids);
                }
            }
            Update::SetInstanceTypes { pool, types } => {
                self.cluster.set_instance_types(&pool, types);
            }
            Update::ForgetInstanceTypes { pool } => self.cluster.forget_instance_types(&pool),
        }
    }

    fn apply(&mut self, object: Object) {
        match object {
            Object::Pod { pod, refusal } => {
                self.refused(&pod, refusal);
                self.apply_pod(*pod);
            }
            Object::Node(node) => self.apply_node(node),
            Object::NodeClaim(claim) => self.apply_node_claim(claim),
            Object::NodePool(pool) => self.apply_node_pool(&pool),
            Object::NodeClass(class) => self.apply_node_class(class),
            Object::VolumeAttachment(attachment) => self.apply_attachment(&attachment),
            Object::Other(object) => {
                if object.apply(&mut self.cluster) {
                    self.changes.push(Change::Other(object.kind().as_str()));
                }
            }
        }
    }

    fn remove(&mut self, kind: &ObjectKind, key: &str) {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        match kind {
            ObjectKind::Pod => self.remove_pod(namespace, name),
            ObjectKind::Node => self.remove_node(name),
            ObjectKind::NodeClaim => self.remove_node_claim(name),
            ObjectKind::NodePool => self.remove_node_pool(name),
            ObjectKind::NodeClass { group, kind } => self.remove_node_class(group, kind, name),
            ObjectKind::VolumeAttachment => self.remove_attachment(name),
            ObjectKind::Other(kind) => {
                if kind.remove(&mut self.cluster, namespace, name) {
                    self.changes.push(Change::Other(kind.as_str()));
                }
            }
        }
    }

    /// Records that a kind has been listed completely.
    fn listed(&mut self, kind: &'static str) {
        if self.awaited.remove(kind) && self.awaited.is_empty() {
            self.changes.push(Change::Synced);
        }
    }

    pub(crate) fn apply_pod(&mut self, pod: Pod) {
        let delta = self.cluster.insert_pod(pod);
        self.pod_changed(delta);
    }

    fn remove_pod(&mut self, namespace: &str, name: &str) {
        let delta = self.cluster.remove_pod(namespace, name);
        if let Some(pod) = &delta.before {
            self.refusals.remove_mut(&pod.key.uid);
        }
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
    fn refused(&mut self, pod: &Pod, message: Option<String>) {
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

    pub(crate) fn apply_node(&mut self, node: impl Into<Arc<Node>>) {
        let node = node.into();
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let delta = self.cluster.insert_node(node);
        self.node_changed(name, delta);
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
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

    pub(crate) fn apply_node_claim(&mut self, claim: impl Into<Arc<NodeClaim>>) {
        let claim = claim.into();
        let name: Arc<str> = claim.name().into();
        let delta = self.cluster.insert_node_claim(claim);
        self.node_claim_changed(name, delta);
    }

    pub(crate) fn remove_node_claim(&mut self, name: &str) {
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

    fn apply_node_pool(&mut self, pool: &NodePool) {
        let delta = self.cluster.apply_node_pool(pool);
        self.node_pool_changed(pool.name(), delta);
    }

    fn remove_node_pool(&mut self, name: &str) {
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

    fn apply_node_class(&mut self, class: Arc<NodeClass>) {
        let key = class_key(
            &class.reference.group,
            &class.reference.kind,
            &class.reference.name,
        );
        if self.classes.get(&key).is_some_and(|known| *known == class) {
            return;
        }
        self.classes.insert_mut(key, Arc::clone(&class));
        self.changes.push(Change::NodeClass {
            reference: class.reference.clone(),
            after: Some(class),
        });
    }

    fn remove_node_class(&mut self, group: &str, kind: &str, name: &str) {
        let key = class_key(group, kind, name);
        if let Some(known) = self.classes.get(&key).cloned() {
            self.classes.remove_mut(&key);
            self.changes.push(Change::NodeClass {
                reference: known.reference.clone(),
                after: None,
            });
        }
    }

    fn apply_attachment(&mut self, attachment: &VolumeAttachment) {
        let delta = self.cluster.apply_volume_attachment(attachment);
        self.attachment_changed(delta);
    }

    fn remove_attachment(&mut self, name: &str) {
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

#[cfg(test)]
mod tests {
    use karpenter_fixtures::{bare_node, node_claim};
    use serde_json::json;

    use super::*;

    fn node(name: &str) -> Node {
        bare_node(name).remove("/spec/providerID").build()
    }

    /// Conformance: DIS-008, DIS-010
    #[test]
    fn the_model_is_in_sync_once_every_kind_was_listed() {
        let mut state = State::new(ClusterConfig::default(), &["Node", "NodeClaim"]);
        state.apply_node(node("without-provider-id"));
        state.listed("Node");
        assert!(!state.view().is_synced(), "nodeclaims are not listed");
        state.listed("NodeClaim");
        assert!(state.view().is_synced());
        let synced = state.changes.iter();
        let synced = synced.filter(|c| matches!(c, Change::Synced));
        assert_eq!(synced.count(), 1);
        state.apply_node(node("new"));
        assert!(state.view().is_synced());
        assert_eq!(state.view().nodes().count(), 2);
    }

    fn claim(uid: &str, provider_id: &str) -> Arc<NodeClaim> {
        let claim = node_claim("c").uid(uid);
        Arc::new(claim.set("/status/providerID", provider_id).build())
    }

    /// Returns uid and provider id of the NodeClaim in the model.
    fn known(state: &State) -> Option<(String, String)> {
        let view = state.view();
        let claim = view.node_claim("c")?;
        let id = claim.status.provider_id.clone().unwrap_or_default();
        Some((claim.uid().to_owned(), id))
    }

    fn is(uid: &str, id: &str) -> Option<(String, String)> {
        Some((uid.to_owned(), id.to_owned()))
    }

    #[test]
    fn a_created_node_claim_does_not_replace_a_newer_version_that_was_watched() {
        let mut state = State::new(ClusterConfig::default(), &[]);
        state.update(Update::CreatedNodeClaim(claim("1", "")));
        assert_eq!(known(&state), is("1", ""));
        state.update(Update::Apply(Object::NodeClaim(claim("1", "x://c"))));
        state.update(Update::CreatedNodeClaim(claim("1", "")));
        assert_eq!(known(&state), is("1", "x://c"));
        state.update(Update::CreatedNodeClaim(claim("2", "")));
        assert_eq!(known(&state), is("2", ""), "another NodeClaim of this name");
    }

    #[test]
    fn a_missing_node_claim_is_removed_unless_it_is_launched_or_another_one() {
        let mut state = State::new(ClusterConfig::default(), &[]);
        let missing = |uid: &str| Update::MissingNodeClaim {
            name: "c".into(),
            uid: uid.to_owned(),
        };
        state.apply_node_claim(claim("1", ""));
        state.update(missing("2"));
        assert_eq!(known(&state), is("1", ""));
        state.apply_node_claim(claim("1", "x://c"));
        state.update(missing("1"));
        assert_eq!(known(&state), is("1", "x://c"));
        state.apply_node_claim(claim("1", ""));
        state.update(missing("1"));
        assert_eq!(known(&state), None);
    }

    #[test]
    fn subscribers_learn_both_versions_of_a_changed_object() {
        let mut state = State::new(ClusterConfig::default(), &[]);
        let (first, second) = (claim("1", ""), claim("1", "x://c"));
        let versions = [&first, &first, &second].map(|c| Object::NodeClaim(Arc::clone(c)));
        state.update(Update::Portion(versions.into()));
        state.update(Update::Remove(ObjectKind::NodeClaim, "/c".into()));
        state.update(Update::Remove(ObjectKind::NodeClaim, "/c".into()));
        let changes = state.take_changes().into_iter().map(|change| match change {
            Change::NodeClaim {
                name,
                before,
                after,
            } => (name.to_string(), before, after),
            other => panic!("{other:?}"),
        });
        let expected = [
            (None, Some(&first)),
            (Some(&first), Some(&second)),
            (Some(&second), None),
        ]
        .map(|(before, after)| ("c".to_owned(), before.cloned(), after.cloned()));
        assert_eq!(changes.collect::<Vec<_>>(), expected);
        assert!(state.take_changes().is_empty());
    }

    #[test]
    fn an_attachment_is_a_change_of_its_node_when_it_comes_and_when_it_goes() {
        let mut state = State::new(ClusterConfig::default(), &[]);
        let attachment = |attached: bool| -> Object {
            let object: VolumeAttachment = serde_json::from_value(json!({
                "metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n", "source": {}},
                "status": {"attached": attached},
            }))
            .unwrap();
            object.into()
        };
        state.update(Update::Portion(vec![attachment(false), attachment(true)]));
        state.update(Update::Remove(ObjectKind::VolumeAttachment, "/a".into()));
        let changes = state.take_changes();
        let nodes = changes.iter().map(|change| match change {
            Change::VolumeAttachment { node } => &**node,
            other => panic!("{other:?}"),
        });
        assert_eq!(nodes.collect::<Vec<_>>(), ["n", "n"]);
    }
}
