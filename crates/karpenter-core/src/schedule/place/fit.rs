//! Whether and how a pod fits on a planned node: one of this pass, or a new one of a NodePool.
//!
//! 1. The requirements of the planned node and the pod are joined, then those of each alternative of its volumes.
//! 2. A row (instance type) must meet them and have room. The witness of the planned node usually still does; else the first
//!    of `alive` that does is taken.
//! 3. Topology narrows to one domain per key: among those with the lowest count, the cheapest.
//! 4. minValues and reservations are checked where there are any.

use std::collections::BTreeSet;
use std::rc::Rc;

use smallvec::{SmallVec, smallvec};

use crate::dra::Failure;
use crate::pod::ports_conflict;
use crate::schedule::compile::algebra::{ANYTHING, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{
    ClassId, DomainId, NO_ROW, PlannedId, ReservationId, RowId, TemplateId,
};
use crate::schedule::compile::pools::template::{distinct_values, unmet_min_values};
use crate::schedule::compile::vectors::{Vector, add};
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::devices::Served;
use crate::schedule::place::planned_node::{Fit, Refusal};
use crate::schedule::pods::class::Variant;
use crate::schedule::request::MinValuesPolicy;
use crate::schedule::strategy::{DomainOrder, shuffled_rank};
use crate::schedule::topology::choices::{Choices, Domains, Fixed};

/// For each alternative of a pod's volumes that is compatible: its requirements, and those of a planned node with the pod.
pub(crate) type JoinedSets = SmallVec<[(SetId, SetId); 2]>;

/// A planned node that a pod is tried on.
pub(crate) struct CandidateNode<'t> {
    pub(crate) template: TemplateId,
    pub(crate) set: SetId,
    pub(crate) used: &'t [i64],
    pub(crate) alive: &'t [RowId],
    pub(crate) witness: RowId,
    pub(crate) allowed: Option<Rc<Bits<RowId>>>,
    pub(crate) held: &'t BTreeSet<ReservationId>,
    pub(crate) is_new: bool,
    /// The index of the planned node, or the one it would get.
    pub(crate) index: PlannedId,
}

