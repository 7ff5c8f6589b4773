//! Device allocation for pods with resource claims, through the allocator of [`crate::dra`].
//!
//! A pass without such pods creates no allocator. Pods with resource claims are tried on one node at a time, after all other
//! constraints: on an existing node with its labels, on a planned node with the instance types that are left and the domains
//! that topology leaves. The requirements of the devices narrow the planned node; the allocation is committed when the pod is
//! placed, and devices held for instance types that the planned node can no longer become are released.
//!
//! UPSTREAM: pkg/scheduling/dynamicresources/{allocator,allocation_tracker}.go
//! DIFFERS: the search runs after the filters by resources and topology, and is limited to what they leave.

use crate::schedule::compile::ids::{CatalogueId, ClassId, NodeIdx, PlannedId, RowId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use karpenter_api::labels;
use rustc_hash::FxHashSet;

use crate::dra::{Allocation, Allocator, Candidate, Failure, Host, TypeKey};
use crate::pod::Shape;
use crate::requirements::{AllowUndefined, Requirement, Requirements};
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::fit::CandidateNode;
use crate::schedule::place::planned_node::Refusal;
use crate::schedule::topology::choices::Choices;

/// The allocator of a pass, and its last result.
pub(crate) struct Devices<'a> {
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

/// Returns the names of the resource claims that pods of a shape use.
pub(crate) fn claims_of(shape: &Shape) -> Result<Vec<String>, Failure> {
    let names = shape.resource_claims.iter().filter_map(|entry| {
        if entry.claim.is_none() && !entry.made {
            let entry = entry.name.clone();
            return Some(Err(Failure::ClaimNotMade { entry }));
        }
        entry.claim.clone().map(Ok)
    });
    names.collect()
}

impl<'a> SchedulingPass<'a> {
    /// Returns the resource claims that pods of a shape use; an error if one does not exist.
    pub(crate) fn existing_claims(&self, shape: &Shape) -> Result<Vec<String>, Failure> {
        let claims = claims_of(shape)?;
        let known = &self.solver.inventory().claims;
        let exists = |claim: &&String| {
            let key = (shape.namespace.clone(), (*claim).clone());
            known.contains_key(&key)
        };
        match claims.iter().find(|claim| !exists(claim)) {
            Some(claim) => Err(Failure::ClaimMissing {
                claim: claim.clone(),
            }),
            None => Ok(claims),
        }
    }

    /// Creates the allocator, if a pod has resource claims.
    pub(crate) fn prepare_devices(&mut self) {
        if self
            .queue
            .classes
            .iter()
            .all(|class| class.resource_claims.is_empty())
        {
            return;
        }
        let solver = self.solver;
        let moving: FxHashSet<&str> = self
            .queue
            .pods
            .iter()
            .filter(|queued| queued.pod.node_name.is_some())
            .map(|queued| queued.pod.key.uid.as_str())
            .collect();
        let usable = |name: &str| {
            solver.node_index.get(name).is_some_and(|index| {
                self.nodes.present.contains(*index) && solver.nodes[*index].state.is_initialized()
            })
        };
        let names = &solver.snapshot.config().well_known;
        self.devices = Some(Box::new(Devices {
            allocator: Allocator::new(solver.inventory(), usable, |uid| moving.contains(uid)),
            undefined: names.labels().map(str::to_owned).collect(),
            found: None,
        }));
    }

    /// Returns the allocator's key for the instance type of a row.
    fn type_key(&self, catalogue: CatalogueId, row: RowId) -> TypeKey {
        let before: usize = self.solver.catalogues[..catalogue]
            .iter()
            .map(|catalogue| catalogue.types.len())
            .sum();
        before as TypeKey + self.solver.catalogues[catalogue].row_type[row]
    }

    /// Reports whether an existing node has devices for a class. [`Self::commit_node_devices`] commits them.
    pub(crate) fn devices_on_node(&mut self, node: NodeIdx, class: ClassId) -> bool {
        let Some(mut devices) = self.devices.take() else {
            return false;
        };
        let there = &self.solver.nodes[node];
        let names = &self.solver.snapshot.config().well_known;
        let mut requirements = Requirements::from_labels(there.state.labels(), names);
        requirements.replace(Requirement::equal(labels::HOSTNAME, there.state.hostname()));
        let undefined = match &there.requirements {
            Some(required) => {
                requirements.add_all(required);
                AllowUndefined::Keys(&devices.undefined)
            }
            None => AllowUndefined::Nothing,
        };
        // Until a node is initialized its drivers have not published all devices: the instance type lists the expected ones.
        let row = (!there.state.is_initialized())
            .then(|| self.row_of_node(node))
            .flatten();
        let mut types = Vec::new();
        if let Some((catalogue, row)) = row {
            let key = self.type_key(catalogue, row);
            let expected = &self.solver.catalogues[catalogue].type_of(row).devices;
            devices.allocator.expect(key, expected);
            types.push(key);
        }
        let candidate = Candidate {
            host: Host::Node(there.name.as_str().into()),
            requirements: &requirements,
            undefined,
            types: &types,
        };
        let class = &self.queue.classes[class];
        let answer =
            devices
                .allocator
                .allocate(&candidate, &class.shape.namespace, &class.resource_claims);
        devices.found = answer.ok();
        let served = devices.found.is_some();
        self.devices = Some(devices);
        served
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

    /// Commits the devices found by [`Self::devices_on_node`].
    pub(crate) fn commit_node_devices(&mut self, node: NodeIdx) {
        let name = self.solver.nodes[node].name.as_str();
        if let Some(devices) = &mut self.devices
            && let Some(allocation) = devices.found.take()
        {
            devices
                .allocator
                .commit(&Host::Node(name.into()), allocation);
        }
    }

    /// Returns the instance types of a planned node that have devices for a class, and the requirements of those devices.
    pub(crate) fn devices_on_planned_node(
        &mut self,
        target: &CandidateNode<'_>,
        class: ClassId,
        set: SetId,
        allowed: &Option<Rc<Bits<RowId>>>,
        choices: &Choices,
    ) -> Result<Served, Refusal> {
        let mut set = set;
        for domains in &choices.domains {
            let mut open = domains.allowed.clone();
            if let Some(reach) = self
                .topology
                .domains_of(&mut self.rows.algebra, domains.axis, set)
            {
                open.intersect(&reach);
            }
            let req = self
                .topology
                .requirement_for(&mut self.rows.algebra, domains.axis, &open);
            set = self
                .rows
                .algebra
                .narrow(set, req)
                .ok_or(Refusal::Topology(domains.order))?;
        }
        let total: Vec<i64> = target
            .used
            .iter()
            .zip(self.queue.classes[class].requests.iter())
            .map(|(used, need)| used.saturating_add(*need))
            .collect();
        let rows = self
            .rows
            .rows_with_room(target.template, set, &total, allowed.as_deref());
        let index = self.solver.templates[target.template].catalogue;
        let kinds = self.rows.kinds(index, set);
        let Some(mut devices) = self.devices.take() else {
            return Err(Refusal::Devices(Box::new(Failure::NoDevices)));
        };
        let catalogue = &self.solver.catalogues[index];
        let mut priced: Vec<(f64, RowId)> = rows
            .iter()
            .map(|row| (catalogue.price(row, &kinds).unwrap_or(f64::MAX), row))
            .collect();
        // Cheapest first: requirements set by the first instance type constrain the others.
        priced.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        let mut rows_of: BTreeMap<TypeKey, Vec<RowId>> = BTreeMap::new();
        let mut types = Vec::new();
        for (_, row) in priced {
            let key = self.type_key(index, row);
            let rows = rows_of.entry(key).or_default();
            if rows.is_empty() {
                devices
                    .allocator
                    .expect(key, &catalogue.type_of(row).devices);
                types.push(key);
            }
            rows.push(row);
        }
        let requirements = self.rows.algebra.requirements(set);
        let candidate = Candidate {
            host: Host::Planned(target.index.number()),
            requirements: &requirements,
            undefined: AllowUndefined::Keys(&devices.undefined),
            types: &types,
        };
        let asked = &self.queue.classes[class];
        let answer = if types.is_empty() {
            Err(Failure::NoDevices)
        } else {
            devices
                .allocator
                .allocate(&candidate, &asked.shape.namespace, &asked.resource_claims)
        };
        let served = match answer {
            Ok(allocation) => {
                let names = &self.solver.snapshot.config().well_known;
                let set = self
                    .rows
                    .algebra
                    .set(&allocation.requirements, |key| names.contains(key));
                let left = allocation.types.iter().filter_map(|key| rows_of.get(key));
                Ok(Served {
                    set,
                    allowed: Some(Rc::new(left.flatten().copied().collect())),
                    allocation: Rc::new(allocation),
                })
            }
            Err(failure) => Err(Refusal::Devices(Box::new(failure))),
        };
        self.devices = Some(devices);
        served
    }

    /// Commits the devices of a pod placed on a planned node.
    pub(crate) fn commit_devices(&mut self, planned: PlannedId, allocation: Rc<Allocation>) {
        let allocation = Rc::unwrap_or_clone(allocation);
        let drivers = self.planned[planned].drivers.get_or_insert_default();
        drivers.extend(allocation.drivers.iter().cloned());
        if let Some(devices) = &mut self.devices {
            devices
                .allocator
                .commit(&Host::Planned(planned.number()), allocation);
        }
    }

    /// Releases the devices held for instance types that a planned node can no longer become.
    pub(crate) fn release_devices(&mut self, planned: PlannedId) {
        let held = &self.planned[planned];
        if held.drivers.is_none() || self.devices.is_none() {
            return;
        }
        let (template, set) = (held.template, held.set);
        let (used, allowed) = (held.used.clone(), held.allowed.clone());
        let index = self.solver.templates[template].catalogue;
        let rows = self
            .rows
            .rows_with_room(template, set, &used, allowed.as_deref());
        let keep: FxHashSet<TypeKey> = rows.iter().map(|row| self.type_key(index, row)).collect();
        if let Some(devices) = &mut self.devices {
            devices
                .allocator
                .retain(&Host::Planned(planned.number()), |key| keep.contains(&key));
        }
        self.epoch += 1;
    }

    /// Returns the drivers of the devices of a planned node's pods, sorted and joined; empty without any.
    pub(crate) fn drivers_of(&self, planned: PlannedId) -> Arc<str> {
        let drivers = self.planned[planned].drivers.iter().flatten();
        let drivers: Vec<&str> = drivers.map(String::as_str).collect();
        drivers.join(",").into()
    }
}
