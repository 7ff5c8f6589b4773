//! Placing one pod: machines that exist, then claims, then new claims.

use std::{collections::BTreeSet, rc::Rc, sync::Arc};

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::{
    algebra::SetId,
    bits::{Bits, Ones},
    claim::{Claim, Fit, Refusal},
    class::{GroupId, Variant},
    request::{MinValuesPolicy, ReservedMode},
    run::{Fate, Run},
    template::{distinct_values, unmet_min_values},
    topology::{GroupKind, Host},
    vectors::{add, subtract},
    volumes::Volumes,
};
use crate::pod::ports_conflict;

/// The domains of an axis that all constraints leave, before the machine is looked at.
#[derive(Clone, Debug)]
pub(super) struct Domains {
    pub(super) axis: usize,
    pub(super) allowed: Bits,
    /// The machine must be in one domain, not in one of several.
    pub(super) single: bool,
    /// Whose counts order the domains.
    pub(super) order: GroupId,
}

/// What topology leaves of a variant's choices.
#[derive(Clone, Debug, Default)]
pub(super) struct Choices {
    pub(super) domains: SmallVec<[Domains; 2]>,
    /// Hostname groups: those whose full, overfull or populated hosts are out, and those whose populated hosts are the only ones.
    host_rules: SmallVec<[(GroupId, HostRule); 4]>,
    /// Some hostname constraint rules new machines out.
    no_new_machine: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostRule {
    NotFull,
    NotOver,
    NotPopulated,
    OnlyPopulated,
}

/// A machine to be that a pod is tried on.
struct Target<'t> {
    template: usize,
    set: SetId,
    used: &'t [i64],
    alive: &'t [u32],
    witness: u32,
    allowed: Option<Rc<Bits>>,
    held: &'t BTreeSet<usize>,
    is_new: bool,
}

const NO_ROW: u32 = u32::MAX;

