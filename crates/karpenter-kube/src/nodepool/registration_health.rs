//! Registration health of NodePools: a ring of the latest four outcomes per NodePool, in memory.
//!
//! Two failures among the latest four make a pool unhealthy. After a restart the ring is filled again from the
//! condition. The status controller alone writes the condition; outcomes only trigger it.
//!
//! UPSTREAM: pkg/state/nodepoolhealth/tracker.go

use std::collections::VecDeque;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::controller::{ObjectKey, Queue};

/// The registration health of a NodePool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// No outcome is known.
    Unknown,
    /// Nodes register.
    Healthy,
    /// Nodes do not register; reason and message of the latest failure.
    Unhealthy(Option<(String, String)>),
}

/// Outcomes of registrations, by uid of the NodePool.
#[derive(Debug)]
pub struct RegistrationHealth {
    rings: Mutex<FxHashMap<String, Ring>>,
    status: Queue<ObjectKey>,
}

#[derive(Debug, Default)]
struct Ring {
    outcomes: VecDeque<bool>,
    failure: Option<(String, String)>,
}

impl Ring {
    const SLOTS: usize = 4;
    const TOLERATED_FAILURES: usize = 1;

    fn push(&mut self, registered: bool) {
        if self.outcomes.len() == Self::SLOTS {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back(registered);
    }

    fn health(&self) -> Health {
        let failures = self
            .outcomes
            .iter()
            .filter(|registered| !**registered)
            .count();
        match failures {
            _ if self.outcomes.is_empty() => Health::Unknown,
            0..=Self::TOLERATED_FAILURES => Health::Healthy,
            _ => Health::Unhealthy(self.failure.clone()),
        }
    }
}

impl RegistrationHealth {
    /// Creates a tracker that triggers the status controller through its queue.
    #[must_use]
    pub fn new(status: Queue<ObjectKey>) -> Self {
        Self {
            rings: Mutex::default(),
            status,
        }
    }

    /// Records an outcome for the NodePool of this name and uid.
    pub fn record(
        &self,
        pool: &str,
        uid: &str,
        registered: bool,
        failure: Option<(String, String)>,
    ) {
        let mut rings = self.rings.lock();
        let ring = rings.entry(uid.to_owned()).or_default();
        ring.push(registered);
        if !registered {
            ring.failure = failure;
        }
        drop(rings);
        self.status.add(ObjectKey::cluster(pool));
    }

    /// Returns the health of a NodePool.
    #[must_use]
    pub fn health(&self, uid: &str) -> Health {
        self.rings
            .lock()
            .get(uid)
            .map_or(Health::Unknown, Ring::health)
    }

    /// Clears the outcomes of a NodePool.
    pub fn reset(&self, uid: &str) {
        self.rings.lock().remove(uid);
    }

    /// Fills an empty ring from the status of the NodePool's condition.
    pub fn restore(&self, uid: &str, healthy: bool) {
        let mut rings = self.rings.lock();
        let ring = rings.entry(uid.to_owned()).or_default();
        if ring.outcomes.is_empty() {
            let seed: &[bool] = if healthy { &[true] } else { &[false, false] };
            seed.iter().for_each(|outcome| ring.push(*outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> RegistrationHealth {
        RegistrationHealth::new(Queue::new())
    }

    /// Conformance: DIS-024, DIS-033
    #[test]
    fn two_failures_among_four_outcomes_are_unhealthy() {
        let health = health();
        let record = |registered| health.record("pool", "u", registered, None);
        assert_eq!(health.health("u"), Health::Unknown);
        record(false);
        assert_eq!(health.health("u"), Health::Healthy);
        record(false);
        record(true);
        assert_eq!(health.health("u"), Health::Unhealthy(None));
        record(true);
        record(true);
        assert_eq!(health.health("u"), Health::Healthy);
    }

    /// Conformance: DIS-140
    #[test]
    fn a_restart_fills_only_an_empty_ring() {
        let health = health();
        health.restore("u", false);
        assert_eq!(health.health("u"), Health::Unhealthy(None));
        health.restore("u", true);
        assert_eq!(health.health("u"), Health::Unhealthy(None));
        health.reset("u");
        health.restore("u", true);
        assert_eq!(health.health("u"), Health::Healthy);
    }

    #[test]
    fn an_outcome_triggers_the_status_controller() {
        let queue = Queue::new();
        RegistrationHealth::new(queue.clone()).record("pool", "u", true, None);
        assert_eq!(queue.next(), Some(ObjectKey::cluster("pool")));
    }
}
