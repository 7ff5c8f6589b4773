//! Placing pods one by one: on existing nodes, then planned nodes, then new planned nodes, variant by variant.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::pod::PodKey;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{AxisId, ClassId, GroupId, NodeIdx, PodIdx};
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::planned_node::Refusal;
use crate::schedule::pods::class::{PodState, Variant};
use crate::schedule::topology::choices::Among;
use crate::schedule::topology::group::Target;

impl SchedulingPass<'_> {
    /// Places the pods, then those of capacity buffers: a pod that is refused in the first round may fit later, and a buffer must
    /// not have taken its place by then.
    ///
    /// A node that is planned in another domain lowers the count that bounds the skew of pods with a spread that counts domains they
    /// cannot use, and kube-scheduler would refuse pods that were placed before. So such a pod is placed at its turn only where it fits
    /// even if some domain has no pods, else after the other pods, and last if it cannot be in a domain that has no node yet. Where each
    /// domain that the NodePools offer has a node, no planned node adds one.
    pub(crate) fn place_all(&mut self) {
        let mut queue = self.queue.order(self.strategy.order);
        self.place_nominated(&mut queue);
        let pods = &self.queue.pods;
        let (buffers, pods): (Vec<PodIdx>, _) =
            queue.into_iter().partition(|pod| pods[*pod].buffer);
        let growing = self.growing_groups();
        let (left, mut last) = self.place_in_rounds(pods, &growing, buffers.len());
        let none = Bits::default();
        if !last.is_empty() {
            self.fix_counted_elsewhere(&last);
            last.extend(left);
            self.put_opening_first(&mut last, &growing);
            self.place_in_rounds(last, &none, buffers.len());
        }
        self.place_in_rounds(buffers, &none, 0);
    }

    /// Places a pod whose spreads in `growing` count domains that it cannot use, where it fits even if some domain has no pods, and
    /// without dropping a preference.
    fn place_early(&mut self, pod: PodIdx, class: ClassId, growing: &Bits<GroupId>) -> PodState {
        self.fix_counted_by(class);
        self.topology.assumed_empty = growing.clone();
        let state = self.place_within(pod, class, 1);
        self.topology.assumed_empty = Bits::default();
        state
    }

    /// Returns the spreads that count domains their pods cannot use, if planned nodes may add one to those that have nodes.
    fn growing_groups(&mut self) -> Bits<GroupId> {
        let classes = self.queue.classes.iter();
        let groups: BTreeSet<GroupId> = classes
            .flat_map(|class| class.counts_elsewhere.iter().copied())
            .collect();
        let mut growing = Bits::default();
        for group in groups {
            let axis = self.topology.groups[group].axis;
            let occupied =
                self.topology
                    .occupied_domains(group, &self.nodes.present, &self.planned);
            let all = self.topology.axes[axis].domains().len();
            for template in &self.solver.templates {
                let algebra = &mut self.rows.algebra;
                let offered = self.topology.domains_of(algebra, axis, template.set);
                let offered = offered.unwrap_or_else(|| Arc::new(Bits::full(all)));
                if offered.iter().any(|domain| !occupied.contains(domain)) {
                    growing.insert(group);
                }
            }
        }
        growing
    }

    /// Moves pods to the front that may be in a domain of these spreads that has no node yet.
    fn put_opening_first(&mut self, pods: &mut [PodIdx], growing: &Bits<GroupId>) {
        let mut opening: BTreeSet<ClassId> = BTreeSet::new();
        for group in growing.iter() {
            let axis = self.topology.groups[group].axis;
            let occupied =
                self.topology
                    .occupied_domains(group, &self.nodes.present, &self.planned);
            for (class, terms) in self.queue.classes.iter_enumerated() {
                let mut terms = terms.term_sets.iter();
                let opens = terms.any(|term| {
                    let admitted = self
                        .topology
                        .domains_of(&mut self.rows.algebra, axis, *term);
                    admitted.is_none_or(|all| all.iter().any(|domain| !occupied.contains(domain)))
                });
                opening.extend(opens.then_some(class));
            }
        }
        pods.sort_by_key(|pod| !opening.contains(&self.queue.pods[*pod].class));
    }

    /// Fixes the cheapest domain of each planned node where a spread of these pods counts the domains that have nodes.
    fn fix_counted_elsewhere(&mut self, pods: &[PodIdx]) {
        let of = |pod: &PodIdx| {
            let class = &self.queue.classes[self.queue.pods[*pod].class];
            let groups = class.counts_elsewhere.iter();
            groups.map(|group| self.topology.groups[*group].axis)
        };
        let axes: BTreeSet<AxisId> = pods.iter().flat_map(of).collect();
        for axis in axes {
            for planned in self.planned.nodes.indices() {
                self.fix_cheapest(planned, axis);
            }
        }
    }

    /// Places pods until a round places none. Returns those left, and those with a spread in `growing` that must come after the other
    /// pods; `later` pods are placed after them.
    fn place_in_rounds(
        &mut self,
        mut queue: Vec<PodIdx>,
        growing: &Bits<GroupId>,
        later: usize,
    ) -> (Vec<PodIdx>, Vec<PodIdx>) {
        let (mut last, mut refused_early) = (Vec::new(), BTreeSet::new());
        loop {
            let before = queue.len();
            let mut again = Vec::new();
            for (position, pod) in queue.iter().enumerate() {
                if position % 128 == 0 {
                    if let Some(progress) = &self.query.progress {
                        progress(before - position + again.len() + last.len() + later);
                    }
                    if self.query.is_cancelled() {
                        return (Vec::new(), Vec::new());
                    }
                }
                let class = self.queue.pods[*pod].class;
                let unplaceable = self.queue.classes[class].unplaceable
                    || self.queue.classes[class].problem.is_some();
                let mut elsewhere = self.queue.classes[class].counts_elsewhere.iter();
                let early = elsewhere.any(|group| growing.contains(*group));
                let state = if early {
                    match refused_early.contains(&class) {
                        true => PodState::Waiting,
                        false => self.place_early(*pod, class, growing),
                    }
                } else if unplaceable {
                    PodState::Refused
                } else {
                    self.place(*pod)
                };
                if early && !matches!(state, PodState::Placed(_)) {
                    refused_early.insert(class);
                    last.push(*pod);
                    continue;
                }
                self.queue.pods[*pod].state = state;
                if matches!(state, PodState::Placed(_)) {
                    self.note_early_in_part(class);
                }
                let unplaceable = self.queue.classes[class].unplaceable
                    || self.queue.classes[class].problem.is_some();
                if matches!(state, PodState::Refused | PodState::Deferred) && !unplaceable {
                    again.push(*pod);
                }
            }
            if again.is_empty() || again.len() == before {
                return (again, last);
            }
            queue = again;
        }
    }

    /// Places nominated pods on their node where they still fit, and removes them from the queue.
    fn place_nominated(&mut self, queue: &mut Vec<PodIdx>) {
        let (solver, nominated) = (self.solver, &self.query.nominated);
        if nominated.is_empty() {
            return;
        }
        let mut nodes: FxHashMap<&PodKey, NodeIdx> = FxHashMap::default();
        for (pod, target) in nominated {
            let state = solver.snapshot.node(target);
            let node = state.and_then(|state| solver.nodes.find(state.name()));
            nodes.extend(node.map(|node| (pod, node)));
        }
        queue.retain(|pod| {
            let node = nodes.get(&self.queue.pods[*pod].pod.key);
            !node.is_some_and(|node| self.place_on_nominated_node(*pod, *node))
        });
    }

    fn place_on_nominated_node(&mut self, pod: PodIdx, node: NodeIdx) -> bool {
        let class = self.queue.pods[pod].class;
        if self.queue.classes[class].problem.is_some() {
            return false;
        }
        let only = Bits::from_iter([node]);
        for index in 0..self.queue.classes[class].variants.len() {
            let mut variant = self.take_variant(class, index);
            let choices = self.choices(class, &variant, Among::Existing).ok();
            let target = choices.and_then(|choices| {
                self.try_nodes(pod, class, &mut variant, &choices, Some(&only))
            });
            self.queue.classes[class].variants[index] = Some(variant);
            if target.is_some() {
                self.queue.pods[pod].dropped = index / self.queue.classes[class].terms.len().max(1);
                return true;
            }
        }
        false
    }

    pub(crate) fn take_variant(&mut self, class: ClassId, index: usize) -> Box<Variant> {
        let known = self.queue.classes[class].variants[index].take();
        known.unwrap_or_else(|| self.form_variant(class, index))
    }

    fn place(&mut self, pod: PodIdx) -> PodState {
        let class = self.queue.pods[pod].class;
        if self.queue.classes[class].refused_at == self.epoch {
            return self.queue.classes[class].refused_as;
        }
        self.fix_counted_by(class);
        let steps = self.queue.classes[class].variants.len();
        match self.place_within(pod, class, steps) {
            placed @ PodState::Placed(_) => placed,
            refused => self.refuse(class, refused),
        }
    }

    /// Places a pod with as many steps of relaxation, the first of which drops nothing.
    fn place_within(&mut self, pod: PodIdx, class: ClassId, steps: usize) -> PodState {
        let alternatives = self.queue.classes[class].terms.len().max(1);
        let variants = self.queue.classes[class].variants.len();
        for index in 0..variants.min(alternatives.saturating_mul(steps)) {
            let (step, alternative) = (index / alternatives, index % alternatives);
            let last = alternative + 1 == alternatives;
            if self.strategy.is_upstreams() && step > 0 && !last {
                continue;
            }
            if alternative == 0
                && !last
                && let Some(target) = self.try_alternatives(pod, class, index..index + alternatives)
            {
                self.queue.pods[pod].dropped = step;
                return PodState::Placed(target);
            }
            let mut variant = self.take_variant(class, index);
            let state = self.try_variant(pod, class, &mut variant);
            self.queue.classes[class].variants[index] = Some(variant);
            match state {
                PodState::Placed(_) => {
                    self.queue.pods[pod].dropped = step;
                    return state;
                }
                PodState::Deferred => return PodState::Deferred,
                PodState::Refused | PodState::Waiting => {}
            }
        }
        PodState::Refused
    }

    /// Places the pod on an existing node that accepts one of these variants: room that is paid for comes before a new node for an
    /// earlier alternative of the node affinity.
    ///
    /// DIFFERS: upstream plans a node for the first alternative before it tries existing nodes with the second.
    fn try_alternatives(
        &mut self,
        pod: PodIdx,
        class: ClassId,
        mut variants: Range<usize>,
    ) -> Option<Target> {
        variants.find_map(|index| {
            let mut variant = self.take_variant(class, index);
            let choices = self.choices(class, &variant, Among::Existing).ok();
            let target = choices
                .and_then(|choices| self.try_nodes(pod, class, &mut variant, &choices, None));
            self.queue.classes[class].variants[index] = Some(variant);
            target
        })
    }

    /// Caches a refusal until the epoch changes.
    fn refuse(&mut self, class: ClassId, state: PodState) -> PodState {
        let releases_capacity = self.solver.releases_capacity;
        let class = &mut self.queue.classes[class];
        class.refused_at = self.epoch;
        class.refused_as = state;
        class.unplaceable = !class.retryable && !releases_capacity;
        if !class.resource_claims.is_empty() {
            // Devices may be released: no refusal is permanent.
            class
                .variants
                .iter_mut()
                .for_each(|variant| *variant = None);
        }
        state
    }

    fn try_variant(&mut self, pod: PodIdx, class: ClassId, variant: &mut Variant) -> PodState {
        let Ok(mut choices) = self.choices(class, variant, Among::Existing) else {
            return PodState::Refused;
        };
        if let Some(target) = self.try_nodes(pod, class, variant, &choices, None) {
            return PodState::Placed(target);
        }
        if self.queue.classes[class].terms.len() > 1 && self.planned.nodes.is_empty() {
            match self.choices(class, variant, Among::Planned) {
                Ok(planned) => choices = planned,
                Err(_) => return PodState::Refused,
            }
        }
        self.queue.pods[pod].requirements = variant.set;
        let may_open = choices.no_new_node.is_none() && self.no_usable_pool.is_none();
        let joined = if self.strategy.least_increase && may_open {
            self.try_cheapest(pod, class, variant, &choices)
        } else {
            self.try_planned_nodes(pod, class, variant, &choices)
        };
        if let Some(target) = joined {
            self.fix_undecided(&choices, target);
            return PodState::Placed(target);
        }
        if choices.no_new_node.is_some() || self.no_usable_pool.is_some() {
            return PodState::Refused;
        }
        for template in self.solver.templates.indices() {
            if variant.refused_templates.contains(template) {
                continue;
            }
            match self.try_template(template, class, variant, &choices) {
                Ok(fit) => {
                    let target = self.open(template, fit, pod, class);
                    self.fix_undecided(&choices, target);
                    return PodState::Placed(target);
                }
                Err(Refusal::Reserved) => return PodState::Deferred,
                Err(refusal) => {
                    if refusal.is_permanent() && !self.solver.releases_capacity {
                        variant.refused_templates.insert(template);
                    }
                }
            }
        }
        PodState::Refused
    }
}
