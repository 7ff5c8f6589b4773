//! The domains that bound a spread constraint, and the nodes that hostname constraints leave.

use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{DomainId, GroupId, NodeIdx, PlannedId};
use crate::schedule::place::planned_node::{PlannedNode, PlannedNodes};
use crate::schedule::pods::class::Class;
use crate::schedule::topology::choices::{Among, Choices, HostnameRule};
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::group::{Group, GroupKind, Targets};
use crate::taints::untolerated;

impl Topology<'_> {
    /// Returns the domains whose lowest count bounds a spread by another label than the hostname, as far as the node affinity of a
    /// class decides; `None` means all domains of the group.
    ///
    /// Of several alternatives, each counts the nodes that it admits, and the one that is tried (by its index) all domains that
    /// new nodes can be in. Those of the others count if they can be launched, as later pods may open them, but not for an existing
    /// node while none is planned: kube-scheduler binds the pod there before a node is launched. Later a place there may rely on pods of
    /// planned nodes, and is of use only once these are launched, with the domains that they open.
    ///
    /// With node affinity policy Ignore they are those that an alternative admits, and those of existing or planned nodes.
    ///
    /// DIFFERS: upstream takes the domains of the alternative that is being tried.
    pub(crate) fn counted_domains(
        &mut self,
        algebra: &mut Algebra,
        (class, alternative): (&Class, usize),
        group: GroupId,
        nodes: (&Bits<NodeIdx>, &PlannedNodes),
        among: Among,
    ) -> Option<Bits<DomainId>> {
        let Group {
            axis,
            identity,
            terms,
            ..
        } = &self.groups[group];
        if identity.kind != GroupKind::Spread {
            return None;
        }
        let (present, planned) = nodes;
        if identity.filter.honors_affinity {
            let tried = terms.get(alternative).filter(|_| terms.len() > 1)?;
            let mut counted = self.occupied_domains(group, present, planned);
            counted.unite(&tried.offered);
            if among == Among::Planned || !planned.nodes.is_empty() {
                terms
                    .iter()
                    .for_each(|term| counted.unite(&term.launchable));
            }
            return Some(counted);
        }
        let axis = *axis;
        let key = self.axes[axis].key;
        let mut counted = Bits::default();
        for term in 0..class.term_sets.len() {
            let req = algebra.get(class.term_sets[term], key)?;
            counted.unite(&self.admitted(algebra, axis, req));
        }
        counted.unite(&self.occupied_domains(group, present, planned));
        Some(counted)
    }

    /// Returns the domains of the nodes that a group counts: existing nodes, deleting ones with counted pods, and planned nodes with a
    /// fixed domain.
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
            if self.groups[group].in_domain(domain) > 0
                || Bits::meet(&[&axis.labels.nodes[domain], present, passing])
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
