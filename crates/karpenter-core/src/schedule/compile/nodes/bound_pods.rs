//! The pods that are bound to nodes: those that topology constraints count, and those that are leaving deleting nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cluster::Snapshot;
use crate::cluster::pdb::leaving_pods;
use crate::pod::{Pod, Shape};
use crate::schedule::compile::ids::NodeIdx;
use crate::schedule::compile::nodes::{ExistingNode, Nodes};
use crate::schedule::topology::group::GroupIdentity;

/// The key and the value of a label.
type Label = (Box<str>, Box<str>);

/// The indices of values by a label of theirs.
type ByLabel = FxHashMap<Label, Vec<usize>>;

/// Returns the entry of a label.
fn label(key: &str, value: &str) -> Label {
    (key.into(), value.into())
}

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

/// A required anti-affinity term of bound pods, with the nodes of those pods, ascending, and their number.
#[derive(Debug)]
struct InverseTerm {
    identity: Arc<GroupIdentity>,
    places: Vec<(NodeIdx, u32)>,
}

/// The bound pods.
pub(crate) struct BoundPods {
    /// Active pods of the existing nodes, by shape.
    shapes: Vec<BoundShape>,
    /// Indices of `shapes` by label.
    shapes_by_label: ByLabel,
    /// Pods that are leaving deleting nodes.
    pub(crate) leaving: Vec<Arc<Pod>>,
    /// Pods that stay on such nodes for now, and are counted there.
    pub(crate) staying: Vec<Staying>,
    /// Required anti-affinity terms of bound pods, in the order of their groups.
    terms: Vec<InverseTerm>,
    /// Indices of `terms` by a label that every pod they select has.
    terms_by_label: ByLabel,
    /// Indices of the other terms.
    other_terms: Vec<usize>,
}

impl BoundPods {
    pub(crate) fn compile(snapshot: &Snapshot, now: Timestamp, nodes: &Nodes) -> Self {
        let leaving = leaving_pods(snapshot, now);
        let shapes = bound_shapes(nodes);
        let staying = staying(snapshot, &leaving);
        let mut shapes_by_label = ByLabel::default();
        for (index, bound) in shapes.iter().enumerate() {
            for (key, value) in &bound.shape.labels {
                let entry = shapes_by_label.entry(label(key, value));
                entry.or_default().push(index);
            }
        }
        let terms = inverse_terms(&shapes, &staying, snapshot);
        let mut terms_by_label = ByLabel::default();
        let mut other_terms = Vec::new();
        for (index, term) in terms.iter().enumerate() {
            match term.identity.selector.anchor() {
                Some((key, values)) => {
                    for value in values {
                        let entry = terms_by_label.entry(label(key, value));
                        entry.or_default().push(index);
                    }
                }
                None => other_terms.push(index),
            }
        }
        Self {
            shapes,
            shapes_by_label,
            leaving,
            staying,
            terms,
            terms_by_label,
            other_terms,
        }
    }

    /// Returns the memory in bytes, approximately.
    pub(crate) fn memory(&self) -> usize {
        let places = |places: &Vec<(NodeIdx, u32)>| {
            places.capacity() * size_of::<(NodeIdx, u32)>() + size_of::<BoundShape>()
        };
        let shapes = self.shapes.iter().map(|bound| places(&bound.places));
        let terms = self.terms.iter().map(|term| places(&term.places));
        let labels = self.shapes_by_label.len() + self.terms_by_label.len();
        shapes.sum::<usize>() + terms.sum::<usize>() + labels * 128
    }

