//! The domains that bound a spread constraint, and the nodes that hostname constraints leave.

use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{DomainId, GroupId, NodeIdx, PlannedId};
use crate::schedule::place::planned_node::{PlannedNode, PlannedNodes};
use crate::schedule::pods::class::Class;
use crate::schedule::topology::choices::{Choices, HostnameRule};
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::group::{GroupKind, Targets};
use crate::taints::untolerated;

impl Topology<'_> {
    /// Returns the domains whose lowest count bounds a spread by another label than the hostname, as far as the node affinity of a
    /// class decides: those that one of its alternatives admits; with node affinity policy Ignore also those of existing or planned
    /// nodes. `None` means all domains of the group.
    ///
    /// DIFFERS: upstream takes the domains of the alternative that is being tried.
    pub(crate) fn counted_domains(
        &mut self,
        algebra: &mut Algebra,
        class: &Class,
        group: GroupId,
        present: &Bits<NodeIdx>,
        planned: &PlannedNodes,
    ) -> Option<Bits<DomainId>> {
        if self.groups[group].kind() != GroupKind::Spread {
            return None;
        }
        let axis = self.groups[group].axis;
        let key = self.axes[axis].key;
        let mut counted = Bits::default();
        for term in 0..class.term_sets.len() {
            let req = algebra.get(class.term_sets[term], key)?;
            counted.unite(&self.admitted(algebra, axis, req));
        }
        if !self.groups[group].identity.filter.honors_affinity {
            counted.unite(&self.occupied_domains(group, present, planned));
        }
        Some(counted)
    }

    /// Returns the domains of the nodes that a group counts: existing nodes, and planned nodes with a fixed domain.
    pub(crate) fn occupied_domains(
        &self,
        group: GroupId,
        present: &Bits<NodeIdx>,
        planned: &PlannedNodes,
    ) -> Bits<DomainId> {
        let axis = &self.axes[self.groups[group].axis];
        let passing = self.groups[group].passing().map_or(present, |nodes| nodes);
        let mut occupied = Bits::default();
        for domain in axis.domains().indices() {
            let elsewhere = |node: PlannedId| {
                let mut others = axis.planned.iter_enumerated();
                others.any(|(other, planned)| other != domain && planned.contains(node))
            };
            let mut there = axis.planned[domain].iter();
            if Bits::meet(&[&axis.labels.nodes[domain], present, passing])
                || there.any(|node| !elsewhere(node) && self.taints_pass(&planned[node], group))
            {
                occupied.insert(domain);
            }
        }
        occupied
    }

    /// Returns the nodes that hostname constraints admit, 64 at a time.
    pub(crate) fn target_word<I>(
        &self,
        choices: &Choices,
        index: usize,
        of: impl Fn(&Targets) -> &Bits<I>,
    ) -> u64 {
        choices
            .hostname_rules
            .iter()
            .fold(u64::MAX, |word, (group, rule)| {
                let group = &self.groups[*group];
                word & match rule {
                    HostnameRule::NotFull => !of(&group.full).word(index),
                    HostnameRule::NotOver => !of(&group.over).word(index),
                    HostnameRule::NotPopulated => !of(&group.populated).word(index),
                    HostnameRule::OnlyPopulated => of(&group.populated).word(index),
                }
            })
    }

    /// Reports whether a planned node's taints, which never change, pass the node filter of a group.
    pub(crate) fn taints_pass(&self, planned: &PlannedNode, group: GroupId) -> bool {
        let taints = &self.solver.templates[planned.template].taints;
        let filter = &self.groups[group].identity.filter;
        let tolerations = filter.tolerations.as_ref();
        tolerations.is_none_or(|tolerations| untolerated(taints, tolerations).is_none())
    }
}
