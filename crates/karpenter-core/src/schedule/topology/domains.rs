//! The labels of topology constraints: their domains, and the requirements that admit them.

use std::collections::BTreeSet;
use std::sync::Arc;

use index_vec::IndexVec;
use rustc_hash::FxHashMap;

use crate::pod::Shape;
use crate::requirements::{Operator, Requirement};
use crate::schedule::compile::algebra::{Algebra, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{AxisId, DomainId, GroupId, PlannedId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::pods::class::Owned;
use crate::schedule::topology::group::{Axis, Group, GroupIdentity, is_hostname};

/// The topology constraints of a pass, and the pods counted by them.
pub(crate) struct Topology<'a> {
    pub(crate) solver: &'a Solver,
    pub(crate) axes: IndexVec<AxisId, Axis>,
    axis_ids: FxHashMap<String, AxisId>,
    pub(crate) groups: IndexVec<GroupId, Group>,
    pub(crate) group_ids: FxHashMap<Arc<GroupIdentity>, GroupId>,
    /// The groups of required constraints.
    pub(crate) required: Bits<GroupId>,
    /// The spreads that are bounded as if some domain had no pods: those of a pod that is placed before all nodes are planned.
    pub(crate) assumed_empty: Bits<GroupId>,
    /// The pairs of [`Class::relies_on`](crate::schedule::pods::class::Class) of all classes, by the first spread.
    pub(crate) together: FxHashMap<GroupId, BTreeSet<GroupId>>,
}

impl<'a> Topology<'a> {
    pub(crate) fn new(solver: &'a Solver) -> Self {
        Self {
            solver,
            axes: IndexVec::new(),
            axis_ids: FxHashMap::default(),
            groups: IndexVec::new(),
            group_ids: FxHashMap::default(),
            required: Bits::default(),
            assumed_empty: Bits::default(),
            together: FxHashMap::default(),
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
        let group = self.add_group(algebra, Arc::new(identity));
        Owned {
            group,
            own,
            soft: false,
        }
    }

    /// Adds a group. Its pods are not counted yet.
    pub(crate) fn add_group(
        &mut self,
        algebra: &mut Algebra,
        identity: Arc<GroupIdentity>,
    ) -> GroupId {
        let axis = self.axis(algebra, &identity.key);
        let base = self.solver.base_counts(&identity);
        let mut group = Group::new(identity.clone(), axis, base);
        let names = &self.solver.snapshot.config().well_known;
        group.filter_sets = identity.filter.terms.as_ref().map(|terms| {
            terms
                .iter()
                .map(|term| algebra.set(term, |key| names.contains(key)))
                .collect()
        });
        let group = self.groups.push(group);
        self.group_ids.insert(identity, group);
        group
    }

    /// Returns the axis of a label, creating it with its domains over nodes and templates if it does not exist.
    pub(crate) fn axis(&mut self, algebra: &mut Algebra, name: &str) -> AxisId {
        if let Some(axis) = self.axis_ids.get(name) {
            return *axis;
        }
        let solver = self.solver;
        let names = &solver.snapshot.config().well_known;
        let key = algebra.key(name, || names.contains(name));
        let labels = match is_hostname(name) {
            true => Arc::default(),
            false => solver.label_domains(name),
        };
        let axis = self.axes.push(Axis {
            name: name.to_owned(),
            key,
            is_hostname: is_hostname(name),
            planned: index_vec::index_vec![Bits::default(); labels.names.len()],
            labels,
            admitted: FxHashMap::default(),
            requirements: FxHashMap::default(),
        });
        self.axis_ids.insert(name.to_owned(), axis);
        axis
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
            .domains()
            .iter_enumerated()
            .filter(|(_, name)| requirement.has(name))
            .map(|(index, _)| index);
        let domains: Arc<Bits<DomainId>> = Arc::new(admitted.collect());
        axis.admitted.insert(req, domains.clone());
        domains
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
            .map(|domain| self.axes[axis].domains()[domain].clone())
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
            let count = self.axes[axis].domains().len();
            let reach = reach.unwrap_or_else(|| Arc::new(Bits::full(count)));
            for domain in reach.iter() {
                self.axes[axis].planned[domain].insert(index);
            }
        }
    }
}
