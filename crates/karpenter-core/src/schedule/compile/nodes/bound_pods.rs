//! The pods that are bound to nodes: those that topology constraints count, and those that are leaving deleting nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cluster::Snapshot;
use crate::cluster::pdb::leaving_pods;
use crate::pod::{Pod, Shape};
use crate::schedule::compile::group_identity::GroupIdentity;
use crate::schedule::compile::ids::NodeIdx;
use crate::schedule::compile::nodes::{ExistingNode, Nodes};

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

/// Active pods of the existing nodes, by shape.
#[derive(Default)]
struct BoundShapes {
    all: Vec<BoundShape>,
    /// Indices of `all` by label.
    by_label: ByLabel,
}

/// The bound pods.
pub(crate) struct BoundPods {
    /// Collected once a topology constraint counts pods: most passes have none.
    shapes: OnceLock<BoundShapes>,
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
        let staying = staying(snapshot, &leaving);
        let terms = inverse_terms(nodes, &staying, snapshot);
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
            shapes: OnceLock::new(),
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
        let known = self.shapes.get();
        let shapes = known.iter().flat_map(|shapes| &shapes.all);
        let shapes = shapes.map(|bound| places(&bound.places));
        let terms = self.terms.iter().map(|term| places(&term.places));
        let by_label = known.map_or(0, |shapes| shapes.by_label.len());
        let labels = by_label + self.terms_by_label.len();
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
        nodes: &Nodes,
        snapshot: &Snapshot,
    ) -> Vec<(NodeIdx, u32)> {
        let shapes = self.shapes.get_or_init(|| BoundShapes::of(nodes));
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
                let with_value = |value: &String| shapes.by_label.get(&label(key, value));
                // A selector may list a value twice.
                let indices = values.iter().filter_map(with_value).flatten();
                let indices: BTreeSet<usize> = indices.copied().collect();
                indices.iter().for_each(|index| add(&shapes.all[*index]));
            }
            None => shapes.all.iter().for_each(add),
        }
        places.into_iter().collect()
    }
}

/// Returns the required anti-affinity terms of bound pods, in the order of their groups.
fn inverse_terms(nodes: &Nodes, staying: &[Staying], snapshot: &Snapshot) -> Vec<InverseTerm> {
    let names = &snapshot.config().well_known;
    let mut groups: FxHashMap<GroupIdentity, BTreeMap<NodeIdx, u32>> = FxHashMap::default();
    for (index, node) in nodes.iter().filter(|(_, node)| node.keeps_pods_away) {
        for (shape, count) in &node.shapes {
            for term in &shape.required_anti_affinity {
                let group = groups.entry(GroupIdentity::inverse(term, names));
                *group.or_default().entry(index).or_default() += count;
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

impl BoundShapes {
    fn of(nodes: &Nodes) -> Self {
        let mut index: FxHashMap<*const Shape, usize> = FxHashMap::default();
        let mut bound = Self::default();
        for (node, existing) in nodes.iter() {
            for (shape, count) in &existing.shapes {
                let at = *index.entry(Arc::as_ptr(shape)).or_insert_with(|| {
                    bound.all.push(BoundShape {
                        shape: shape.clone(),
                        places: Vec::new(),
                    });
                    bound.all.len() - 1
                });
                bound.all[at].places.push((node, *count));
            }
        }
        for (index, shape) in bound.all.iter().enumerate() {
            for (key, value) in &shape.shape.labels {
                let entry = bound.by_label.entry(label(key, value));
                entry.or_default().push(index);
            }
        }
        bound
    }
}
