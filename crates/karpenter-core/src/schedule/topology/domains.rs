//! The labels of topology constraints: their domains, and the requirements that admit them.

use std::collections::BTreeSet;
use std::sync::Arc;

use index_vec::IndexVec;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::pod::Shape;
use crate::requirements::{Operator, Requirement};
use crate::schedule::compile::algebra::{Algebra, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{AxisId, DomainId, GroupId, PlannedId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::compile::template::Template;
use crate::schedule::pods::class::Owned;
use crate::schedule::topology::group::{Axis, Group, GroupIdentity, is_hostname};

/// The topology constraints of a pass, and the pods counted by them.
pub(crate) struct Topology<'a> {
    pub(crate) solver: &'a Solver,
    pub(crate) axes: IndexVec<AxisId, Axis>,
    axis_ids: FxHashMap<String, AxisId>,
    pub(crate) groups: IndexVec<GroupId, Group>,
    pub(crate) group_ids: FxHashMap<Arc<GroupIdentity>, GroupId>,
}

impl<'a> Topology<'a> {
    pub(crate) fn new(solver: &'a Solver) -> Self {
        Self {
            solver,
            axes: IndexVec::new(),
            axis_ids: FxHashMap::default(),
            groups: IndexVec::new(),
            group_ids: FxHashMap::default(),
        }
    }

    /// Returns the group of a constraint of a pod, creating it if it does not exist.
    pub(crate) fn group(
        &mut self,
        algebra: &mut Algebra,
        shape: &Shape,
        identity: GroupIdentity,
    ) -> Owned {
        let own = identity.selects(&shape.namespace, &shape.labels, &self.solver.snapshot);
        if let Some(group) = self.group_ids.get(&identity) {
            let group = *group;
            return Owned {
                group,
                own,
                soft: false,
            };
        }
        let axis = self.axis(algebra, &identity.key);
        let identity = Arc::new(identity);
        let mut group = Group::new(identity.clone(), axis);
        let filter = &identity.filter;
        if filter.terms.is_some() || filter.tolerations.is_some() {
            let mut nodes = Bits::full(self.solver.nodes.len());
            if let Some(terms) = &filter.terms {
                let mut any = Bits::default();
                for term in terms {
                    any.unite(&self.solver.nodes_meeting_all(term));
                }
                nodes.intersect(&any);
            }
            if let Some(tolerations) = &filter.tolerations {
                nodes.intersect(&self.solver.nodes_tolerated(tolerations));
            }
            group.nodes = Some(Arc::new(nodes));
            let names = &self.solver.snapshot.config().well_known;
            group.filter_sets = filter.terms.as_ref().map(|terms| {
                terms
                    .iter()
                    .map(|term| algebra.set(term, |key| names.contains(key)))
                    .collect()
            });
        }
        let group = self.groups.push(group);
        self.group_ids.insert(identity, group);
        Owned {
            group,
            own,
            soft: false,
        }
    }

    /// Returns the axis of a label, creating it with its domains over nodes and templates if it does not exist.
    pub(crate) fn axis(&mut self, algebra: &mut Algebra, name: &str) -> AxisId {
        if let Some(axis) = self.axis_ids.get(name) {
            return *axis;
        }
        let solver = self.solver;
        let names = &solver.snapshot.config().well_known;
        let key = algebra.key(name, || names.contains(name));
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
                let domains = self.template_domains(algebra, template, &mut axis);
                axis.of_template.push(domains);
            }
        }
        let axis = self.axes.push(axis);
        self.axis_ids.insert(name.to_owned(), axis);
        axis
    }

    /// Returns the values of a label that nodes of a template can have.
    fn template_domains(
        &self,
        algebra: &Algebra,
        template: &Template,
        axis: &mut Axis,
    ) -> Bits<DomainId> {
        let catalogue = &self.solver.catalogues[template.catalogue];
        let own = algebra
            .get(template.set, axis.key)
            .map(|req| algebra.requirement(req).clone());
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
            let requirement = algebra.requirement(req);
            if !requirement.is_complement() {
                let within = |value: &&str| own.as_ref().is_none_or(|own| own.has(value));
                values.extend(requirement.values().filter(within).map(str::to_owned));
            }
        }
        values.iter().map(|value| axis.domain(value)).collect()
    }

    /// Returns the domains of an axis that a set admits; `None` is all.
    pub(crate) fn domains_of(
        &mut self,
        algebra: &mut Algebra,
        axis: AxisId,
        set: SetId,
    ) -> Option<Arc<Bits<DomainId>>> {
        let key = self.axes[axis].key;
        let Some(req) = algebra.get(set, key) else {
            return if algebra.is_known(key) {
                None
            } else {
                Some(Arc::default())
            };
        };
        Some(self.admitted(algebra, axis, req))
    }

    pub(crate) fn admitted(
        &mut self,
        algebra: &mut Algebra,
        axis: AxisId,
        req: ReqId,
    ) -> Arc<Bits<DomainId>> {
        let axis = &mut self.axes[axis];
        if let Some(domains) = axis.admitted.get(&req) {
            return domains.clone();
        }
        let requirement = algebra.requirement(req);
        let admitted = axis
            .domains
            .iter_enumerated()
            .filter(|(_, name)| requirement.has(name))
            .map(|(index, _)| index);
        let domains: Arc<Bits<DomainId>> = Arc::new(admitted.collect());
        axis.admitted.insert(req, domains.clone());
        domains
    }

    /// Reports whether a set lists exactly `number` values of the axis's label, whether or not they are domains.
    pub(crate) fn lists(&self, algebra: &Algebra, axis: AxisId, set: SetId, number: usize) -> bool {
        let req = algebra.get(set, self.axes[axis].key);
        req.map(|req| algebra.requirement(req))
            .is_some_and(|req| !req.is_complement() && req.values().count() == number)
    }

    /// Returns the requirement that admits exactly these domains.
    pub(crate) fn requirement_for(
        &mut self,
        algebra: &mut Algebra,
        axis: AxisId,
        domains: &Bits<DomainId>,
    ) -> ReqId {
        if let Some(req) = self.axes[axis].requirements.get(domains) {
            return *req;
        }
        let names: Vec<Arc<str>> = domains
            .iter()
            .map(|domain| self.axes[axis].domains[domain].clone())
            .collect();
        let well_known = &self.solver.snapshot.config().well_known;
        let requirement = Requirement::new(&self.axes[axis].name, Operator::In, names);
        let req = algebra.req(&requirement, || well_known.contains(requirement.key()));
        self.axes[axis].requirements.insert(domains.clone(), req);
        req
    }

    /// Adds a new planned node to the domains it can be in.
    pub(crate) fn add_planned_node(&mut self, algebra: &mut Algebra, index: PlannedId, set: SetId) {
        for axis in self.axes.indices() {
            if self.axes[axis].is_hostname {
                continue;
            }
            let reach = self.domains_of(algebra, axis, set);
            let count = self.axes[axis].domains.len();
            let reach = reach.unwrap_or_else(|| Arc::new(Bits::full(count)));
            for domain in reach.iter() {
                self.axes[axis].planned[domain].insert(index);
            }
        }
    }
}
