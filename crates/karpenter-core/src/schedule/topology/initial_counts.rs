//! Initial counts of the topology groups: the domains of each group, and the pods it counts in them before the pass.

use crate::schedule::compile::ids::{AxisId, DomainId, GroupId, NodeIdx};
use index_vec::IndexVec;
use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::pod::Pod;
use crate::schedule::compile::algebra::ReqId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::solver::Staying;
use crate::schedule::compile::template::Template;
use crate::schedule::pass::SchedulingPass;
use crate::schedule::pods::class::Class;
use crate::schedule::topology::group::{Axis, Group, GroupKind, Target, is_hostname};
use crate::taints::untolerated;

impl SchedulingPass<'_> {
    /// Returns the axis of a label, creating it with its domains over nodes and templates if it does not exist.
    pub(crate) fn axis(&mut self, name: &str) -> AxisId {
        if let Some(axis) = self.axis_ids.get(name) {
            return *axis;
        }
        let solver = self.solver;
        let names = &solver.snapshot.config().well_known;
        let key = self.algebra.key(name, || names.contains(name));
        let mut axis = Axis {
            name: name.to_owned(),
            key,
            is_hostname: is_hostname(name),
            domains: IndexVec::new(),
            ids: FxHashMap::default(),
            of_node: IndexVec::new(),
            nodes: IndexVec::new(),
            planned: IndexVec::new(),
            admitted: FxHashMap::default(),
            of_template: IndexVec::new(),
            requirements: FxHashMap::default(),
        };
        if !axis.is_hostname {
            let on_nodes = solver.node_domains(name);
            for domain in &on_nodes.names {
                axis.domain(domain);
            }
            axis.of_node.clone_from(&on_nodes.of_node);
            for (node, domain) in axis.of_node.iter_enumerated() {
                if let Some(domain) = domain {
                    axis.nodes[*domain].insert(node);
                }
            }
            for template in &solver.templates {
                let domains = self.template_domains(template, &mut axis);
                axis.of_template.push(domains);
            }
        }
        let axis = self.axes.push(axis);
        self.axis_ids.insert(name.to_owned(), axis);
        axis
    }

    /// Returns the values of a label that nodes of a template can have.
    fn template_domains(&self, template: &Template, axis: &mut Axis) -> Bits<DomainId> {
        let catalogue = &self.solver.catalogues[template.catalogue];
        let own = self
            .algebra
            .get(template.set, axis.key)
            .map(|req| self.algebra.requirement(req).clone());
        let mut values: BTreeSet<String> = BTreeSet::new();
        if let Some(own) = own.as_ref().filter(|own| !own.is_complement()) {
            values.extend(own.values().map(str::to_owned));
        }
        let mut seen: FxHashSet<ReqId> = FxHashSet::default();
        for row in template.rows.iter() {
            let Some(req) = catalogue
                .requirement(row, axis.key)
                .filter(|req| seen.insert(*req))
            else {
                continue;
            };
            let requirement = self.algebra.requirement(req);
            if !requirement.is_complement() {
                let within = |value: &&str| own.as_ref().is_none_or(|own| own.has(value));
                values.extend(requirement.values().filter(within).map(str::to_owned));
            }
        }
        values.iter().map(|value| axis.domain(value)).collect()
    }

    /// Fills the counters with the bound pods, and finds the domains of each group.
    pub(crate) fn count_existing_pods(&mut self) {
        let solver = self.solver;
        let inverse: Vec<_> = solver.inverse.iter().collect();
        for (identity, places) in inverse {
            let concerns = |class: &Class| {
                identity.selects(
                    &class.shape.namespace,
                    &class.shape.labels,
                    &solver.snapshot,
                )
            };
            if !self.classes.iter().any(concerns) {
                continue;
            }
            let group = match self.group_ids.get(identity) {
                Some(group) => *group,
                None => {
                    let axis = self.axis(&identity.key);
                    let identity = Arc::new(identity.clone());
                    let group = self.groups.push(Group::new(identity.clone(), axis));
                    self.group_ids.insert(identity, group);
                    group
                }
            };
            self.count_places(group, places);
        }
        for group in self.groups.indices() {
            self.find_domains(group);
            if self.groups[group].kind() != GroupKind::Inverse {
                let counts = solver.base_counts(&self.groups[group].identity.clone());
                self.count_places(group, &counts.places);
            }
        }
        self.count_staying();
        let moved: Vec<Arc<Pod>> = self
            .pods
            .iter()
            .filter(|queued| queued.pod.node_name.is_some())
            .map(|queued| queued.pod.clone())
            .collect();
        for pod in moved {
            let node = pod
                .node_name
                .as_ref()
                .and_then(|name| solver.node_index.get(name))
                .copied();
            if let Some(node) = node.filter(|node| self.present.contains(*node) && pod.is_active())
            {
                self.uncount(&pod, node);
            }
        }
    }

    fn count_places(&mut self, group: GroupId, places: &[(NodeIdx, u32)]) {
        let axis = self.groups[group].axis;
        for (node, number) in places {
            let index = *node;
            let counts = self.groups[group]
                .nodes
                .as_ref()
                .is_none_or(|nodes| nodes.contains(index));
            if !counts || !self.present.contains(index) {
                continue;
            }
            if self.axes[axis].is_hostname {
                self.groups[group].count_on(Target::Node(index), *number);
            } else {
                if let Some(domain) = self.axes[axis].of_node[index] {
                    self.groups[group].count_in(domain, *number);
                }
            }
        }
    }

    /// Counts pods that stay on deleting nodes, as kube-scheduler does. No pod can be placed on those nodes, so hostname groups
    /// are left out.
    fn count_staying(&mut self) {
        let solver = self.solver;
        for Staying { node, pods } in &solver.staying {
            for group in &mut self.groups {
                let axis = &self.axes[group.axis];
                let domain = node.label(&axis.name);
                let Some(domain) = domain.and_then(|value| axis.ids.get(value)) else {
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
                && let Some(domain) = axis.of_node[node]
            {
                self.groups[group].uncount_in(domain, 1);
            }
        }
    }

    fn find_domains(&mut self, group: GroupId) {
        let axis = self.groups[group].axis;
        if self.axes[axis].is_hostname {
            return;
        }
        let mut known = Bits::default();
        let passing = self.groups[group].nodes.clone();
        for (domain, nodes) in self.axes[axis].nodes.iter_enumerated() {
            let mut nodes = nodes.clone();
            nodes.intersect(&self.present);
            if let Some(passing) = &passing {
                nodes.intersect(passing);
            }
            if !nodes.is_empty() {
                known.insert(domain);
            }
        }
        let filter = self.groups[group].identity.filter.clone();
        let names = &self.solver.snapshot.config().well_known;
        for (index, template) in self.solver.templates.iter_enumerated() {
            let tolerated = filter
                .tolerations
                .as_ref()
                .is_none_or(|tolerations| untolerated(&template.taints, tolerations).is_none());
            let meets = filter.terms.as_ref().is_none_or(|terms| {
                terms.iter().any(|term| {
                    let wanted = self.algebra.set(term, |key| names.contains(key));
                    self.algebra.join(template.set, wanted).is_some()
                })
            });
            if tolerated && meets {
                known.unite(&self.axes[axis].of_template[index]);
            }
        }
        self.groups[group].known.unite(&known);
    }
}
