//! Placing a pod on a planned node, and the updates that follow: resources, requirements, limits, domains, counters.
//!
//! Planned nodes are tried by number of pods, then by age. A planned node only fills up and narrows, so most refusals are
//! permanent and cached with the variant; a refusal by topology or a reservation is tried again.

use crate::schedule::compile::ids::{
    AxisId, ClassId, DomainId, GroupId, NO_ROW, PlannedId, PodIdx, ReservationId, RowId, TemplateId,
};
use index_vec::Idx;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::pod::ports_conflict;
use crate::requirements::Requirement;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::{Bits, members};
use crate::schedule::compile::vectors::{Vector, add};
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::fit::CandidateNode;
use crate::schedule::place::planned_node::{Fit, PlannedNode, Refusal};
use crate::schedule::pods::class::Variant;
use crate::schedule::pods::queue::PodState;
use crate::schedule::topology::choices::Choices;
use crate::schedule::topology::group::{DomainQuery, GroupKind, Target};
use crate::taints::untolerated;

impl SchedulingPass<'_> {
    pub(crate) fn try_planned_nodes(
        &mut self,
        pod: PodIdx,
        class: ClassId,
        variant: &mut Variant,
        choices: &Choices,
    ) -> Option<Target> {
        let candidates = self.candidates(variant, choices)?;
        let levels = std::mem::take(&mut self.planned.levels);
        let mut found = None;
        'search: for level in levels.values() {
            for (index, candidates) in candidates.iter().enumerate() {
                for planned in members(index, level.word(index) & candidates) {
                    match self.try_planned_node(planned, class, variant, choices) {
                        Ok(fit) => {
                            found = Some((planned, fit));
                            break 'search;
                        }
                        Err(refusal) => {
                            if refusal.is_permanent() {
                                variant.refused_planned.insert(planned);
                            }
                        }
                    }
                }
            }
        }
        self.planned.levels = levels;
        let (planned, fit) = found?;
        self.join(planned, fit, pod, class);
        Some(Target::Planned(planned))
    }

    /// Places the pod on the planned node whose price rises least; opens a new one in the first NodePool that accepts the pod if
    /// that costs less.
    pub(crate) fn try_cheapest(
        &mut self,
        pod: PodIdx,
        class: ClassId,
        variant: &mut Variant,
        choices: &Choices,
    ) -> Option<Target> {
        let candidates = self.candidates(variant, choices)?;
        let levels = std::mem::take(&mut self.planned.levels);
        let mut best: Option<(f64, PlannedId, Fit)> = None;
        'search: for level in levels.values() {
            for (index, candidates) in candidates.iter().enumerate() {
                for planned in members(index, level.word(index) & candidates) {
                    let fit = match self.try_planned_node(planned, class, variant, choices) {
                        Ok(fit) => fit,
                        Err(refusal) => {
                            if refusal.is_permanent() {
                                variant.refused_planned.insert(planned);
                            }
                            continue;
                        }
                    };
                    let increase = self.increase(planned, class, &fit);
                    if best.as_ref().is_none_or(|(least, ..)| increase < *least) {
                        best = Some((increase, planned, fit));
                    }
                    if increase <= 0.0 {
                        break 'search;
                    }
                }
            }
        }
        self.planned.levels = levels;
        let (increase, planned, fit) = best?;
        if increase > 0.0
            && let Some((template, fit)) = self.cheaper_new(class, variant, choices, increase)
        {
            return Some(self.open(template, fit, pod, class));
        }
        self.join(planned, fit, pod, class);
        Some(Target::Planned(planned))
    }

    /// Returns how much the price of a planned node rises with the pod.
    fn increase(&mut self, planned: PlannedId, class: ClassId, fit: &Fit) -> f64 {
        let held = &self.planned[planned];
        let (template, set, mut used) = (held.template, held.set, held.used.clone());
        let allowed = held.allowed.clone();
        let before = self
            .rows
            .lowest_price(template, set, &used, allowed.as_deref());
        add(&mut used, &self.queue.classes[class].requests);
        self.rows
            .lowest_price(template, fit.set, &used, fit.allowed.as_deref())
            - before
    }

    /// Returns the fit of a pod on a new node of the first NodePool that accepts it, if that costs less than `most`.
    fn cheaper_new(
        &mut self,
        class: ClassId,
        variant: &Variant,
        choices: &Choices,
        most: f64,
    ) -> Option<(TemplateId, Fit)> {
        for template in self.solver.templates.indices() {
            if variant.refused_templates.contains(template) {
                continue;
            }
            match self.try_template(template, class, variant, choices) {
                Ok(fit) => {
                    let used = self.queue.classes[class].requests.clone();
                    let price =
                        self.rows
                            .lowest_price(template, fit.set, &used, fit.allowed.as_deref());
                    return (price < most).then_some((template, fit));
                }
                Err(Refusal::Reserved) => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// Returns the planned nodes that have not refused the variant permanently and are in its domains, 64 per word; `None` if
    /// there are none.
    fn candidates(&self, variant: &Variant, choices: &Choices) -> Option<SmallVec<[u64; 64]>> {
        if self.planned.nodes.is_empty() {
            return None;
        }
        let words = self.planned.nodes.len().div_ceil(64);
        let mut candidates: SmallVec<[u64; 64]> = SmallVec::with_capacity(words);
        let mut any = 0;
        for index in 0..words {
            let mut word = !variant.refused_planned.word(index)
                & self.target_word(choices, index, |targets| &targets.planned);
            for domains in &choices.domains {
                if word == 0 {
                    break;
                }
                let axis = &self.topology.axes[domains.axis];
                word &= domains
                    .allowed
                    .iter()
                    .fold(0, |reach, domain| reach | axis.planned[domain].word(index));
            }
            any |= word;
            candidates.push(word);
        }
        (any != 0).then_some(candidates)
    }

    fn try_planned_node(
        &mut self,
        planned: PlannedId,
        class: ClassId,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let held = &self.planned[planned];
        if !variant.tolerated_templates.contains(held.template) {
            return Err(Refusal::Taints);
        }
        if !self.queue.classes[class].ports.is_empty()
            && ports_conflict(&self.queue.classes[class].ports, &held.ports)
        {
            return Err(Refusal::HostPorts);
        }
        let others = self.others_along(planned, class, variant, choices)?;
        let choices = others.as_ref().unwrap_or(choices);
        let held = &self.planned[planned];
        let (alive, used, reservations) = (
            held.alive.clone(),
            held.used.clone(),
            held.reservations.clone(),
        );
        let candidate = CandidateNode {
            template: held.template,
            set: held.set,
            used: &used,
            alive: &alive,
            witness: held.witness,
            allowed: held.allowed.clone(),
            held: &reservations,
            is_new: false,
            index: planned,
        };
        let joined = self.joined_sets(candidate.set, class, variant)?;
        self.fit(&candidate, class, &joined, choices)
    }

    /// Returns the choices left on a planned node if pods on it are counted by a spread constraint of the pod only from now on:
    /// their domain is still open and becomes that of this pod, or this pod's requirements make the node pass the node filter.
    ///
    /// DIFFERS: upstream does not count such pods, before or after.
    fn others_along(
        &mut self,
        planned: PlannedId,
        class: ClassId,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Option<Choices>, Refusal> {
        let held = &self.planned[planned];
        if held.pending.is_empty() && held.uncounted.is_empty() {
            return Ok(None);
        }
        let mut narrowed: Option<Choices> = None;
        for owned in &variant.owned {
            let group = &self.topology.groups[owned.group];
            if group.kind() != GroupKind::Spread {
                continue;
            }
            let held = &self.planned[planned];
            let here = held.pending.iter().chain(&held.uncounted);
            let along: u32 = here
                .filter(|(id, _)| *id == owned.group)
                .map(|(_, number)| number)
                .sum();
            if along == 0 {
                continue;
            }
            let axis = group.axis;
            if self.topology.axes[axis].is_hostname {
                let there = i64::from(group.count_of(Target::Planned(planned)));
                if there + i64::from(along) + i64::from(owned.own)
                    > i64::from(group.identity.max_skew)
                {
                    return Err(Refusal::Topology(owned.group));
                }
                continue;
            }
            let key = self.topology.axes[axis].key;
            let pod = self
                .rows
                .algebra
                .get(variant.strict, key)
                .map(|req| self.topology.admitted(&mut self.rows.algebra, axis, req));
            let counted = self.counted_domains(class, owned.group);
            let valid = self.topology.groups[owned.group].valid_domains(&DomainQuery {
                reach: pod.as_deref(),
                counted: counted.as_ref(),
                own: owned.own,
                along,
                starts: false,
            });
            let narrowed = narrowed.get_or_insert_with(|| choices.clone());
            for domains in narrowed.domains.iter_mut().filter(|all| all.axis == axis) {
                domains.allowed.intersect(&valid);
                if domains.allowed.is_empty() {
                    return Err(Refusal::Topology(owned.group));
                }
            }
        }
        Ok(narrowed)
    }

    pub(crate) fn open(
        &mut self,
        template: TemplateId,
        fit: Fit,
        pod: PodIdx,
        class: ClassId,
    ) -> Target {
        let compiled = &self.solver.templates[template];
        let index = self.planned.nodes.push(PlannedNode {
            template,
            set: compiled.set,
            used: smallvec![0; self.solver.width()],
            pods: Vec::new(),
            witness: NO_ROW,
            alive: compiled.order.clone(),
            allowed: None,
            ports: Vec::new(),
            reservations: Rc::default(),
            min_values_relaxed: false,
            charged: vec![0; compiled.limit_names.len()],
            charged_for: Vec::new(),
            pending: Vec::new(),
            uncounted: Vec::new(),
            drivers: None,
        });
        self.planned.levels.entry(0).or_default().insert(index);
        for axis in self.topology.axes.indices() {
            if !self.topology.axes[axis].is_hostname {
                let reach = self
                    .topology
                    .domains_of(&mut self.rows.algebra, axis, compiled.set);
                let count = self.topology.axes[axis].domains.len();
                let reach = reach.unwrap_or_else(|| Arc::new(Bits::full(count)));
                for domain in reach.iter() {
                    self.topology.axes[axis].planned[domain].insert(index);
                }
            }
        }
        self.epoch += 1;
        self.join(index, fit, pod, class);
        Target::Planned(index)
    }

    /// Places a pod on a planned node, with the result of `fit`.
    fn join(&mut self, index: PlannedId, fit: Fit, pod: PodIdx, class: ClassId) {
        let before = self.planned[index].set;
        let planned = &mut self.planned[index];
        let level = planned.pods.len() as u32;
        planned.pods.push(pod);
        self.queue.pods[pod].volume = fit.volume;
        add(&mut planned.used, &self.queue.classes[class].requests);
        planned.set = fit.set;
        planned.allowed = fit.allowed;
        planned.min_values_relaxed |= fit.min_values_relaxed;
        planned
            .ports
            .extend(self.queue.classes[class].ports.iter().cloned());
        let moved = planned.witness != fit.witness && planned.witness != NO_ROW;
        planned.witness = fit.witness;
        if moved {
            self.prune(index);
        }
        if let Some(reservations) = fit.reservations {
            self.hold(index, reservations);
        }
        if let Some(allocation) = fit.devices {
            self.commit_devices(index, allocation);
        }
        self.release_devices(index);
        self.charge(index);
        if let Some(bits) = self.planned.levels.get_mut(&level) {
            bits.remove(index);
            if bits.is_empty() {
                self.planned.levels.remove(&level);
            }
        }
        if self.has_room_left(index) {
            self.planned
                .levels
                .entry(level + 1)
                .or_default()
                .insert(index);
        }
        if before != fit.set {
            self.narrowed(index, before, fit.set);
        }
        self.fix_labels(index, class);
        self.queue.pods[pod].state = PodState::Placed(Target::Planned(index));
        self.record_on_planned_node(index, class);
    }

    /// Replaces the reservations that a planned node holds.
    pub(crate) fn hold(&mut self, index: PlannedId, reservations: BTreeSet<ReservationId>) {
        let reservations = Rc::new(reservations);
        let held = std::mem::replace(&mut self.planned[index].reservations, reservations.clone());
        for id in reservations.difference(&held) {
            self.budgets.reservations_left[*id] =
                self.budgets.reservations_left[*id].saturating_sub(1);
        }
        for id in held.difference(&reservations) {
            self.budgets.reservations_left[*id] += 1;
            self.epoch += 1;
        }
    }

    /// Removes the rows that have no room for the pods already on the planned node.
    pub(crate) fn prune(&mut self, index: PlannedId) {
        let planned = &self.planned[index];
        let mask = self.rows.mask(planned.template, planned.set);
        let planned = &self.planned[index];
        let none: Vector = smallvec![0; self.solver.width()];
        let alive: Vec<RowId> = planned
            .alive
            .iter()
            .copied()
            .filter(|row| {
                mask.rows.contains(*row)
                    && self
                        .rows
                        .row_fits(planned.template, *row, &planned.used, &none)
            })
            .collect();
        self.planned[index].alive = Arc::new(alive);
    }

    /// Reports whether the smallest request of any class still fits.
    fn has_room_left(&self, index: PlannedId) -> bool {
        let planned = &self.planned[index];
        self.rows.row_fits(
            planned.template,
            planned.witness,
            &planned.used,
            &self.planned.least,
        ) || planned.alive.iter().any(|row| {
            self.rows
                .row_fits(planned.template, *row, &planned.used, &self.planned.least)
        })
    }

    /// Charges a planned node to the limits of its NodePool, with the largest amount of any of its rows.
    ///
    /// DIFFERS: `nodes` is charged too, and the charge is reduced when large rows drop out.
    pub(crate) fn charge(&mut self, index: PlannedId) {
        let template = self.planned[index].template;
        let compiled = &self.solver.templates[template];
        let count = compiled.limit_names.len();
        if count == 0 {
            return;
        }
        let planned = &self.planned[index];
        let (used, allowed, set) = (planned.used.clone(), planned.allowed.clone(), planned.set);
        let mask = self.rows.mask(template, set);
        let planned = &self.planned[index];
        let none: Vector = smallvec![0; self.solver.width()];
        let still = |row: &RowId| {
            let row = *row;
            mask.rows.contains(row)
                && allowed.as_ref().is_none_or(|allowed| allowed.contains(row))
                && self.rows.row_fits(template, row, &used, &none)
        };
        if !planned.charged_for.is_empty() && planned.charged_for.iter().all(still) {
            return;
        }
        let rows = self
            .rows
            .rows_with_room(template, set, &used, allowed.as_deref());
        let mut most = vec![0; count];
        let mut charged_for = vec![NO_ROW; count];
        for row in rows.iter() {
            let costs = &compiled.limit_costs[row.index() * count..(row.index() + 1) * count];
            for (place, cost) in costs.iter().enumerate() {
                if charged_for[place] == NO_ROW || most[place] < *cost {
                    most[place] = (*cost).max(0);
                    charged_for[place] = row;
                }
            }
        }
        self.planned[index].charged_for = charged_for;
        let charged = std::mem::replace(&mut self.planned[index].charged, most.clone());
        if charged == most {
            return;
        }
        for (left, (new, old)) in self.budgets.limits[template]
            .iter_mut()
            .zip(most.iter().zip(&charged))
        {
            *left = left.saturating_sub(*new).saturating_add(*old);
            if new < old {
                self.epoch += 1;
            }
        }
        self.budgets.refresh_limits(template);
    }

    /// Removes a planned node from the domains it can no longer be in, and counts pods that were pending until its domain was
    /// known.
    pub(crate) fn narrowed(&mut self, index: PlannedId, before: SetId, after: SetId) {
        for axis in self.topology.axes.indices() {
            if self.topology.axes[axis].is_hostname {
                continue;
            }
            let key = self.topology.axes[axis].key;
            if self.rows.algebra.get(before, key) == self.rows.algebra.get(after, key) {
                continue;
            }
            let count = self.topology.axes[axis].domains.len();
            let old = self
                .topology
                .domains_of(&mut self.rows.algebra, axis, before)
                .unwrap_or_else(|| Arc::new(Bits::full(count)));
            let new = self
                .topology
                .domains_of(&mut self.rows.algebra, axis, after)
                .unwrap_or_else(|| Arc::new(Bits::full(count)));
            for domain in old.iter().filter(|domain| !new.contains(*domain)) {
                self.topology.axes[axis].planned[domain].remove(index);
            }
            let pending = std::mem::take(&mut self.planned[index].pending);
            let counted = pending
                .iter()
                .any(|(group, _)| self.topology.groups[*group].axis == axis);
            for (group, number) in pending {
                if self.topology.groups[group].axis != axis {
                    self.planned[index].pending.push((group, number));
                    continue;
                }
                match self.topology.groups[group].kind() {
                    GroupKind::Spread | GroupKind::Affinity => match new.single() {
                        Some(domain) => {
                            self.topology.groups[group].count_in(domain, number);
                            self.epoch += 1;
                        }
                        None => self.planned[index].pending.push((group, number)),
                    },
                    GroupKind::Anti | GroupKind::Inverse => {
                        for domain in old.iter().filter(|domain| !new.contains(*domain)) {
                            self.topology.groups[group].uncount_in(domain, number);
                        }
                        self.epoch += 1;
                        if new.single().is_none() {
                            self.planned[index].pending.push((group, number));
                        }
                    }
                }
            }
            if let Some(domain) = new.single().filter(|_| counted) {
                self.fix_domain(index, axis, domain);
            }
        }
        self.count_late(index);
    }

    /// Counts pods that groups did not count as long as the planned node might fail their node filter.
    fn count_late(&mut self, index: PlannedId) {
        for (group, number) in std::mem::take(&mut self.planned[index].uncounted) {
            if self.passes_filter(index, group) {
                (0..number).for_each(|_| self.count_on_planned_node(group, index));
                self.epoch += 1;
            } else {
                self.planned[index].uncounted.push((group, number));
            }
        }
    }

    /// Fixes labels that only the launch would decide, if a topology constraint counts the pod by them: the domain of the pod must
    /// be known. Labels that the provider decides, such as the zone, stay open.
    ///
    /// DIFFERS: upstream leaves such a label open, counts the pod in no domain, and picks a value at the launch.
    fn fix_labels(&mut self, index: PlannedId, class: ClassId) {
        self.fix_filter_labels(index, class);
        for place in 0..self.queue.classes[class].counted.len() {
            let axis = self.topology.groups[self.queue.classes[class].counted[place]].axis;
            let key = self.topology.axes[axis].key;
            if self.topology.axes[axis].is_hostname || self.rows.algebra.is_known(key) {
                continue;
            }
            let Some(req) = self.rows.algebra.get(self.planned[index].set, key) else {
                continue;
            };
            if self.rows.algebra.requirement(req).single().is_some() {
                continue;
            }
            let reach = self.topology.admitted(&mut self.rows.algebra, axis, req);
            let load = |domain: DomainId| -> u32 {
                let counting = self.queue.classes[class].counted.iter();
                let spread = counting
                    .map(|group| &self.topology.groups[*group])
                    .filter(|group| group.axis == axis && group.kind() == GroupKind::Spread);
                spread.map(|group| group.in_domain(domain)).sum()
            };
            let names = &self.topology.axes[axis].domains;
            let choices = reach
                .iter()
                .map(|domain| (load(domain), &names[domain], domain));
            if let Some((_, _, domain)) = choices.min() {
                self.fix_domain(index, axis, domain);
            }
        }
    }

    /// Fixes labels that the node filter of a spread constraint of the pod reads: otherwise the launch would decide whether the
    /// pod is counted.
    fn fix_filter_labels(&mut self, index: PlannedId, class: ClassId) {
        for place in 0..self.queue.classes[class].counted.len() {
            let group = self.queue.classes[class].counted[place];
            let Some(terms) = self.topology.groups[group].filter_sets.clone() else {
                continue;
            };
            for (key, _) in terms
                .iter()
                .flat_map(|term| self.rows.algebra.members(*term).to_vec())
                .collect::<Vec<_>>()
            {
                let set = self.planned[index].set;
                let req = self.rows.algebra.get(set, key);
                let Some(req) = req.filter(|_| !self.rows.algebra.is_known(key)) else {
                    continue;
                };
                let requirement = self.rows.algebra.requirement(req);
                if requirement.single().is_some() || requirement.min_values().is_some() {
                    continue;
                }
                let Some(value) = requirement.any() else {
                    continue;
                };
                let drawn = Requirement::equal(requirement.key(), &value);
                let drawn = self.rows.algebra.req(&drawn, || false);
                let (template, witness) =
                    (self.planned[index].template, self.planned[index].witness);
                if let Some(fixed) = self.rows.algebra.narrow(set, drawn)
                    && self.rows.mask(template, fixed).rows.contains(witness)
                {
                    self.planned[index].set = fixed;
                    self.narrowed(index, set, fixed);
                }
            }
        }
    }

    /// Fixes the domain of a planned node, if one of its rows allows it.
    fn fix_domain(&mut self, index: PlannedId, axis: AxisId, domain: DomainId) {
        let (template, set) = (self.planned[index].template, self.planned[index].set);
        let req = self.rows.algebra.get(set, self.topology.axes[axis].key);
        if let Some(req) = req.map(|req| self.rows.algebra.requirement(req))
            && (req.single().is_some() || req.min_values().is_some())
        {
            return;
        }
        let req = self.topology.requirement_for(
            &mut self.rows.algebra,
            axis,
            &[domain].into_iter().collect(),
        );
        let Some(fixed) = self.rows.algebra.narrow(set, req) else {
            return;
        };
        let witness = self.planned[index].witness;
        if self.rows.mask(template, fixed).rows.contains(witness) {
            self.planned[index].set = fixed;
            self.narrowed(index, set, fixed);
        }
    }

    fn record_on_planned_node(&mut self, index: PlannedId, class: ClassId) {
        let mut counted = false;
        for place in 0..self.queue.classes[class].counted.len() {
            let group = self.queue.classes[class].counted[place];
            if self.passes_filter(index, group) {
                self.count_on_planned_node(group, index);
                counted = true;
            } else if self.taints_pass(index, group) {
                note(&mut self.planned[index].uncounted, group);
            }
        }
        for place in 0..self.queue.classes[class].keeps_away.len() {
            let group = self.queue.classes[class].keeps_away[place];
            self.count_on_planned_node(group, index);
        }
        if counted {
            self.epoch += 1;
        }
    }

    /// Reports whether a planned node passes the node filter of a group as it is now.
    fn passes_filter(&mut self, index: PlannedId, group: GroupId) -> bool {
        let set = self.planned[index].set;
        self.taints_pass(index, group)
            && self.topology.groups[group]
                .filter_sets
                .clone()
                .is_none_or(|terms| {
                    terms
                        .iter()
                        .any(|term| self.rows.algebra.strictly_compatible(set, *term))
                })
    }

    /// Reports whether a planned node's taints, which never change, pass the node filter of a group.
    pub(crate) fn taints_pass(&self, index: PlannedId, group: GroupId) -> bool {
        let taints = &self.solver.templates[self.planned[index].template].taints;
        let tolerations = self.topology.groups[group]
            .identity
            .filter
            .tolerations
            .as_ref();
        tolerations.is_none_or(|tolerations| untolerated(taints, tolerations).is_none())
    }

    /// Returns the only domain of `reach` that the planned node can be in, if there is exactly one.
    fn only_domain(
        &mut self,
        index: PlannedId,
        axis: AxisId,
        reach: &Bits<DomainId>,
    ) -> Option<DomainId> {
        let mut there = reach
            .iter()
            .filter(|domain| self.fixed_in_domain(index, axis, *domain).is_some());
        let first = there.next()?;
        there.next().is_none().then_some(first)
    }

    fn count_on_planned_node(&mut self, group: GroupId, index: PlannedId) {
        let axis = self.topology.groups[group].axis;
        if self.topology.axes[axis].is_hostname {
            self.topology.groups[group].count_on(Target::Planned(index), 1);
            return;
        }
        let set = self.planned[index].set;
        let count = self.topology.axes[axis].domains.len();
        let reach = self
            .topology
            .domains_of(&mut self.rows.algebra, axis, set)
            .unwrap_or_else(|| Arc::new(Bits::full(count)));
        if let Some(domain) = reach
            .single()
            .or_else(|| self.only_domain(index, axis, &reach))
        {
            self.fix_domain(index, axis, domain);
            self.topology.groups[group].count_in(domain, 1);
            return;
        }
        if matches!(
            self.topology.groups[group].kind(),
            GroupKind::Anti | GroupKind::Inverse
        ) {
            for domain in reach.iter() {
                self.topology.groups[group].count_in(domain, 1);
            }
        }
        note(&mut self.planned[index].pending, group);
    }
}

fn note(numbers: &mut Vec<(GroupId, u32)>, group: GroupId) {
    match numbers.iter_mut().find(|(known, _)| *known == group) {
        Some((_, number)) => *number += 1,
        None => numbers.push((group, 1)),
    }
}
