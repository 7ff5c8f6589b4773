//! The domains that bound a spread constraint, and the nodes that hostname constraints leave.

use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::group_identity::GroupKind;
use crate::schedule::compile::ids::{DomainId, GroupId, PlannedId};
use crate::schedule::topology::choices::{Choices, HostnameRule};
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::group::{Among, DomainQuery, Group, Targets};

impl Topology<'_> {
    /// Returns the domains of a group that a pod may be placed in, before a particular node is considered.
    pub(crate) fn valid_domains(
        &mut self,
        algebra: &mut Algebra,
        group: GroupId,
        query: &DomainQuery<'_>,
    ) -> Bits<DomainId> {
        let axis = self.groups[group].axis;
        let own = algebra.get(
            query.class.term_sets[query.alternative],
            self.axes[axis].key,
        );
        let reach = own.map(|req| self.admitted(algebra, axis, req));
        let counted = self.counted_domains(algebra, group, query);
        let assumes_empty = self.assumed_empty.contains(group);
        let group = &self.groups[group];
        group.valid_domains(query, reach.as_deref(), counted.as_ref(), assumes_empty)
    }

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
    fn counted_domains(
        &mut self,
        algebra: &mut Algebra,
        group: GroupId,
        query: &DomainQuery<'_>,
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
        if identity.filter.honors_affinity {
            let tried = terms.get(query.alternative).filter(|_| terms.len() > 1)?;
            let mut counted = self.occupied_domains(group);
            counted.unite(&tried.offered);
            if query.among == Among::Planned || !self.planned.is_empty() {
                terms
                    .iter()
                    .for_each(|term| counted.unite(&term.launchable));
            }
            return Some(counted);
        }
        let axis = *axis;
        let key = self.axes[axis].key;
        let mut counted = Bits::default();
        for term in &query.class.term_sets {
            let req = algebra.get(*term, key)?;
            counted.unite(&self.admitted(algebra, axis, req));
        }
        counted.unite(&self.occupied_domains(group));
        Some(counted)
    }

    /// Returns the domains of the nodes that a group counts: existing nodes, deleting ones with counted pods, and planned nodes with a
    /// fixed domain.
    pub(crate) fn occupied_domains(&self, group: GroupId) -> Bits<DomainId> {
        let axis = &self.axes[self.groups[group].axis];
        let passing = self.groups[group].passing().unwrap_or(&self.present);
        let is_occupied = |domain: &DomainId| {
            let elsewhere = |node: PlannedId| {
                let mut others = axis.planned.iter_enumerated();
                others.any(|(other, planned)| other != *domain && planned.contains(node))
            };
            let mut there = axis.planned[*domain].iter();
            self.groups[group].in_domain(*domain) > 0
                || Bits::meet(&[&axis.labels.nodes[*domain], &self.present, passing])
                || there.any(|node| !elsewhere(node) && self.taints_pass(node, group))
        };
        axis.domains().indices().filter(is_occupied).collect()
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
}
