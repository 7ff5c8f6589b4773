//! Offerings that EC2 recently had no capacity for: capacity pools, capacity types, and subnets without free IP
//! addresses.
//!
//! A mark expires after three minutes; another failure extends it. Changes are counted with the instance types they
//! concern, so that a cache of offerings knows which to recompute.
//!
//! UPSTREAM: pkg/cache/unavailableofferings.go

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::{duration, labels};
use rustc_hash::FxHashMap;

use crate::providers::changes::Changes;

/// How long an unavailability mark lasts.
pub const TTL: SignedDuration = SignedDuration::from_mins(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CapacityType {
    /// Billed by use.
    OnDemand,
    /// Billed by use, interruptible.
    Spot,
    /// In a capacity reservation.
    Reserved,
}

impl CapacityType {
    /// Returns the value of the label `karpenter.sh/capacity-type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => labels::CAPACITY_TYPE_ON_DEMAND,
            Self::Spot => labels::CAPACITY_TYPE_SPOT,
            Self::Reserved => labels::CAPACITY_TYPE_RESERVED,
        }
    }

    /// Returns the capacity type of a label's value.
    pub fn from_label(value: &str) -> Option<Self> {
        [Self::OnDemand, Self::Spot, Self::Reserved]
            .into_iter()
            .find(|it| it.as_str() == value)
    }
}

impl fmt::Display for CapacityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A placement group, or one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    pub group: String,
    /// Number of the partition; `None` for the whole group.
    pub partition: Option<u32>,
}

/// A capacity pool: instance type, capacity type and zone, within a placement group if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    pub capacity_type: CapacityType,
    pub instance_type: String,
    pub zone: String,
    /// Placement of the instances; `None` without placement group.
    pub placement: Option<Placement>,
}

/// Offerings without capacity at the moment.
#[derive(Clone, Debug, Default)]
pub struct Unavailable {
    pools: FxHashMap<String, Vec<(Pool, Timestamp)>>,
    capacity_types: FxHashMap<CapacityType, Timestamp>,
    subnets: FxHashMap<String, Timestamp>,
    changes: Changes,
}

impl Unavailable {
    pub fn mark(&mut self, pool: Pool, now: Timestamp) {
        self.changes.of(&pool.instance_type);
        let until = until(now);
        let marks = self.pools.entry(pool.instance_type.clone()).or_default();
        match marks.iter_mut().find(|(marked, _)| *marked == pool) {
            Some((_, expiry)) => *expiry = until,
            None => marks.push((pool, until)),
        }
    }

    /// Marks a pool as unavailable, and logs the reason and the fleet that found out.
    pub fn report(&mut self, pool: Pool, reason: &str, fleet: Option<&str>, now: Timestamp) {
        let placement = pool.placement.as_ref();
        tracing::debug!(
            logger = "instance",
            reason,
            "instance-type" = pool.instance_type,
            zone = pool.zone,
            "capacity-type" = pool.capacity_type.as_str(),
            ttl = duration::format(TTL),
            "fleet-id" = fleet,
            "placement-group-id" = placement.map(|it| it.group.as_str()),
            "placement-group-partition" = placement.and_then(|it| it.partition),
            "removing offering from offerings"
        );
        self.mark(pool, now);
    }

    /// Marks a capacity type as unavailable for all instance types.
    pub fn mark_capacity_type(&mut self, capacity_type: CapacityType, now: Timestamp) {
        self.capacity_types.insert(capacity_type, until(now));
        self.changes.of_all();
    }

    /// Marks a subnet as out of IP addresses.
    pub fn mark_subnet(&mut self, subnet: &str, now: Timestamp) {
        self.subnets.insert(subnet.to_owned(), until(now));
        self.changes.of_all();
    }

    /// Removes expired marks. To be called about every ten seconds, and before offerings are computed.
    pub fn expire(&mut self, now: Timestamp) {
        let mut expired: Vec<String> = Vec::new();
        for (instance_type, marks) in &mut self.pools {
            let before = marks.len();
            marks.retain(|(_, expiry)| *expiry > now);
            if marks.len() != before {
                expired.push(instance_type.clone());
            }
        }
        self.pools.retain(|_, marks| !marks.is_empty());
        for instance_type in expired {
            self.changes.of(&instance_type);
        }
        let before = self.capacity_types.len() + self.subnets.len();
        self.capacity_types.retain(|_, expiry| *expiry > now);
        self.subnets.retain(|_, expiry| *expiry > now);
        if self.capacity_types.len() + self.subnets.len() != before {
            self.changes.of_all();
        }
    }

    /// Removes all marks.
    pub fn clear(&mut self) {
        for (instance_type, _) in self.pools.drain() {
            self.changes.of(&instance_type);
        }
        if !(self.capacity_types.is_empty() && self.subnets.is_empty()) {
            self.capacity_types.clear();
            self.subnets.clear();
            self.changes.of_all();
        }
    }

    /// Returns whether a pool is unavailable. `placement` is where the instance would be placed.
    // DIFFERS: marks of a single partition are read, too; upstream writes them and never reads them.
    pub fn is_marked(
        &self,
        capacity_type: CapacityType,
        instance_type: &str,
        zone: &str,
        placement: Option<(&str, Option<u32>)>,
    ) -> bool {
        let until = self.marked_until(capacity_type, instance_type, zone, placement);
        until.is_some()
    }

