//! Nodes and NodeClaims, as the cluster takes them and snapshots return them.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::v1::NodeClaim;

use super::{Nodes, StoredNode};
use crate::cluster::{Cluster, Delta, Marks, Node, NodeState, Snapshot, delta};

impl Cluster {
    /// Adds or replaces a Node.
    pub fn apply_node(&mut self, node: &corev1::Node) -> Delta<corev1::Node> {
        self.insert_node(Arc::new(node.clone()))
    }

    /// Adds or replaces a Node that is already in an `Arc`.
    pub fn insert_node(&mut self, object: Arc<corev1::Node>) -> Delta<corev1::Node> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let nodes = &mut self.state.nodes;
        let stored = nodes.objects.get(&name).cloned();
        let (before, known) = stored.map(|old| (old.object, old.parsed)).unzip();
        if before.as_ref() == Some(&object) {
            return Delta::unchanged(before);
        }
        let new = Node::parse(&object);
        // Most updates change fields that no decision depends on.
        let (parsed, relevant) = match &known {
            Some(known) if **known == new => (known.clone(), false),
            _ => (Arc::new(new), true),
        };
        let stored = StoredNode {
            object: object.clone(),
            parsed,
        };
        nodes.objects.insert_mut(name.clone(), stored);
        if relevant {
            nodes.merge_node(&name, known.as_deref());
            self.state.epoch += 1;
        }
        Delta {
            before,
            after: Some(object),
        }
    }

    /// Removes a Node.
    pub fn remove_node(&mut self, name: &str) -> Delta<corev1::Node> {
        let nodes = &mut self.state.nodes;
        let Some(old) = nodes.objects.get(name).cloned() else {
            return Delta::unchanged(None);
        };
        nodes.objects.remove_mut(name);
        nodes.merge_node(name, Some(&old.parsed));
        self.counted(Delta::removed(Some(old.object)))
    }

    /// Adds or replaces a NodeClaim.
    pub fn apply_node_claim(&mut self, claim: &NodeClaim) -> Delta<NodeClaim> {
        self.insert_node_claim(Arc::new(claim.clone()))
    }

    /// Adds or replaces a NodeClaim that is already in an `Arc`.
    pub fn insert_node_claim(&mut self, claim: Arc<NodeClaim>) -> Delta<NodeClaim> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let nodes = &mut self.state.nodes;
        let before = nodes.claims.get(&name).cloned();
        if before.as_ref() == Some(&claim) {
            return Delta::unchanged(before);
        }
        nodes.claims.insert_mut(name.clone(), claim.clone());
        nodes.merge_claim(&name, before.as_deref());
        self.counted(Delta {
            before,
            after: Some(claim),
        })
    }

    /// Removes a NodeClaim.
    pub fn remove_node_claim(&mut self, name: &str) -> Delta<NodeClaim> {
        let nodes = &mut self.state.nodes;
        let delta = delta::take(&mut nodes.claims, name);
        if let Some(old) = &delta.before {
            nodes.merge_claim(name, Some(old));
        }
        self.counted(delta)
    }

    /// Records that pods are nominated to `node` (a Node or NodeClaim name) until `until`.
    pub fn nominate(&mut self, node: &str, until: Timestamp) {
        let state = self.state.nodes.get(node).cloned();
        self.change(state, |state| state.nominated_until = Some(until));
    }

    /// Marks nodes that a disruption command is about to delete. Pods are not placed on them, and limits do not count them.
    pub fn mark_for_deletion(&mut self, provider_ids: &[&str]) {
        self.mark(provider_ids, true);
    }

    /// Reverts [`Self::mark_for_deletion`].
    pub fn unmark_for_deletion(&mut self, provider_ids: &[&str]) {
        self.mark(provider_ids, false);
    }

    fn mark(&mut self, provider_ids: &[&str], mark: bool) {
        for id in provider_ids {
            let nodes = &self.state.nodes;
            let name = nodes.name_by_provider_id(id);
            let state = name.and_then(|name| nodes.get(name)).cloned();
            self.change(state, |state| state.marked_for_deletion = mark);
        }
    }

    /// Sets the marks of a node; without such a node, nothing happens.
    pub fn insert_marks(&mut self, marks: &Marks) {
        let Nodes {
            joined, joining, ..
        } = &self.state.nodes;
        let states = if marks.claim { joining } else { joined };
        let state = states.get(&marks.name).cloned();
        self.change(state, |state| {
            state.marked_for_deletion = marks.for_deletion;
            state.nominated_until = marks.nominated_until;
        });
    }

    /// Changes the state of a node, if there is one.
    fn change(&mut self, state: Option<Arc<NodeState>>, change: impl FnOnce(&mut NodeState)) {
        let Some(state) = state else { return };
        let mut changed = NodeState::clone(&state);
        change(&mut changed);
        let states = self.state.nodes.states_like(&state);
        states.insert_mut(state.name().to_owned(), Arc::new(changed));
        self.state.epoch += 1;
    }
}

impl Snapshot {
    /// Returns the node with this Node or NodeClaim name.
    pub fn node(&self, name: &str) -> Option<&Arc<NodeState>> {
        self.state.nodes.get(name)
    }

    /// Returns the node with this provider id.
    pub fn node_by_provider_id(&self, provider_id: &str) -> Option<&Arc<NodeState>> {
        self.node(self.state.nodes.name_by_provider_id(provider_id)?)
    }

    /// Returns the Node of this name, as it was applied.
    pub fn node_object(&self, name: &str) -> Option<&Arc<corev1::Node>> {
        self.state.nodes.objects.get(name).map(|node| &node.object)
    }

    /// Iterates over Nodes, as they were applied, by name.
    pub fn node_objects(&self) -> impl Iterator<Item = &Arc<corev1::Node>> {
        self.state.nodes.objects.values().map(|node| &node.object)
    }

    /// Iterates over the Nodes with this provider id, as they were applied, by name; usually one.
    pub fn node_objects_by_provider_id(
        &self,
        provider_id: &str,
    ) -> impl Iterator<Item = &Arc<corev1::Node>> {
        let names = self.state.nodes.objects_by_id.names(provider_id);
        names.filter_map(|name| self.node_object(name))
    }

    /// Iterates over the NodeClaims with this provider id, by name; usually one.
    pub fn node_claims_by_provider_id(
        &self,
        provider_id: &str,
    ) -> impl Iterator<Item = &Arc<NodeClaim>> {
        let names = self.state.nodes.claims_by_id.names(provider_id);
        names.filter_map(|name| self.node_claim(name))
    }

    /// Iterates over the NodeClaims of a NodePool, by name.
    pub fn node_claims_of_pool(&self, pool: &str) -> impl Iterator<Item = &Arc<NodeClaim>> {
        let names = self.state.nodes.claims_by_pool.names(pool);
        names.filter_map(|name| self.node_claim(name))
    }

    /// Iterates over NodeClaims by name.
    pub fn node_claims(&self) -> impl Iterator<Item = &Arc<NodeClaim>> {
        self.state.nodes.claims.values()
    }

    /// Returns a NodeClaim.
    pub fn node_claim(&self, name: &str) -> Option<&Arc<NodeClaim>> {
        self.state.nodes.claims.get(name)
    }
}
