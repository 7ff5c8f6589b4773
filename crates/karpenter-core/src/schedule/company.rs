//! Pods of an affinity group on planned machines whose domain is open, when another pod starts the group.
//!
//! Such pods count nowhere yet. Were the group started without them, they might end up in another domain than who asked to be
//! with them. So the pod that starts it chooses among the domains that their machines can be in, and then settles those.
//!
//! DIFFERS: upstream starts the group wherever the pod may go, and the machines may go elsewhere.

use super::{
    algebra::SetId, bits::Bits, choices::Choices, class::GroupId, run::Run, topology::Host,
};

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
                let Some((set, witness)) = self.settled(claim, axis, domain) else {
                    continue;
                };
                let before = std::mem::replace(&mut self.claims[claim].set, set);
                self.claims[claim].witness = witness;
                self.prune(claim);
                self.settle_devices(claim);
                self.charge(claim);
                self.narrowed(claim, before, set);
            }
        }
    }

    /// Planned machines with pods that a group counts once their domain is known.
    fn undecided(&self, group: GroupId) -> Vec<usize> {
        let waits = |claim: &usize| {
            let pending = self.claims[*claim].pending.iter();
            pending.into_iter().any(|(waiting, _)| *waiting == group)
        };
        (0..self.claims.len()).filter(waits).collect()
    }

    /// What a planned machine is in a domain, with a row that fits; `None` if it cannot be there, or that would take more than
    /// requirements to find out.
    pub(super) fn settled(
        &mut self,
        claim: usize,
        axis: usize,
        domain: usize,
    ) -> Option<(SetId, u32)> {
        let one: Bits = [domain].into_iter().collect();
        let req = self.requirement_for(axis, &one);
        let held = &self.claims[claim];
        let (template, set, witness) = (held.template, held.set, held.witness);
        let (used, allowed) = (held.used.clone(), held.allowed.clone());
        let bound = !held.reservations.is_empty() || self.algebra.has_min_values(set);
        let settled = self.algebra.narrow(set, req)?;
        if bound && settled != set {
            return None;
        }
        if self.mask(template, settled).rows.contains(witness as usize) {
            return Some((settled, witness));
        }
        let rows = self.rows_with_room(template, settled, &used, allowed.as_deref());
        let first = rows.iter().next()?;
        Some((settled, first as u32))
    }
}
