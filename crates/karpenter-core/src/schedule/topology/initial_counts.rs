//! Initial counts of the topology groups: the domains of each group, and the pods it counts in them before the pass.

use std::sync::Arc;

use index_vec::IndexVec;
use rustc_hash::FxHashMap;

use crate::pod::Pod;
use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ClassId, GroupId, NodeIdx};
use crate::schedule::compile::nodes::bound_pods::Staying;
use crate::schedule::place::existing_nodes::ExistingNodes;
use crate::schedule::pods::class::Class;
use crate::schedule::pods::queue::PodQueue;
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::group::{GroupIdentity, GroupKind, Target};
use crate::taints::untolerated;

impl Topology<'_> {
    /// Fills the counters with the bound pods, except those of deleted nodes and the pods of the pass, and finds the domains of
    /// each group.
    pub(crate) fn count_existing_pods(
        &mut self,
        algebra: &mut Algebra,
        queue: &PodQueue,
        nodes: &ExistingNodes<'_>,
    ) {
        let solver = self.solver;
        let shapes = queue.classes.iter().map(|class| class.shape.as_ref());
        for identity in solver.bound.terms_against(shapes, &solver.snapshot) {
            let group = match self.group_ids.get(identity) {
                Some(group) => *group,
                None => self.add_group(algebra, identity.clone()),
            };
            self.count_base(group, nodes);
        }
        for group in self.groups.indices() {
            self.find_domains(group, &nodes.present);
            if self.groups[group].kind() != GroupKind::Inverse {
                self.count_base(group, nodes);
            }
        }
        self.count_staying();
        let moved: Vec<Arc<Pod>> = queue
            .pods
            .iter()
            .filter(|queued| queued.pod.node_name.is_some())
            .map(|queued| queued.pod.clone())
            .collect();
        for pod in moved {
            let node = pod
                .node_name
                .as_ref()
                .and_then(|name| solver.nodes.find(name));
            let is_present = |node: &NodeIdx| nodes.present.contains(*node);
            if let Some(node) = node.filter(is_present).filter(|_| pod.is_active()) {
                self.uncount(&pod, node);
            }
        }
    }

    fn count_base(&mut self, group: GroupId, nodes: &ExistingNodes<'_>) {
        let axis = &self.axes[self.groups[group].axis];
        self.groups[group].count_base(axis, &nodes.deleted);
    }

    /// Counts pods that stay on deleting nodes, as kube-scheduler does. No pod can be placed on those nodes, so hostname groups
    /// are left out.
    fn count_staying(&mut self) {
        let solver = self.solver;
        for Staying { node, pods } in &solver.bound.staying {
            for group in &mut self.groups {
                let axis = &self.axes[group.axis];
                let domain = node.label(&axis.name);
                let Some(domain) = domain.and_then(|value| axis.labels.ids.get(value)) else {
                    continue;
                };
                let filter = &group.identity.filter;
                let tolerated = filter.tolerations.as_ref();
                let tolerated =
                    tolerated.is_none_or(|all| untolerated(&node.taints, all).is_none());
                let terms = filter.terms.as_ref();
                let passes = terms.is_none_or(|terms| terms.iter().any(|t| node.meets_all(t)));
                if axis.is_hostname || !tolerated || !passes {
                    continue;
                }
                let counted = |pod: &&Arc<Pod>| group.identity.counts(pod, &solver.snapshot);
                let number = pods.iter().filter(counted).count();
                if number > 0 {
                    group.count_in(*domain, u32::try_from(number).unwrap_or(u32::MAX));
                }
            }
        }
    }

    /// Removes a bound pod of this pass from the counts of the node it is bound to.
    fn uncount(&mut self, pod: &Pod, node: NodeIdx) {
        for group in self.groups.indices() {
            let identity = self.groups[group].identity.clone();
            let counted = identity.counts(pod, &self.solver.snapshot);
            let axis = &self.axes[self.groups[group].axis];
            if counted
                && !axis.is_hostname
                && let Some(domain) = axis.domain_of(node)
            {
                self.groups[group].uncount_in(domain, 1);
            }
        }
    }

    fn find_domains(&mut self, group: GroupId, present: &Bits<NodeIdx>) {
        let axis = self.groups[group].axis;
        if self.axes[axis].is_hostname {
            return;
        }
        let mut known = Bits::default();
        let passing = self.groups[group].passing().map_or(present, |nodes| nodes);
        for (domain, nodes) in self.axes[axis].labels.nodes.iter_enumerated() {
            if Bits::meet(&[nodes, present, passing]) {
                known.insert(domain);
            }
        }
        let identity = self.groups[group].identity.clone();
        let filter = &identity.filter;
        if filter.terms.is_some() {
            let terms = self.solver.term_domains(&identity.key, filter);
            terms.iter().for_each(|term| known.unite(&term.offered));
            self.groups[group].terms = terms;
        } else {
            for (index, template) in self.solver.templates.iter_enumerated() {
                let tolerations = filter.tolerations.as_ref();
                if tolerations.is_none_or(|all| untolerated(&template.taints, all).is_none()) {
                    known.unite(&self.axes[axis].labels.of_template[index]);
                }
            }
        }
        self.groups[group].known.unite(&known);
    }

    /// Finds the groups that count each class, and the inverse groups that select it.
    pub(crate) fn link(&mut self, classes: &mut IndexVec<ClassId, Class>) {
        self.required = classes
            .iter()
            .flat_map(|class| class.hard.iter().map(|owned| owned.group))
            .collect();
        let mut anchored: FxHashMap<(&str, &str), Vec<GroupId>> = FxHashMap::default();
        let mut others: Vec<GroupId> = Vec::new();
        let identities: IndexVec<GroupId, Arc<GroupIdentity>> = self
            .groups
            .iter()
            .map(|group| group.identity.clone())
            .collect();
        for (group, identity) in identities.iter_enumerated() {
            match identity.selector.anchor() {
                Some((key, values)) => {
                    for value in values {
                        anchored
                            .entry((key, value.as_str()))
                            .or_default()
                            .push(group);
                    }
                }
                None => others.push(group),
            }
        }
        let snapshot = &self.solver.snapshot;
        for class in classes.iter_mut().filter(|class| class.problem.is_none()) {
            let by_label = class
                .shape
                .labels
                .iter()
                .filter_map(|(key, value)| anchored.get(&(key.as_str(), value.as_str())));
            let mut candidates: Vec<GroupId> = by_label
                .flatten()
                .copied()
                .chain(others.iter().copied())
                .collect();
            candidates.sort_unstable();
            candidates.dedup();
            for group in candidates {
                if identities[group].selects(&class.shape.namespace, &class.shape.labels, snapshot)
                {
                    if identities[group].kind == GroupKind::Inverse {
                        class.kept_away.push(group);
                    } else {
                        class.counted.push(group);
                    }
                }
            }
            let counts_elsewhere = |group: &GroupId| {
                let identity = &identities[*group];
                let mut terms = class.terms.iter();
                self.is_spread(*group)
                    && !identity.filter.honors_affinity
                    && terms.all(|term| term.get(&identity.key).is_some())
            };
            let own = class.hard.iter().map(|owned| owned.group);
            class.counts_elsewhere = own.filter(counts_elsewhere).collect();
            let counted = class.counted.iter().copied();
            let spreads: Vec<GroupId> = counted
                .filter(|group| self.required.contains(*group) && self.is_spread(*group))
                .collect();
            let mut own = class.hard.iter();
            if own.any(|owned| self.is_spread(owned.group)) {
                class.bound_early = spreads;
            }
        }
    }

    /// Finds the required spreads whose pods must be bound after those of a class: those by another label than a spread of its own,
    /// which may need other pods to be bound first, and those after whose pods it cannot start its affinity group.
    pub(crate) fn order(&mut self, classes: &mut IndexVec<ClassId, Class>) {
        let mut owners: FxHashMap<GroupId, Vec<ClassId>> = FxHashMap::default();
        let mut relying = Vec::with_capacity(classes.len());
        for (index, class) in classes.iter_enumerated() {
            let own = class.hard.iter().map(|owned| owned.group);
            let spreads: Vec<GroupId> = own.filter(|group| self.is_spread(*group)).collect();
            for group in &spreads {
                owners.entry(*group).or_default().push(index);
            }
            let mut relies_on = Vec::new();
            for open in spreads.iter().chain(&class.bound_early) {
                let axis = self.groups[*open].axis;
                let by_others = |own: &&GroupId| self.groups[**own].axis != axis;
                relies_on.extend(spreads.iter().filter(by_others).map(|own| (*open, *own)));
            }
            relies_on.sort_unstable();
            relies_on.dedup();
            for (open, own) in &relies_on {
                self.together.entry(*open).or_default().insert(*own);
            }
            relying.push(relies_on);
        }
        for (class, relies_on) in classes.iter_mut().zip(relying) {
            class.relies_on = relies_on;
        }
        for index in classes.indices() {
            let class = &classes[index];
            if !class.bound_early.is_empty() {
                continue;
            }
            let before = |group: &GroupId| {
                let owners = owners.get(group).into_iter().flatten();
                let mut others = owners.filter(|owner| **owner != index);
                others.any(|owner| self.starts_before(class, &classes[*owner]))
            };
            let spreads = class.counted.iter().copied().filter(before).collect();
            classes[index].bound_early = spreads;
        }
    }

    /// Reports whether a pod of a class can start an affinity group of its own that selects pods of another, which cannot be in its
    /// domain: by hostname, or because anti-affinity keeps them apart.
    fn starts_before(&self, class: &Class, other: &Class) -> bool {
        let selects = |group: GroupId, kind: GroupKind| {
            self.groups[group].kind() == kind && other.counted.contains(&group)
        };
        class.hard.iter().any(|owned| {
            let axis = self.groups[owned.group].axis;
            let apart = || {
                self.axes[axis].is_hostname
                    || class.hard.iter().any(|away| {
                        self.groups[away.group].axis == axis && selects(away.group, GroupKind::Anti)
                    })
            };
            owned.own && selects(owned.group, GroupKind::Affinity) && apart()
        })
    }

    fn is_spread(&self, group: GroupId) -> bool {
        let group = &self.groups[group];
        group.kind() == GroupKind::Spread && !self.axes[group.axis].is_hostname
    }

    /// Counts a pod of a class placed on a node. Reports whether a group counts it other than by the pod's own anti-affinity.
    pub(crate) fn record_on_node(&mut self, node: NodeIdx, class: &Class) -> bool {
        let mut counted = false;
        for group in &class.counted {
            let counts = self.groups[*group].passing();
            if counts.is_none_or(|nodes| nodes.contains(node)) {
                self.count_on_node(*group, node);
                counted = true;
            }
        }
        for group in &class.keeps_away {
            self.count_on_node(*group, node);
        }
        counted
    }

    fn count_on_node(&mut self, group: GroupId, node: NodeIdx) {
        let axis = &self.axes[self.groups[group].axis];
        if axis.is_hostname {
            self.groups[group].count_on(Target::Node(node), 1);
        } else if let Some(domain) = axis.domain_of(node) {
            self.groups[group].count_in(domain, 1);
        }
    }
}
