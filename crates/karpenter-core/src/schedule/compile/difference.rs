//! What a later compilation can answer differently than an earlier one.
//!
//! If only nodes and their pods differ, a query with the same pods has the same answer unless one of the nodes that it looked at
//! changed, a changed node could take one of its pods, or one of its topology groups counts other pods or has other domains.
//! [`Difference::reach`] tells this for all pods of a shape. Where it is not certain, it reports a change.

use std::cmp::Ordering;
use std::sync::Arc;

use index_vec::{Idx as _, IndexVec};
use rustc_hash::FxHashMap;

use crate::cluster::Snapshot;
use crate::pod::{Pod, Shape};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::NodeIdx;
use crate::schedule::compile::nodes::ExistingNode;
use crate::schedule::compile::solver::Solver;
use crate::schedule::request::Policy;
use crate::schedule::topology::group::{GroupIdentity, GroupKind, is_hostname};
use crate::schedule::topology::identities::own_groups;
use crate::schedule::trace::TracedPod;

/// How far a difference reaches into the queries with pods of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Its topology groups differ, or something else that is not followed in detail.
    constraints: bool,
    /// The first changed node that has resources for the pods now.
    first: Option<NodeIdx>,
}

/// The nodes that differ between two compilations of which all else is equal.
pub(crate) struct Difference<'a> {
    earlier: &'a Solver,
    later: &'a Solver,
    /// The places in the later solver of the nodes that did not change.
    unchanged: IndexVec<NodeIdx, Option<NodeIdx>>,
    /// The other nodes of the later solver.
    changed: Bits<NodeIdx>,
    /// Shapes of pods that were bound to a node or are no longer, once each.
    pods: Vec<Arc<Shape>>,
    /// Earlier and later versions of nodes that were added or removed, or whose labels or taints changed.
    relabeled: Vec<Arc<ExistingNode>>,
    /// Volumes, volume claims or storage classes changed.
    storage: bool,
}

impl<'a> Difference<'a> {
    /// Compares two solvers; `None` if more than nodes and their pods changed. The nodes `touched` count as changed.
    pub(crate) fn between(
        earlier: &'a Solver,
        later: &'a Solver,
        touched: &[&str],
    ) -> Option<Self> {
        if !has_same_settings(earlier, later) {
            return None;
        }
        let mut found = Self {
            earlier,
            later,
            unchanged: index_vec::index_vec![None; earlier.nodes.len()],
            changed: Bits::default(),
            pods: Vec::new(),
            relabeled: Vec::new(),
            storage: !earlier.snapshot.has_storage_of(&later.snapshot),
        };
        let mut shapes: FxHashMap<*const Shape, Arc<Shape>> = FxHashMap::default();
        found.compare_nodes(&mut shapes);
        let attached = earlier
            .snapshot
            .nodes_with_other_attach_limits(&later.snapshot);
        let touched = touched.iter().copied();
        for name in touched.chain(attached.iter().map(String::as_str)) {
            if let Some(node) = earlier.nodes.find(name) {
                found.unchanged[node] = None;
            }
            if let Some(node) = later.nodes.find(name) {
                found.changed.insert(node);
            }
        }
        found.pods = shapes.into_values().collect();
        Some(found)
    }

