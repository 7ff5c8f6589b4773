//! The simulated cloud: its machines, the capacity it has run out of, and what it gets wrong on purpose.
//!
//! It outlives controllers: a test that kills and restarts Karpenter keeps its [`Cloud`], as a real cloud would stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use karpenter_api::v1::NodeClaim;
use karpenter_core::offering::Offering;
use tokio_util::sync::CancellationToken;

/// How long an offering that had no capacity is not offered.
const UNAVAILABLE_FOR: SignedDuration = SignedDuration::from_mins(3);

/// Some of a cloud's capacity; a part that is not given stands for all of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CapacityPool {
    /// Instance type.
    pub instance_type: Option<String>,
    /// Zone.
    pub zone: Option<String>,
    /// Capacity type.
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

/// A machine that runs, or is on its way up or down.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Uid of the NodeClaim it was bought for.
    pub claim_uid: String,
    /// What the provider answered when it was bought; shared with the cluster model where that says the same.
    pub answer: Arc<NodeClaim>,
    /// Dollars per hour.
    pub price: f64,
    /// When it was bought.
    pub launched_at: Timestamp,
    /// Ends its registration if it is given back before.
    pub(crate) registration: CancellationToken,
}

/// A simulated cloud. Cheap to clone; clones are the same cloud.
#[derive(Debug, Clone, Default)]
pub struct Cloud {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    machines: BTreeMap<String, Machine>,
    gone: BTreeSet<String>,
    exhausted: BTreeSet<CapacityPool>,
    seen_exhausted: BTreeMap<CapacityPool, Timestamp>,
    failures: u32,
    never_register: bool,
    launched: u64,
    spent: f64,
}

impl Cloud {
    /// An empty cloud with all the capacity in the world.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs out of some capacity until [`Cloud::restock`].
    pub fn exhaust(&self, pool: CapacityPool) {
        self.lock().exhausted.insert(pool);
    }

    /// Has all capacity again.
    pub fn restock(&self) {
        let mut state = self.lock();
        state.exhausted.clear();
        state.seen_exhausted.clear();
    }

    /// Fails the next `times` launches for no good reason.
    pub fn fail_launches(&self, times: u32) {
        self.lock().failures = times;
    }

    /// From now on machines boot and never join the cluster, or do again.
    pub fn never_register(&self, never: bool) {
        self.lock().never_register = never;
    }

    /// Ends a machine behind Karpenter's back; its Node stays, and nothing runs it.
    pub fn kill(&self, provider_id: &str) {
        let mut state = self.lock();
        if let Some(machine) = state.machines.remove(provider_id) {
            machine.registration.cancel();
        }
        state.gone.insert(provider_id.to_owned());
    }

    /// The machines there are, by provider id.
    #[must_use]
    pub fn machines(&self) -> Vec<Machine> {
        self.lock().machines.values().cloned().collect()
    }

    /// How many machines have ever been launched.
    #[must_use]
    pub fn launched(&self) -> u64 {
        self.lock().launched
    }

    /// Dollars per hour of what runs.
    #[must_use]
    pub fn hourly_price(&self) -> f64 {
        self.lock()
            .machines
            .values()
            .fold(0.0, |sum, machine| sum + machine.price)
    }

    /// Dollars spent until `now`.
    #[must_use]
    pub fn spent(&self, now: Timestamp) -> f64 {
        let state = self.lock();
        state.spent
            + state
                .machines
                .values()
                .map(|machine| machine.cost(now))
                .sum::<f64>()
    }

    pub(crate) fn machine(&self, provider_id: &str) -> Option<Machine> {
        self.lock().machines.get(provider_id).cloned()
    }

    pub(crate) fn is_gone(&self, provider_id: &str) -> bool {
        self.lock().gone.contains(provider_id)
    }

    /// Adds a machine; false if it is there already.
    pub(crate) fn launch(&self, provider_id: &str, machine: Machine) -> bool {
        let mut state = self.lock();
        if state.machines.contains_key(provider_id) {
            return false;
        }
        state.launched += 1;
        state.machines.insert(provider_id.to_owned(), machine);
        true
    }

    /// Takes a machine away; false if there is none.
    pub(crate) fn terminate(&self, provider_id: &str, now: Timestamp) -> bool {
        let mut state = self.lock();
        let Some(machine) = state.machines.remove(provider_id) else {
            return false;
        };
        machine.registration.cancel();
        state.spent += machine.cost(now);
        true
    }

    /// Whether a launch is to fail, which it then does once.
    pub(crate) fn take_failure(&self) -> bool {
        let mut state = self.lock();
        let fails = state.failures > 0;
        state.failures = state.failures.saturating_sub(1);
        fails
    }

    pub(crate) fn registers(&self) -> bool {
        !self.lock().never_register
    }

    /// Whether there is capacity; if not, that is remembered for a while.
    pub(crate) fn has_capacity(
        &self,
        instance_type: &str,
        offering: &Offering,
        now: Timestamp,
    ) -> bool {
        let wanted = CapacityPool::of(instance_type, offering);
        let mut state = self.lock();
        let out = state.exhausted.iter().any(|pool| pool.covers(&wanted));
        if out {
            let until = now
                .saturating_add(UNAVAILABLE_FOR)
                .unwrap_or(Timestamp::MAX);
            state.seen_exhausted.insert(wanted, until);
        }
        !out
    }

    /// What is known to be out of capacity now.
    pub(crate) fn unavailable(&self, now: Timestamp) -> BTreeSet<CapacityPool> {
        let mut state = self.lock();
        state.seen_exhausted.retain(|_, until| *until > now);
        state.seen_exhausted.keys().cloned().collect()
    }

    pub(crate) fn is_unavailable(
        unavailable: &BTreeSet<CapacityPool>,
        instance_type: &str,
        offering: &Offering,
    ) -> bool {
        unavailable.contains(&CapacityPool::of(instance_type, offering))
    }
}

impl Machine {
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
    fn a_part_that_is_not_given_stands_for_all() {
        let wanted = pool(Some("a"), Some("z"), Some("spot"));
        assert!(pool(None, None, None).covers(&wanted));
        assert!(pool(Some("a"), None, Some("spot")).covers(&wanted));
        assert!(!pool(Some("b"), None, None).covers(&wanted));
    }

    #[test]
    fn failures_are_used_up() {
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
