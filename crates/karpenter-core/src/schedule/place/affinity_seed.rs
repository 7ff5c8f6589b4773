//! Pods of an affinity group on planned nodes whose domain is open, when another pod starts the group.
//!
//! Such pods are not counted in any domain yet. If the group started without them, they could end up in another domain than
//! the pods that require affinity to them. So the pod that starts the group chooses among the domains that all their planned
//! nodes can be in, and then the domain of those planned nodes is fixed.
//!
//! DIFFERS: upstream starts the group in any domain of the pod, and the planned nodes may get another domain.

use std::collections::BTreeSet;

use crate::schedule::compile::algebra::{ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{AxisId, DomainId, GroupId, PlannedId, ReservationId, RowId};
use crate::schedule::compile::pools::template::unmet_min_values;
use crate::schedule::pass::SchedulingPass;
use crate::schedule::topology::choices::Choices;
use crate::schedule::topology::group::Target;

/// The state of a planned node once a label, mostly its domain, is fixed.
pub(crate) struct Narrowed {
    pub(crate) set: SetId,
    /// A row that fits.
    witness: RowId,
    /// Reservations it would hold, if it holds any.
    reservations: Option<BTreeSet<ReservationId>>,
}

impl SchedulingPass<'_> {
    /// Keeps the domains that every planned node with undecided pods of a group can be in; reports whether there are such nodes.
    pub(crate) fn narrow_to_undecided(
        &mut self,
        group: GroupId,
        domains: &mut Bits<DomainId>,
    ) -> bool {
        let undecided = self.planned.undecided(group);
        let axis = self.topology.groups[group].axis;
        for planned in &undecided {
            let reached: Bits<DomainId> = domains
                .iter()
                .filter(|domain| self.fixed_in_domain(*planned, axis, *domain).is_some())
                .collect();
            *domains = reached;
        }
        !undecided.is_empty()
    }

    /// Fixes the domain of the planned nodes with undecided pods of the groups that the placed pod started.
    pub(crate) fn fix_undecided(&mut self, choices: &Choices, target: Target) {
        for group in &choices.undecided_groups {
            let axis = self.topology.groups[*group].axis;
            let domain = match target {
                Target::Node(node) => self.topology.axes[axis].domain_of(node),
                Target::Planned(planned) => {
                    let set = self.planned[planned].set;
                    self.topology
                        .domains_of(&mut self.rows.algebra, axis, set)
                        .and_then(|reach| reach.single())
                }
            };
            let Some(domain) = domain else {
                continue;
            };
            for planned in self.planned.undecided(*group) {
                let Some(fixed) = self.fixed_in_domain(planned, axis, domain) else {
                    continue;
                };
                self.fix(planned, fixed);
            }
        }
    }

    /// Fixes the domain of a planned node, with the result of [`Self::fixed_in_domain`].
    pub(crate) fn fix(&mut self, planned: PlannedId, fixed: Narrowed) {
        let set = fixed.set;
        let before = std::mem::replace(&mut self.planned[planned].set, set);
        if before == set {
            return;
        }
        let node = &mut self.planned[planned];
        let moves = node.moves_to(fixed.witness);
        node.witness = fixed.witness;
        if moves {
            node.prune(&mut self.rows);
        }
        if let Some(reservations) = fixed.reservations {
            self.hold(planned, reservations);
        }
        self.release_devices(planned);
        self.charge(planned);
        self.narrowed(planned, before, set);
    }

    /// Returns the state of a planned node in a domain; `None` if it cannot be there: its pods do not fit, minValues are unmet, or
    /// the reserved capacity it relies on is used up.
    pub(crate) fn fixed_in_domain(
        &mut self,
        planned: PlannedId,
        axis: AxisId,
        domain: DomainId,
    ) -> Option<Narrowed> {
        let one: Bits<DomainId> = [domain].into_iter().collect();
        let req = self
            .topology
            .requirement_for(&mut self.rows.algebra, axis, &one);
        self.fixed_by(planned, req)
    }

    /// Returns the state of a planned node under one more requirement; `None` if that is impossible for the same reasons.
    pub(crate) fn fixed_by(&mut self, planned: PlannedId, req: ReqId) -> Option<Narrowed> {
        let held = &self.planned[planned];
        let (template, set, witness) = (held.template, held.set, held.witness);
        let (used, allowed) = (held.used.clone(), held.allowed.clone());
        let reservations = held.reservations.clone();
        let fixed = self.rows.algebra.narrow(set, req)?;
        let counts_types = self.rows.algebra.has_min_values(set);
        let same = Narrowed {
            set: fixed,
            witness,
            reservations: None,
        };
        let there = fixed == set
            || (!counts_types
                && reservations.is_empty()
                && self.rows.mask(template, fixed).rows.contains(witness));
        if there {
            return Some(same);
        }
        let rows = self
            .rows
            .rows_with_room(template, fixed, &used, allowed.as_deref());
        let first = rows.iter().next()?;
        let catalogue = &self.solver.catalogues[self.solver.templates[template].catalogue];
        if counts_types && unmet_min_values(catalogue, &self.rows.algebra, fixed, &rows).is_some() {
            return None;
        }
        let reservations = if reservations.is_empty() {
            None
        } else {
            let held =
                self.budgets
                    .reservations_of(template, &reservations, fixed, &rows, &mut self.rows);
            Some(held.ok()?)
        };
        let stays = rows.contains(witness);
        Some(Narrowed {
            witness: if stays { witness } else { first },
            reservations,
            ..same
        })
    }
}
