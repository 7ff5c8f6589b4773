//! Launches in a form in which two Karpenters can be compared, and their agreement.

use std::collections::BTreeMap;

use karpenter_api::labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::resources::Resources;
use karpenter_core::schedule::PlannedNodeClaim;
use serde::Serialize;

use crate::prices::finite;

/// A node that was launched, or that a plan would launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Launch {
    pub node_pool: String,
    /// The NodeClaim; absent for a node that was only planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_claim: Option<String>,
    /// The instance type: of a planned node, the cheapest.
    pub instance_type: String,
    /// `on-demand`, `spot` or `reserved`.
    pub capacity_type: String,
    /// The size class of the instance type, see [`size_class`].
    pub size_class: u64,
    /// Price in dollars per hour; 0 if it is not known.
    pub price_per_hour: f64,
}

/// What agreement is measured in: nodes of a NodePool, a capacity type and a size class are alike.
pub type LaunchAction<'a> = (&'a str, &'a str, u64);

impl Launch {
    /// Returns the launch of a planned node, at its cheapest offering.
    pub fn planned(planned: &PlannedNodeClaim, snapshot: &Snapshot) -> Self {
        let cheapest = planned.cheapest();
        let named = cheapest.map(|cheapest| &cheapest.instance_type);
        let name = named.or(planned.instance_types.first());
        let name = name.cloned().unwrap_or_default();
        let found = instance_type(snapshot, &planned.node_pool, &name);
        let capacity_type = cheapest.and_then(|cheapest| cheapest.capacity_type.clone());
        let capacity_type = capacity_type.or_else(|| cheapest_capacity_type(planned, found));
        Self {
            node_pool: planned.node_pool.clone(),
            node_claim: None,
            size_class: found.map_or(0, |found| size_class(&found.allocatable())),
            instance_type: name,
            capacity_type: capacity_type.unwrap_or_default(),
            price_per_hour: finite(planned.hourly_price),
        }
    }

    /// Returns the launch of a NodeClaim; `None` until its instance is launched.
    pub fn observed(claim: &NodeClaim, snapshot: &Snapshot) -> Option<Self> {
        claim.status.provider_id.as_ref()?;
        let label = |key: &str| {
            let found = claim.metadata.labels.as_ref()?.get(key);
            found.map(String::as_str)
        };
        let (pool, name) = (label(labels::NODE_POOL)?, label(labels::INSTANCE_TYPE)?);
        let found = instance_type(snapshot, pool, name);
        let allocatable = found.map(InstanceType::allocatable).or_else(|| {
            // A NodePool that no longer offers the instance type.
            Resources::allocatable_from(&claim.status.allocatable).ok()
        });
        let (zone, capacity_type) = (label(labels::ZONE), label(labels::CAPACITY_TYPE));
        let offering = found.and_then(|found| {
            let mut offerings = found.offerings.iter();
            offerings.find(|it| it.zone() == zone && it.capacity_type() == capacity_type)
        });
        Some(Self {
            node_pool: pool.to_owned(),
            node_claim: claim.metadata.name.clone(),
            instance_type: name.to_owned(),
            capacity_type: capacity_type.unwrap_or_default().to_owned(),
            size_class: allocatable.map_or(0, |allocatable| size_class(&allocatable)),
            price_per_hour: offering.map_or(0.0, |offering| finite(offering.price)),
        })
    }

    /// Reports whether another launch is of the same NodePool, instance type and capacity type.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.node_pool == other.node_pool
            && self.instance_type == other.instance_type
            && self.capacity_type == other.capacity_type
    }

    /// Returns what agreement is measured in.
    pub fn action(&self) -> LaunchAction<'_> {
        (&self.node_pool, &self.capacity_type, self.size_class)
    }
}

/// Returns an instance type of a NodePool.
pub(super) fn instance_type<'a>(
    snapshot: &'a Snapshot,
    pool: &str,
    name: &str,
) -> Option<&'a InstanceType> {
    let Some(Ok(types)) = snapshot.instance_types(pool) else {
        return None;
    };
    types.iter().find(|it| it.name == name)
}

/// Returns the capacity type of the cheapest offering that a planned node may be launched with.
fn cheapest_capacity_type(
    planned: &PlannedNodeClaim,
    found: Option<&InstanceType>,
) -> Option<String> {
    let listed = planned.capacity_types();
    let zones = planned.zones();
    let within = |all: &[String], one: Option<&str>| {
        all.is_empty() || one.is_some_and(|one| all.iter().any(|it| it == one))
    };
    let offerings = found.into_iter().flat_map(|found| found.offerings.iter());
    let usable = offerings.filter(|offering| {
        offering.is_launchable()
            && within(&listed, offering.capacity_type())
            && within(&zones, offering.zone())
    });
    let cheapest = usable.min_by(|a, b| a.price.total_cmp(&b.price));
    let capacity_type = cheapest.and_then(|offering| offering.capacity_type());
    capacity_type
        .map(str::to_owned)
        .or_else(|| listed.first().cloned())
}

/// Returns the size class of a node: its cores, or its memory in units of 4 GiB if that is more, rounded up to a power of two.
///
/// ```
/// use karpenter_core::resources::Resources;
/// use karpenter_decisions::shadow::action::size_class;
///
/// let four = Resources::new().with("cpu", 3920).with("memory", 14 << 30);
/// assert_eq!(size_class(&four), 4);
/// let memory_optimized = Resources::new().with("cpu", 3920).with("memory", 30 << 30);
/// assert_eq!(size_class(&memory_optimized), 8);
/// ```
pub fn size_class(allocatable: &Resources) -> u64 {
    let amount = |name: &str| u64::try_from(allocatable.get(name)).unwrap_or_default();
    let cores = amount("cpu").div_ceil(1000);
    let memory = amount("memory").div_ceil(4 << 30);
    let dominant = cores.max(memory).max(1);
    dominant.checked_next_power_of_two().unwrap_or(dominant)
}

/// How far two Karpenters agree: 2·|A ∩ B| / (|A| + |B|) over multisets of actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// The number of our actions.
    pub ours: usize,
    /// The number of the other's actions.
    pub theirs: usize,
    /// The number of actions that both have.
    pub both: usize,
}

impl Agreement {
    /// Compares two multisets of actions.
    pub fn of<T: Ord>(ours: &[T], theirs: &[T]) -> Self {
        let mut counts: BTreeMap<&T, usize> = BTreeMap::new();
        for action in ours {
            *counts.entry(action).or_default() += 1;
        }
        let mut both = 0;
        for action in theirs {
            if let Some(left) = counts.get_mut(action).filter(|left| **left > 0) {
                *left -= 1;
                both += 1;
            }
        }
        Self {
            ours: ours.len(),
            theirs: theirs.len(),
            both,
        }
    }

    /// Returns the agreement, from 0 to 1; 1 if neither did anything.
    ///
    /// ```
    /// use karpenter_decisions::shadow::action::Agreement;
    ///
    /// assert_eq!(Agreement::of(&["a", "a", "b"], &["a", "b", "c"]).ratio(), 2.0 / 3.0);
    /// assert_eq!(Agreement::default().ratio(), 1.0);
    /// ```
    pub fn ratio(&self) -> f64 {
        match self.ours + self.theirs {
            0 => 1.0,
            all => 2.0 * self.both as f64 / all as f64,
        }
    }
}

impl std::ops::AddAssign for Agreement {
    fn add_assign(&mut self, other: Self) {
        self.ours += other.ours;
        self.theirs += other.theirs;
        self.both += other.both;
    }
}