impl SchedulingPass<'_> {
    pub(crate) fn try_template(
        &mut self,
        template: TemplateId,
        class: ClassId,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let joined = self.admit(template, class, variant)?;
        let compiled = &self.solver.templates[template];
        let used: Vector = smallvec![0; self.solver.width()];
        let held = BTreeSet::new();
        let candidate = CandidateNode {
            template,
            set: compiled.set,
            used: &used,
            alive: &compiled.order,
            witness: NO_ROW,
            allowed: self.budgets.within_limits[template].clone(),
            held: &held,
            is_new: true,
            index: self.planned.nodes.next_idx(),
        };
        self.fit(&candidate, class, &joined, choices)
    }

    /// Checks what a NodePool decides before topology constraints do: its limits, taints and requirements.
    pub(crate) fn admit(
        &mut self,
        template: TemplateId,
        class: ClassId,
        variant: &Variant,
    ) -> Result<JoinedSets, Refusal> {
        let compiled = &self.solver.templates[template];
        if let Some(place) = compiled.node_limit
            && self.budgets.limits[template][place] <= 0
        {
            return Err(Refusal::NodeLimit);
        }
        let within = self.budgets.within_limits[template].as_ref();
        if within.is_some_and(|within| within.is_empty()) {
            return Err(Refusal::Limits);
        }
        if !variant.tolerated_templates.contains(template) {
            return Err(Refusal::Taints);
        }
        self.joined_sets(compiled.set, class, variant)
    }

    /// Joins the requirements of a planned node with those of a pod, for each alternative of its volumes.
    pub(crate) fn joined_sets(
        &mut self,
        set: SetId,
        class: ClassId,
        variant: &Variant,
    ) -> Result<JoinedSets, Refusal> {
        let joined = self.rows.algebra.join(set, variant.set);
        let joined = joined.ok_or(Refusal::Requirements)?;
        let alternatives = &self.queue.classes[class].volumes;
        let sets: JoinedSets = alternatives
            .iter()
            .filter_map(|volume| Some((*volume, self.rows.algebra.join(joined, *volume)?)))
            .collect();
        if sets.is_empty() {
            return Err(Refusal::Volumes);
        }
        Ok(sets)
    }

    /// Checks whether and how a pod fits on a planned node, with the result of [`Self::joined_sets`].
    pub(crate) fn fit(
        &mut self,
        candidate: &CandidateNode<'_>,
        class: ClassId,
        joined: &JoinedSets,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let allowed = self.without_port_conflicts(candidate, class);
        let mut refusal: Option<Refusal> = None;
        for (alternative, set) in joined.iter().copied() {
            let (mut set, mut allowed, mut devices) = (set, allowed.clone(), None);
            if !self.queue.classes[class].resource_claims.is_empty() {
                match self.find_devices(candidate, class, set, &allowed, choices) {
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
            let base = match self.fit_set(candidate, class, set, allowed.clone()) {
                Ok(fit) if choices.domains.is_empty() => {
                    return Ok(Fit {
                        volume: alternative,
                        devices,
                        ..fit
                    });
                }
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
            match self.fit_domains(candidate, class, base, &choices.domains, &allowed) {
                Ok(fit) => {
                    return Ok(Fit {
                        volume: alternative,
                        devices,
                        ..fit
                    });
                }
                Err(Refusal::Reserved) => refusal = Some(Refusal::Reserved),
                Err(_) => {}
            }
        }
        Err(refusal.unwrap_or(Refusal::Volumes))
    }

    /// Narrows to domains, axis by axis, and takes the cheapest fit among those with the lowest count.
    fn fit_domains(
        &mut self,
        candidate: &CandidateNode<'_>,
        class: ClassId,
        set: SetId,
        axes: &[Domains],
        allowed: &Option<Rc<Bits<RowId>>>,
    ) -> Result<Fit, Refusal> {
        let Some((domains, rest)) = axes.split_first() else {
            return self.fit_set(candidate, class, set, allowed.clone());
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
            return self.fit_domains(candidate, class, within, rest, allowed);
        }
        let order = &self.topology.groups[domains.order];
        let names = self.topology.axes[domains.axis].domains();
        let mut ordered: SmallVec<[(u32, DomainId); 8]> = open
            .iter()
            .map(|domain| (order.in_domain(domain), domain))
            .collect();
        ordered.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| names[a.1].cmp(&names[b.1])));
        if let DomainOrder::Shuffled(number) = self.strategy.domains {
            ordered.sort_by_key(|(count, domain)| (*count, shuffled_rank(domain.0, number)));
        }
        let by_price = self.strategy.domains == DomainOrder::Price;
        let mut best: Option<(u32, Fit)> = None;
        let mut refusal = Refusal::Topology(domains.order);
        for (count, domain) in ordered {
            if best.as_ref().is_some_and(|(least, _)| *least < count) {
                break;
            }
            let one: Bits<DomainId> = [domain].into_iter().collect();
            let req = self
                .topology
                .requirement_for(&mut self.rows.algebra, domains.axis, &one);
            let Some(narrowed) = self.rows.algebra.narrow(set, req) else {
                continue;
            };
            match self.fit_domains(candidate, class, narrowed, rest, allowed) {
                Ok(mut fit) => {
                    if !by_price {
                        return Ok(fit);
                    }
                    fit.price = self.price_of(candidate, class, &fit);
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
            return self.fit_domains(candidate, class, within, rest, allowed);
        }
        Err(refusal)
    }

    /// Returns the requirements of a node that keeps all of the `open` domains.
    fn within(&mut self, set: SetId, domains: &Domains, open: &Bits<DomainId>) -> Option<SetId> {
        let algebra = &mut self.rows.algebra;
        let req = self.topology.requirement_for(algebra, domains.axis, open);
        algebra.narrow(set, req)
    }

    /// Returns the price of the cheapest row on which a class fits as described by `fit`, beside the pods already there.
    fn price_of(&mut self, candidate: &CandidateNode<'_>, class: ClassId, fit: &Fit) -> f64 {
        let template = candidate.template;
        let mask = self.rows.mask(template, fit.set);
        let need = &self.queue.classes[class].requests;
        let fits = |row: RowId| {
            fit.allowed
                .as_ref()
                .is_none_or(|allowed| allowed.contains(row))
                && self.rows.row_fits(template, row, candidate.used, need)
        };
        self.rows
            .by_price(template, fit.set, &mask)
            .iter()
            .find(|(_, row)| fits(*row))
            .map_or(f64::MAX, |(price, _)| *price)
    }

    /// Returns the rows whose DaemonSets do not conflict with the host ports of the class.
    fn without_port_conflicts(
        &self,
        candidate: &CandidateNode<'_>,
        class: ClassId,
    ) -> Option<Rc<Bits<RowId>>> {
        let ports = &self.queue.classes[class].ports;
        if ports.is_empty() {
            return candidate.allowed.clone();
        }
        let template = &self.solver.templates[candidate.template];
        let mut rows = candidate
            .allowed
            .as_deref()
            .cloned()
            .unwrap_or_else(|| template.rows.clone());
        for group in template
            .groups
            .iter()
            .filter(|group| ports_conflict(ports, &group.ports))
        {
            rows.subtract(&group.rows);
        }
        Some(Rc::new(rows))
    }

    /// Checks that a row meets a set and has room, minValues and reservations included.
    fn fit_set(
        &mut self,
        candidate: &CandidateNode<'_>,
        class: ClassId,
        set: SetId,
        allowed: Option<Rc<Bits<RowId>>>,
    ) -> Result<Fit, Refusal> {
        let mask = self.rows.mask(candidate.template, set);
        let need = &self.queue.classes[class].requests;
        let passes = |row: RowId| {
            mask.rows.contains(row)
                && allowed.as_ref().is_none_or(|allowed| allowed.contains(row))
                && self
                    .rows
                    .row_fits(candidate.template, row, candidate.used, need)
        };
        let witness = if candidate.witness != NO_ROW && passes(candidate.witness) {
            candidate.witness
        } else {
            let too_much = candidate
                .used
                .iter()
                .zip(need.iter())
                .zip(mask.peak.iter())
                .any(|((used, need), peak)| used.saturating_add(*need) > *peak);
            if too_much {
                return Err(Refusal::InstanceTypes(set));
            }
            candidate
                .alive
                .iter()
                .copied()
                .find(|row| passes(*row))
                .ok_or(Refusal::InstanceTypes(set))?
        };
        let mut fit = Fit {
            set,
            witness,
            allowed,
            reservations: None,
            min_values_relaxed: false,
            price: 0.0,
            volume: ANYTHING,
            devices: None,
        };
        let catalogue = self.solver.templates[candidate.template].catalogue;
        let tracked = self.budgets.tracks_reservations(catalogue);
        if self.rows.algebra.has_min_values(set) || tracked {
            let total: Vector = candidate
                .used
                .iter()
                .zip(self.queue.classes[class].requests.iter())
                .map(|(used, need)| used.saturating_add(*need))
                .collect();
            let rows =
                self.rows
                    .rows_with_room(candidate.template, set, &total, fit.allowed.as_deref());
            self.check_min_values(candidate, &mut fit, &rows)?;
            if tracked {
                fit.reservations = Some(self.budgets.reservations_of(
                    candidate.template,
                    candidate.held,
                    set,
                    &rows,
                    &mut self.rows,
                )?);
            }
        }
        Ok(fit)
    }

    fn check_min_values(
        &mut self,
        candidate: &CandidateNode<'_>,
        fit: &mut Fit,
        rows: &Bits<RowId>,
    ) -> Result<(), Refusal> {
        let catalogue =
            &self.solver.catalogues[self.solver.templates[candidate.template].catalogue];
        let Some(unmet) = unmet_min_values(catalogue, &self.rows.algebra, fit.set, rows) else {
            return Ok(());
        };
        if !candidate.is_new || self.solver.policy.min_values_policy == MinValuesPolicy::Strict {
            return Err(Refusal::MinValues(unmet));
        }
        let mut relaxed = self.rows.algebra.requirements(fit.set);
        for (key, req) in self.rows.algebra.members(fit.set) {
            let requirement = self.rows.algebra.requirement(*req);
            if let Some(minimum) = requirement.min_values() {
                let found = distinct_values(catalogue, &self.rows.algebra, *key, rows);
                if found < minimum {
                    relaxed.replace(requirement.as_ref().clone().with_min_values(Some(found)));
                }
            }
        }
        let names = &self.solver.snapshot.config().well_known;
        fit.set = self.rows.algebra.set(&relaxed, |key| names.contains(key));
        fit.min_values_relaxed = true;
        Ok(())
    }

    /// Returns the instance types of a planned node that have devices for a class, and the requirements of those devices.
    fn find_devices(
        &mut self,
        candidate: &CandidateNode<'_>,
        class: ClassId,
        set: SetId,
        allowed: &Option<Rc<Bits<RowId>>>,
        choices: &Choices,
    ) -> Result<Served, Refusal> {
        let algebra = &mut self.rows.algebra;
        let mut set = set;
        for domains in &choices.domains {
            let mut open = domains.allowed.clone();
            if let Some(reach) = self.topology.domains_of(algebra, domains.axis, set) {
                open.intersect(&reach);
            }
            let req = self.topology.requirement_for(algebra, domains.axis, &open);
            let narrowed = algebra.narrow(set, req);
            set = narrowed.ok_or(Refusal::Topology(domains.order))?;
        }
        let class = &self.queue.classes[class];
        let mut total: Vector = candidate.used.into();
        add(&mut total, &class.requests);
        let rows = self
            .rows
            .rows_with_room(candidate.template, set, &total, allowed.as_deref());
        let found = match &mut self.devices {
            Some(devices) => devices.find_on_planned(
                candidate.index,
                candidate.template,
                set,
                &rows,
                class,
                &mut self.rows,
            ),
            None => Err(Failure::NoDevices),
        };
        found.map_err(|failure| Refusal::Devices(Box::new(failure)))
    }
}
