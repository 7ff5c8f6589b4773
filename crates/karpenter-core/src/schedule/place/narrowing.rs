//! The effects of a narrower planned node: the domains it can no longer be in, and the pods that topology groups can count once
//! its domain is known.

use std::sync::Arc;

use crate::requirements::{Operator, Requirement};
use crate::schedule::compile::algebra::{KeyId, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{AxisId, ClassId, DomainId, GroupId, PlannedId};
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::affinity_seed::Narrowed;
use crate::schedule::place::planned_node::Refusal;
use crate::schedule::topology::choices::Choices;
use crate::schedule::topology::group::{GroupKind, Target};

impl SchedulingPass<'_> {
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
            let count = self.topology.axes[axis].domains().len();
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
    pub(crate) fn fix_labels(&mut self, index: PlannedId, class: ClassId) {
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
            let names = self.topology.axes[axis].domains();
            let choices = reach
                .iter()
                .map(|domain| (load(domain), &names[domain], domain));
            if let Some((_, _, domain)) = choices.min() {
                self.fix_domain(index, axis, domain);
            }
        }
    }

    /// Notes where a required spread counts the pod by a domain that may be open, if a spread or affinity of its own may require that
    /// kube-scheduler binds it before the pods of the other: those must see it. Other pods can be bound last, so that their domain may
    /// stay open.
    pub(crate) fn note_early(&mut self, index: PlannedId, class: ClassId) {
        for group in &self.queue.classes[class].bound_early {
            if self.topology.taints_pass(&self.planned[index], *group) {
                let noted = self.planned.early.entry(*group).or_default();
                noted.insert(index);
            }
        }
    }

    /// Before a pod of a class is placed, fixes the cheapest domain of the planned nodes that were noted for its spreads. Not earlier:
    /// which domain is the cheapest, and which has room, is known better once the planned nodes have more pods. The launch would choose
    /// the cheapest, too.
    ///
    /// DIFFERS: upstream leaves the domain open, and does not count the pods.
    fn fix_early(&mut self, groups: &Bits<GroupId>) {
        for group in groups.iter() {
            let axis = self.topology.groups[group].axis;
            let noted = self.planned.early.remove(&group);
            for index in noted.into_iter().flatten() {
                self.fix_cheapest(index, axis);
            }
        }
    }

    /// Reports whether a planned node has one domain for the label of a group.
    fn has_domain(&self, index: PlannedId, group: GroupId) -> bool {
        let axis = self.topology.groups[group].axis;
        let key = self.topology.axes[axis].key;
        let req = self.rows.algebra.get(self.planned[index].set, key);
        req.is_some_and(|req| self.rows.algebra.requirement(req).single().is_some())
    }

    /// Notes a planned node that [`Self::note_early_in_part`] looks at.
    pub(crate) fn note_counted_in_part(&mut self, index: PlannedId) {
        if self.topology.together.is_empty() {
            return;
        }
        let depends = |open: GroupId| {
            let others = self.topology.together.get(&open).into_iter().flatten();
            others.copied().any(|other| self.has_domain(index, other))
        };
        if self.planned[index].not_counted().any(depends) {
            self.planned.counted_in_part.push(index);
        }
    }

    /// Once a pod of a class is placed, notes the planned nodes whose pods one spread of the class counts, and another required spread,
    /// which belongs to the class or counts it, does not count yet. kube-scheduler may have to bind these pods before the placed pod, and
    /// the placed pod before those of the other spread: then the latter must see them all.
    pub(crate) fn note_early_in_part(&mut self, class: ClassId) {
        let relies_on = &self.queue.classes[class].relies_on;
        if relies_on.is_empty() {
            return;
        }
        let noted = &self.planned.counted_in_part;
        let (seen, all) = (self.queue.classes[class].seen_in_part, noted.len());
        let mut early: Vec<(GroupId, PlannedId)> = Vec::new();
        for index in &noted[seen..] {
            let held = &self.planned[*index];
            let open = relies_on.iter().filter(|(open, own)| {
                held.not_counted().any(|group| group == *open) && self.has_domain(*index, *own)
            });
            early.extend(open.map(|(open, _)| (*open, *index)));
        }
        self.queue.classes[class].seen_in_part = all;
        for (group, index) in early {
            self.planned.early.entry(group).or_default().insert(index);
        }
    }

    /// Fixes the cheapest domain of a planned node.
    pub(crate) fn fix_cheapest(&mut self, index: PlannedId, axis: AxisId) {
        let set = self.planned[index].set;
        let req = self.rows.algebra.get(set, self.topology.axes[axis].key);
        if let Some(req) = req.map(|req| self.rows.algebra.requirement(req))
            && (req.single().is_some() || req.min_values().is_some())
        {
            return;
        }
        let reach = self
            .topology
            .domains_of(&mut self.rows.algebra, axis, set)
            .unwrap_or_else(|| Arc::new(Bits::full(self.topology.axes[axis].domains().len())));
        let ways = reach.iter();
        let ways: Vec<Narrowed> = ways
            .filter_map(|domain| self.fixed_in_domain(index, axis, domain))
            .collect();
        self.fix_to_cheapest(index, ways);
    }

    /// Narrows a planned node in the way with the lowest price; of equal ones the first.
    fn fix_to_cheapest(&mut self, index: PlannedId, ways: impl IntoIterator<Item = Narrowed>) {
        let mut cheapest: Option<(f64, Narrowed)> = None;
        for fixed in ways {
            let held = &self.planned[index];
            let price = self.rows.lowest_price(
                held.template,
                fixed.set,
                &held.used,
                held.allowed.as_deref(),
            );
            if cheapest.as_ref().is_none_or(|(least, _)| price < *least) {
                cheapest = Some((price, fixed));
            }
        }
        if let Some((_, fixed)) = cheapest {
            self.fix(index, fixed);
        }
    }

    /// Fixes labels that the node filter of a spread constraint of the pod reads and the NodePool decides: otherwise the launch would
    /// decide whether the pod is counted.
    fn fix_filter_labels(&mut self, index: PlannedId, class: ClassId) {
        for place in 0..self.queue.classes[class].counted.len() {
            let group = self.queue.classes[class].counted[place];
            for (key, wanted) in self.filter_labels(group) {
                if !self.rows.algebra.is_known(key) {
                    self.fix_custom_label(index, key, wanted);
                }
            }
        }
    }

    /// Returns the labels that the node filter of a group reads.
    fn filter_labels(&self, group: GroupId) -> Vec<(KeyId, ReqId)> {
        let terms = self.topology.groups[group].filter_sets.iter();
        let terms = terms.flat_map(|terms| terms.iter());
        terms
            .flat_map(|term| self.rows.algebra.members(*term).iter().copied())
            .collect()
    }

    /// Before a pod of a class is placed, fixes what its required spreads read of planned nodes: the domain of pods that may have to be
    /// bound before it, and whether planned nodes pass their node filters. Not as soon as the planned nodes have pods: what is cheaper
    /// is known better once they have more. A pod that is placed after all pods with the spread can be bound after them, and a pod that
    /// cannot be placed at all decides nothing.
    pub(crate) fn fix_counted_by(&mut self, class: ClassId) {
        if self.planned.early.is_empty() && self.planned.unfiltered.is_empty() {
            return;
        }
        let hard = self.queue.classes[class].hard.iter();
        let groups: Bits<GroupId> = hard
            .map(|owned| owned.group)
            .filter(|group| self.topology.groups[*group].kind() == GroupKind::Spread)
            .collect();
        if groups.is_empty() || !self.has_a_node(class) {
            return;
        }
        self.fix_early(&groups);
        let noted = std::mem::take(&mut self.planned.unfiltered);
        for index in &noted {
            self.fix_filtered(*index, &groups);
        }
        let left = noted.into_iter();
        let left = left.filter(|index| !self.planned[*index].uncounted.is_empty());
        self.planned.unfiltered = left.collect();
    }

    /// Reports whether some node has room for a pod of the class, topology and the other pods apart.
    fn has_a_node(&mut self, class: ClassId) -> bool {
        if let Some(known) = self.queue.classes[class].has_a_node {
            return known;
        }
        let count = self.queue.classes[class].variants.len();
        let alternatives = self.queue.classes[class].terms.len().max(1);
        let last_step = count.saturating_sub(alternatives)..count;
        // Which devices are left depends on the other pods.
        let mut found = !self.queue.classes[class].resource_claims.is_empty();
        for index in last_step {
            let variant = self.take_variant(class, index);
            found |= variant.open_nodes.iter().next().is_some();
            for template in self.solver.templates.indices() {
                found = found
                    || match self.try_template(template, class, &variant, &Choices::default()) {
                        Ok(_) | Err(Refusal::NodeLimit | Refusal::Limits) => true,
                        Err(refusal) => !refusal.is_permanent(),
                    };
            }
            self.queue.classes[class].variants[index] = Some(variant);
        }
        self.queue.classes[class].has_a_node = Some(found);
        found
    }

    /// Fixes whether a planned node passes the node filters of these spreads, if they are required and count its pods in the domain it
    /// has. Where that is open, its pods are not counted yet and can be bound last.
    ///
    /// DIFFERS: upstream leaves labels open that the provider decides, and counts the pods.
    fn fix_filtered(&mut self, index: PlannedId, groups: &Bits<GroupId>) {
        let uncounted = self.planned[index].uncounted.iter();
        let groups: Vec<GroupId> = uncounted
            .map(|(group, _)| *group)
            .filter(|group| groups.contains(*group))
            .collect();
        for group in groups {
            let axis = self.topology.groups[group].axis;
            let axis_key = self.topology.axes[axis].key;
            let required = self.topology.required.contains(group);
            let domain = self.rows.algebra.get(self.planned[index].set, axis_key);
            let domain = domain.and_then(|req| self.rows.algebra.requirement(req).single());
            if !required || self.topology.axes[axis].is_hostname || domain.is_none() {
                continue;
            }
            for (key, wanted) in self.filter_labels(group) {
                let mut uncounted = self.planned[index].uncounted.iter();
                // One alternative of the node affinity is enough.
                if !uncounted.any(|(other, _)| *other == group) {
                    break;
                }
                if self.rows.algebra.is_known(key) {
                    self.fix_provider_label(index, key, wanted);
                }
            }
        }
    }

    /// Fixes a value of a label that the NodePool decides, if the filter does not accept all values.
    fn fix_custom_label(&mut self, index: PlannedId, key: KeyId, wanted: ReqId) {
        let wanted = self.rows.algebra.requirement(wanted);
        let bounded = wanted.gte().is_some() || wanted.lte().is_some();
        if wanted.operator() == Operator::Exists && !bounded {
            return;
        }
        let set = self.planned[index].set;
        let Some(req) = self.rows.algebra.get(set, key) else {
            return;
        };
        let requirement = self.rows.algebra.requirement(req);
        if requirement.single().is_some() || requirement.min_values().is_some() {
            return;
        }
        let Some(value) = requirement.any() else {
            return;
        };
        let drawn = Requirement::equal(requirement.key(), &value);
        let drawn = self.rows.algebra.req(&drawn, || false);
        let (template, witness) = (self.planned[index].template, self.planned[index].witness);
        if let Some(fixed) = self.rows.algebra.narrow(set, drawn)
            && self.rows.mask(template, fixed).rows.contains(witness)
        {
            self.planned[index].set = fixed;
            self.narrowed(index, set, fixed);
        }
    }

    /// Fixes whether a label that the provider decides passes the filter: the cheaper, which the launch would choose, too.
    fn fix_provider_label(&mut self, index: PlannedId, key: KeyId, wanted: ReqId) {
        let set = self.planned[index].set;
        let req = self.rows.algebra.get(set, key);
        if let Some(req) = req.map(|req| self.rows.algebra.requirement(req))
            && (req.single().is_some() || req.min_values().is_some())
        {
            return;
        }
        let passing = self.rows.algebra.requirement(wanted);
        let opposite = match passing.operator() {
            Operator::In => Operator::NotIn,
            Operator::NotIn => Operator::In,
            _ => return,
        };
        let values = passing.values();
        let failing = Requirement::new(passing.key(), opposite, values.collect::<Vec<_>>());
        let failing = self.rows.algebra.req(&failing, || true);
        let ways = [wanted, failing].map(|req| self.fixed_by(index, req));
        self.fix_to_cheapest(index, ways.into_iter().flatten());
    }

    /// Fixes the domain of a planned node, if it can be there with its pods and the reservations it relies on.
    fn fix_domain(&mut self, index: PlannedId, axis: AxisId, domain: DomainId) {
        let set = self.planned[index].set;
        let req = self.rows.algebra.get(set, self.topology.axes[axis].key);
        if let Some(req) = req.map(|req| self.rows.algebra.requirement(req))
            && (req.single().is_some() || req.min_values().is_some())
        {
            return;
        }
        if let Some(fixed) = self.fixed_in_domain(index, axis, domain) {
            self.fix(index, fixed);
        }
    }

    pub(crate) fn record_on_planned_node(&mut self, index: PlannedId, class: ClassId) {
        let mut counted = false;
        for place in 0..self.queue.classes[class].counted.len() {
            let group = self.queue.classes[class].counted[place];
            if self.passes_filter(index, group) {
                self.count_on_planned_node(group, index);
                counted = true;
            } else if self.topology.taints_pass(&self.planned[index], group) {
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

    /// Reports whether a planned node passes the node filter of a group: of a required one, whatever is launched for it.
    fn passes_filter(&mut self, index: PlannedId, group: GroupId) -> bool {
        let set = self.planned[index].set;
        let terms = self.topology.groups[group].filter_sets.clone();
        let required = self.topology.required.contains(group);
        let meets = |term: &SetId| {
            self.rows.algebra.strictly_compatible(set, *term)
                && (!required || self.always_meets(set, *term))
        };
        terms.is_none_or(|terms| terms.iter().any(meets))
            && self.topology.taints_pass(&self.planned[index], group)
    }

    /// Reports whether a planned node that can meet a term does so whatever values the provider decides on.
    fn always_meets(&mut self, set: SetId, term: SetId) -> bool {
        let algebra = &mut self.rows.algebra;
        let wanted = algebra.members(term).to_vec();
        wanted.into_iter().all(|(key, wanted)| {
            let exists = algebra.requirement(wanted).operator() == Operator::Exists;
            exists
                || !algebra.is_known(key)
                || algebra
                    .get(set, key)
                    .is_some_and(|own| algebra.meet(own, wanted) == own)
        })
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
        let count = self.topology.axes[axis].domains().len();
        let reach = self
            .topology
            .domains_of(&mut self.rows.algebra, axis, set)
            .unwrap_or_else(|| Arc::new(Bits::full(count)));
        let keeps_away = matches!(
            self.topology.groups[group].kind(),
            GroupKind::Anti | GroupKind::Inverse
        );
        // Upstream keeps the pods of these groups out of all domains that the requirements leave, even if no other can be launched.
        let upstreams = keeps_away && self.strategy.is_upstreams();
        let only = match reach.single() {
            None if !upstreams => self.only_domain(index, axis, &reach),
            single => single,
        };
        if let Some(domain) = only {
            self.fix_domain(index, axis, domain);
            self.topology.groups[group].count_in(domain, 1);
            return;
        }
        if keeps_away {
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
