//! Which preferences for other pods are met once all pods are placed.

use crate::schedule::compile::ids::{GroupId, Target};
use crate::schedule::place::placement::Placement;
use crate::schedule::place::placer::Placer;
use crate::schedule::pods::class::{Class, PodState};

impl Placer<'_, '_> {
    /// Counts the preferred affinity and anti-affinity of each placed pod that is not met now, whether it was dropped or not: pods
    /// that were placed later may have come near, and a dropped preference may be met all the same.
    pub(super) fn count_unmet(&mut self) {
        for queued in self.pods.iter_mut() {
            let class = &self.classes[queued.class];
            let (soft, PodState::Placed(target)) = (&class.links.soft, queued.state) else {
                continue;
            };
            let near = soft.affinity.iter().filter(|owned| {
                let beside = self.nodes.is_beside(owned.group, class, target);
                !beside
            });
            let unmet = near.count();
            let apart = soft.anti_affinity.iter();
            let unmet = unmet
                + apart
                    .filter(|owned| !self.nodes.is_apart(owned.group, class, target))
                    .count();
            let both = soft.affinity.len() + soft.anti_affinity.len();
            queued.dropped = queued.dropped.saturating_sub(both) + unmet;
        }
    }
}

impl Placement<'_, '_> {
    /// Reports whether a pod of the class has another one of an affinity group in its domain.
    fn is_beside(&mut self, group: GroupId, class: &Class, target: Target) -> bool {
        let own = u32::from(class.links.counted.contains(&group));
        if let Target::Planned(planned) = target
            && let Some(number) = self.topology.undecided_on(planned, group)
        {
            return number > own;
        }
        self.counts(group, target).iter().any(|count| *count > own)
    }

    /// Reports whether a pod of the class can be in a domain without another one of an anti-affinity group.
    fn is_apart(&mut self, group: GroupId, class: &Class, target: Target) -> bool {
        let own = u32::from(class.links.counted.contains(&group));
        let counts = self.counts(group, target);
        counts.is_empty() || counts.iter().any(|count| *count <= own)
    }

    /// Returns the counts of a group in the domains that a node is or can be in.
    fn counts(&mut self, group: GroupId, target: Target) -> Vec<u32> {
        let axis = self.topology[group].axis;
        if self.topology[axis].is_hostname {
            return vec![self.topology[group].count_of(target)];
        }
        match target {
            Target::Node(node) => {
                let domain = self.topology[axis].domain_of(node).into_iter();
                domain
                    .map(|domain| self.topology[group].in_domain(domain))
                    .collect()
            }
            Target::Planned(planned) => {
                let reach = self.reach(planned, axis);
                reach
                    .iter()
                    .map(|domain| self.topology[group].in_domain(domain))
                    .collect()
            }
        }
    }
}
