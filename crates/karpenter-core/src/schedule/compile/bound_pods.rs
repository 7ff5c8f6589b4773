//! The pods that are bound to nodes: those that topology constraints count, and those that are leaving deleting nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cluster::Snapshot;
use crate::cluster::pdb::leaving_pods;
use crate::pod::{Pod, Shape};
use crate::schedule::compile::ids::NodeIdx;
use crate::schedule::compile::nodes::ExistingNode;
use crate::schedule::topology::group::GroupIdentity;

/// Bound pods of one shape, by node: index and number.
#[derive(Clone, Debug)]
pub(crate) struct BoundShape {
    pub(crate) shape: Arc<Shape>,
    pub(crate) places: Vec<(NodeIdx, u32)>,
}

/// Pods that stay on a deleting node: no pod is placed there, but kube-scheduler counts them.
#[derive(Clone, Debug)]
pub(crate) struct Staying {
    pub(crate) node: ExistingNode,
    pub(crate) pods: Vec<Arc<Pod>>,
}

/// The bound pods.
pub(crate) struct BoundPods {
    /// Active pods of the existing nodes, by shape.
    pub(crate) shapes: Vec<BoundShape>,
    /// Pods that are leaving deleting nodes.
    pub(crate) leaving: Vec<Arc<Pod>>,
    /// Pods that stay on such nodes for now, and are counted there.
    pub(crate) staying: Vec<Staying>,
    /// Required anti-affinity terms of bound pods, with the nodes of those pods.
    pub(crate) inverse: Vec<(GroupIdentity, Vec<(NodeIdx, u32)>)>,
}

impl BoundPods {
    pub(crate) fn compile(
        snapshot: &Snapshot,
        now: Timestamp,
        node_index: &FxHashMap<String, NodeIdx>,
    ) -> Self {
        let leaving = leaving_pods(snapshot, now);
        let mut bound = Self {
            shapes: bound_shapes(snapshot, node_index),
            staying: staying(snapshot, &leaving),
            leaving,
            inverse: Vec::new(),
        };
        bound.inverse = bound.inverse_of_bound(snapshot);
        bound
    }

    /// Returns the required anti-affinity terms of bound pods, with the nodes of those pods.
    fn inverse_of_bound(&self, snapshot: &Snapshot) -> Vec<(GroupIdentity, Vec<(NodeIdx, u32)>)> {
        let mut groups: FxHashMap<GroupIdentity, BTreeMap<NodeIdx, u32>> = FxHashMap::default();
        for bound in self
            .shapes
            .iter()
            .filter(|bound| !bound.shape.required_anti_affinity.is_empty())
        {
            for term in &bound.shape.required_anti_affinity {
                let places = groups
                    .entry(GroupIdentity::inverse(term, &snapshot.config().well_known))
                    .or_default();
                for (node, count) in &bound.places {
                    *places.entry(*node).or_default() += count;
                }
            }
        }
        for pod in self.staying.iter().flat_map(|place| &place.pods) {
            for term in &pod.shape.required_anti_affinity {
                let names = &snapshot.config().well_known;
                groups
                    .entry(GroupIdentity::inverse(term, names))
                    .or_default();
            }
        }
        let mut groups: Vec<_> = groups
            .into_iter()
            .map(|(identity, places)| (identity, places.into_iter().collect()))
            .collect();
        groups.sort_by(|a, b| a.0.order(&b.0));
        groups
    }
}

/// Returns the active pods of deleting nodes, except those that are leaving.
fn staying(snapshot: &Snapshot, leaving: &[Arc<Pod>]) -> Vec<Staying> {
    let leaving: FxHashSet<_> = leaving.iter().map(|pod| &pod.key).collect();
    let places = snapshot.nodes().filter(|node| node.is_deleting());
    let places = places.filter_map(|state| {
        let node = state.node.as_ref()?;
        let stays = |pod: &&Arc<Pod>| pod.is_active() && !leaving.contains(&pod.key);
        let pods: Vec<_> = snapshot
            .pods_on(&node.name)
            .iter()
            .filter(stays)
            .cloned()
            .collect();
        (!pods.is_empty()).then(|| Staying {
            node: ExistingNode {
                state: state.clone(),
                name: state.name().to_owned(),
                taints: state.taints(),
                requirements: None,
                broken: false,
                daemon_ports: Vec::new(),
            },
            pods,
        })
    });
    places.collect()
}

fn bound_shapes(snapshot: &Snapshot, node_index: &FxHashMap<String, NodeIdx>) -> Vec<BoundShape> {
    let mut index: FxHashMap<*const Shape, usize> = FxHashMap::default();
    let mut bound: Vec<BoundShape> = Vec::new();
    for (name, pods) in snapshot.bound_pods() {
        let Some(node) = node_index.get(name) else {
            continue;
        };
        for pod in pods.pods().iter().filter(|pod| pod.is_active()) {
            let at = *index.entry(Arc::as_ptr(&pod.shape)).or_insert_with(|| {
                bound.push(BoundShape {
                    shape: pod.shape.clone(),
                    places: Vec::new(),
                });
                bound.len() - 1
            });
            let places = &mut bound[at].places;
            match places.last_mut().filter(|place| place.0 == *node) {
                Some(place) => place.1 += 1,
                None => places.push((*node, 1)),
            }
        }
    }
    bound
}
