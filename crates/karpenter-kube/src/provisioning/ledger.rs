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
    bound: bool,
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
    pub fn decided(&self, uid: &str, placed: bool, now: Timestamp, metrics: &Metrics) {
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
        times.schedulable = placed.then(|| times.schedulable.unwrap_or(now));
    }

    /// When a pod was first found to be schedulable.
    #[must_use]
    pub fn schedulable_since(&self, uid: &str) -> Option<Timestamp> {
        self.lock().get(uid).and_then(|times| times.schedulable)
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
            if let Some(since) = times.schedulable {
                metrics
                    .pods_provisioning_bound_duration_seconds
                    .observe(&[], seconds(since, now));
            }
        }
        if pod.ready {
            metrics
                .pods_startup_duration_seconds
                .observe(&[], pod.created_at.map_or(0.0, |at| seconds(at, now)));
            if let Some(since) = times.schedulable {
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
        ledger.decided("a", true, at(2), &metrics);
        ledger.decided("a", true, at(5), &metrics);
        assert_eq!(ledger.schedulable_since("a"), Some(at(2)));
        ledger.decided("a", false, at(6), &metrics);
        assert_eq!(ledger.schedulable_since("a"), None);
        ledger.decided("never seen, such as a bound pod", true, at(6), &metrics);
        assert_eq!(
            ledger.schedulable_since("never seen, such as a bound pod"),
            None
        );
        assert_eq!(
            metrics.pods_scheduling_decision_duration_seconds.count(&[]),
            1.0
        );
    }
}
