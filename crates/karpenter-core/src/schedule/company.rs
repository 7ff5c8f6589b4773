//! Pods of an affinity group on planned machines whose domain is open, when another pod starts the group.
//!
//! Such pods count nowhere yet. Were the group started without them, they might end up in another domain than who asked to be
//! with them. So the pod that starts it chooses among the domains that their machines can be in, and then settles those.
//!
//! DIFFERS: upstream starts the group wherever the pod may go, and the machines may go elsewhere.

use std::collections::BTreeSet;

use super::{
    algebra::SetId, bits::Bits, choices::Choices, class::GroupId, run::Run,
    template::unmet_min_values, topology::Host,
};

/// What a planned node is once it is settled.
pub(super) struct Settled {
    set: SetId,
    /// A row that fits.
    witness: u32,
    /// Reservations it would hold, if it holds any.
    reservations: Option<BTreeSet<usize>>,
}

impl Run<'_> {
    /// Keeps the domains that every planned machine with undecided pods of a group can be in; whether there are such machines.
    pub(super) fn narrow_to_company(&mut self, group: GroupId, domains: &mut Bits) -> bool {
        let undecided = self.undecided(group);
        let axis = self.groups[group].axis;
        for claim in &undecided {
            let reached: Bits = domains
                .iter()
                .filter(|domain| self.settled(*claim, axis, *domain).is_some())
                .collect();
            *domains = reached;
        }
        !undecided.is_empty()
    }

    /// Settles the planned machines whose pods a group that was just started is about.
    pub(super) fn gather(&mut self, choices: &Choices, host: Host) {
        for group in &choices.company {
            let axis = self.groups[*group].axis;
            let domain = match host {
                Host::Machine(machine) => Some(self.axes[axis].of_machine[machine] as usize),
                Host::Claim(claim) => {
                    let set = self.claims[claim].set;
                    self.domains_of(axis, set).and_then(|reach| reach.single())
                }
            };
            let Some(domain) = domain else {
                continue;
            };
            for claim in self.undecided(*group) {
                let Some(settled) = self.settled(claim, axis, domain) else {
                    continue;
                };
                let set = settled.set;
                let before = std::mem::replace(&mut self.claims[claim].set, set);
                self.claims[claim].witness = settled.witness;
                if let Some(reservations) = settled.reservations {
                    self.hold(claim, reservations);
                }
                self.prune(claim);
                self.settle_devices(claim);
                self.charge(claim);
                self.narrowed(claim, before, set);
            }
        }
    }

    /// Planned machines with pods that a group counts once their domain is known.
    pub(super) fn undecided(&self, group: GroupId) -> Vec<usize> {
        let waits = |claim: &usize| {
            let pending = self.claims[*claim].pending.iter();
            pending.into_iter().any(|(waiting, _)| *waiting == group)
        };
        (0..self.claims.len()).filter(waits).collect()
    }

    /// What a planned node is in a domain; `None` if it cannot be there. What is on it still has room there, minValues hold, and
    /// where it counts on reserved capacity, some of that is left.
    pub(super) fn settled(&mut self, claim: usize, axis: usize, domain: usize) -> Option<Settled> {
        let one: Bits = [domain].into_iter().collect();
        let req = self.requirement_for(axis, &one);
        let held = &self.claims[claim];
        let (template, set, witness) = (held.template, held.set, held.witness);
        let (used, allowed) = (held.used.clone(), held.allowed.clone());
        let reservations = held.reservations.clone();
        let settled = self.algebra.narrow(set, req)?;
        let counts_types = self.algebra.has_min_values(set);
        let same = Settled {
            set: settled,
            witness,
            reservations: None,
        };
        let there = settled == set
            || (!counts_types
                && reservations.is_empty()
                && self.mask(template, settled).rows.contains(witness as usize));
        if there {
            return Some(same);
        }
        let rows = self.rows_with_room(template, settled, &used, allowed.as_deref());
        let first = rows.iter().next()?;
        let catalogue = &self.solver.catalogues[self.solver.templates[template].catalogue];
        if counts_types && unmet_min_values(catalogue, &self.algebra, settled, &rows).is_some() {
            return None;
        }
        let reservations = if reservations.is_empty() {
            None
        } else {
            let held = self.reservations_of(template, &reservations, settled, &rows);
            Some(held.ok()?)
        };
        let stays = rows.contains(witness as usize);
        Some(Settled {
            witness: if stays { witness } else { first as u32 },
            reservations,
            ..same
        })
    }
}
