//! The existing nodes, with the resources that bound pods and DaemonSets leave.

pub(crate) mod bound_pods;

use std::sync::Arc;

use index_vec::{Idx as _, IndexVec};
use karpenter_api::labels;

use crate::cluster::{NodePods, NodeState, Snapshot};
use crate::pod::{HostPort, Shape};
use crate::requirements::{Requirement, Requirements};
use crate::resources::Resources;
use crate::schedule::compile::ids::NodeIdx;
use crate::schedule::compile::pools::daemons::Daemon;
use crate::schedule::compile::vectors::{Dimensions, subtract};
use crate::taints::{Taint, untolerated};

/// A node of the cluster, or a NodeClaim that is launching one.
#[derive(Clone, Debug)]
pub(crate) struct ExistingNode {
    pub(crate) state: Arc<NodeState>,
    pub(crate) name: String,
    pub(crate) taints: Vec<Taint>,
    /// The requirements of a NodeClaim that is launching; other nodes have labels.
    pub(crate) requirements: Option<Requirements>,
    /// Some available resource is negative: no pod fits.
    pub(crate) broken: bool,
    /// Host ports of the DaemonSets that run or will run on it.
    pub(crate) daemon_ports: Vec<HostPort>,
    /// The pods bound to it.
    pub(crate) pods: Option<Arc<NodePods>>,
    /// The shapes of its active pods, and the number of pods of each.
    pub(crate) shapes: Box<[(Arc<Shape>, u32)]>,
    /// Some of these shapes has a required anti-affinity term.
    pub(crate) keeps_pods_away: bool,
}

impl ExistingNode {
    /// Compiles a node without its free resources. For a NodeClaim that is launching, `requirements` are its requirements.
    pub(crate) fn new(
        state: &Arc<NodeState>,
        pods: Option<&Arc<NodePods>>,
        requirements: Option<Requirements>,
    ) -> Self {
        let shapes = pods.map(|pods| active_shapes(pods)).unwrap_or_default();
        let mut all = shapes.iter();
        let keeps_pods_away = all.any(|(shape, _)| !shape.required_anti_affinity.is_empty());
        Self {
            state: state.clone(),
            name: state.name().to_owned(),
            taints: state.taints(),
            requirements,
            broken: false,
            daemon_ports: Vec::new(),
            shapes,
            keeps_pods_away,
            pods: pods.cloned(),
        }
    }

    /// Returns the key of the order of nodes: initialized ones first, then by name.
    pub(crate) fn order(&self) -> (bool, &str) {
        (!self.state.is_initialized(), self.name.as_str())
    }

    /// Returns the value of a label, if it is known.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        if key == labels::HOSTNAME {
            return Some(self.state.hostname());
        }
        match self.state.label(key) {
            Some(value) => Some(value),
            None => self
                .requirements
                .as_ref()
                .and_then(|all| all.get(key))
                .and_then(Requirement::single),
        }
    }

    /// Reports whether the node meets a requirement, by its labels or by the requirements of its NodeClaim.
    pub(crate) fn meets(&self, requirement: &Requirement) -> bool {
        match self.label(requirement.key()) {
            Some(value) => requirement.has(value),
            None => match self
                .requirements
                .as_ref()
                .and_then(|all| all.get(requirement.key()))
            {
                Some(present) => requirement.has_intersection(present),
                None => requirement.allows_absent(),
            },
        }
    }

    pub(crate) fn meets_all(&self, requirements: &Requirements) -> bool {
        requirements
            .iter()
            .all(|requirement| self.meets(requirement))
    }
}

/// Returns the shapes of active pods, with the number of pods of each, in the order of the pods.
fn active_shapes(pods: &NodePods) -> Box<[(Arc<Shape>, u32)]> {
    let mut shapes: Vec<(Arc<Shape>, u32)> = Vec::with_capacity(pods.pods().len());
    for pod in pods.pods().iter().filter(|pod| pod.is_active()) {
        let known = shapes
            .iter_mut()
            .find(|(shape, _)| Arc::ptr_eq(shape, &pod.shape));
        match known {
            Some((_, count)) => *count += 1,
            None => shapes.push((pod.shape.clone(), 1)),
        }
    }
    shapes.into()
}

/// The existing nodes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    nodes: IndexVec<NodeIdx, Arc<ExistingNode>>,
    /// The number of initialized nodes, which come first.
    initialized: usize,
    /// Free resources, node by node.
    remaining: Vec<i64>,
    /// The number of resources.
    width: usize,
}

impl std::ops::Index<NodeIdx> for Nodes {
    type Output = Arc<ExistingNode>;

    fn index(&self, node: NodeIdx) -> &Self::Output {
        &self.nodes[node]
    }
}

