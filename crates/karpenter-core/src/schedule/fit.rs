//! Whether and how a pod fits on a machine to be: an open claim, or a new one of a NodePool.
//!
//! 1. Requirements of the claim and the pod are joined, then those of each alternative its volumes leave.
//! 2. Some row (instance type) must meet them and have room. The claim's witness usually still does; else the first alive.
//! 3. Topology narrows to one domain per key, to the cheapest of the least loaded.
//! 4. minValues and reservations are looked at where there are any.

use std::{collections::BTreeSet, rc::Rc};

use smallvec::{SmallVec, smallvec};

use super::{
    algebra::{ANYTHING, SetId},
    bits::Bits,
    choices::{Choices, Domains},
    claim::{Fit, Refusal},
    class::Variant,
    request::{MinValuesPolicy, ReservedMode},
    run::Run,
    template::{distinct_values, unmet_min_values},
    vectors::Vector,
};
use crate::pod::ports_conflict;

/// A machine to be that a pod is tried on.
pub(super) struct Target<'t> {
    pub(super) template: usize,
    pub(super) set: SetId,
    pub(super) used: &'t [i64],
    pub(super) alive: &'t [u32],
    pub(super) witness: u32,
    pub(super) allowed: Option<Rc<Bits>>,
    pub(super) held: &'t BTreeSet<usize>,
    pub(super) is_new: bool,
    /// Which claim it is, or would be.
    pub(super) index: u32,
}

pub(super) const NO_ROW: u32 = u32::MAX;