    /// Returns until when a pool is unavailable, if it is.
    pub fn marked_until(
        &self,
        capacity_type: CapacityType,
        instance_type: &str,
        zone: &str,
        placement: Option<(&str, Option<u32>)>,
    ) -> Option<Timestamp> {
        let of_type = self.capacity_types.get(&capacity_type).copied();
        let concerns = |marked: &Placement| {
            placement.is_some_and(|(group, partition)| {
                marked.group == group
                    && (marked.partition.is_none() || marked.partition == partition)
            })
        };
        let marks = self
            .pools
            .get(instance_type)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let marked = marks.iter().filter(|(pool, _)| {
            pool.capacity_type == capacity_type
                && pool.zone == zone
                && pool.placement.as_ref().is_none_or(concerns)
        });
        let of_pools = marked.map(|(_, expiry)| *expiry).max();
        of_type.max(of_pools)
    }

    /// Returns whether a subnet is out of IP addresses.
    pub fn is_subnet_marked(&self, subnet: &str) -> bool {
        self.subnets.contains_key(subnet)
    }

    /// Returns the tracked changes of marks.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }
}

fn until(now: Timestamp) -> Timestamp {
    now.checked_add(TTL).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::changes::Changed;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pool(zone: &str, placement: Option<(&str, Option<u32>)>) -> Pool {
        Pool {
            capacity_type: CapacityType::Spot,
            instance_type: "m5.large".into(),
            zone: zone.into(),
            placement: placement.map(|(group, partition)| Placement {
                group: group.into(),
                partition,
            }),
        }
    }

    fn marked(unavailable: &Unavailable, placement: Option<(&str, Option<u32>)>) -> bool {
        unavailable.is_marked(CapacityType::Spot, "m5.large", "a", placement)
    }

    /// Conformance: AWS-ice-15
    #[test]
    fn a_mark_lasts_three_minutes_and_is_extended_by_another() {
        let mut unavailable = Unavailable::default();
        unavailable.mark(pool("a", None), at(0));
        assert!(marked(&unavailable, None));
        assert!(!unavailable.is_marked(CapacityType::OnDemand, "m5.large", "a", None));
        assert!(!unavailable.is_marked(CapacityType::Spot, "m5.large", "b", None));
        unavailable.mark(pool("a", None), at(100));
        unavailable.expire(at(200));
        assert!(marked(&unavailable, None));
        unavailable.expire(at(280));
        assert!(!marked(&unavailable, None));
    }

    /// Conformance: AWS-ice-16
    #[test]
    fn a_mark_within_a_placement_group_concerns_that_group_only() {
        let mut unavailable = Unavailable::default();
        unavailable.mark(pool("a", Some(("pg-1", None))), at(0));
        assert!(!marked(&unavailable, None));
        assert!(marked(&unavailable, Some(("pg-1", None))));
        assert!(marked(&unavailable, Some(("pg-1", Some(2)))));
        assert!(!marked(&unavailable, Some(("pg-2", None))));
        unavailable.clear();
        unavailable.mark(pool("a", None), at(0));
        assert!(marked(&unavailable, Some(("pg-1", Some(1)))));
    }

    /// Conformance: AWS-ice-16
    #[test]
    fn a_mark_of_a_partition_leaves_the_others() {
        let mut unavailable = Unavailable::default();
        unavailable.mark(pool("a", Some(("pg-1", Some(2)))), at(0));
        assert!(marked(&unavailable, Some(("pg-1", Some(2)))));
        assert!(!marked(&unavailable, Some(("pg-1", Some(1)))));
        assert!(!marked(&unavailable, None));
    }

    /// Conformance: AWS-ice-08
    #[test]
    fn every_change_counts_up_the_version_of_the_types_it_concerns() {
        let mut unavailable = Unavailable::default();
        let mut last = 0;
        let mut moved = |unavailable: &Unavailable| {
            let changed = unavailable.changes().since(last);
            last = unavailable.changes().version();
            let has = |name| match &changed {
                Changed::Everything => true,
                Changed::These(names) => names.contains(name),
            };
            (has("m5.large"), has("c5.large"))
        };
        unavailable.mark(pool("a", None), at(0));
        assert_eq!(moved(&unavailable), (true, false));
        unavailable.expire(at(200));
        assert_eq!(moved(&unavailable), (true, false));
        unavailable.mark_capacity_type(CapacityType::Spot, at(300));
        assert_eq!(moved(&unavailable), (true, true));
        unavailable.expire(at(500));
        assert_eq!(moved(&unavailable), (true, true));
        unavailable.mark_subnet("subnet-1", at(600));
        assert!(unavailable.is_subnet_marked("subnet-1"));
        assert_eq!(moved(&unavailable), (true, true));
        unavailable.expire(at(800));
        assert!(!unavailable.is_subnet_marked("subnet-1"));
        assert_eq!(moved(&unavailable), (true, true));
        unavailable.expire(at(801));
        assert_eq!(moved(&unavailable), (false, false));
        unavailable.mark(pool("a", None), at(900));
        assert_eq!(moved(&unavailable), (true, false));
        unavailable.clear();
        assert_eq!(moved(&unavailable), (true, false));
        unavailable.clear();
        assert_eq!(moved(&unavailable), (false, false));
    }
}
