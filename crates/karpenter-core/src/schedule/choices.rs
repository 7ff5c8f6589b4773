//! What topology leaves of a pod's choices, before a machine is looked at.
//!
//! Each constraint of the pod, and each anti-affinity of others that selects it, says which domains are left; constraints of one
//! key are intersected. For hostname the domains are the machines, and the constraint is a rule on the bitsets its group keeps.

use smallvec::SmallVec;

use super::{
    bits::Bits,
    class::{GroupId, Variant},
    run::Run,
    topology::{GroupKind, Hosts},
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
        let mut valid = group.valid_domains(pod.as_deref(), own);
        let kind = group.kind();
        let starts = kind == GroupKind::Affinity && group.starts(pod.as_deref(), own);
        // DIFFERS: a pod with anti-affinity settles for one domain, so that the next one has the others.
        let single = starts || matches!(kind, GroupKind::Spread | GroupKind::Anti);
        if starts && self.narrow_to_company(group_id, &mut valid) {
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
