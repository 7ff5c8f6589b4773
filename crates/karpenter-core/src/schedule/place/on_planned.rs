//! Placing a pod on a planned node, and the updates that follow: resources, requirements, limits, domains, counters.
//!
//! Planned nodes are tried by number of pods, then by age. A planned node only fills up and narrows, so most refusals are
//! permanent and cached with the variant; a refusal by topology or a reservation is tried again.

use std::collections::BTreeSet;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::dra::Allocation;
use crate::pod::ports_conflict;
use crate::schedule::compile::bits::members;
use crate::schedule::compile::ids::{ClassId, PlannedId, PodIdx, ReservationId, TemplateId};
use crate::schedule::compile::vectors::add;
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::fit::CandidateNode;
use crate::schedule::place::planned_node::{Fit, PlannedNode, Refusal};
use crate::schedule::pods::class::{PodState, Variant};
use crate::schedule::topology::choices::{Among, Choices};
use crate::schedule::topology::group::{DomainQuery, GroupKind, Target};

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
                & self
                    .topology
                    .target_word(choices, index, |targets| &targets.planned);
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
            let counted = self.topology.counted_domains(
                &mut self.rows.algebra,
                (&self.queue.classes[class], variant.alternative),
                owned.group,
                (&self.nodes.present, &self.planned),
                Among::Planned,
            );
            let valid = self.topology.groups[owned.group].valid_domains(&DomainQuery {
                reach: pod.as_deref(),
                counted: counted.as_ref(),
                own: owned.own,
                along,
                starts: false,
                assumes_empty: self.topology.assumed_empty.contains(owned.group),
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
        let node = PlannedNode::new(template, compiled, compiled.set, self.solver.width());
        let index = self.planned.push(node);
        self.topology
            .add_planned_node(&mut self.rows.algebra, index, compiled.set);
        self.epoch += 1;
        self.join(index, fit, pod, class);
        Target::Planned(index)
    }

    /// Places a pod on a planned node, with the result of `fit`.
    fn join(&mut self, index: PlannedId, fit: Fit, pod: PodIdx, class: ClassId) {
        let before = self.planned[index].set;
        let planned = &mut self.planned[index];
        planned.pods.push(pod);
        self.queue.pods[pod].volumes = fit.volume;
        add(&mut planned.used, &self.queue.classes[class].requests);
        planned.set = fit.set;
        planned.allowed = fit.allowed;
        planned.min_values_relaxed |= fit.min_values_relaxed;
        planned
            .ports
            .extend(self.queue.classes[class].ports.iter().cloned());
        let moves = planned.moves_to(fit.witness);
        planned.witness = fit.witness;
        if moves {
            planned.prune(&mut self.rows);
        }
        if let Some(reservations) = fit.reservations {
            self.hold(index, reservations);
        }
        if let Some(allocation) = fit.devices {
            self.commit_devices(index, allocation);
        }
        self.release_devices(index);
        self.charge(index);
        self.planned.relevel(index, &self.rows);
        if before != fit.set {
            self.narrowed(index, before, fit.set);
        }
        self.fix_labels(index, class);
        self.note_early(index, class);
        self.queue.pods[pod].state = PodState::Placed(Target::Planned(index));
        self.record_on_planned_node(index, class);
        if !self.planned[index].uncounted.is_empty() {
            self.planned.unfiltered.insert(index);
        }
        self.note_counted_in_part(index);
    }

    /// Replaces the reservations that a planned node holds.
    pub(crate) fn hold(&mut self, index: PlannedId, reservations: BTreeSet<ReservationId>) {
        let released = self.budgets.hold(&mut self.planned[index], reservations);
        self.epoch += u64::from(released);
    }

    /// Charges a planned node to the limits of its NodePool.
    pub(crate) fn charge(&mut self, index: PlannedId) {
        let released = self
            .budgets
            .charge(&mut self.planned[index], &mut self.rows);
        self.epoch += u64::from(released);
    }

    /// Commits the devices of a pod placed on a planned node.
    fn commit_devices(&mut self, index: PlannedId, allocation: Rc<Allocation>) {
        let drivers = self.planned[index].drivers.get_or_insert_default();
        drivers.extend(allocation.drivers.iter().cloned());
        if let Some(devices) = &mut self.devices {
            devices.commit_on_planned(index, Rc::unwrap_or_clone(allocation));
        }
    }

    /// Releases the devices held for instance types that a planned node can no longer become.
    pub(crate) fn release_devices(&mut self, index: PlannedId) {
        let held = &self.planned[index];
        if held.drivers.is_none() {
            return;
        }
        if let Some(devices) = &mut self.devices {
            devices.release(index, held, &mut self.rows);
            self.epoch += 1;
        }
    }
}
