//! The labels of topology constraints: their domains, and the requirements that admit them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

use index_vec::IndexVec;
use rustc_hash::FxHashMap;

use crate::requirements::{Operator, Requirement};
use crate::schedule::compile::algebra::{Algebra, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::group_identity::{GroupIdentity, is_hostname};
use crate::schedule::compile::ids::{AxisId, DomainId, GroupId, NodeIdx, PlannedId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::topology::group::{Axis, Group};
use crate::schedule::topology::on_planned::OnPlanned;

/// The topology constraints of a pass, and the pods counted by them.
#[derive(Clone)]
pub(crate) struct Topology<'a> {
    pub(super) solver: &'a Solver,
    pub(super) axes: IndexVec<AxisId, Axis>,
    axis_ids: FxHashMap<String, AxisId>,
    pub(crate) groups: IndexVec<GroupId, Group>,
    pub(super) group_ids: FxHashMap<Arc<GroupIdentity>, GroupId>,
    /// Whether choices are those of upstream; see `Manner` of `place`.
    pub(super) upstreams: bool,
    /// The existing nodes, without those treated as deleted.
    pub(super) present: Arc<Bits<NodeIdx>>,
    /// The groups of required constraints.
    pub(super) required: Bits<GroupId>,
    /// The spreads that are bounded as if some domain had no pods: those of a pod that is placed before all nodes are planned.
    pub(super) assumed_empty: Bits<GroupId>,
    /// The [chains](crate::schedule::pods::class::BindOrder::chains) of all classes, by the first spread.
    pub(super) chains: FxHashMap<GroupId, BTreeSet<GroupId>>,
    /// The planned nodes as the groups see them.
    pub(super) planned: IndexVec<PlannedId, OnPlanned>,
    /// The planned nodes that get one domain before a pod with a required spread is placed, by spread.
    pub(super) due: BTreeMap<GroupId, BTreeSet<PlannedId>>,
    /// The planned nodes with pods that some group does not count, because they may still fail its node filter.
    pub(super) unfiltered: BTreeSet<PlannedId>,
    /// The planned nodes whose pods the second spread of a chain counts and the first does not yet, in the order in which pods joined
    /// them, so that a node may be listed several times.
    pub(super) partly_counted: Vec<PlannedId>,
}

impl<'a> Topology<'a> {
    pub(crate) fn new(solver: &'a Solver, present: Arc<Bits<NodeIdx>>) -> Self {
        Self {
            solver,
            axes: IndexVec::new(),
            axis_ids: FxHashMap::default(),
            groups: IndexVec::new(),
            group_ids: FxHashMap::default(),
            upstreams: false,
            present,
            required: Bits::default(),
            assumed_empty: Bits::default(),
            chains: FxHashMap::default(),
            planned: IndexVec::new(),
            due: BTreeMap::new(),
            unfiltered: BTreeSet::new(),
            partly_counted: Vec::new(),
        }
    }

    /// Forgets the pods that were placed; `counted` are the groups before. Choices are those of upstream if `upstreams`.
    pub(crate) fn reset(&mut self, counted: &IndexVec<GroupId, Group>, upstreams: bool) {
        self.upstreams = upstreams;
        self.groups.clone_from(counted);
        for axis in &mut self.axes {
            let planned = axis.planned.iter_mut();
            planned.for_each(|planned| *planned = Bits::default());
        }
        self.assumed_empty = Bits::default();
        self.planned.clear();
        self.due.clear();
        self.unfiltered.clear();
        self.partly_counted.clear();
    }

    /// Returns the group of a constraint, creating it if it does not exist. The pods of a new one are not counted yet.
    pub(super) fn group_of(
        &mut self,
        algebra: &mut Algebra,
        identity: Arc<GroupIdentity>,
    ) -> GroupId {
        if let Some(group) = self.group_ids.get(&identity) {
            return *group;
        }
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
    fn axis(&mut self, algebra: &mut Algebra, name: &str) -> AxisId {
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

    /// Returns the axis of a label, if it has one.
    pub(crate) fn find_axis(&self, name: &str) -> Option<AxisId> {
        self.axis_ids.get(name).copied()
    }

    /// Bounds these spreads as if some domain had no pods.
    pub(crate) fn assume_empty(&mut self, groups: Bits<GroupId>) {
        self.assumed_empty = groups;
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

    /// Returns the domains of an axis that a node with the requirements of a set can be in.
    pub(crate) fn reach(
        &mut self,
        algebra: &mut Algebra,
        axis: AxisId,
        set: SetId,
    ) -> Arc<Bits<DomainId>> {
        let all = self.axes[axis].domains().len();
        let reach = self.domains_of(algebra, axis, set);
        reach.unwrap_or_else(|| Arc::new(Bits::full(all)))
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
        let axis = &mut self.axes[axis];
        if let Some(req) = axis.requirements.get(domains) {
            return *req;
        }
        let names = domains.iter().map(|domain| axis.domains()[domain].clone());
        let requirement = Requirement::new(&axis.name, Operator::In, names.collect::<Vec<_>>());
        let well_known = &self.solver.snapshot.config().well_known;
        let req = algebra.req(&requirement, || well_known.contains(requirement.key()));
        axis.requirements.insert(domains.clone(), req);
        req
    }
}

impl Index<GroupId> for Topology<'_> {
    type Output = Group;

    #[inline]
    fn index(&self, group: GroupId) -> &Group {
        &self.groups[group]
    }
}

impl Index<AxisId> for Topology<'_> {
    type Output = Axis;

    #[inline]
    fn index(&self, axis: AxisId) -> &Axis {
        &self.axes[axis]
    }
}