impl Run<'_> {
    /// Places pods until nothing moves any more.
    pub(super) fn place_all(&mut self) {
        let mut queue: Vec<usize> = (0..self.items.len()).collect();
        loop {
            let before = queue.len();
            let mut again = Vec::new();
            for (position, item) in queue.iter().enumerate() {
                if position % 128 == 0
                    && self.request.cancel.as_ref().is_some_and(|cancel| cancel())
                {
                    return;
                }
                let class = self.items[*item].class;
                let dead = self.classes[class].dead || self.classes[class].problem.is_some();
                let fate = if dead {
                    Fate::Refused
                } else {
                    self.place(*item)
                };
                self.items[*item].fate = fate;
                let lost = self.classes[class].dead || self.classes[class].problem.is_some();
                if matches!(fate, Fate::Refused | Fate::Deferred) && !lost {
                    again.push(*item);
                }
            }
            if again.is_empty() || again.len() == before {
                return;
            }
            queue = again;
        }
    }

    fn place(&mut self, item: usize) -> Fate {
        let class = self.items[item].class;
        if self.classes[class].refused_at == self.epoch {
            return self.classes[class].refused_as;
        }
        for index in 0..self.classes[class].variants.len() {
            let variant = self.classes[class].variants[index].take();
            let mut variant = match variant {
                Some(variant) => variant,
                None => self.form_variant(class, index),
            };
            let fate = self.try_variant(item, class, &mut variant);
            self.classes[class].variants[index] = Some(variant);
            match fate {
                Fate::Placed(_) => return fate,
                Fate::Deferred => return self.refuse(class, Fate::Deferred),
                Fate::Refused | Fate::Waiting => {}
            }
        }
        self.refuse(class, Fate::Refused)
    }

    /// Remembers a refusal until something happens that can make a difference.
    fn refuse(&mut self, class: usize, fate: Fate) -> Fate {
        let gives_back = self.solver.gives_back;
        let class = &mut self.classes[class];
        class.refused_at = self.epoch;
        class.refused_as = fate;
        class.dead = !class.hopeful && !gives_back;
        fate
    }

    fn try_variant(&mut self, item: usize, class: usize, variant: &mut Variant) -> Fate {
        let Ok(choices) = self.choices(class, variant) else {
            return Fate::Refused;
        };
        if let Some(host) = self.try_machines(item, class, variant, &choices) {
            return Fate::Placed(host);
        }
        if let Some(host) = self.try_claims(item, class, variant, &choices) {
            return Fate::Placed(host);
        }
        if choices.no_new_machine || self.hopeless.is_some() {
            return Fate::Refused;
        }
        for template in 0..self.solver.templates.len() {
            if !variant.tolerated_templates.contains(template)
                || variant.refused_templates.contains(template)
            {
                continue;
            }
            match self.try_template(template, class, variant, &choices) {
                Ok(fit) => return Fate::Placed(self.open(template, fit, item, class)),
                Err(Refusal::Permanent) if !self.solver.gives_back => {
                    variant.refused_templates.insert(template)
                }
                Err(Refusal::Permanent | Refusal::Topology) => {}
                Err(Refusal::Reserved) => return Fate::Deferred,
            }
        }
        Fate::Refused
    }

    /// What the topology constraints of a variant leave; the group that leaves nothing, if one does.
    pub(super) fn choices(&mut self, class: usize, variant: &Variant) -> Result<Choices, GroupId> {
        let mut choices = Choices::default();
        for owned in &variant.owned {
            self.choose(&mut choices, variant, owned.group, owned.own)?;
        }
        for index in 0..self.classes[class].kept_away.len() {
            let group = self.classes[class].kept_away[index];
            self.choose(&mut choices, variant, group, false)?;
        }
        Ok(choices)
    }

    fn choose(
        &mut self,
        choices: &mut Choices,
        variant: &Variant,
        group_id: GroupId,
        own: bool,
    ) -> Result<(), GroupId> {
        let axis = self.groups[group_id].axis;
        if self.axes[axis].is_hostname {
            let group = &self.groups[group_id];
            let rule = match group.kind() {
                GroupKind::Spread if own => {
                    choices.no_new_machine |= group.identity.max_skew < 1;
                    HostRule::NotFull
                }
                GroupKind::Spread => {
                    choices.no_new_machine |= group.identity.max_skew < 0;
                    HostRule::NotOver
                }
                GroupKind::Affinity if own && !group.any => return Ok(()),
                GroupKind::Affinity if !group.any => return Err(group_id),
                GroupKind::Affinity => {
                    choices.no_new_machine = true;
                    HostRule::OnlyPopulated
                }
                GroupKind::Anti | GroupKind::Inverse => HostRule::NotPopulated,
            };
            choices.host_rules.push((group_id, rule));
            return Ok(());
        }
        let key = self.axes[axis].key;
        let pod = self
            .algebra
            .get(variant.strict, key)
            .map(|req| self.admitted(axis, req));
        let group = &self.groups[group_id];
        let valid = group.valid_domains(pod.as_deref(), own);
        // DIFFERS: a pod with anti-affinity settles for one domain, so that the next one has the others.
        let single = match group.kind() {
            GroupKind::Spread | GroupKind::Anti => true,
            GroupKind::Affinity => group.starts(pod.as_deref(), own),
            GroupKind::Inverse => false,
        };
        let allowed = match choices
            .domains
            .iter_mut()
            .find(|domains| domains.axis == axis)
        {
            Some(domains) => {
                domains.allowed.intersect(&valid);
                if single && (!domains.single || group.kind() == GroupKind::Spread) {
                    domains.order = group_id;
                }
                domains.single |= single;
                &domains.allowed
            }
            None => {
                choices.domains.push(Domains {
                    axis,
                    allowed: valid,
                    single,
                    order: group_id,
                });
                &choices.domains[choices.domains.len() - 1].allowed
            }
        };
        if allowed.is_empty() {
            Err(group_id)
        } else {
            Ok(())
        }
    }

    // Machines that exist ----------------------------------------------------------------------------------------------

    fn try_machines(
        &mut self,
        item: usize,
        class: usize,
        variant: &mut Variant,
        choices: &Choices,
    ) -> Option<Host> {
        let words = self.usable.words().len();
        let allowed: SmallVec<[Bits; 2]> = choices
            .domains
            .iter()
            .map(|domains| {
                let mut machines = Bits::default();
                for domain in domains.allowed.iter() {
                    machines.unite(&self.axes[domains.axis].machines[domain]);
                }
                machines
            })
            .collect();
        let keep_off =
            !self.items[item].waiting && !self.items[item].buffer && !self.reluctant.is_empty();
        for index in 0..words {
            let mut word = self.usable.word(index) & !variant.refused_machines.word(index);
            if keep_off {
                word &= !self.reluctant.word(index);
            }
            for allowed in &allowed {
                word &= allowed.word(index);
            }
            if word != 0 {
                word &= self.host_word(choices, index, |hosts| &hosts.machines);
            }
            for bit in Ones(word) {
                let machine = index * 64 + bit;
                if self.machine_takes(machine, class) {
                    self.load_machine(machine, item, class);
                    return Some(Host::Machine(machine));
                }
                variant.refused_machines.insert(machine);
            }
        }
        None
    }

    /// The hosts that hostname constraints leave, 64 at a time.
    fn host_word(
        &self,
        choices: &Choices,
        index: usize,
        of: impl Fn(&super::topology::Hosts) -> &Bits,
    ) -> u64 {
        choices
            .host_rules
            .iter()
            .fold(u64::MAX, |word, (group, rule)| {
                let group = &self.groups[*group];
                word & match rule {
                    HostRule::NotFull => !of(&group.full).word(index),
                    HostRule::NotOver => !of(&group.over).word(index),
                    HostRule::NotPopulated => !of(&group.populated).word(index),
                    HostRule::OnlyPopulated => of(&group.populated).word(index),
                }
            })
    }

    /// What can never become true again once it is false: room, ports, attachments.
    fn machine_takes(&mut self, machine: usize, class: usize) -> bool {
        if !self.machine_fits(machine, class) {
            return false;
        }
        if !self.classes[class].ports.is_empty() {
            let ports = &self.classes[class].ports;
            let added = self
                .loads
                .get(&machine)
                .is_some_and(|load| ports_conflict(ports, &load.ports));
            if added
                || self
                    .bound_pods(machine)
                    .iter()
                    .any(|pod| ports_conflict(ports, &pod.shape.host_ports))
            {
                return false;
            }
        }
        self.classes[class].attached.is_empty() || self.attachments_fit(machine, class)
    }

    fn bound_pods(&self, machine: usize) -> Vec<Arc<crate::pod::Pod>> {
        let state = &self.solver.machines[machine].state;
        let Some(node) = &state.node else {
            return Vec::new();
        };
        self.solver
            .snapshot
            .pods_on(&node.name)
            .iter()
            .filter(|pod| !pod.is_terminal())
            .cloned()
            .collect()
    }

    fn attachments_fit(&mut self, machine: usize, class: usize) -> bool {
        let name = self.solver.machines[machine].name.clone();
        let Some(limits) = self.solver.snapshot.attach_limits(&name) else {
            return true;
        };
        if self
            .loads
            .get(&machine)
            .is_none_or(|load| load.attached.is_none())
        {
            let mut attached: std::collections::BTreeMap<String, FxHashSet<String>> =
                std::collections::BTreeMap::new();
            for pod in self.bound_pods(machine) {
                for (driver, claim) in Volumes::attached_by(&self.solver.snapshot, &pod) {
                    attached.entry(driver).or_default().insert(claim);
                }
            }
            self.loads.entry(machine).or_default().attached = Some(attached);
        }
        let Some(attached) = self
            .loads
            .get(&machine)
            .and_then(|load| load.attached.as_ref())
        else {
            return true;
        };
        limits.iter().all(|(driver, limit)| {
            let present = attached.get(driver);
            let wanted = self.classes[class]
                .attached
                .iter()
                .filter(|(of, _)| of == driver);
            let new = wanted
                .filter(|(_, claim)| present.is_none_or(|present| !present.contains(claim)))
                .count();
            new == 0 || present.map_or(0, FxHashSet::len) + new <= *limit as usize
        })
    }

    fn load_machine(&mut self, machine: usize, item: usize, class: usize) {
        let width = self.width;
        subtract(
            &mut self.remaining[machine * width..(machine + 1) * width],
            &self.classes[class].requests,
        );
        if !self.classes[class].ports.is_empty() || !self.classes[class].attached.is_empty() {
            let load = self.loads.entry(machine).or_default();
            load.ports.extend(self.classes[class].ports.iter().cloned());
            if let Some(attached) = load.attached.as_mut() {
                for (driver, claim) in &self.classes[class].attached {
                    attached
                        .entry(driver.clone())
                        .or_default()
                        .insert(claim.clone());
                }
            }
        }
        self.items[item].fate = Fate::Placed(Host::Machine(machine));
        self.record_on_machine(machine, class);
    }

    fn record_on_machine(&mut self, machine: usize, class: usize) {
        let mut counted = false;
        for index in 0..self.classes[class].counted.len() {
            let group = self.classes[class].counted[index];
            if self.groups[group]
                .machines
                .as_ref()
                .is_none_or(|machines| machines.contains(machine))
            {
                self.count_on_machine(group, machine);
                counted = true;
            }
        }
        for index in 0..self.classes[class].keeps_away.len() {
            let group = self.classes[class].keeps_away[index];
            self.count_on_machine(group, machine);
        }
        if counted {
            self.epoch += 1;
        }
    }

    fn count_on_machine(&mut self, group: GroupId, machine: usize) {
        let axis = &self.axes[self.groups[group].axis];
        if axis.is_hostname {
            self.groups[group].count_on_host(Host::Machine(machine), 1);
        } else if axis.of_machine[machine] != u32::MAX {
            let domain = axis.of_machine[machine] as usize;
            self.groups[group].count_in(domain, 1);
        }
    }

    // Claims -----------------------------------------------------------------------------------------------------------

    fn try_claims(
        &mut self,
        item: usize,
        class: usize,
        variant: &mut Variant,
        choices: &Choices,
    ) -> Option<Host> {
        if self.claims.is_empty() {
            return None;
        }
        let words = self.claims.len().div_ceil(64);
        let mut candidates: SmallVec<[u64; 64]> = SmallVec::with_capacity(words);
        let mut any = 0;
        for index in 0..words {
            let mut word = !variant.refused_claims.word(index)
                & self.host_word(choices, index, |hosts| &hosts.claims);
            for domains in &choices.domains {
                if word == 0 {
                    break;
                }
                let axis = &self.axes[domains.axis];
                word &= domains
                    .allowed
                    .iter()
                    .fold(0, |reach, domain| reach | axis.claims[domain].word(index));
            }
            any |= word;
            candidates.push(word);
        }
        if any == 0 {
            return None;
        }
        let levels = std::mem::take(&mut self.levels);
        let mut found = None;
        'search: for level in levels.values() {
            for (index, candidates) in candidates.iter().enumerate() {
                for bit in Ones(level.word(index) & candidates) {
                    let claim = index * 64 + bit;
                    match self.try_claim(claim, class, variant, choices) {
                        Ok(fit) => {
                            found = Some((claim, fit));
                            break 'search;
                        }
                        Err(Refusal::Permanent) => variant.refused_claims.insert(claim),
                        Err(Refusal::Topology | Refusal::Reserved) => {}
                    }
                }
            }
        }
        self.levels = levels;
        let (claim, fit) = found?;
        self.join(claim, fit, item, class);
        Some(Host::Claim(claim))
    }

    fn try_claim(
        &mut self,
        claim: usize,
        class: usize,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let held = &self.claims[claim];
        if !variant.tolerated_templates.contains(held.template) {
            return Err(Refusal::Permanent);
        }
        if !self.classes[class].ports.is_empty()
            && ports_conflict(&self.classes[class].ports, &held.ports)
        {
            return Err(Refusal::Permanent);
        }
        let (alive, used, reservations) = (
            held.alive.clone(),
            held.used.clone(),
            held.reservations.clone(),
        );
        let target = Target {
            template: held.template,
            set: held.set,
            used: &used,
            alive: &alive,
            witness: held.witness,
            allowed: held.allowed.clone(),
            held: &reservations,
            is_new: false,
        };
        self.fit(&target, class, variant, choices)
    }

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
        let used = vec![0; self.width];
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
        };
        self.fit(&target, class, variant, choices)
    }

    /// Whether and how a pod fits on a machine to be.
    fn fit(
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
            let base = match self.fit_set(target, class, set, allowed.clone()) {
                Ok(fit) => fit,
                Err(Refusal::Reserved) => {
                    refusal = Refusal::Reserved;
                    continue;
                }
                Err(_) => continue,
            };
            if choices.domains.is_empty() {
                return Ok(base);
            }
            if refusal == Refusal::Permanent {
                refusal = Refusal::Topology;
            }
            match self.fit_domains(target, class, base.set, &choices.domains, &allowed) {
                Ok(fit) => return Ok(fit),
                Err(Refusal::Reserved) => refusal = Refusal::Reserved,
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    /// Narrows to domains, axis by axis, and takes the first (for a new claim: the cheapest of the least loaded) that fits.
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
            if reach.is_some_and(|reach| *reach == open) {
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
        let by_price = target.is_new && ordered.len() > 1;
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
                    fit.price = self.price_of(
                        target.template,
                        fit.set,
                        &self.classes[class].requests.clone(),
                        fit.allowed.as_deref(),
                    );
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

    /// The price of the cheapest row that meets a set and has room.
    pub(super) fn price_of(
        &mut self,
        template: usize,
        set: SetId,
        need: &[i64],
        allowed: Option<&Bits>,
    ) -> f64 {
        let mask = self.mask(template, set);
        let catalogue = self.solver.templates[template].catalogue;
        let kinds = self.kinds(catalogue, set);
        let none = vec![0; self.width];
        let rows = mask
            .rows
            .iter()
            .filter(|row| allowed.is_none_or(|allowed| allowed.contains(*row)));
        let prices = rows.filter(|row| self.row_fits(template, *row, &none, need));
        prices
            .filter_map(|row| self.solver.catalogues[catalogue].price(row, &kinds))
            .min_by(f64::total_cmp)
            .unwrap_or(f64::MAX)
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
        };
        let catalogue = self.solver.templates[target.template].catalogue;
        let tracked = self.request.reserved_mode != ReservedMode::Off
            && self.solver.catalogues[catalogue].has_reservations;
        if self.algebra.has_min_values(set) || tracked {
            let total: Vec<i64> = target
                .used
                .iter()
                .zip(self.classes[class].requests.iter())
                .map(|(used, need)| used.saturating_add(*need))
                .collect();
            let rows = self.rows_with_room(target.template, set, &total, fit.allowed.as_deref());
            self.check_min_values(target, &mut fit, &rows)?;
            if tracked {
                fit.reservations = Some(self.check_reservations(target, set, &rows)?);
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
        let none = vec![0; self.width];
        let rows = mask
            .rows
            .iter()
            .filter(|row| allowed.is_none_or(|allowed| allowed.contains(*row)));
        rows.filter(|row| self.row_fits(template, *row, used, &none))
            .collect()
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

    /// The reservations a machine of `rows` would hold.
    fn check_reservations(
        &mut self,
        target: &Target<'_>,
        set: SetId,
        rows: &Bits,
    ) -> Result<BTreeSet<usize>, Refusal> {
        let catalogue_index = self.solver.templates[target.template].catalogue;
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
            .filter(|id| target.held.contains(id) || self.reservations_left[*id] > 0)
            .collect();
        let strict = self.request.reserved_mode == ReservedMode::Strict;
        if strict && holds.is_empty() && (!compatible.is_empty() || !target.held.is_empty()) {
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

    fn open(&mut self, template: usize, fit: Fit, item: usize, class: usize) -> Host {
        let compiled = &self.solver.templates[template];
        let index = self.claims.len();
        self.claims.push(Claim {
            template,
            set: compiled.set,
            used: vec![0; self.width].into(),
            pods: Vec::new(),
            witness: NO_ROW,
            alive: compiled.order.clone(),
            allowed: None,
            ports: Vec::new(),
            reservations: BTreeSet::new(),
            min_values_relaxed: false,
            charged: vec![0; compiled.limit_names.len()],
            pending: Vec::new(),
        });
        self.levels.entry(0).or_default().insert(index);
        for axis in 0..self.axes.len() {
            if !self.axes[axis].is_hostname {
                let reach = self.domains_of(axis, compiled.set);
                let count = self.axes[axis].domains.len();
                let reach = reach.unwrap_or_else(|| Arc::new(Bits::full(count)));
                for domain in reach.iter() {
                    self.axes[axis].claims[domain].insert(index);
                }
            }
        }
        self.epoch += 1;
        self.join(index, fit, item, class);
        Host::Claim(index)
    }

    /// Puts a pod on a claim, as `fit` found.
    fn join(&mut self, index: usize, fit: Fit, item: usize, class: usize) {
        let before = self.claims[index].set;
        let claim = &mut self.claims[index];
        let level = claim.pods.len() as u32;
        claim.pods.push(item as u32);
        add(&mut claim.used, &self.classes[class].requests);
        claim.set = fit.set;
        claim.allowed = fit.allowed;
        claim.min_values_relaxed |= fit.min_values_relaxed;
        claim
            .ports
            .extend(self.classes[class].ports.iter().cloned());
        let moved = claim.witness != fit.witness && claim.witness != NO_ROW;
        claim.witness = fit.witness;
        if moved {
            self.prune(index);
        }
        if let Some(reservations) = fit.reservations {
            let held =
                std::mem::replace(&mut self.claims[index].reservations, reservations.clone());
            for id in reservations.difference(&held) {
                self.reservations_left[*id] = self.reservations_left[*id].saturating_sub(1);
            }
            for id in held.difference(&reservations) {
                self.reservations_left[*id] += 1;
                self.epoch += 1;
            }
        }
        self.charge(index);
        if let Some(bits) = self.levels.get_mut(&level) {
            bits.remove(index);
            if bits.is_empty() {
                self.levels.remove(&level);
            }
        }
        if self.has_room_left(index) {
            self.levels.entry(level + 1).or_default().insert(index);
        }
        if before != fit.set {
            self.narrowed(index, before, fit.set);
        }
        self.items[item].fate = Fate::Placed(Host::Claim(index));
        self.record_on_claim(index, class);
    }

    /// Forgets rows that cannot hold what the claim holds already.
    fn prune(&mut self, index: usize) {
        let claim = &self.claims[index];
        let mask = self.mask(claim.template, claim.set);
        let claim = &self.claims[index];
        let none = vec![0; self.width];
        let alive: Vec<u32> = claim
            .alive
            .iter()
            .copied()
            .filter(|row| {
                mask.rows.contains(*row as usize)
                    && self.row_fits(claim.template, *row as usize, &claim.used, &none)
            })
            .collect();
        self.claims[index].alive = Arc::new(alive);
    }

    /// Whether the smallest demand of any class still fits.
    fn has_room_left(&self, index: usize) -> bool {
        let claim = &self.claims[index];
        self.row_fits(
            claim.template,
            claim.witness as usize,
            &claim.used,
            &self.least,
        ) || claim
            .alive
            .iter()
            .any(|row| self.row_fits(claim.template, *row as usize, &claim.used, &self.least))
    }

    /// Charges a claim to the limits of its NodePool: the most that any of its rows has.
    ///
    /// DIFFERS: `nodes` is charged too, and what a claim no longer may become is given back.
    fn charge(&mut self, index: usize) {
        let template = self.claims[index].template;
        let compiled = &self.solver.templates[template];
        let count = compiled.limit_names.len();
        if count == 0 {
            return;
        }
        let claim = &self.claims[index];
        let (used, allowed, set) = (claim.used.clone(), claim.allowed.clone(), claim.set);
        let rows = self.rows_with_room(template, set, &used, allowed.as_deref());
        let mut most = vec![0; count];
        for row in rows.iter() {
            for (most, cost) in most.iter_mut().zip(&compiled.limit_costs[row * count..]) {
                *most = (*most).max(*cost);
            }
        }
        let charged = std::mem::replace(&mut self.claims[index].charged, most.clone());
        if charged == most {
            return;
        }
        for (left, (new, old)) in self.limits[template]
            .iter_mut()
            .zip(most.iter().zip(&charged))
        {
            *left = left.saturating_sub(*new).saturating_add(*old);
            if new < old {
                self.epoch += 1;
            }
        }
        self.refresh_limits(template);
    }

    /// Moves a claim out of the domains it left, and counts what waited for its domain to be settled.
    fn narrowed(&mut self, index: usize, before: SetId, after: SetId) {
        for axis in 0..self.axes.len() {
            if self.axes[axis].is_hostname {
                continue;
            }
            let key = self.axes[axis].key;
            if self.algebra.get(before, key) == self.algebra.get(after, key) {
                continue;
            }
            let count = self.axes[axis].domains.len();
            let old = self
                .domains_of(axis, before)
                .unwrap_or_else(|| Arc::new(Bits::full(count)));
            let new = self
                .domains_of(axis, after)
                .unwrap_or_else(|| Arc::new(Bits::full(count)));
            for domain in old.iter().filter(|domain| !new.contains(*domain)) {
                self.axes[axis].claims[domain].remove(index);
            }
            let pending = std::mem::take(&mut self.claims[index].pending);
            for (group, number) in pending {
                if self.groups[group].axis != axis {
                    self.claims[index].pending.push((group, number));
                    continue;
                }
                match self.groups[group].kind() {
                    GroupKind::Spread | GroupKind::Affinity => match new.single() {
                        Some(domain) => {
                            self.groups[group].count_in(domain, number);
                            self.epoch += 1;
                        }
                        None => self.claims[index].pending.push((group, number)),
                    },
                    GroupKind::Anti | GroupKind::Inverse => {
                        for domain in old.iter().filter(|domain| !new.contains(*domain)) {
                            self.groups[group].uncount_in(domain, number);
                        }
                        self.epoch += 1;
                        if new.single().is_none() {
                            self.claims[index].pending.push((group, number));
                        }
                    }
                }
            }
        }
    }

    fn record_on_claim(&mut self, index: usize, class: usize) {
        let mut counted = false;
        for place in 0..self.classes[class].counted.len() {
            let group = self.classes[class].counted[place];
            if self.claim_passes(index, group) {
                self.count_on_claim(group, index);
                counted = true;
            }
        }
        for place in 0..self.classes[class].keeps_away.len() {
            let group = self.classes[class].keeps_away[place];
            self.count_on_claim(group, index);
        }
        if counted {
            self.epoch += 1;
        }
    }

    /// Whether a claim passes the node filter of a group.
    fn claim_passes(&mut self, index: usize, group: GroupId) -> bool {
        let group = &self.groups[group];
        let claim = &self.claims[index];
        let tolerated = group
            .identity
            .filter
            .tolerations
            .as_ref()
            .is_none_or(|tolerations| {
                crate::taints::untolerated(
                    &self.solver.templates[claim.template].taints,
                    tolerations,
                )
                .is_none()
            });
        let set = claim.set;
        tolerated
            && group.filter_sets.clone().is_none_or(|terms| {
                terms
                    .iter()
                    .any(|term| self.algebra.strictly_compatible(set, *term))
            })
    }

    fn count_on_claim(&mut self, group: GroupId, index: usize) {
        let axis = self.groups[group].axis;
        if self.axes[axis].is_hostname {
            self.groups[group].count_on_host(Host::Claim(index), 1);
            return;
        }
        let set = self.claims[index].set;
        let count = self.axes[axis].domains.len();
        let reach = self
            .domains_of(axis, set)
            .unwrap_or_else(|| Arc::new(Bits::full(count)));
        if let Some(domain) = reach.single() {
            self.groups[group].count_in(domain, 1);
            return;
        }
        if matches!(
            self.groups[group].kind(),
            GroupKind::Anti | GroupKind::Inverse
        ) {
            for domain in reach.iter() {
                self.groups[group].count_in(domain, 1);
            }
        }
        match self.claims[index]
            .pending
            .iter_mut()
            .find(|pending| pending.0 == group)
        {
            Some(pending) => pending.1 += 1,
            None => self.claims[index].pending.push((group, 1)),
        }
    }
}