    /// Finds the nodes that are the same in both, in the order that both have.
    fn compare_nodes(&mut self, shapes: &mut FxHashMap<*const Shape, Arc<Shape>>) {
        let (earlier, later) = (self.earlier, self.later);
        let (mut old, mut new) = (NodeIdx::from_usize(0), NodeIdx::from_usize(0));
        loop {
            let before = earlier.nodes.get(old);
            let after = later.nodes.get(new);
            let order = match (before, after) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(before), Some(after)) if Arc::ptr_eq(before, after) => Ordering::Equal,
                (Some(before), Some(after)) => before.order().cmp(&after.order()),
            };
            let (before, after) = match order {
                Ordering::Less => (before, None),
                Ordering::Greater => (None, after),
                Ordering::Equal => (before, after),
            };
            let (next_old, next_new) = (NodeIdx(old.0 + 1), NodeIdx(new.0 + 1));
            match (before, after) {
                (Some(before), Some(after))
                    if Arc::ptr_eq(before, after)
                        || (is_same_node(before, after)
                            && earlier.nodes.remaining_on(old)
                                == later.nodes.remaining_on(new)) =>
                {
                    self.unchanged[old] = Some(new);
                }
                _ => {
                    if after.is_some() {
                        self.changed.insert(new);
                    }
                    self.compare_pods(before, after, shapes);
                }
            }
            if before.is_some() {
                old = next_old;
            }
            if after.is_some() {
                new = next_new;
            }
        }
    }

    /// Records the pods that only one version of a node has; all of them if its labels differ.
    fn compare_pods(
        &mut self,
        before: Option<&Arc<ExistingNode>>,
        after: Option<&Arc<ExistingNode>>,
        shapes: &mut FxHashMap<*const Shape, Arc<Shape>>,
    ) {
        let versions = [before, after].into_iter().flatten();
        let is_relabeled = match (before, after) {
            (Some(before), Some(after)) => !before.is_labeled_as(after),
            _ => true,
        };
        if is_relabeled {
            self.relabeled.extend(versions.clone().cloned());
        }
        let counts = |version: Option<&Arc<ExistingNode>>| -> FxHashMap<*const Shape, u32> {
            let shapes = version.into_iter().flat_map(|node| &node.shapes);
            shapes
                .map(|(shape, count)| (Arc::as_ptr(shape), *count))
                .collect()
        };
        let (earlier, later) = (counts(before), counts(after));
        for (shape, _) in versions.flat_map(|node| &node.shapes) {
            let key = Arc::as_ptr(shape);
            if is_relabeled || earlier.get(&key) != later.get(&key) {
                shapes.entry(key).or_insert_with(|| shape.clone());
            }
        }
    }

    /// Returns the place in the later solver of a node that did not change.
    pub(crate) fn unchanged(&self, node: NodeIdx) -> Option<NodeIdx> {
        self.unchanged.get(node).copied().flatten()
    }

    /// Returns how far the difference reaches into queries with pods of a shape.
    pub(crate) fn reach(&self, shape: &Shape) -> Reach {
        let requests = self.later.dimensions.vector(&shape.requests);
        let takes = |node: &NodeIdx| {
            let free = self.later.nodes.remaining_on(*node).iter();
            let fits = requests.iter().zip(free).all(|(need, free)| need <= free);
            fits && !self.later.nodes[*node].broken
        };
        Reach {
            constraints: !shape.resource_claims.is_empty()
                || (self.storage && !shape.volumes.is_empty())
                || self.constraints_differ(shape),
            first: self.changed.iter().find(takes),
        }
    }

    /// Reports whether a topology group that constrains pods of a shape may count other pods, or have other domains.
    fn constraints_differ(&self, shape: &Shape) -> bool {
        if self.pods.is_empty() && self.relabeled.is_empty() {
            return false;
        }
        let own = own_groups(self.later, shape);
        own.iter().any(|group| self.group_differs(group)) || self.repelling_terms_differ(shape)
    }

    fn group_differs(&self, group: &GroupIdentity) -> bool {
        // By hostname these two are rules about single nodes.
        let by_node = matches!(group.kind, GroupKind::Spread | GroupKind::Anti);
        if is_hostname(&group.key) && by_node {
            return false;
        }
        let snapshot = &self.later.snapshot;
        let selects = |pod: &Arc<Shape>| group.selects(&pod.namespace, &pod.labels, snapshot);
        self.pods.iter().any(selects) || self.domains_differ(group)
    }

    /// Reports whether anti-affinity terms of bound pods that select a shape may exclude other domains.
    fn repelling_terms_differ(&self, shape: &Shape) -> bool {
        let snapshot = &self.later.snapshot;
        let names = &snapshot.config().well_known;
        let terms = self.pods.iter().flat_map(|pod| &pod.required_anti_affinity);
        let mut terms = terms.map(|term| GroupIdentity::inverse(term, names));
        let excludes = |term: &GroupIdentity| {
            !is_hostname(&term.key) && term.selects(&shape.namespace, &shape.labels, snapshot)
        };
        if terms.any(|term| excludes(&term)) {
            return true;
        }
        if self.relabeled.is_empty() {
            return false;
        }
        let one = || std::iter::once(shape);
        let bound = [self.earlier, self.later].into_iter().flat_map(|solver| {
            let terms = solver.bound.terms_against(one(), &solver.snapshot);
            terms.into_iter()
        });
        let mut bound = bound.filter(|term| !is_hostname(&term.key));
        bound.any(|term| self.domains_differ(term))
    }

    /// Reports whether the domains of a group may differ. They do not if every domain of a changed node has two other nodes: a
    /// query removes one of them at most.
    fn domains_differ(&self, group: &GroupIdentity) -> bool {
        if self.relabeled.is_empty() {
            return false;
        }
        if is_hostname(&group.key) {
            // Affinity alone gets here, for which empty nodes are no domains, and pods were compared.
            return false;
        }
        let domains = self.later.label_domains(&group.key);
        let passing = group.filter.is_set();
        let passing = passing.then(|| self.later.nodes_passing(&group.filter));
        let is_populous = |value: &str| {
            let Some(domain) = domains.ids.get(value) else {
                return false;
            };
            let others = domains.nodes[*domain].iter().filter(|node| {
                !self.changed.contains(*node)
                    && passing
                        .as_ref()
                        .is_none_or(|passing| passing.contains(*node))
            });
            others.take(2).count() == 2
        };
        let mut values = self
            .relabeled
            .iter()
            .filter_map(|node| node.label(&group.key));
        values.any(|value| !is_populous(value))
    }

    /// Reports whether a pod of a query has the place that it had, by the reach of the difference into pods of its shape.
    ///
    /// A changed node that it was not placed on has rejected it, or came after its node: so it matters only whether a changed node
    /// could take it now.
    pub(crate) fn leaves(&self, pod: TracedPlace, reach: Reach) -> bool {
        if reach.constraints {
            return false;
        }
        match pod.node {
            None => reach.first.is_none(),
            Some(node) => self.unchanged(node).is_some_and(|now| {
                let is_before = |first| !pod.scanned && now < first;
                reach.first.is_none_or(is_before)
            }),
        }
    }
}

