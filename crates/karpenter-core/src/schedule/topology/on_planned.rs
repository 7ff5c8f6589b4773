//! The pods of planned nodes, as topology groups count them.
//!
//! The domain of a planned node may be open, and with it the count of its pods: a spread or affinity group counts them once the node
//! has one domain, an anti-affinity group counts them in all domains that the node may be in. Until then they are remembered here.
//! [`Topology::on_narrowed`] takes each change of a planned node's requirements, and returns what else follows from it.

use smallvec::SmallVec;

use crate::requirements::Operator;
use crate::schedule::compile::algebra::{Algebra, KeyId, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::group_identity::GroupKind;
use crate::schedule::compile::ids::{AxisId, DomainId, GroupId, PlannedId, Target, TemplateId};
use crate::schedule::pods::class::Class;
use crate::schedule::topology::domains::Topology;
use crate::taints::untolerated;

/// A planned node as the groups see it.
#[derive(Clone)]
pub(super) struct OnPlanned {
    template: TemplateId,
    set: SetId,
    /// Pods of groups that count them for certain once the node has one domain: group and number.
    open: Vec<(GroupId, u32)>,
    /// Pods that a group does not count, because the node may still fail its node filter: group and number.
    unfiltered: Vec<(GroupId, u32)>,
}

/// What follows from narrower requirements of a planned node.
#[derive(Default)]
pub(crate) struct Effects {
    /// The domains that are left for its pods, where a group counts them: its requirements are to name no others.
    pub(crate) decided: SmallVec<[(AxisId, DomainId); 1]>,
    /// The groups whose node filter it passes from now on, and the number of pods they are to count.
    pub(crate) passing: Vec<(GroupId, u32)>,
    /// Counts changed, or will: pods that were refused may fit now.
    pub(crate) changed: bool,
}

impl OnPlanned {
    /// Returns the groups that do not count all its pods yet.
    fn uncounted(&self) -> impl Iterator<Item = (GroupId, u32)> {
        self.open.iter().chain(&self.unfiltered).copied()
    }

    fn has_uncounted(&self, group: GroupId) -> bool {
        self.uncounted().any(|(known, _)| known == group)
    }
}

impl Topology<'_> {
    /// Adds a new planned node to the domains it can be in.
    pub(crate) fn add_planned_node(
        &mut self,
        algebra: &mut Algebra,
        index: PlannedId,
        template: TemplateId,
    ) {
        let set = self.solver.templates[template].set;
        for axis in self.axes.indices() {
            if self.axes[axis].is_hostname {
                continue;
            }
            for domain in self.reach(algebra, axis, set).iter() {
                self.axes[axis].planned[domain].insert(index);
            }
        }
        self.planned.push(OnPlanned {
            template,
            set,
            open: Vec::new(),
            unfiltered: Vec::new(),
        });
    }

    /// Removes a planned node with narrower requirements from the domains it can no longer be in, and counts the pods whose domain is
    /// known by that.
    pub(crate) fn on_narrowed(
        &mut self,
        algebra: &mut Algebra,
        index: PlannedId,
        after: SetId,
    ) -> Effects {
        let mut effects = Effects::default();
        let before = std::mem::replace(&mut self.planned[index].set, after);
        if before == after {
            return effects;
        }
        for axis in self.axes.indices() {
            let key = self.axes[axis].key;
            if self.axes[axis].is_hostname || algebra.get(before, key) == algebra.get(after, key) {
                continue;
            }
            let old = self.reach(algebra, axis, before);
            let new = self.reach(algebra, axis, after);
            let gone = || old.iter().filter(|domain| !new.contains(*domain));
            for domain in gone() {
                self.axes[axis].planned[domain].remove(index);
            }
            let mut counted = false;
            self.planned[index].open.retain(|(group, number)| {
                let group = &mut self.groups[*group];
                if group.axis != axis {
                    return true;
                }
                counted = true;
                match (group.kind(), new.single()) {
                    (GroupKind::Spread | GroupKind::Affinity, None) => return true,
                    (GroupKind::Spread | GroupKind::Affinity, Some(domain)) => {
                        group.count_in(domain, *number);
                    }
                    (GroupKind::Anti | GroupKind::Inverse, _) => {
                        gone().for_each(|domain| group.uncount_in(domain, *number));
                    }
                }
                effects.changed = true;
                new.single().is_none()
            });
            let decided = new.single().filter(|_| counted);
            effects.decided.extend(decided.map(|domain| (axis, domain)));
        }
        if !self.planned[index].unfiltered.is_empty() {
            let unfiltered = std::mem::take(&mut self.planned[index].unfiltered).into_iter();
            (effects.passing, self.planned[index].unfiltered) =
                unfiltered.partition(|(group, _)| self.passes_filter(algebra, index, *group));
            effects.changed |= !effects.passing.is_empty();
        }
        effects
    }

    /// Counts a pod on a planned node that may be in the domains of `reach`, or only in one.
    pub(crate) fn count_on_planned(
        &mut self,
        group_id: GroupId,
        index: PlannedId,
        reach: &Bits<DomainId>,
        only: Option<DomainId>,
    ) {
        let group = &mut self.groups[group_id];
        if self.axes[group.axis].is_hostname {
            group.count_on(Target::Planned(index), 1);
        } else if let Some(domain) = only {
            group.count_in(domain, 1);
        } else {
            if group.kind().keeps_away() {
                reach.iter().for_each(|domain| group.count_in(domain, 1));
            }
            add_one(&mut self.planned[index].open, group_id);
        }
    }

    /// Remembers a pod that a group does not count as long as the planned node may fail its node filter.
    pub(crate) fn note_unfiltered(&mut self, group: GroupId, index: PlannedId) {
        if self.taints_pass(index, group) {
            add_one(&mut self.planned[index].unfiltered, group);
        }
    }

    /// Returns the number of pods on a planned node that a group does not count yet.
    pub(crate) fn uncounted(&self, index: PlannedId, group: GroupId) -> u32 {
        let uncounted = self.planned[index].uncounted();
        let of_group = uncounted.filter(|(known, _)| *known == group);
        of_group.map(|(_, number)| number).sum()
    }

    /// Reports whether some group does not count all pods of a planned node yet.
    pub(crate) fn has_uncounted(&self, index: PlannedId) -> bool {
        self.planned[index].uncounted().next().is_some()
    }

    /// Returns the number of pods on a planned node that a group counts once its domain is known.
    pub(crate) fn undecided_on(&self, index: PlannedId, group: GroupId) -> Option<u32> {
        let mut open = self.planned[index].open.iter();
        open.find(|(known, _)| *known == group)
            .map(|(_, number)| *number)
    }

    /// Returns the planned nodes with pods that a group counts once their domain is known.
    pub(crate) fn undecided(&self, group: GroupId) -> Vec<PlannedId> {
        let nodes = self.planned.indices();
        nodes
            .filter(|index| self.undecided_on(*index, group).is_some())
            .collect()
    }

    /// Reports whether a planned node passes the node filter of a group: of a required one, whatever is launched for it.
    pub(crate) fn passes_filter(
        &self,
        algebra: &mut Algebra,
        index: PlannedId,
        group: GroupId,
    ) -> bool {
        let set = self.planned[index].set;
        let required = self.required.contains(group);
        let mut meets = |term: &SetId| {
            algebra.strictly_compatible(set, *term)
                && (!required || always_meets(algebra, set, *term))
        };
        let terms = self.groups[group].filter_sets.as_ref();
        terms.is_none_or(|terms| terms.iter().any(&mut meets)) && self.taints_pass(index, group)
    }

    /// Reports whether the taints of a planned node, which never change, pass the node filter of a group.
    pub(super) fn taints_pass(&self, index: PlannedId, group: GroupId) -> bool {
        let taints = &self.solver.templates[self.planned[index].template].taints;
        let tolerations = self.groups[group].identity.filter.tolerations.as_ref();
        tolerations.is_none_or(|tolerations| untolerated(taints, tolerations).is_none())
    }

    /// Returns the labels that the node filter of a group reads.
    pub(crate) fn filter_labels(&self, algebra: &Algebra, group: GroupId) -> Vec<(KeyId, ReqId)> {
        let terms = self.groups[group].filter_sets.iter();
        let terms = terms.flat_map(|terms| terms.iter());
        terms
            .flat_map(|term| algebra.members(*term).iter().copied())
            .collect()
    }

    /// Reports whether a planned node has one domain for the label of a group.
    pub(crate) fn has_domain(&self, algebra: &Algebra, index: PlannedId, group: GroupId) -> bool {
        let key = self.axes[self.groups[group].axis].key;
        let req = algebra.get(self.planned[index].set, key);
        req.is_some_and(|req| algebra.requirement(req).single().is_some())
    }

    /// Notes what a pod of a class, placed on a planned node, demands of it before other pods are placed: see [`BindOrder`].
    ///
    /// [`BindOrder`]: crate::schedule::pods::class::BindOrder
    pub(crate) fn note_bind_order(&mut self, index: PlannedId, class: &Class) {
        for group in &class.links.bind_order.before {
            if self.taints_pass(index, *group) {
                self.due.entry(*group).or_default().insert(index);
            }
        }
    }

    /// Lists a planned node, once its pods are counted, for [`Self::note_chains`] and [`Self::unfiltered_nodes`].
    pub(crate) fn note_counted(&mut self, algebra: &Algebra, index: PlannedId) {
        if !self.planned[index].unfiltered.is_empty() {
            self.unfiltered.insert(index);
        }
        if self.chains.is_empty() {
            return;
        }
        let partly = self.planned[index].uncounted().any(|(open, _)| {
            let mut own = self.chains.get(&open).into_iter().flatten();
            own.any(|own| self.has_domain(algebra, index, *own))
        });
        if partly {
            self.partly_counted.push(index);
        }
    }

    /// Once a pod of a class is placed, notes the planned nodes whose pods the second spread of a chain counts and the first does not.
    /// kube-scheduler may have to bind these pods before the placed pod, and the placed pod before those of the first spread: then the
    /// latter must see them all. `seen` nodes were noted for the class before.
    pub(crate) fn note_chains(&mut self, algebra: &Algebra, class: &Class, seen: &mut usize) {
        let chains = &class.links.bind_order.chains;
        if chains.is_empty() {
            return;
        }
        for place in *seen..self.partly_counted.len() {
            let index = self.partly_counted[place];
            for (open, own) in chains {
                if self.planned[index].has_uncounted(*open) && self.has_domain(algebra, index, *own)
                {
                    self.due.entry(*open).or_default().insert(index);
                }
            }
        }
        *seen = self.partly_counted.len();
    }

    /// Returns the required spreads of a class if any planned node is noted for some class.
    pub(crate) fn spreads_to_settle(&self, class: &Class) -> Bits<GroupId> {
        if self.due.is_empty() && self.unfiltered.is_empty() {
            return Bits::default();
        }
        let hard = class.links.hard.iter().map(|owned| owned.group);
        hard.filter(|group| self.groups[*group].kind() == GroupKind::Spread)
            .collect()
    }

    /// Returns the planned nodes that must get one domain for a group now.
    pub(crate) fn take_due(&mut self, group: GroupId) -> impl Iterator<Item = PlannedId> + use<> {
        self.due.remove(&group).into_iter().flatten()
    }

    /// Returns the planned nodes with pods that some group does not count because of its node filter. Some may count them by now.
    pub(crate) fn unfiltered_nodes(&self) -> Vec<PlannedId> {
        self.unfiltered.iter().copied().collect()
    }

    /// Removes planned nodes from that list whose pods are counted.
    pub(crate) fn forget_filtered(&mut self) {
        let planned = &self.planned;
        self.unfiltered
            .retain(|index| !planned[*index].unfiltered.is_empty());
    }

    /// Returns those of `groups` that are required, have domains, and do not count pods of a planned node because of their filter.
    pub(crate) fn to_filter(&self, index: PlannedId, groups: &Bits<GroupId>) -> Vec<GroupId> {
        let unfiltered = self.planned[index].unfiltered.iter();
        unfiltered
            .map(|(group, _)| *group)
            .filter(|group| groups.contains(*group) && self.required.contains(*group))
            .filter(|group| !self.axes[self.groups[*group].axis].is_hostname)
            .collect()
    }
}

/// Reports whether a planned node that can meet a term does so whatever values the provider decides on.
fn always_meets(algebra: &mut Algebra, set: SetId, term: SetId) -> bool {
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

fn add_one(numbers: &mut Vec<(GroupId, u32)>, group: GroupId) {
    match numbers.iter_mut().find(|(known, _)| *known == group) {
        Some((_, number)) => *number += 1,
        None => numbers.push((group, 1)),
    }
}
