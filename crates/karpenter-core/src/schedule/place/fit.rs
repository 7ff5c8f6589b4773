//! Whether and how a pod fits on a planned node: one of this pass, or a new one of a NodePool.
//!
//! 1. The requirements of the planned node and the pod are joined, then those of each alternative of its volumes.
//! 2. A row (instance type) must meet them and have room. The witness of the planned node usually still does; else the first
//!    of `alive` that does is taken.
//! 3. Topology narrows to one domain per key: among those with the lowest count, the cheapest.
//! 4. minValues and reservations are checked where there are any.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::dra::Failure;
use crate::pod::ports_conflict;
use crate::schedule::compile::algebra::{ANYTHING, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{DomainId, NO_ROW, PlannedId, RowId, TemplateId};
use crate::schedule::compile::pools::template::distinct_values;
use crate::schedule::compile::solver::Solver;
use crate::schedule::compile::vectors::{Vector, add};
use crate::schedule::place::budgets::PoolBudgets;
use crate::schedule::place::devices::{Devices, Served};
use crate::schedule::place::placement::Manner;
use crate::schedule::place::planned_node::{Fit, PlannedNode};
use crate::schedule::place::refusal::Refusal;
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::place::variant::Variant;
use crate::schedule::pods::class::Class;
use crate::schedule::request::MinValuesPolicy;
use crate::schedule::topology::choices::{Choices, Domains, Fixed};
use crate::schedule::topology::domains::Topology;

/// For each alternative of a pod's volumes that is compatible: its requirements, and those of a planned node with the pod.
pub(super) type JoinedSets = SmallVec<[(SetId, SetId); 2]>;

/// Some rows; `None` is all.
type Allowed = Option<Rc<Bits<RowId>>>;

/// Checks whether and how pods of a class fit on a planned node. Changes nothing but caches.
pub(super) struct Fitter<'f, 'a> {
    pub(super) solver: &'a Solver,
    pub(super) class: &'f Class,
    pub(super) manner: Manner,
    pub(super) rows: &'f mut RowCache<'a>,
    pub(super) topology: &'f mut Topology<'a>,
    pub(super) budgets: &'f PoolBudgets<'a>,
    pub(super) devices: Option<&'f mut Devices<'a>>,
    /// The id of the planned node, or the one it would get.
    pub(super) index: PlannedId,
}

impl Fitter<'_, '_> {
    /// Tries a new planned node of a NodePool.
    pub(super) fn try_new(
        &mut self,
        template: TemplateId,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let joined = self.admit(template, variant)?;
        let mut node = PlannedNode::new(template, self.solver);
        node.allowed = self.budgets.within(template).cloned();
        self.fit(&node, &joined, choices)
    }

    /// Checks what a NodePool decides before topology constraints do: its limits, taints and requirements.
    pub(super) fn admit(
        &mut self,
        template: TemplateId,
        variant: &Variant,
    ) -> Result<JoinedSets, Refusal> {
        self.budgets.admit(template)?;
        if !variant.tolerated_templates.contains(template) {
            return Err(Refusal::Taints);
        }
        self.join(self.solver.templates[template].set, variant)
    }

    /// Tries a planned node whose taints the pod tolerates.
    pub(super) fn try_on(
        &mut self,
        node: &PlannedNode,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let joined = self.join(node.set, variant)?;
        self.fit(node, &joined, choices)
    }

    fn fit(
        &mut self,
        node: &PlannedNode,
        joined: &JoinedSets,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let allowed = self.without_port_conflicts(node);
        let mut refusal: Option<Refusal> = None;
        for (alternative, set) in joined.iter().copied() {
            let (mut set, mut allowed, mut devices) = (set, allowed.clone(), None);
            if !self.class.resource_claims.is_empty() {
                match self.find_devices(node, set, &allowed, choices) {
                    Ok(served) => {
                        (set, allowed) = (served.set, served.allowed);
                        devices = Some(served.allocation);
                    }
                    Err(why) => {
                        refusal = Some(why);
                        continue;
                    }
                }
            }
            let found = |fit: Fit| Fit {
                volume: alternative,
                devices: devices.clone(),
                ..fit
            };
            let base = match self.fit_set(node, set, &allowed) {
                Ok(fit) if choices.domains.is_empty() => return Ok(found(fit)),
                Ok(fit) => fit.set,
                // The reserved capacity may be in a domain that is excluded. Without domains this is refused again.
                Err(Refusal::Reserved) => set,
                Err(why) => {
                    refusal.get_or_insert(why);
                    continue;
                }
            };
            if refusal.as_ref().is_none_or(Refusal::is_permanent)
                && let Some(domains) = choices.domains.first()
            {
                refusal = Some(Refusal::Topology(domains.order));
            }
            match self.fit_domains(node, base, &choices.domains, &allowed) {
                Ok(fit) => return Ok(found(fit)),
                Err(Refusal::Reserved) => refusal = Some(Refusal::Reserved),
                Err(_) => {}
            }
        }
        Err(refusal.unwrap_or(Refusal::Volumes))
    }

    /// Joins the requirements of a planned node with those of a pod, for each alternative of its volumes.
    fn join(&mut self, set: SetId, variant: &Variant) -> Result<JoinedSets, Refusal> {
        let algebra = &mut self.rows.algebra;
        let joined = algebra.join(set, variant.set);
        let joined = joined.ok_or(Refusal::Requirements)?;
        let alternatives = self.class.volumes.iter();
        let sets: JoinedSets = alternatives
            .filter_map(|volume| Some((*volume, algebra.join(joined, *volume)?)))
            .collect();
        match sets.is_empty() {
            true => Err(Refusal::Volumes),
            false => Ok(sets),
        }
    }

    /// Narrows to domains, axis by axis, and takes the cheapest fit among those with the lowest count.
    fn fit_domains(
        &mut self,
        node: &PlannedNode,
        set: SetId,
        axes: &[Domains],
        allowed: &Allowed,
    ) -> Result<Fit, Refusal> {
        let Some((domains, rest)) = axes.split_first() else {
            return self.fit_set(node, set, allowed);
        };
        let reach = self
            .topology
            .domains_of(&mut self.rows.algebra, domains.axis, set);
        let mut open = domains.allowed.clone();
        if let Some(reach) = &reach {
            open.intersect(reach);
        }
        if open.is_empty() {
            return Err(Refusal::Topology(domains.order));
        }
        if domains.fixed == Fixed::Open {
            let within = self.within(set, domains, &open);
            let within = within.ok_or(Refusal::Topology(domains.order))?;
            return self.fit_domains(node, within, rest, allowed);
        }
        let order = &self.topology[domains.order];
        let names = self.topology[domains.axis].domains();
        let mut ordered: SmallVec<[(u32, DomainId); 8]> = open
            .iter()
            .map(|domain| (order.in_domain(domain), domain))
            .collect();
        ordered.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| names[a.1].cmp(&names[b.1])));
        let by_price = self.manner != Manner::Upstream;
        let mut best: Option<(u32, Fit)> = None;
        let mut refusal = Refusal::Topology(domains.order);
        for (count, domain) in ordered {
            if best.as_ref().is_some_and(|(least, _)| *least < count) {
                break;
            }
            let one = [domain].into_iter().collect();
            let Some(narrowed) = self.within(set, domains, &one) else {
                continue;
            };
            match self.fit_domains(node, narrowed, rest, allowed) {
                Ok(mut fit) => {
                    if !by_price {
                        return Ok(fit);
                    }
                    fit.price = self.price_of(node, &fit);
                    if best.as_ref().is_none_or(|(_, best)| fit.price < best.price) {
                        best = Some((count, fit));
                    }
                }
                Err(Refusal::Reserved) => refusal = Refusal::Reserved,
                Err(_) => {}
            }
        }
        if let Some((_, fit)) = best {
            return Ok(fit);
        }
        if domains.fixed == Fixed::Preferred
            && open.len() > 1
            && let Some(within) = self.within(set, domains, &open)
        {
            return self.fit_domains(node, within, rest, allowed);
        }
        Err(refusal)
    }

    /// Returns the requirements of a node that keeps all of the `open` domains.
    fn within(&mut self, set: SetId, domains: &Domains, open: &Bits<DomainId>) -> Option<SetId> {
        let algebra = &mut self.rows.algebra;
        let req = self.topology.requirement_for(algebra, domains.axis, open);
        algebra.narrow(set, req)
    }

    /// Returns the price of the cheapest row on which a pod fits as described by `fit`.
    fn price_of(&mut self, node: &PlannedNode, fit: &Fit) -> f64 {
        let total = self.total(node);
        let allowed = fit.allowed.as_deref();
        self.rows
            .lowest_price(node.template, fit.set, &total, allowed)
    }

    /// Returns the resources of the pods of a planned node with one more.
    fn total(&self, node: &PlannedNode) -> Vector {
        let mut total = node.used.clone();
        add(&mut total, &self.class.requests);
        total
    }

    /// Returns the rows whose DaemonSets do not conflict with the host ports of the class.
    fn without_port_conflicts(&self, node: &PlannedNode) -> Allowed {
        let ports = &self.class.shape.host_ports;
        if ports.is_empty() {
            return node.allowed.clone();
        }
        let template = &self.solver.templates[node.template];
        let mut rows = node.allowed.as_deref().unwrap_or(&template.rows).clone();
        let groups = template.groups.iter();
        for group in groups.filter(|group| ports_conflict(ports, &group.ports)) {
            rows.subtract(&group.rows);
        }
        Some(Rc::new(rows))
    }

    /// Checks that a row meets a set and has room, minValues and reservations included.
    fn fit_set(
        &mut self,
        node: &PlannedNode,
        set: SetId,
        allowed: &Allowed,
    ) -> Result<Fit, Refusal> {
        let template = node.template;
        let mask = self.rows.mask(template, set);
        let need = &self.class.requests;
        let passes = |row: &RowId| {
            mask.rows.contains(*row)
                && allowed
                    .as_ref()
                    .is_none_or(|allowed| allowed.contains(*row))
                && self.rows.row_fits(template, *row, &node.used, need)
        };
        let witness = if node.witness != NO_ROW && passes(&node.witness) {
            node.witness
        } else {
            let wanted = node.used.iter().zip(need).zip(mask.peak.iter());
            let mut sums = wanted.map(|((used, need), peak)| (used.saturating_add(*need), peak));
            if sums.any(|(sum, peak)| sum > *peak) {
                return Err(Refusal::InstanceTypes(set));
            }
            let witness = node.alive.iter().copied().find(passes);
            witness.ok_or(Refusal::InstanceTypes(set))?
        };
        let mut fit = Fit {
            set,
            witness,
            allowed: allowed.clone(),
            reservations: None,
            min_values_relaxed: false,
            price: 0.0,
            volume: ANYTHING,
            devices: None,
        };
        let catalogue = self.solver.templates[template].catalogue;
        let tracked = self.budgets.tracks_reservations(catalogue);
        if self.rows.algebra.has_min_values(set) || tracked {
            let (total, allowed) = (self.total(node), allowed.as_deref());
            let rows = self.rows.rows_with_room(template, set, &total, allowed);
            self.check_min_values(node, &mut fit, &rows)?;
            if tracked {
                let held = self.budgets.reservations_of(node, set, &rows, self.rows)?;
                fit.reservations = Some(held);
            }
        }
        Ok(fit)
    }

    fn check_min_values(
        &mut self,
        node: &PlannedNode,
        fit: &mut Fit,
        rows: &Bits<RowId>,
    ) -> Result<(), Refusal> {
        let Some(unmet) = self.rows.unmet_min_values(node.template, fit.set, rows) else {
            return Ok(());
        };
        let is_new = node.pods.is_empty();
        if !is_new || self.solver.policy.min_values_policy == MinValuesPolicy::Strict {
            return Err(Refusal::MinValues(unmet));
        }
        let catalogue = &self.solver.catalogues[self.solver.templates[node.template].catalogue];
        let algebra = &mut self.rows.algebra;
        let mut relaxed = algebra.requirements(fit.set);
        for (key, req) in algebra.members(fit.set).iter() {
            let requirement = algebra.requirement(*req);
            if let Some(minimum) = requirement.min_values() {
                let found = distinct_values(catalogue, algebra, *key, rows);
                if found < minimum {
                    relaxed.replace(requirement.as_ref().clone().with_min_values(Some(found)));
                }
            }
        }
        let names = &self.solver.snapshot.config().well_known;
        fit.set = algebra.set(&relaxed, |key| names.contains(key));
        fit.min_values_relaxed = true;
        Ok(())
    }

    /// Returns the instance types of a planned node that have devices for a pod, and the requirements of those devices.
    fn find_devices(
        &mut self,
        node: &PlannedNode,
        mut set: SetId,
        allowed: &Allowed,
        choices: &Choices,
    ) -> Result<Served, Refusal> {
        for domains in &choices.domains {
            let algebra = &mut self.rows.algebra;
            let mut open = domains.allowed.clone();
            if let Some(reach) = self.topology.domains_of(algebra, domains.axis, set) {
                open.intersect(&reach);
            }
            let narrowed = self.within(set, domains, &open);
            set = narrowed.ok_or(Refusal::Topology(domains.order))?;
        }
        let (template, total) = (node.template, self.total(node));
        let rows = self
            .rows
            .rows_with_room(template, set, &total, allowed.as_deref());
        let found = match &mut self.devices {
            Some(devices) => {
                devices.find_on_planned(self.index, template, set, &rows, self.class, self.rows)
            }
            None => Err(Failure::NoDevices),
        };
        found.map_err(|failure| Refusal::Devices(Box::new(failure)))
    }
}
