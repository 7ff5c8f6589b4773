//! When pods were first seen and first placed, for the metrics that measure how long users wait.
//!
//! UPSTREAM: pkg/controllers/state/cluster.go (podAcks, podsSchedulingAttempted, podsSchedulableTimes)

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use karpenter_core::pod::Pod;
use rustc_hash::FxHashMap;

use crate::metrics::Metrics;

/// What is remembered of a pod until it runs.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    seen: Option<Timestamp>,
    decided: bool,
    schedulable: Option<Timestamp>,
    /// The same, on a NodePool whose nodes are known to register.
    healthy: Option<Timestamp>,
    bound: bool,
}

/// What a pass decided about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// There is a place for it, on a NodePool whose nodes are known to register, or not.
    Placed {
        /// Whether they are.
        healthy: bool,
    },
    /// There is none.
    Unplaced,
}

/// Times of pods that do not run yet, by uid. A pod that runs, ends or goes is forgotten.
#[derive(Debug, Default)]
pub struct PodLedger {
    pods: Mutex<FxHashMap<String, Times>>,
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

impl PodLedger {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<String, Times>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod that needs a node was seen; the first time counts.
    pub fn seen(&self, uid: &str, now: Timestamp) {
        self.lock()
            .entry(uid.to_owned())
            .or_default()
            .seen
            .get_or_insert(now);
    }

    /// A pod was decided about. A pod that was placed keeps the first time it was; one that was not loses it.
    ///
    /// How long users waited for their pods says little about Karpenter where nodes do not register: those waits are not
    /// observed.
    pub fn decided(&self, uid: &str, what: Decided, now: Timestamp, metrics: &Metrics) {
        let mut pods = self.lock();
        let Some(times) = pods.get_mut(uid) else {
            return;
        };
        if !times.decided {
            times.decided = true;
            let waited = times.seen.map_or(0.0, |seen| seconds(seen, now));
            metrics
                .pods_scheduling_decision_duration_seconds
                .observe(&[], waited);
        }
        let first = |known: Option<Timestamp>, holds: bool| holds.then(|| known.unwrap_or(now));
        times.schedulable = first(times.schedulable, what != Decided::Unplaced);
        times.healthy = first(times.healthy, what == Decided::Placed { healthy: true });
    }

    /// When a pod was first found to be schedulable.
    #[must_use]
    pub fn schedulable_since(&self, uid: &str) -> Option<Timestamp> {
        self.lock().get(uid).and_then(|times| times.schedulable)
    }

    /// When a pod was first found to be schedulable on a NodePool whose nodes are known to register.
    #[must_use]
    pub fn healthy_since(&self, uid: &str) -> Option<Timestamp> {
        self.lock().get(uid).and_then(|times| times.healthy)
    }

    /// Since when a pod is known that nobody has decided about.
    #[must_use]
    pub fn undecided_since(&self, uid: &str) -> Option<Timestamp> {
        self.lock().get(uid).filter(|times| !times.decided)?.seen
    }

    /// A pod changed; observes what has come to its end.
    pub fn changed(&self, pod: &Pod, now: Timestamp, metrics: &Metrics) {
        let mut pods = self.lock();
        let Some(times) = pods.get_mut(&pod.key.uid) else {
            return;
        };
        if pod.node_name.is_some() && !times.bound {
            times.bound = true;
            metrics
                .pods_bound_duration_seconds
                .observe(&[], pod.created_at.map_or(0.0, |at| seconds(at, now)));
            if let Some(since) = times.healthy {
                metrics
                    .pods_provisioning_bound_duration_seconds
                    .observe(&[], seconds(since, now));
            }
        }
        if pod.ready {
            metrics
                .pods_startup_duration_seconds
                .observe(&[], pod.created_at.map_or(0.0, |at| seconds(at, now)));
            if let Some(since) = times.healthy {
                metrics
                    .pods_provisioning_startup_duration_seconds
                    .observe(&[], seconds(since, now));
            }
        }
        if pod.ready || pod.is_terminal() {
            pods.remove(&pod.key.uid);
        }
    }

    /// A pod is gone.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Registry;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Conformance: DIS-017
    #[test]
    fn the_first_schedulable_time_counts_and_a_failure_clears_it() {
        let (ledger, metrics) = (PodLedger::default(), Metrics::new(&Registry::new()));
        ledger.seen("a", at(1));
        let placed = Decided::Placed { healthy: false };
        ledger.decided("a", placed, at(2), &metrics);
        ledger.decided("a", placed, at(5), &metrics);
        assert_eq!(ledger.schedulable_since("a"), Some(at(2)));
        ledger.decided("a", Decided::Unplaced, at(6), &metrics);
        assert_eq!(ledger.schedulable_since("a"), None);
        ledger.decided("never seen, such as a bound pod", placed, at(6), &metrics);
        assert_eq!(
            ledger.schedulable_since("never seen, such as a bound pod"),
            None
        );
        assert_eq!(
            metrics.pods_scheduling_decision_duration_seconds.count(&[]),
            1.0
        );
    }

    /// Conformance: DIS-018
    #[test]
    fn only_places_where_nodes_register_are_observed() {
        let (ledger, metrics) = (PodLedger::default(), Metrics::new(&Registry::new()));
        let healthy = |healthy| Decided::Placed { healthy };
        ledger.seen("a", at(1));
        ledger.decided("a", healthy(false), at(2), &metrics);
        assert_eq!(
            (ledger.schedulable_since("a"), ledger.healthy_since("a")),
            (Some(at(2)), None)
        );
        ledger.decided("a", healthy(true), at(3), &metrics);
        ledger.decided("a", healthy(true), at(4), &metrics);
        assert_eq!(ledger.healthy_since("a"), Some(at(3)));
        ledger.decided("a", healthy(false), at(5), &metrics);
        assert_eq!(
            (ledger.schedulable_since("a"), ledger.healthy_since("a")),
            (Some(at(2)), None)
        );
        ledger.decided("a", healthy(true), at(6), &metrics);
        ledger.decided("a", Decided::Unplaced, at(7), &metrics);
        assert_eq!(ledger.healthy_since("a"), None);
    }
}