impl Run<'_> {
    pub(super) fn try_template(
        &mut self,
        template: usize,
        class: usize,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let compiled = &self.solver.templates[template];
        if let Some(place) = compiled.limit_names.iter().position(|name| name == "nodes")
            && self.limits[template][place] <= 0
        {
            return Err(Refusal::Permanent);
        }
        let used: Vector = smallvec![0; self.width];
        let held = BTreeSet::new();
        let target = Target {
            template,
            set: compiled.set,
            used: &used,
            alive: &compiled.order,
            witness: NO_ROW,
            allowed: self.within_limits[template].clone(),
            held: &held,
            is_new: true,
            index: self.claims.len() as u32,
        };
        self.fit(&target, class, variant, choices)
    }

    /// Whether and how a pod fits on a machine to be.
    pub(super) fn fit(
        &mut self,
        target: &Target<'_>,
        class: usize,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let joined = self
            .algebra
            .join(target.set, variant.set)
            .ok_or(Refusal::Permanent)?;
        let allowed = self.without_port_conflicts(target, class);
        let mut refusal = Refusal::Permanent;
        for index in 0..self.classes[class].volumes.len() {
            let alternative = self.classes[class].volumes[index];
            let Some(set) = self.algebra.join(joined, alternative) else {
                continue;
            };
            let (mut set, mut allowed, mut devices) = (set, allowed.clone(), None);
            if !self.classes[class].claims.is_empty() {
                match self.devices_on_claim(target, class, set, &allowed, choices) {
                    Ok(served) => {
                        (set, allowed) = (served.set, served.allowed);
                        devices = Some(served.allocation);
                    }
                    Err(why) => {
                        refusal = why;
                        continue;
                    }
                }
            }
            let base = match self.fit_set(target, class, set, allowed.clone()) {
                Ok(fit) if choices.domains.is_empty() => {
                    return Ok(Fit {
                        volume: alternative,
                        devices,
                        ..fit
                    });
                }
                Ok(fit) => fit.set,
                // What is reserved may be in a domain that is out.
                Err(Refusal::Reserved) if !choices.domains.is_empty() => set,
                Err(Refusal::Reserved) => {
                    refusal = Refusal::Reserved;
                    continue;
                }
                Err(_) => continue,
            };
            if refusal == Refusal::Permanent {
                refusal = Refusal::Topology;
            }
            match self.fit_domains(target, class, base, &choices.domains, &allowed) {
                Ok(fit) => {
                    return Ok(Fit {
                        volume: alternative,
                        devices,
                        ..fit
                    });
                }
                Err(Refusal::Reserved) => refusal = Refusal::Reserved,
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    /// Narrows to domains, axis by axis, and takes the cheapest of the least loaded that fits.
    fn fit_domains(
        &mut self,
        target: &Target<'_>,
        class: usize,
        set: SetId,
        axes: &[Domains],
        allowed: &Option<Rc<Bits>>,
    ) -> Result<Fit, Refusal> {
        let Some((domains, rest)) = axes.split_first() else {
            return self.fit_set(target, class, set, allowed.clone());
        };
        let reach = self.domains_of(domains.axis, set);
        let mut open = domains.allowed.clone();
        if let Some(reach) = &reach {
            open.intersect(reach);
        }
        if open.is_empty() {
            return Err(Refusal::Topology);
        }
        if !domains.single {
            if reach.is_some_and(|reach| *reach == open)
                && self.lists(domains.axis, set, open.len())
            {
                return self.fit_domains(target, class, set, rest, allowed);
            }
            let req = self.requirement_for(domains.axis, &open);
            let narrowed = self.algebra.narrow(set, req).ok_or(Refusal::Topology)?;
            return self.fit_domains(target, class, narrowed, rest, allowed);
        }
        let order = &self.groups[domains.order];
        let names = &self.axes[domains.axis].domains;
        let mut ordered: SmallVec<[(u32, usize); 8]> = open
            .iter()
            .map(|domain| (order.in_domain(domain), domain))
            .collect();
        ordered.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| names[a.1].cmp(&names[b.1])));
        let by_price = ordered.len() > 1 && !self.strategy.domains_by_name;
        let mut best: Option<(u32, Fit)> = None;
        let mut refusal = Refusal::Topology;
        for (count, domain) in ordered {
            if best.as_ref().is_some_and(|(least, _)| *least < count) {
                break;
            }
            let one: Bits = [domain].into_iter().collect();
            let req = self.requirement_for(domains.axis, &one);
            let Some(narrowed) = self.algebra.narrow(set, req) else {
                continue;
            };
            match self.fit_domains(target, class, narrowed, rest, allowed) {
                Ok(mut fit) => {
                    if !by_price {
                        return Ok(fit);
                    }
                    fit.price = self.price_of(target, class, &fit);
                    if best.as_ref().is_none_or(|(_, best)| fit.price < best.price) {
                        best = Some((count, fit));
                    }
                }
                Err(Refusal::Reserved) => refusal = Refusal::Reserved,
                Err(_) => {}
            }
        }
        best.map(|(_, fit)| fit).ok_or(refusal)
    }

    /// The price of the cheapest row on which a class fits as `fit` says, beside what is there already.
    fn price_of(&mut self, target: &Target<'_>, class: usize, fit: &Fit) -> f64 {
        let template = target.template;
        let mask = self.mask(template, fit.set);
        let need = &self.classes[class].requests;
        let fits = |row: usize| {
            fit.allowed
                .as_ref()
                .is_none_or(|allowed| allowed.contains(row))
                && self.row_fits(template, row, target.used, need)
        };
        self.by_price(template, fit.set, &mask)
            .iter()
            .find(|(_, row)| fits(*row as usize))
            .map_or(f64::MAX, |(price, _)| *price)
    }

    /// Rows whose DaemonSets leave the class its host ports.
    fn without_port_conflicts(&self, target: &Target<'_>, class: usize) -> Option<Rc<Bits>> {
        let ports = &self.classes[class].ports;
        if ports.is_empty() {
            return target.allowed.clone();
        }
        let template = &self.solver.templates[target.template];
        let mut rows = target
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

    /// Whether some row meets a set and has room, minValues and reservations included.
    fn fit_set(
        &mut self,
        target: &Target<'_>,
        class: usize,
        set: SetId,
        allowed: Option<Rc<Bits>>,
    ) -> Result<Fit, Refusal> {
        let mask = self.mask(target.template, set);
        let need = &self.classes[class].requests;
        let passes = |row: u32| {
            let index = row as usize;
            mask.rows.contains(index)
                && allowed
                    .as_ref()
                    .is_none_or(|allowed| allowed.contains(index))
                && self.row_fits(target.template, index, target.used, need)
        };
        let witness = if target.witness != NO_ROW && passes(target.witness) {
            target.witness
        } else {
            let too_much = target
                .used
                .iter()
                .zip(need.iter())
                .zip(mask.peak.iter())
                .any(|((used, need), peak)| used.saturating_add(*need) > *peak);
            if too_much {
                return Err(Refusal::Permanent);
            }
            target
                .alive
                .iter()
                .copied()
                .find(|row| passes(*row))
                .ok_or(Refusal::Permanent)?
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
        let catalogue = self.solver.templates[target.template].catalogue;
        let tracked = self.request.reserved_mode != ReservedMode::Off
            && self.solver.catalogues[catalogue].has_reservations;
        if self.algebra.has_min_values(set) || tracked {
            let total: Vector = target
                .used
                .iter()
                .zip(self.classes[class].requests.iter())
                .map(|(used, need)| used.saturating_add(*need))
                .collect();
            let rows = self.rows_with_room(target.template, set, &total, fit.allowed.as_deref());
            self.check_min_values(target, &mut fit, &rows)?;
            if tracked {
                fit.reservations =
                    Some(self.reservations_of(target.template, target.held, set, &rows)?);
            }
        }
        Ok(fit)
    }

    /// Rows that meet a set and have room for `used`.
    pub(super) fn rows_with_room(
        &mut self,
        template: usize,
        set: SetId,
        used: &[i64],
        allowed: Option<&Bits>,
    ) -> Bits {
        let mask = self.mask(template, set);
        let mut rows = self.solver.templates[template].rows_for(used, self.width);
        rows.intersect(&mask.rows);
        if let Some(allowed) = allowed {
            rows.intersect(allowed);
        }
        rows
    }

    fn check_min_values(
        &mut self,
        target: &Target<'_>,
        fit: &mut Fit,
        rows: &Bits,
    ) -> Result<(), Refusal> {
        let catalogue = &self.solver.catalogues[self.solver.templates[target.template].catalogue];
        if unmet_min_values(catalogue, &self.algebra, fit.set, rows).is_none() {
            return Ok(());
        }
        if !target.is_new || self.request.min_values_policy == MinValuesPolicy::Strict {
            return Err(Refusal::Permanent);
        }
        let mut relaxed = self.algebra.requirements(fit.set);
        for (key, req) in self.algebra.members(fit.set) {
            let requirement = self.algebra.requirement(*req);
            if let Some(minimum) = requirement.min_values() {
                let found = distinct_values(catalogue, &self.algebra, *key, rows);
                if found < minimum {
                    relaxed.replace(requirement.as_ref().clone().with_min_values(Some(found)));
                }
            }
        }
        let names = &self.solver.snapshot.config().well_known;
        fit.set = self.algebra.set(&relaxed, |key| names.contains(key));
        fit.min_values_relaxed = true;
        Ok(())
    }

    /// The reservations a node of `rows` would hold that holds `held` now.
    pub(super) fn reservations_of(
        &mut self,
        template: usize,
        held: &BTreeSet<usize>,
        set: SetId,
        rows: &Bits,
    ) -> Result<BTreeSet<usize>, Refusal> {
        let catalogue_index = self.solver.templates[template].catalogue;
        let kinds = self.kinds(catalogue_index, set);
        let catalogue = &self.solver.catalogues[catalogue_index];
        let offered = |kind: usize| {
            let kind = &catalogue.kinds[kind];
            let reservation = kind.reservation?;
            rows.iter()
                .any(|row| kind.rows.contains(row))
                .then_some(reservation)
        };
        let compatible: BTreeSet<usize> = kinds.iter().filter_map(offered).collect();
        let holds: BTreeSet<usize> = compatible
            .iter()
            .copied()
            .filter(|id| held.contains(id) || self.reservations_left[*id] > 0)
            .collect();
        let strict = self.request.reserved_mode == ReservedMode::Strict;
        if strict && holds.is_empty() && (!compatible.is_empty() || !held.is_empty()) {
            return Err(Refusal::Reserved);
        }
        // A machine that holds no reservation must not be one that only reserved capacity offers.
        let offered_otherwise = || {
            let plain = kinds.iter().map(|kind| &catalogue.kinds[kind]);
            plain
                .filter(|kind| kind.reservation.is_none())
                .any(|kind| rows.iter().any(|row| kind.rows.contains(row)))
        };
        if holds.is_empty() && !compatible.is_empty() && !offered_otherwise() {
            return Err(Refusal::Permanent);
        }
        Ok(holds)
    }
}
