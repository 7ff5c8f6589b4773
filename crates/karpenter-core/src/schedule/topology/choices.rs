//! The domains and nodes that topology constraints leave for a pod, before a particular node is considered.
//!
//! Each constraint of the pod, and each anti-affinity term of other pods that selects it, yields the domains it admits;
//! constraints on one key are intersected. For hostname the domains are the nodes, and the constraint is a rule on the
//! bitsets of its group.

use smallvec::SmallVec;

use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{AxisId, ClassId, DomainId, GroupId};
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::planned_node::Refusal;
use crate::schedule::pods::class::{Owned, Variant};
use crate::schedule::topology::group::{DomainQuery, GroupKind};

/// The domains of an axis that all constraints admit, before a particular node is considered.
#[derive(Clone, Debug)]
pub(crate) struct Domains {
    pub(crate) axis: AxisId,
    pub(crate) allowed: Bits<DomainId>,
    pub(crate) fixed: Fixed,
    /// The group whose counts order the domains.
    pub(crate) order: GroupId,
}

/// Whether a node must be in exactly one of the domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fixed {
    /// The node may keep several.
    Open,
    /// One if the pod fits there; else the node keeps several, as upstream has it: one domain may have too few instance types for
    /// minValues.
    Preferred,
    Required,
}

/// The domains and nodes that topology constraints leave for a variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choices {
    pub(crate) domains: SmallVec<[Domains; 2]>,
    /// Hostname groups, each with the nodes it excludes (full, over the skew, populated) or the only ones it admits (populated).
    pub(crate) hostname_rules: SmallVec<[(GroupId, HostnameRule); 4]>,
    /// The hostname constraint that excludes new nodes, if there is one.
    pub(crate) no_new_node: Option<GroupId>,
    /// Affinity groups that the pod starts while pods of them are already on planned nodes with an open domain: those planned
    /// nodes get the domain of this pod.
    pub(crate) undecided_groups: SmallVec<[GroupId; 1]>,
}

/// Whether the choices are for existing nodes or for planned ones: a spread may count other domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    Existing,
    Planned,
}

impl Choices {
    fn exclude_new_node(&mut self, group: GroupId, excluded: bool) {
        if excluded {
            self.no_new_node.get_or_insert(group);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostnameRule {
    NotFull,
    NotOver,
    NotPopulated,
    OnlyPopulated,
}

impl SchedulingPass<'_> {
    /// Returns the choices that the topology constraints of a variant leave; the error names the group that leaves none.
    pub(crate) fn choices(
        &mut self,
        class: ClassId,
        variant: &Variant,
        among: Among,
    ) -> Result<Choices, Refusal> {
        let mut choices = Choices::default();
        // kube-scheduler lets a pod start its affinity group only if no pod anywhere matches all of its terms.
        let joins = variant.owned.iter().any(|owned| {
            let group = &self.topology.groups[owned.group];
            !owned.soft && group.kind() == GroupKind::Affinity && group.is_populated()
        });
        for owned in &variant.owned {
            self.choose(&mut choices, (class, among), variant, *owned, joins)?;
        }
        for index in 0..self.queue.classes[class].kept_away.len() {
            let kept_away = Owned {
                group: self.queue.classes[class].kept_away[index],
                own: false,
                soft: false,
            };
            self.choose(&mut choices, (class, among), variant, kept_away, false)?;
        }
        Ok(choices)
    }

    /// Reports whether a pod may start an affinity group although another of its groups has pods: pods of the group are on planned nodes
    /// whose domain is open and becomes that of the pod.
    fn starts_beside_others(&self, group: GroupId) -> bool {
        !self.strategy.is_upstreams() && !self.planned.undecided(group).is_empty()
    }

    fn choose(
        &mut self,
        choices: &mut Choices,
        (class, among): (ClassId, Among),
        variant: &Variant,
        owned: Owned,
        joins: bool,
    ) -> Result<(), Refusal> {
        let Owned {
            group: group_id,
            own,
            soft,
        } = owned;
        let group = &self.topology.groups[group_id];
        // Pods of the group may be on planned nodes whose domain is open: these get the domain of this pod.
        let starts = own
            && group.kind() == GroupKind::Affinity
            && !group.is_populated()
            && (soft || !joins || self.starts_beside_others(group_id));
        let axis = self.topology.groups[group_id].axis;
        if self.topology.axes[axis].is_hostname {
            let group = &self.topology.groups[group_id];
            let rule = match group.kind() {
                GroupKind::Spread if own => {
                    choices.exclude_new_node(group_id, group.identity.max_skew < 1);
                    HostnameRule::NotFull
                }
                GroupKind::Spread => HostnameRule::NotOver,
                GroupKind::Affinity if starts => return Ok(()),
                GroupKind::Affinity if !group.any => return Err(Refusal::NoDomain(group_id)),
                GroupKind::Affinity => {
                    choices.exclude_new_node(group_id, true);
                    HostnameRule::OnlyPopulated
                }
                GroupKind::Anti | GroupKind::Inverse => HostnameRule::NotPopulated,
            };
            choices.hostname_rules.push((group_id, rule));
            return Ok(());
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
            group_id,
            (&self.nodes.present, &self.planned),
            among,
        );
        let group = &self.topology.groups[group_id];
        let mut valid = group.valid_domains(&DomainQuery {
            reach: pod.as_deref(),
            counted: counted.as_ref(),
            own,
            along: 0,
            starts,
            assumes_empty: self.topology.assumed_empty.contains(group_id),
        });
        let kind = group.kind();
        // DIFFERS: a pod with required anti-affinity is fixed to one domain, so that the next pod has the others. A pod that only
        // prefers anti-affinity is not: a node for each such pod costs more than a preference is worth.
        let fixed = match kind {
            _ if starts => Fixed::Required,
            GroupKind::Spread => Fixed::Required,
            GroupKind::Anti if !soft && !self.strategy.is_upstreams() => Fixed::Preferred,
            GroupKind::Anti | GroupKind::Affinity | GroupKind::Inverse => Fixed::Open,
        };
        // A preference does not fix the domain of nodes with other pods: the extra price may be many times that of its pod.
        if starts && !soft && self.narrow_to_undecided(group_id, &mut valid) {
            choices.undecided_groups.push(group_id);
        }
        let allowed = match choices
            .domains
            .iter_mut()
            .find(|domains| domains.axis == axis)
        {
            Some(domains) => {
                domains.allowed.intersect(&valid);
                let first = fixed != Fixed::Open && domains.fixed == Fixed::Open;
                if first || kind == GroupKind::Spread {
                    domains.order = group_id;
                }
                domains.fixed = domains.fixed.max(fixed);
                &domains.allowed
            }
            None => {
                choices.domains.push(Domains {
                    axis,
                    allowed: valid,
                    fixed,
                    order: group_id,
                });
                &choices.domains[choices.domains.len() - 1].allowed
            }
        };
        if allowed.is_empty() {
            Err(Refusal::NoDomain(group_id))
        } else {
            Ok(())
        }
    }
}
