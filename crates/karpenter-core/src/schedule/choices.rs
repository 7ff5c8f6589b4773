//! What topology leaves of a pod's choices, before a machine is looked at.
//!
//! Each constraint of the pod, and each anti-affinity of others that selects it, says which domains are left; constraints of one
//! key are intersected. For hostname the domains are the machines, and the constraint is a rule on the bitsets its group keeps.

use smallvec::SmallVec;

use super::{
    bits::Bits,
    class::{GroupId, Owned, Variant},
    run::Run,
    topology::{Asker, GroupKind, Hosts},
};

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
    pub(super) no_new_machine: bool,
    /// Affinity groups that the pod starts although pods of them are planned already, on machines whose domain is open: those
    /// go where it goes.
    pub(super) company: SmallVec<[GroupId; 1]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostRule {
    NotFull,
    NotOver,
    NotPopulated,
    OnlyPopulated,
}

impl Run<'_> {
    /// What the topology constraints of a variant leave; the group that leaves nothing, if one does.
    pub(super) fn choices(&mut self, class: usize, variant: &Variant) -> Result<Choices, GroupId> {
        let mut choices = Choices::default();
        // kube-scheduler lets a pod start its affinity group only if no pod anywhere matches all of its terms.
        let joins = variant.owned.iter().any(|owned| {
            let group = &self.groups[owned.group];
            !owned.soft && group.kind() == GroupKind::Affinity && group.is_populated()
        });
        for owned in &variant.owned {
            self.choose(&mut choices, class, variant, *owned, joins)?;
        }
        for index in 0..self.classes[class].kept_away.len() {
            let kept_away = Owned {
                group: self.classes[class].kept_away[index],
                own: false,
                soft: false,
            };
            self.choose(&mut choices, class, variant, kept_away, false)?;
        }
        Ok(choices)
    }

    fn choose(
        &mut self,
        choices: &mut Choices,
        class: usize,
        variant: &Variant,
        owned: Owned,
        joins: bool,
    ) -> Result<(), GroupId> {
        let Owned {
            group: group_id,
            own,
            soft,
        } = owned;
        let group = &self.groups[group_id];
        // Of those it would join, some may be on planned nodes whose domain is open: they go where it goes.
        let starts = own
            && group.kind() == GroupKind::Affinity
            && !group.is_populated()
            && (soft || !joins || !self.undecided(group_id).is_empty());
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
                GroupKind::Affinity if starts => return Ok(()),
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
        let counted = self.counted_domains(class, group_id);
        let group = &self.groups[group_id];
        let mut valid = group.valid_domains(&Asker {
            reach: pod.as_deref(),
            counted: counted.as_ref(),
            own,
            along: 0,
            starts,
        });
        let kind = group.kind();
        // DIFFERS: a pod with required anti-affinity settles for one domain, so that the next one has the others. One that only
        // prefers to be apart does not: a node for each of them is more than a preference is worth.
        let single = starts || kind == GroupKind::Spread || (kind == GroupKind::Anti && !soft);
        // A preference does not decide where nodes of others are: what it makes dearer may be many times its pod.
        if starts && !soft && self.narrow_to_company(group_id, &mut valid) {
            choices.company.push(group_id);
        }
        let allowed = match choices
            .domains
            .iter_mut()
            .find(|domains| domains.axis == axis)
        {
            Some(domains) => {
                domains.allowed.intersect(&valid);
                if single && (!domains.single || kind == GroupKind::Spread) {
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

    /// The domains whose least load bounds a spread, as far as a class's node affinity decides: those that one of its alternatives
    /// admits; and with node affinity policy Ignore those of nodes that are there or planned. `None` is all that there are for
    /// the group.
    ///
    /// DIFFERS: upstream takes those of the alternative that is being tried.
    pub(super) fn counted_domains(&mut self, class: usize, group: GroupId) -> Option<Bits> {
        let axis = self.groups[group].axis;
        if self.groups[group].kind() != GroupKind::Spread || self.axes[axis].is_hostname {
            return None;
        }
        let key = self.axes[axis].key;
        let mut counted = Bits::default();
        for term in 0..self.classes[class].term_sets.len() {
            let req = self.algebra.get(self.classes[class].term_sets[term], key)?;
            counted.unite(&self.admitted(axis, req));
        }
        if self.groups[group].identity.filter.terms.is_none() {
            counted.unite(&self.occupied_domains(group));
        }
        Some(counted)
    }

    /// The domains that nodes are in that a group does not leave out: those that are there, and planned ones that are settled.
    fn occupied_domains(&self, group: GroupId) -> Bits {
        let axis = &self.axes[self.groups[group].axis];
        let passing = self.groups[group].machines.as_ref();
        let mut occupied = Bits::default();
        for domain in 0..axis.domains.len() {
            let mut machines = axis.machines[domain].clone();
            machines.intersect(&self.present);
            if let Some(passing) = passing {
                machines.intersect(passing);
            }
            let elsewhere = |claim: usize| {
                let mut others = axis.claims.iter().enumerate();
                others.any(|(other, claims)| other != domain && claims.contains(claim))
            };
            let mut claims = axis.claims[domain].iter();
            if !machines.is_empty()
                || claims.any(|claim| !elsewhere(claim) && self.taints_pass(claim, group))
            {
                occupied.insert(domain);
            }
        }
        occupied
    }

    /// The hosts that hostname constraints leave, 64 at a time.
    pub(super) fn host_word(
        &self,
        choices: &Choices,
        index: usize,
        of: impl Fn(&Hosts) -> &Bits,
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
}
