//! Device allocation for pods with resource claims, through the allocator of [`crate::dra`].
//!
//! A pass without such pods creates no allocator. Pods with resource claims are tried on one node at a time, after all other
//! constraints: on an existing node with its labels, on a planned node with the instance types that are left and the domains
//! that topology leaves. The requirements of the devices narrow the planned node; the allocation is committed when the pod is
//! placed, and devices held for instance types that the planned node can no longer become are released.
//!
//! UPSTREAM: pkg/scheduling/dynamicresources/{allocator,allocation_tracker}.go
//! DIFFERS: the search runs after the filters by resources and topology, and is limited to what they leave.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use karpenter_api::labels;
use rustc_hash::FxHashSet;

use crate::dra::{Allocation, Allocator, Candidate, Failure, Host, TypeKey};
use crate::requirements::{AllowUndefined, Requirement, Requirements};
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{CatalogueId, NodeIdx, PlannedId, RowId, TemplateId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::place::planned_node::PlannedNode;
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::pods::class::Class;
use crate::schedule::pods::queue::PodQueue;

/// The allocator of a pass, and its last result.
pub(crate) struct Devices<'a> {
    solver: &'a Solver,
    allocator: Allocator<'a>,
    /// Keys that a planned node may still define.
    undefined: BTreeSet<String>,
    /// Devices of the last successful allocation on an existing node, not committed yet.
    found: Option<Allocation>,
}

/// The state of a planned node after devices were allocated on it.
pub(crate) struct Served {
    pub(crate) set: SetId,
    pub(crate) allowed: Option<Rc<Bits<RowId>>>,
    pub(crate) allocation: Rc<Allocation>,
}

impl<'a> Devices<'a> {
    /// Returns an allocator for the pods of `queue` and the nodes `present`; `None` if no pod has resource claims.
    pub(crate) fn new(
        solver: &'a Solver,
        queue: &PodQueue,
        present: &Bits<NodeIdx>,
    ) -> Option<Box<Self>> {
        let mut classes = queue.classes.iter();
        if classes.all(|class| class.resource_claims.is_empty()) {
            return None;
        }
        let bound = queue
            .pods
            .iter()
            .filter(|queued| queued.pod.node_name.is_some());
        let moving: FxHashSet<&str> = bound.map(|queued| queued.pod.key.uid.as_str()).collect();
        let usable = |name: &str| {
            solver.nodes.find(name).is_some_and(|index| {
                present.contains(index) && solver.nodes[index].state.is_initialized()
            })
        };
        let names = &solver.snapshot.config().well_known;
        Some(Box::new(Self {
            solver,
            allocator: Allocator::new(solver.inventory(), usable, |uid| moving.contains(uid)),
            undefined: names.labels().map(str::to_owned).collect(),
            found: None,
        }))
    }

    /// Returns the allocator's key for the instance type of a row.
    fn type_key(&self, catalogue: CatalogueId, row: RowId) -> TypeKey {
        let before: usize = self.solver.catalogues[..catalogue]
            .iter()
            .map(|catalogue| catalogue.types.len())
            .sum();
        before as TypeKey + self.solver.catalogues[catalogue].row_type[row]
    }

    /// Reports whether an existing node has devices for a class. [`Self::commit_on_node`] commits them.
    pub(crate) fn find_on_node(&mut self, node: NodeIdx, class: &Class) -> bool {
        let there = &self.solver.nodes[node];
        let names = &self.solver.snapshot.config().well_known;
        let mut requirements = Requirements::from_labels(there.state.labels().iter(), names);
        requirements.replace(Requirement::equal(labels::HOSTNAME, there.state.hostname()));
        // Until a node is initialized its drivers have not published all devices: the instance type lists the expected ones.
        let row = (!there.state.is_initialized())
            .then(|| self.row_of_node(node))
            .flatten();
        let mut types = Vec::new();
        if let Some((catalogue, row)) = row {
            let key = self.type_key(catalogue, row);
            let expected = &self.solver.catalogues[catalogue].type_of(row).devices;
            self.allocator.expect(key, expected);
            types.push(key);
        }
        let undefined = match &there.requirements {
            Some(required) => {
                requirements.add_all(required);
                AllowUndefined::Keys(&self.undefined)
            }
            None => AllowUndefined::Nothing,
        };
        let candidate = Candidate {
            host: Host::Node(there.name.as_str().into()),
            requirements: &requirements,
            undefined,
            types: &types,
        };
        let answer =
            self.allocator
                .allocate(&candidate, &class.shape.namespace, &class.resource_claims);
        self.found = answer.ok();
        self.found.is_some()
    }

