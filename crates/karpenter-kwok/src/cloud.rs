//! The simulated cloud: its instances, its exhausted capacity, and its injected faults.
//!
//! It outlives controllers: a test that kills and restarts Karpenter keeps its [`Cloud`], as a real cloud would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::v1::NodeClaim;
use karpenter_core::offering::Offering;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// How long an offering without capacity is unavailable.
const UNAVAILABLE_FOR: SignedDuration = SignedDuration::from_mins(3);

/// A part of a cloud's capacity; a field that is `None` matches every value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CapacityPool {
    pub instance_type: Option<String>,
    pub zone: Option<String>,
    pub capacity_type: Option<String>,
}

impl CapacityPool {
    fn of(instance_type: &str, offering: &Offering) -> Self {
        Self {
            instance_type: Some(instance_type.to_owned()),
            zone: offering.zone().map(str::to_owned),
            capacity_type: offering.capacity_type().map(str::to_owned),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        let part =
            |mine: &Option<String>, theirs: &Option<String>| mine.is_none() || mine == theirs;
        part(&self.instance_type, &other.instance_type)
            && part(&self.zone, &other.zone)
            && part(&self.capacity_type, &other.capacity_type)
    }
}

#[derive(Debug, Clone)]
pub struct Instance {
    /// Uid of the NodeClaim it was launched for.
    pub claim_uid: String,
    /// The provider's answer to the launch; shared with the cluster model if equal.
    pub answer: Arc<NodeClaim>,
    /// Dollars per hour.
    pub price: f64,
    /// Time of the launch.
    pub launched_at: Timestamp,
    /// Cancels its registration if it is terminated before.
    pub(crate) registration: CancellationToken,
}

/// A simulated cloud. Cheap to clone; clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Cloud {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    instances: BTreeMap<String, Instance>,
    killed: BTreeSet<String>,
    exhausted: BTreeSet<CapacityPool>,
    seen_exhausted: BTreeMap<CapacityPool, Timestamp>,
    failures: u32,
    never_register: bool,
    launched: u64,
    spent: f64,
}

impl Cloud {
    /// Creates a cloud without instances and with unlimited capacity.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Exhausts some capacity until [`Cloud::restock`].
    pub fn exhaust(&self, pool: CapacityPool) {
        self.state.lock().exhausted.insert(pool);
    }

    /// Makes all capacity available again.
    pub fn restock(&self) {
        let mut state = self.state.lock();
        state.exhausted.clear();
        state.seen_exhausted.clear();
    }

    /// Fails the next `times` launches.
    pub fn fail_launches(&self, times: u32) {
        self.state.lock().failures = times;
    }

    /// Sets whether new instances never join the cluster.
    pub fn never_register(&self, never: bool) {
        self.state.lock().never_register = never;
    }

    /// Terminates an instance outside Karpenter; its Node stays.
    pub fn kill(&self, provider_id: &str) {
        let mut state = self.state.lock();
        if let Some(instance) = state.instances.remove(provider_id) {
            instance.registration.cancel();
        }
        state.killed.insert(provider_id.to_owned());
    }

    /// Returns the instances, sorted by provider id.
    #[must_use]
    pub fn instances(&self) -> Vec<Instance> {
        self.state.lock().instances.values().cloned().collect()
    }

    /// Returns the number of instances that have been launched in total.
    #[must_use]
    pub fn launched(&self) -> u64 {
        self.state.lock().launched
    }

    /// Returns the price of the running instances in dollars per hour.
    #[must_use]
    pub fn hourly_price(&self) -> f64 {
        self.state
            .lock()
            .instances
            .values()
            .fold(0.0, |sum, instance| sum + instance.price)
    }

    /// Returns the dollars spent until `now`.
    #[must_use]
    pub fn spent(&self, now: Timestamp) -> f64 {
        let state = self.state.lock();
        state.spent
            + state
                .instances
                .values()
                .map(|instance| instance.cost(now))
                .sum::<f64>()
    }

    pub(crate) fn instance(&self, provider_id: &str) -> Option<Instance> {
        self.state.lock().instances.get(provider_id).cloned()
    }

    pub(crate) fn is_killed(&self, provider_id: &str) -> bool {
        self.state.lock().killed.contains(provider_id)
    }

    /// Adds an instance; returns false if it exists already.
    pub(crate) fn launch(&self, provider_id: &str, instance: Instance) -> bool {
        let mut state = self.state.lock();
        if state.instances.contains_key(provider_id) {
            return false;
        }
        state.launched += 1;
        state.instances.insert(provider_id.to_owned(), instance);
        true
    }

    /// Removes an instance; returns false if there is none.
    pub(crate) fn terminate(&self, provider_id: &str, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        let Some(instance) = state.instances.remove(provider_id) else {
            return false;
        };
        instance.registration.cancel();
        state.spent += instance.cost(now);
        true
    }

    /// Returns whether this launch fails, and counts it.
    pub(crate) fn take_failure(&self) -> bool {
        let mut state = self.state.lock();
        let fails = state.failures > 0;
        state.failures = state.failures.saturating_sub(1);
        fails
    }

    pub(crate) fn registers(&self) -> bool {
        !self.state.lock().never_register
    }

    /// Returns whether there is capacity; if not, the offering is unavailable for a while.
    pub(crate) fn has_capacity(
        &self,
        instance_type: &str,
        offering: &Offering,
        now: Timestamp,
    ) -> bool {
        let wanted = CapacityPool::of(instance_type, offering);
        let mut state = self.state.lock();
        let out = state.exhausted.iter().any(|pool| pool.covers(&wanted));
        if out {
            let until = now
                .saturating_add(UNAVAILABLE_FOR)
                .unwrap_or(Timestamp::MAX);
            state.seen_exhausted.insert(wanted, until);
        }
        !out
    }

    /// Returns the capacity that is known to be exhausted, and until when.
    pub(crate) fn unavailable(&self, now: Timestamp) -> BTreeMap<CapacityPool, Timestamp> {
        let mut state = self.state.lock();
        state.seen_exhausted.retain(|_, until| *until > now);
        state.seen_exhausted.clone()
    }

    /// Returns until when an offering is unavailable, if it is.
    pub(crate) fn unavailable_until(
        unavailable: &BTreeMap<CapacityPool, Timestamp>,
        instance_type: &str,
        offering: &Offering,
    ) -> Option<Timestamp> {
        let wanted = CapacityPool::of(instance_type, offering);
        unavailable.get(&wanted).copied()
    }
}

impl Instance {
    fn cost(&self, now: Timestamp) -> f64 {
        self.price * now.duration_since(self.launched_at).as_secs_f64().max(0.0) / 3600.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(
        instance_type: Option<&str>,
        zone: Option<&str>,
        capacity_type: Option<&str>,
    ) -> CapacityPool {
        let text = |t: Option<&str>| t.map(str::to_owned);
        CapacityPool {
            instance_type: text(instance_type),
            zone: text(zone),
            capacity_type: text(capacity_type),
        }
    }

    #[test]
    fn a_missing_field_matches_every_value() {
        let wanted = pool(Some("a"), Some("z"), Some("spot"));
        assert!(pool(None, None, None).covers(&wanted));
        assert!(pool(Some("a"), None, Some("spot")).covers(&wanted));
        assert!(!pool(Some("b"), None, None).covers(&wanted));
    }

    #[test]
    fn each_injected_failure_fails_one_launch() {
        let cloud = Cloud::new();
        cloud.fail_launches(2);
        assert_eq!(
            [
                cloud.take_failure(),
                cloud.take_failure(),
                cloud.take_failure()
            ],
            [true, true, false]
        );
    }
}