impl Nodes {
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Iterates over the nodes, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeIdx, &Arc<ExistingNode>)> {
        self.nodes.iter_enumerated()
    }

    /// Returns the free resources of a node, before a pass.
    pub(crate) fn remaining_on(&self, node: NodeIdx) -> &[i64] {
        &self.remaining[node.index() * self.width..][..self.width]
    }

    /// Returns the free resources of all nodes, node by node.
    pub(crate) fn remaining(&self) -> &[i64] {
        &self.remaining
    }

    /// Returns the place of a node.
    pub(crate) fn find(&self, name: &str) -> Option<NodeIdx> {
        let (initialized, others) = self.nodes.as_raw_slice().split_at(self.initialized);
        let find = |nodes: &[Arc<ExistingNode>]| {
            let end = nodes.partition_point(|node| node.name.as_str() <= name);
            end.checked_sub(1).filter(|last| nodes[*last].name == name)
        };
        // INVARIANT: of a Node and a NodeClaim with one name, the one that is not initialized is meant.
        let found = find(others).map(|place| place + self.initialized);
        found.or_else(|| find(initialized)).map(NodeIdx::from_usize)
    }
}

/// Returns the existing nodes, initialized ones first, then by name, with their free resources. Nodes that did not change since an
/// earlier compilation with the same DaemonSets and resources are shared with it.
pub(crate) fn existing_nodes(
    snapshot: &Snapshot,
    daemons: &[Daemon],
    dimensions: &Dimensions,
    earlier: Option<&Nodes>,
) -> Nodes {
    let rows = snapshot.node_table().iter();
    let rows = rows.filter(|row| !row.state.is_deleting());
    let (mut rows, mut others): (Vec<_>, Vec<_>) = rows.partition(|row| row.state.is_initialized());
    // Nodes come by name, then NodeClaims by name; the latter are not initialized.
    others.sort_by(|a, b| a.state.name().cmp(b.state.name()));
    let initialized = rows.len();
    rows.extend(others);
    let width = dimensions.len();
    let mut compiled = Nodes {
        nodes: IndexVec::with_capacity(rows.len()),
        initialized,
        remaining: Vec::with_capacity(rows.len() * width),
        width,
    };
    let mut next = NodeIdx::from_usize(0);
    for row in rows {
        let (state, pods) = (&row.state, row.pods.as_ref());
        if let Some(earlier) = earlier {
            let is_same = |node: &&Arc<ExistingNode>| {
                Arc::ptr_eq(&node.state, state)
                    && node.pods.as_ref().map(Arc::as_ptr) == pods.map(Arc::as_ptr)
            };
            let mut same = earlier.nodes.get(next).filter(is_same);
            if same.is_none() {
                // Both are in the same order.
                let order = (!state.is_initialized(), state.name());
                let is_before = |node: &Arc<ExistingNode>| node.order() < order;
                while earlier.nodes.get(next).is_some_and(is_before) {
                    next = NodeIdx(next.0 + 1);
                }
                same = earlier.nodes.get(next).filter(is_same);
            }
            if let Some(node) = same {
                compiled.nodes.push(node.clone());
                let remaining = earlier.remaining_on(next);
                compiled.remaining.extend_from_slice(remaining);
                next = NodeIdx(next.0 + 1);
                continue;
            }
        }
        let (node, left) = existing_node(snapshot, state, pods, daemons, dimensions);
        compiled.remaining.extend_from_slice(&left);
        compiled.nodes.push(Arc::new(node));
    }
    compiled
}

/// Returns a node and its free resources.
fn existing_node(
    snapshot: &Snapshot,
    state: &Arc<NodeState>,
    pods: Option<&Arc<NodePods>>,
    daemons: &[Daemon],
    dimensions: &Dimensions,
) -> (ExistingNode, Box<[i64]>) {
    let well_known = &snapshot.config().well_known;
    let launching = state.claim.as_ref().filter(|_| state.is_launching());
    let requirements = launching.map(|claim| {
        let mut requirements =
            Requirements::from_api(&claim.spec.requirements, well_known).unwrap_or_default();
        requirements.add_all(&Requirements::from_labels(
            state.labels().iter(),
            well_known,
        ));
        requirements
    });
    let mut node = ExistingNode::new(state, pods, requirements);
    // Resources that the Node does not list are ignored, even if a pod requests them.
    let mut available = state.allocatable();
    if let Some(pods) = pods {
        let mut taken = pods.requests().clone();
        taken.retain(|name, _| available.contains(name));
        available.sub_assign(&taken);
    }
    node.broken = available.iter().any(|(_, value)| value < 0);
    let mut expected = Resources::new();
    for daemon in daemons {
        let runs = untolerated(&node.taints, &daemon.tolerations).is_none()
            && daemon
                .sets
                .iter()
                .any(|alternative| node.meets_all(alternative));
        if runs {
            expected.add_assign(&daemon.shape.requests);
            let ports = daemon.shape.host_ports.iter().cloned();
            node.daemon_ports.extend(ports);
        }
    }
    let mut left = dimensions.vector(&available);
    if !daemons.is_empty() {
        expected.retain(|name, _| available.contains(name));
        let mut missing = dimensions.vector(&expected);
        if let Some(pods) = pods {
            subtract(&mut missing, &dimensions.vector(pods.daemon_requests()));
        }
        for missing in missing.iter_mut() {
            *missing = (*missing).max(0);
        }
        subtract(&mut left, &missing);
    }
    (node, left)
}