    /// Returns the anti-affinity terms of bound pods that select a pod of one of the shapes, in the order of their groups.
    pub(crate) fn terms_against<'a>(
        &self,
        shapes: impl Iterator<Item = &'a Shape>,
        snapshot: &Snapshot,
    ) -> Vec<&Arc<GroupIdentity>> {
        let mut selecting: BTreeSet<usize> = BTreeSet::new();
        if self.terms.is_empty() {
            return Vec::new();
        }
        for shape in shapes {
            let labels = shape.labels.iter();
            let by_label =
                labels.filter_map(|(key, value)| self.terms_by_label.get(&label(key, value)));
            for index in by_label.flatten().chain(&self.other_terms) {
                let identity = &self.terms[*index].identity;
                if !selecting.contains(index)
                    && identity.selects(&shape.namespace, &shape.labels, snapshot)
                {
                    selecting.insert(*index);
                }
            }
        }
        let term = |index: &usize| &self.terms[*index].identity;
        selecting.iter().map(term).collect()
    }

    /// Returns the nodes of the bound pods that have an anti-affinity term, and their number.
    pub(crate) fn places_of_term(&self, identity: &GroupIdentity) -> Vec<(NodeIdx, u32)> {
        let found = self
            .terms
            .binary_search_by(|term| term.identity.order(identity));
        found.map_or_else(|_| Vec::new(), |index| self.terms[index].places.clone())
    }

    /// Returns the nodes of the bound pods that a group selects, and their number.
    pub(crate) fn places_of_selected(
        &self,
        identity: &GroupIdentity,
        snapshot: &Snapshot,
    ) -> Vec<(NodeIdx, u32)> {
        let mut places: BTreeMap<NodeIdx, u32> = BTreeMap::new();
        let mut add = |bound: &BoundShape| {
            let shape = &bound.shape;
            if identity.selects(&shape.namespace, &shape.labels, snapshot) {
                for (node, count) in &bound.places {
                    *places.entry(*node).or_default() += count;
                }
            }
        };
        match identity.selector.anchor() {
            Some((key, values)) => {
                let with_value = |value: &String| self.shapes_by_label.get(&label(key, value));
                // A selector may list a value twice.
                let indices = values.iter().filter_map(with_value).flatten();
                let indices: BTreeSet<usize> = indices.copied().collect();
                indices.iter().for_each(|index| add(&self.shapes[*index]));
            }
            None => self.shapes.iter().for_each(add),
        }
        places.into_iter().collect()
    }
}

/// Returns the required anti-affinity terms of bound pods, in the order of their groups.
fn inverse_terms(
    shapes: &[BoundShape],
    staying: &[Staying],
    snapshot: &Snapshot,
) -> Vec<InverseTerm> {
    let names = &snapshot.config().well_known;
    let mut groups: FxHashMap<GroupIdentity, BTreeMap<NodeIdx, u32>> = FxHashMap::default();
    for bound in shapes {
        for term in &bound.shape.required_anti_affinity {
            let places = groups
                .entry(GroupIdentity::inverse(term, names))
                .or_default();
            for (node, count) in &bound.places {
                *places.entry(*node).or_default() += count;
            }
        }
    }
    for pod in staying.iter().flat_map(|place| &place.pods) {
        for term in &pod.shape.required_anti_affinity {
            groups
                .entry(GroupIdentity::inverse(term, names))
                .or_default();
        }
    }
    let mut terms: Vec<_> = groups
        .into_iter()
        .map(|(identity, places)| InverseTerm {
            identity: Arc::new(identity),
            places: places.into_iter().collect(),
        })
        .collect();
    terms.sort_by(|a, b| a.identity.order(&b.identity));
    terms
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
            node: ExistingNode::new(state, None, None),
            pods,
        })
    });
    places.collect()
}

fn bound_shapes(nodes: &Nodes) -> Vec<BoundShape> {
    let mut index: FxHashMap<*const Shape, usize> = FxHashMap::default();
    let mut bound: Vec<BoundShape> = Vec::new();
    for (node, existing) in nodes.iter() {
        for (shape, count) in &existing.shapes {
            let at = *index.entry(Arc::as_ptr(shape)).or_insert_with(|| {
                bound.push(BoundShape {
                    shape: shape.clone(),
                    places: Vec::new(),
                });
                bound.len() - 1
            });
            bound[at].places.push((node, *count));
        }
    }
    bound
}
