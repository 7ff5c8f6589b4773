//! Nodes and NodeClaims, and how the two are merged.

mod access;

use std::sync::Arc;

use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::v1::NodeClaim;
use rpds::RedBlackTreeMapSync;

use super::config::ClusterConfig;
use super::index::{Index, Map};
use super::node::{Node, NodeState};

/// A Node: the object, which controllers patch, and the fields that decisions depend on.
#[derive(Clone, Debug)]
struct StoredNode {
    object: Arc<corev1::Node>,
    parsed: Arc<Node>,
}

/// The Nodes, the NodeClaims, and what they are together.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes {
    config: Arc<ClusterConfig>,
    /// Those of the configuration, shared by all nodes.
    ephemeral: Arc<[corev1::Taint]>,
    objects: RedBlackTreeMapSync<String, StoredNode>,
    claims: Map<NodeClaim>,
    /// Nodes by the name of their Node.
    joined: Map<NodeState>,
    /// Nodes without a Node, by the name of their NodeClaim.
    joining: Map<NodeState>,
    /// The NodePools, instance types, capacity types and zones that labels of nodes name, one copy of each.
    label_values: RedBlackTreeMapSync<Arc<str>, ()>,
    /// Names of Nodes by provider id: usually one, but two while an instance registers with another name.
    objects_by_id: Index,
    /// Names of NodeClaims by provider id.
    claims_by_id: Index,
    /// Names of NodeClaims by NodePool.
    claims_by_pool: Index,
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

impl Nodes {
    pub(super) fn new(config: Arc<ClusterConfig>) -> Self {
        Self {
            ephemeral: config.ephemeral_taints.clone().into(),
            config,
            ..Self::default()
        }
    }

    /// Updates the nodes after Node `name` changed from `old`.
    fn merge_node(&mut self, name: &str, old: Option<&Node>) {
        let new = self.objects.get(name).map(|node| node.parsed.clone());
        let from = old.and_then(|node| node.provider_id.as_deref());
        let to = new.as_ref().and_then(|node| node.provider_id.as_deref());
        let mut marks = None;
        if from != to {
            self.objects_by_id.update(name, from, to);
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

    /// Updates the nodes after NodeClaim `name` changed from `old`.
    fn merge_claim(&mut self, name: &str, old: Option<&NodeClaim>) {
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
        let nodes = ids.flat_map(|id| self.objects_by_id.names(id)).cloned();
        for node in nodes.collect::<Vec<_>>() {
            self.place_node(&node, marks.as_deref());
        }
        self.place_claim(name, marks.as_deref());
    }

    /// Stores the state of a Node.
    fn place_node(&mut self, name: &str, marks: Option<&NodeState>) {
        let old = self.joined.get(name).cloned();
        let stored = self.objects.get(name);
        let Some(node) = stored.map(|stored| stored.parsed.clone()) else {
            self.joined.remove_mut(name);
            return;
        };
        // Without a provider ID the Node cannot be matched to its NodeClaim, which counts the same resources already.
        // UPSTREAM: pkg/controllers/state/cluster.go, UpdateNode
        let pool = node.labels.get(karpenter_api::labels::NODE_POOL);
        if node.provider_id.is_none() && pool.is_some_and(|pool| !pool.is_empty()) {
            self.joined.remove_mut(name);
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
        self.joined.insert_mut(name.to_owned(), Arc::new(state));
    }

    /// Stores the state of a NodeClaim without a Node.
    fn place_claim(&mut self, name: &str, marks: Option<&NodeState>) {
        let Some(claim) = self.claims.get(name).cloned() else {
            return;
        };
        if provider_id(&claim).is_some_and(|id| self.objects_by_id.first(id).is_some()) {
            return;
        }
        let share = |value: &str| shared(&mut self.label_values, value);
        let state = NodeState::new(None, Some(claim), true, &self.ephemeral, marks, share);
        self.joining.insert_mut(name.to_owned(), Arc::new(state));
    }

    /// Iterates over Nodes by name, then over NodeClaims without a Node by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<NodeState>> {
        self.joined.values().chain(self.joining.values())
    }

    pub(super) fn len(&self) -> usize {
        self.joined.size() + self.joining.size()
    }

    /// Returns the node with this Node or NodeClaim name.
    fn get(&self, name: &str) -> Option<&Arc<NodeState>> {
        let direct = self.joined.get(name).or_else(|| self.joining.get(name));
        direct.or_else(|| {
            let id = provider_id(self.claims.get(name)?)?;
            self.joined.get(self.objects_by_id.first(id)?)
        })
    }

    /// Returns the name of the Node with this provider id, or of its NodeClaim while there is no Node.
    fn name_by_provider_id(&self, id: &str) -> Option<&str> {
        let node = self.objects_by_id.first(id);
        node.or_else(|| self.claims_by_id.first(id))
    }

    /// Returns the nodes with a Node, or without one, as this one has.
    fn states_like(&mut self, state: &NodeState) -> &mut Map<NodeState> {
        match state.node.is_some() {
            true => &mut self.joined,
            false => &mut self.joining,
        }
    }

    /// Removes the node with this Node or NodeClaim name, but not its Node or NodeClaim.
    pub(super) fn remove(&mut self, name: &str) {
        if let Some(state) = self.get(name).cloned() {
            self.states_like(&state).remove_mut(state.name());
        }
    }
}
