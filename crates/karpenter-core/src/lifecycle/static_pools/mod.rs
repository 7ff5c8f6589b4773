//! The process of static NodePools (feature gate `StaticCapacity`): nodes are launched and deleted until there are `spec.replicas`.
//!
//! 1. Nodes that a NodePool lacks are launched at once, as many as `limits.nodes` allows; at the limit, it is checked again a while
//!    later.
//! 2. A NodePool whose nodes cannot be created or launched is in cool-down, longer after each failure, until one is launched.
//! 3. Nodes that a NodePool has too many are deleted.
//! 4. Drift commands replace nodes of static NodePools below the same limits: [`StaticPools::reserve`].
//!
//! The caller gives events and executes effects; an effect's documentation names the event that answers it.
//!
//! UPSTREAM: pkg/controllers/static. DIFFERS: upstream creates a NodeClaim as soon as the previous one could not be launched, as fast
//! as the provider refuses.

mod population;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};

use super::backoff::Backoff;
use super::{after, has_passed};
use crate::cluster::Snapshot;
use crate::schedule::PlannedNodeClaim;
use population::{Reservations, missing, node_limit, population, surplus};

/// Interval between checks of a NodePool, even if nothing changes.
pub const RESYNC_INTERVAL: Duration = Duration::from_secs(60);
/// How long a NodePool at its limit waits.
const AT_LIMIT_RETRY: Duration = Duration::from_secs(30);
/// Cool-down of a NodePool whose nodes cannot be launched.
const COOLDOWN: Backoff = Backoff {
    base: Duration::from_secs(2),
    max: RESYNC_INTERVAL,
};

/// How the process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether nodes are launched and deleted.
    pub enabled: bool,
}

