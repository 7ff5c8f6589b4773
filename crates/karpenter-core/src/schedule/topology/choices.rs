//! The domains and nodes that topology constraints leave for a pod, before a particular node is considered.
//!
//! Each constraint of the pod, and each anti-affinity term of other pods that selects it, yields the domains it admits;
//! constraints on one key are intersected. For hostname the domains are the nodes, and the constraint is a rule on the
//! bitsets of its group.

use smallvec::SmallVec;

use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::group_identity::GroupKind;
use crate::schedule::compile::ids::{AxisId, DomainId, GroupId};
use crate::schedule::pods::class::Owned;
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::group::DomainQuery;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostnameRule {
    NotFull,
    NotOver,
    NotPopulated,
    OnlyPopulated,
}

impl Topology<'_> {
    /// Returns the choices that these constraints of a pod leave, and those of other pods that select it; the error is the group that
    /// leaves none.
    pub(crate) fn choices(
        &mut self,
        algebra: &mut Algebra,
        query: &DomainQuery<'_>,
        all: &[Owned],
    ) -> Result<Choices, GroupId> {
        let mut choices = Choices::default();
        // kube-scheduler lets a pod start its affinity group only if no pod anywhere matches all of its terms.
        let joins = all.iter().any(|owned| {
            let group = &self.groups[owned.group];
            !owned.soft && group.kind() == GroupKind::Affinity && group.is_populated()
        });
        for owned in all {
            self.choose(&mut choices, algebra, query, *owned, joins)?;
        }
        for group in &query.class.links.kept_away {
            let kept_away = Owned {
                group: *group,
                own: false,
                soft: false,
            };
            self.choose(&mut choices, algebra, query, kept_away, false)?;
        }
        Ok(choices)
    }

    /// Adds the choices that one constraint leaves; `joins` if pods match a required affinity term.
    fn choose(
        &mut self,
        choices: &mut Choices,
        algebra: &mut Algebra,
        query: &DomainQuery<'_>,
        owned: Owned,
        joins: bool,
    ) -> Result<(), GroupId> {
        let Owned {
            group: id,
            own,
            soft,
        } = owned;
        let group = &self.groups[id];
        let (kind, axis) = (group.kind(), group.axis);
        // A pod may start its group although another of its groups has pods, if pods of the group are on planned nodes whose domain is
        // open: they get the domain of the pod.
        let beside_others = || !self.upstreams && !self.undecided(id).is_empty();
        let starts = own
            && kind == GroupKind::Affinity
            && !group.is_populated()
            && (soft || !joins || beside_others());
        if self.axes[axis].is_hostname {
            let rule = match kind {
                GroupKind::Spread if own => {
                    if group.identity.max_skew < 1 {
                        choices.no_new_node.get_or_insert(id);
                    }
                    HostnameRule::NotFull
                }
                GroupKind::Spread => HostnameRule::NotOver,
                GroupKind::Affinity if starts => return Ok(()),
                GroupKind::Affinity if !group.any => return Err(id),
                GroupKind::Affinity => {
                    choices.no_new_node.get_or_insert(id);
                    HostnameRule::OnlyPopulated
                }
                GroupKind::Anti | GroupKind::Inverse => HostnameRule::NotPopulated,
            };
            choices.hostname_rules.push((id, rule));
            return Ok(());
        }
        let query = DomainQuery {
            own,
            starts,
            ..*query
        };
        let valid = self.valid_domains(algebra, id, &query);
        // DIFFERS: a pod with required anti-affinity is fixed to one domain, so that the next pod has the others. A pod that only
        // prefers anti-affinity is not: a node for each such pod costs more than a preference is worth.
        let fixed = match kind {
            _ if starts => Fixed::Required,
            GroupKind::Spread => Fixed::Required,
            GroupKind::Anti if !soft && !self.upstreams => Fixed::Preferred,
            GroupKind::Anti | GroupKind::Affinity | GroupKind::Inverse => Fixed::Open,
        };
        // A preference does not fix the domain of nodes with other pods: the extra price may be many times that of its pod.
        if starts && !soft && !self.undecided(id).is_empty() {
            choices.undecided_groups.push(id);
        }
        let mut known = choices.domains.iter_mut();
        let allowed = match known.find(|domains| domains.axis == axis) {
            Some(domains) => {
                domains.allowed.intersect(&valid);
                let first = fixed != Fixed::Open && domains.fixed == Fixed::Open;
                if first || kind == GroupKind::Spread {
                    domains.order = id;
                }
                domains.fixed = domains.fixed.max(fixed);
                &domains.allowed
            }
            None => {
                choices.domains.push(Domains {
                    axis,
                    allowed: valid.clone(),
                    fixed,
                    order: id,
                });
                &valid
            }
        };
        match allowed.is_empty() {
            true => Err(id),
            false => Ok(()),
        }
    }
}