/// The part of a [`TracedPod`] that is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedPlace {
    pub(crate) node: Option<NodeIdx>,
    pub(crate) scanned: bool,
}

impl From<&TracedPod> for TracedPlace {
    fn from(pod: &TracedPod) -> Self {
        Self {
            node: pod.node,
            scanned: pod.scanned,
        }
    }
}

/// Reports whether two versions of a node are the same for every query, its free resources apart.
fn is_same_node(before: &ExistingNode, after: &ExistingNode) -> bool {
    before.is_labeled_as(after)
        && before.broken == after.broken
        && before.daemon_ports == after.daemon_ports
        && before.state.capacity() == after.state.capacity()
        && before.state.allocatable() == after.state.allocatable()
        && before.state.is_launching() == after.state.is_launching()
        && bound(before).eq(bound(after))
}

/// Iterates over the parts of a node's pods that queries read.
fn bound(node: &ExistingNode) -> impl Iterator<Item = (&str, *const Shape, bool, bool)> {
    let pods = node.pods.iter().flat_map(|pods| pods.pods());
    pods.map(|pod| {
        let (active, terminal) = (pod.is_active(), pod.is_terminal());
        let uid = pod.key.uid.as_str();
        (uid, Arc::as_ptr(&pod.shape), active, terminal)
    })
}

/// Reports whether everything except nodes, their pods and storage is equal.
fn has_same_settings(earlier: &Solver, later: &Solver) -> bool {
    let same_policy = |a: &Policy, b: &Policy| {
        Policy {
            now: b.now,
            ..a.clone()
        } == *b
    };
    let same_pods = |a: &[Arc<Pod>], b: &[Arc<Pod>]| {
        let same = |(a, b): (&Arc<Pod>, &Arc<Pod>)| Arc::ptr_eq(a, b);
        a.len() == b.len() && a.iter().zip(b).all(same)
    };
    let selectors = !later.policy.default_spread.is_empty();
    let limits = |solver: &Solver| {
        let left = solver.templates.iter();
        left.map(|template| template.limits_left.clone())
            .collect::<Vec<_>>()
    };
    let staying = earlier.bound.staying.iter().zip(&later.bound.staying);
    earlier.snapshot.has_config_of(&later.snapshot)
        && same_policy(&earlier.policy, &later.policy)
        && earlier.daemons == later.daemons
        && earlier.dimensions.names() == later.dimensions.names()
        && earlier.has_soft_taints == later.has_soft_taints
        && earlier.releases_capacity == later.releases_capacity
        && earlier.reservations.ids == later.reservations.ids
        && earlier.reservations.left == later.reservations.left
        && limits(earlier) == limits(later)
        && same_pods(&earlier.bound.leaving, &later.bound.leaving)
        && earlier.bound.staying.len() == later.bound.staying.len()
        && { staying }.all(|(a, b)| {
            a.node.name == b.node.name
                && a.node.is_labeled_as(&b.node)
                && same_pods(&a.pods, &b.pods)
        })
        && same_pods(&pending(&earlier.snapshot), &pending(&later.snapshot))
        && earlier.snapshot.has_settings_of(&later.snapshot, selectors)
}

fn pending(snapshot: &Snapshot) -> Vec<Arc<Pod>> {
    snapshot.pending_pods().cloned().collect()
}