impl Settings {
    /// Returns the settings by the feature gates that are on.
    pub fn of(is_on: impl Fn(&str) -> bool) -> Self {
        Self {
            enabled: is_on("StaticCapacity"),
        }
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A NodePool has changed.
    NodePool {
        /// What it was; `None` if it is new.
        before: Option<&'a NodePool>,
        /// What it is; `None` if it was deleted.
        after: Option<&'a NodePool>,
    },
    /// A NodeClaim has changed.
    NodeClaim {
        /// What it was; `None` if it is new.
        before: Option<&'a NodeClaim>,
        /// What it is; `None` if it was deleted.
        after: Option<&'a NodeClaim>,
    },
    /// The NodePool of this name may lack nodes: see [`StaticPools::next_of`].
    Grow(&'a str),
    /// Answers [`Effect::Launch`].
    Launched {
        /// The NodePool.
        pool: &'a str,
        /// Number of nodes that were to be launched.
        count: u32,
        /// Whether a NodeClaim could not be created.
        failed: bool,
    },
    /// The NodePool of this name may have too many nodes; its NodeClaims.
    Shrink(&'a str, &'a [&'a NodeClaim]),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect<'a> {
    /// Create NodeClaims.
    Launch {
        /// What each is.
        node: Box<PlannedNodeClaim>,
        /// Their number.
        count: u32,
    },
    /// Report that the limit of the NodePool allows none of the nodes that it lacks.
    ReportLimit,
    /// Delete NodeClaims.
    Delete(Vec<&'a NodeClaim>),
}

/// The process of all static NodePools.
#[derive(Clone, Debug)]
pub struct StaticPools {
    settings: Settings,
    reservations: Reservations,
    pools: BTreeMap<String, Pool>,
}

#[derive(Clone, Debug, Default)]
struct Pool {
    /// When it may lack nodes.
    due: Option<Timestamp>,
    /// Number of consecutive failures.
    failures: u32,
    /// Until when it is in cool-down.
    cooldown: Option<Timestamp>,
}

impl StaticPools {
    /// Returns the process.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            reservations: Reservations::default(),
            pools: BTreeMap::new(),
        }
    }

    /// Reports whether nodes are launched and deleted.
    pub fn is_enabled(&self) -> bool {
        self.settings.enabled
    }

    /// Returns when [`Event::Grow`] is due for a NodePool.
    pub fn next_of(&self, pool: &str) -> Option<Timestamp> {
        self.pools.get(pool)?.due
    }

    /// Returns when the first of all NodePools is due, and its name.
    pub fn next(&self) -> Option<(Timestamp, &str)> {
        let pools = self.pools.iter();
        let due = pools.filter_map(|(name, pool)| Some((pool.due?, name.as_str())));
        due.min()
    }

    /// Takes an event; returns what is to be done. `snapshot` is the state after the event.
    pub fn on<'a>(
        &mut self,
        event: Event<'a>,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Option<Effect<'a>> {
        if !self.settings.enabled {
            return None;
        }
        match event {
            Event::NodePool { before, after } => self.pool_changed(before, after, now),
            Event::NodeClaim { before, after } => {
                let pool = after.or(before)?.node_pool()?;
                if snapshot.node_pool(pool)?.is_static() {
                    self.claim_changed(pool, before, after, now);
                }
            }
            Event::Grow(pool) => return self.grow(pool, snapshot, now),
            Event::Launched {
                pool,
                count,
                failed,
            } => {
                self.reservations.release(pool, count);
                if failed {
                    self.failed(pool, now);
                }
            }
            Event::Shrink(pool, claims) => {
                let pool = snapshot.node_pool(pool)?;
                let surplus = surplus(snapshot, pool, claims.iter().copied(), now)?;
                return (!surplus.is_empty()).then_some(Effect::Delete(surplus));
            }
        }
        None
    }

    fn pool_changed(
        &mut self,
        before: Option<&NodePool>,
        after: Option<&NodePool>,
        now: Timestamp,
    ) {
        match (before, after) {
            (_, Some(after)) if grows(before, after) => self.pool(after.name()).due = Some(now),
            (Some(before), None) => {
                self.pools.remove(before.name());
            }
            _ => {}
        }
    }

    /// Learns from the change of a NodeClaim whether the nodes of its NodePool can be launched, and whether it lacks nodes.
    fn claim_changed(
        &mut self,
        pool: &str,
        before: Option<&NodeClaim>,
        after: Option<&NodeClaim>,
        now: Timestamp,
    ) {
        let launched =
            |claim: Option<&NodeClaim>| claim.is_some_and(|c| c.is_true(types::LAUNCHED));
        let there = |claim: Option<&NodeClaim>| claim.is_some_and(|c| !c.is_deleting());
        let was_launched = launched(before);
        if launched(after) && !was_launched {
            let pool = self.pool(pool);
            (pool.failures, pool.cooldown) = (0, None);
        } else if there(before) && !there(after) && !was_launched && !launched(after) {
            self.failed(pool, now);
        }
        if !there(after) {
            self.pool(pool).due = Some(now);
        }
    }

    fn grow<'a>(&mut self, name: &str, snapshot: &Snapshot, now: Timestamp) -> Option<Effect<'a>> {
        let pool = snapshot.node_pool(name);
        let missing = pool.and_then(|pool| Some((pool, missing(snapshot, pool)?)));
        let known = self.pool(name);
        let Some((pool, missing)) = missing else {
            known.due = None;
            return None;
        };
        let cooldown = known.cooling(now).filter(|_| missing > 0);
        known.due = Some(cooldown.unwrap_or(after(now, RESYNC_INTERVAL)));
        if missing == 0 || cooldown.is_some() {
            return None;
        }
        let (population, limit) = (population(snapshot, name), node_limit(pool));
        let count = self.reservations.reserve(name, population, limit, missing);
        if count < missing {
            self.pool(name).due = Some(after(now, AT_LIMIT_RETRY));
        }
        if count == 0 {
            return Some(Effect::ReportLimit);
        }
        let node = PlannedNodeClaim::from_template(pool, &snapshot.config().well_known);
        let node = Box::new(node);
        Some(Effect::Launch { node, count })
    }

    /// Notes a failure. Nodes that are launched together fail together: they count as one.
    fn failed(&mut self, name: &str, now: Timestamp) {
        let pool = self.pool(name);
        if pool.cooling(now).is_none() {
            pool.failures += 1;
            let until = after(now, COOLDOWN.of(name, pool.failures));
            (pool.cooldown, pool.due) = (Some(until), Some(until));
        }
    }

    fn pool(&mut self, name: &str) -> &mut Pool {
        self.pools.entry(name.to_owned()).or_default()
    }

    /// Reserves nodes below the limits of static NodePools for the replacements of drifted nodes, or none at all; returns whether it
    /// did. They are to be released once the model counts their NodeClaims, or once they could not be created.
    pub fn reserve(&mut self, nodes: &BTreeMap<String, u32>, snapshot: &Snapshot) -> bool {
        let mut reserved = BTreeMap::new();
        for (name, wanted) in nodes {
            let granted = snapshot.node_pool(name).map_or(0, |pool| {
                let (population, limit) = (population(snapshot, name), node_limit(pool));
                self.reservations.reserve(name, population, limit, *wanted)
            });
            reserved.insert(name.clone(), granted);
            if granted < *wanted {
                self.release(&reserved);
                return false;
            }
        }
        true
    }

    /// Releases reserved nodes.
    pub fn release(&mut self, nodes: &BTreeMap<String, u32>) {
        for (pool, count) in nodes {
            self.reservations.release(pool, *count);
        }
    }

    /// Returns how many drifted nodes of each static NodePool may be replaced now.
    pub fn drift_headroom(&self, snapshot: &Snapshot) -> BTreeMap<String, u32> {
        let pools = snapshot.node_pools().filter(|pool| pool.is_static());
        let headroom = pools.map(|pool| {
            let population = population(snapshot, pool.name());
            let headroom = self.reservations.drift_headroom(pool, population);
            (pool.name().to_owned(), headroom)
        });
        headroom.collect()
    }
}

impl Pool {
    fn cooling(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.cooldown;
        until.filter(|until| !has_passed(*until, now, COOLDOWN.max))
    }
}

/// Returns whether a NodePool may lack more nodes than before.
fn grows(before: Option<&NodePool>, after: &NodePool) -> bool {
    after.is_static()
        && before.is_none_or(|before| {
            before.spec.replicas != after.spec.replicas
                || before.spec.limits != after.spec.limits
                || before.is_true(types::READY) != after.is_true(types::READY)
        })
}
