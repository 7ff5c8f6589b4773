//! Which preferences for other pods are met once all pods are placed.

use smallvec::SmallVec;

use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ClassId, DomainId, GroupId};
use crate::schedule::pass::SchedulingPass;
use crate::schedule::pods::class::{Owned, PodState};
use crate::schedule::topology::group::Target;

impl SchedulingPass<'_> {
    /// Counts the preferred affinity and anti-affinity of each placed pod that is not met now, whether it was dropped or not: pods
    /// that were placed later may have come near, and a dropped preference may be met all the same.
    pub(crate) fn count_unmet(&mut self) {
        for pod in self.queue.pods.indices() {
            let queued = &self.queue.pods[pod];
            let (class, PodState::Placed(target)) = (queued.class, queued.state) else {
                continue;
            };
            let soft = &self.queue.classes[class].soft;
            let near: SmallVec<[Owned; 2]> = soft.affinity.iter().copied().collect();
            let apart: SmallVec<[Owned; 2]> = soft.anti_affinity.iter().copied().collect();
            let both = near.len() + apart.len();
            if both == 0 {
                continue;
            }
            let alone = near
                .iter()
                .filter(|owned| !self.is_near(owned.group, class, target));
            let mut unmet = alone.count();
            unmet += apart
                .iter()
                .filter(|owned| !self.is_apart(owned.group, class, target))
                .count();
            let queued = &mut self.queue.pods[pod];
            queued.dropped = queued.dropped.saturating_sub(both) + unmet;
        }
    }

    /// Reports whether a pod of the class has another one of an affinity group in its domain.
    fn is_near(&mut self, group: GroupId, class: ClassId, target: Target) -> bool {
        let own = u32::from(self.queue.classes[class].counted.contains(&group));
        let axis = self.topology.groups[group].axis;
        if self.topology.axes[axis].is_hostname {
            return self.topology.groups[group].count_of(target) > own;
        }
        if let Target::Planned(planned) = target
            && let Some((_, number)) = self.planned[planned]
                .pending
                .iter()
                .find(|(id, _)| *id == group)
        {
            return *number > own;
        }
        let reach = self.reach(group, target);
        let group = &self.topology.groups[group];
        reach.iter().any(|domain| group.in_domain(domain) > own)
    }

    /// Reports whether a pod of the class can be in a domain without another one of an anti-affinity group.
    fn is_apart(&mut self, group: GroupId, class: ClassId, target: Target) -> bool {
        let own = u32::from(self.queue.classes[class].counted.contains(&group));
        let axis = self.topology.groups[group].axis;
        if self.topology.axes[axis].is_hostname {
            return self.topology.groups[group].count_of(target) <= own;
        }
        let reach = self.reach(group, target);
        let group = &self.topology.groups[group];
        reach.is_empty() || reach.iter().any(|domain| group.in_domain(domain) <= own)
    }

    /// Returns the domains of a group that a node is or can be in.
    fn reach(&mut self, group: GroupId, target: Target) -> Bits<DomainId> {
        let axis = self.topology.groups[group].axis;
        match target {
            Target::Node(node) => self.topology.axes[axis]
                .domain_of(node)
                .into_iter()
                .collect(),
            Target::Planned(planned) => {
                let set = self.planned[planned].set;
                let reach = self.topology.domains_of(&mut self.rows.algebra, axis, set);
                let count = self.topology.axes[axis].domains().len();
                reach.map_or_else(|| Bits::full(count), |reach| reach.as_ref().clone())
            }
        }
    }
}