    /// Returns the catalogue and a row of the instance type of a node that Karpenter launched.
    fn row_of_node(&self, node: NodeIdx) -> Option<(CatalogueId, RowId)> {
        let state = &self.solver.nodes[node].state;
        let pool = state.node_pool()?;
        let name = state.labels().get(labels::INSTANCE_TYPE)?;
        let template = self.solver.templates.iter().find(|t| t.name == pool)?;
        let catalogue = &self.solver.catalogues[template.catalogue];
        let row = catalogue
            .row_type
            .indices()
            .find(|row| catalogue.type_of(*row).name == *name)?;
        Some((template.catalogue, row))
    }

    /// Commits the devices found by [`Self::find_on_node`].
    pub(crate) fn commit_on_node(&mut self, node: NodeIdx) {
        let name = self.solver.nodes[node].name.as_str();
        if let Some(allocation) = self.found.take() {
            self.allocator.commit(&Host::Node(name.into()), allocation);
        }
    }

    /// Returns the instance types of a planned node that have devices for a class, and the requirements of those devices. `fitting` are
    /// the rows with room that meet `set`.
    pub(crate) fn find_on_planned(
        &mut self,
        index: PlannedId,
        template: TemplateId,
        set: SetId,
        fitting: &Bits<RowId>,
        class: &Class,
        rows: &mut RowCache<'_>,
    ) -> Result<Served, Failure> {
        let catalogue_index = self.solver.templates[template].catalogue;
        let kinds = rows.kinds(catalogue_index, set);
        let catalogue = &self.solver.catalogues[catalogue_index];
        let mut priced: Vec<(f64, RowId)> = fitting
            .iter()
            .map(|row| (catalogue.price(row, &kinds).unwrap_or(f64::MAX), row))
            .collect();
        // Cheapest first: requirements set by the first instance type constrain the others.
        priced.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        let mut rows_of: BTreeMap<TypeKey, Vec<RowId>> = BTreeMap::new();
        let mut types = Vec::new();
        for (_, row) in priced {
            let key = self.type_key(catalogue_index, row);
            let of_type = rows_of.entry(key).or_default();
            if of_type.is_empty() {
                self.allocator.expect(key, &catalogue.type_of(row).devices);
                types.push(key);
            }
            of_type.push(row);
        }
        if types.is_empty() {
            return Err(Failure::NoDevices);
        }
        let requirements = rows.algebra.requirements(set);
        let candidate = Candidate {
            host: Host::Planned(index.0),
            requirements: &requirements,
            undefined: AllowUndefined::Keys(&self.undefined),
            types: &types,
        };
        let allocation =
            self.allocator
                .allocate(&candidate, &class.shape.namespace, &class.resource_claims)?;
        let names = &self.solver.snapshot.config().well_known;
        let set = rows
            .algebra
            .set(&allocation.requirements, |key| names.contains(key));
        let left = allocation.types.iter().filter_map(|key| rows_of.get(key));
        Ok(Served {
            set,
            allowed: Some(Rc::new(left.flatten().copied().collect())),
            allocation: Rc::new(allocation),
        })
    }

    /// Commits the devices of a pod placed on a planned node.
    pub(crate) fn commit_on_planned(&mut self, index: PlannedId, allocation: Allocation) {
        self.allocator.commit(&Host::Planned(index.0), allocation);
    }

    /// Releases the devices held for instance types that a planned node can no longer become.
    pub(crate) fn release(
        &mut self,
        index: PlannedId,
        node: &PlannedNode,
        rows: &mut RowCache<'_>,
    ) {
        let catalogue = self.solver.templates[node.template].catalogue;
        let allowed = node.allowed.as_deref();
        let fitting = rows.rows_with_room(node.template, node.set, &node.used, allowed);
        let keep: FxHashSet<TypeKey> = fitting
            .iter()
            .map(|row| self.type_key(catalogue, row))
            .collect();
        self.allocator
            .retain(&Host::Planned(index.0), |key| keep.contains(&key));
    }
}
