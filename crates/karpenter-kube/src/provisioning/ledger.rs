//! Records when pods were first seen and first placed, for the metrics of users' waiting times.
//!
//! Every pod that is seen pending is tracked until it is ready, completes or is deleted.
//!
//! UPSTREAM: pkg/controllers/state/cluster.go (podAcks, podsSchedulingAttempted, podsSchedulableTimes),
//! pkg/controllers/metrics/pod/controller.go

use jiff::Timestamp;
use karpenter_core::pod::{Phase, Pod, UnixSecond};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::metrics::Metrics;

/// The tracked times of a pod until it is ready.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    /// When it was first seen to need a node.
    seen: Option<Timestamp>,
    decided: bool,
    schedulable: Option<Timestamp>,
    /// The same on a NodePool whose nodes are known to register.
    healthy: Option<Timestamp>,
    bound: bool,
    /// Whether the time until binding was observed.
    counted: bool,
}

/// The result of a plan for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// The pod has a place.
    Placed {
        /// Whether it is on a NodePool whose nodes are known to register.
        healthy: bool,
    },
    /// The pod has no place.
    Unplaced,
}

/// Times of pods that are not ready yet, by uid.
#[derive(Debug, Default)]
pub struct PodLedger {
    pods: Mutex<FxHashMap<String, Times>>,
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

impl PodLedger {
    /// Records a pod that needs a node; the first time counts.
    pub fn seen(&self, uid: &str, now: Timestamp) {
        self.pods
            .lock()
            .entry(uid.to_owned())
            .or_default()
            .seen
            .get_or_insert(now);
    }

    /// Records the result of a plan for a pod. A placed pod keeps its first time; an unplaced one loses it.
    ///
    /// Waiting times are not observed where nodes do not register: they say little about Karpenter.
    pub fn decided(&self, uid: &str, what: Decided, now: Timestamp, metrics: &Metrics) {
        let mut pods = self.pods.lock();
        let Some(times) = pods.get_mut(uid).filter(|times| !times.bound) else {
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

    /// Returns when a pod was first found to be schedulable.
    #[must_use]
    pub fn schedulable_since(&self, uid: &str) -> Option<Timestamp> {
        self.pods
            .lock()
            .get(uid)
            .and_then(|times| times.schedulable)
    }

    /// Returns when a pod was first found to be schedulable on a NodePool whose nodes are known to register.
    #[must_use]
    pub fn healthy_since(&self, uid: &str) -> Option<Timestamp> {
        self.pods.lock().get(uid).and_then(|times| times.healthy)
    }

    /// Returns since when a pod waits for its first plan.
    #[must_use]
    pub fn undecided_since(&self, uid: &str) -> Option<Timestamp> {
        self.pods
            .lock()
            .get(uid)
            .filter(|times| !times.decided)?
            .seen
    }

    /// Returns whether the pod was seen pending and is not ready yet.
    #[must_use]
    pub fn is_starting(&self, uid: &str) -> bool {
        self.pods.lock().contains_key(uid)
    }

    /// Records a change of a pod; observes completed waiting times once it is not pending any more. Without `metrics`
    /// another replica observes them.
    pub fn changed(&self, pod: &Pod, now: Timestamp, metrics: Option<&Metrics>) {
        let mut pods = self.pods.lock();
        if pod.phase == Phase::Pending {
            let times = pods.entry(pod.key.uid.clone()).or_default();
            times.bound = pod.node_name.is_some();
            return;
        }
        let Some(times) = pods.get_mut(&pod.key.uid) else {
            return;
        };
        let at = |since: Option<UnixSecond>| since.map_or(now, UnixSecond::time);
        let lasted = |to: Timestamp| pod.created_at.map_or(0.0, |from| seconds(from.time(), to));
        if pod.node_name.is_some() && !times.counted {
            (times.bound, times.counted) = (true, true);
            if let Some(metrics) = metrics {
                let bound = at(pod.scheduled_since);
                metrics
                    .pods_bound_duration_seconds
                    .observe(&[], lasted(bound));
                if let Some(since) = times.healthy {
                    metrics
                        .pods_provisioning_bound_duration_seconds
                        .observe(&[], seconds(since, bound));
                }
            }
        }
        if let Some(metrics) = metrics.filter(|_| pod.ready) {
            let ready = at(pod.ready_since);
            metrics
                .pods_startup_duration_seconds
                .observe(&[], lasted(ready));
            if let Some(since) = times.healthy {
                metrics
                    .pods_provisioning_startup_duration_seconds
                    .observe(&[], seconds(since, ready));
            }
        }
        if pod.ready || pod.is_terminal() {
            pods.remove(&pod.key.uid);
        }
    }

    /// Removes a pod.
    pub fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Registry;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn new() -> (PodLedger, Metrics) {
        (PodLedger::default(), Metrics::new(&Registry::new()))
    }

    fn pod(phase: &str, node: Option<&str>, conditions: &[serde_json::Value]) -> Pod {
        let mut pod = karpenter_fixtures::pod("a")
            .created("1970-01-01T00:00:10Z")
            .set("/status/phase", phase)
            .set("/status/conditions", conditions.to_vec());
        if let Some(node) = node {
            pod = pod.set("/spec/nodeName", node);
        }
        Pod::parse(&pod.build())
    }

    fn is_true(type_: &str, second: i64) -> serde_json::Value {
        serde_json::json!({"type": type_, "status": "True", "lastTransitionTime": at(second)})
    }

    /// Conformance: API-182
    #[test]
    fn a_pod_that_karpenter_did_not_place_is_tracked_until_it_is_ready() {
        let (ledger, metrics) = new();
        let seen = |pod: &Pod, now| ledger.changed(pod, at(now), Some(&metrics));
        // kube-scheduler has bound it before the first plan.
        let bound = is_true("PodScheduled", 12);
        let bound = std::slice::from_ref(&bound);
        seen(&pod("Pending", Some("n"), bound), 20);
        assert!(ledger.is_starting("a"));
        assert_eq!(metrics.pods_bound_duration_seconds.count(&[]), 0.0);
        seen(&pod("Running", Some("n"), bound), 30);
        seen(&pod("Running", Some("n"), bound), 31);
        assert!(ledger.is_starting("a"), "running and not ready");
        let ready = [bound[0].clone(), is_true("Ready", 40)];
        seen(&pod("Running", Some("n"), &ready), 55);
        assert!(!ledger.is_starting("a"));
        seen(&pod("Running", Some("n"), &ready), 56);
        let text = metrics.registry.render();
        for line in [
            "karpenter_pods_bound_duration_seconds_sum 2",
            "karpenter_pods_bound_duration_seconds_count 1",
            "karpenter_pods_startup_duration_seconds_sum 30",
            "karpenter_pods_startup_duration_seconds_count 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
        let planned = text.contains("karpenter_pods_provisioning_bound");
        assert!(!planned, "{text}");
    }

    /// Conformance: API-182
    #[test]
    fn a_pod_that_ends_or_was_never_seen_pending_has_no_startup() {
        let (ledger, metrics) = new();
        let seen = |pod: Pod, now| ledger.changed(&pod, at(now), Some(&metrics));
        seen(pod("Running", Some("n"), &[is_true("Ready", 40)]), 50);
        seen(pod("Pending", None, &[]), 50);
        seen(pod("Failed", Some("n"), &[]), 60);
        assert!(!ledger.is_starting("a"));
        assert_eq!(metrics.pods_startup_duration_seconds.count(&[]), 0.0);
    }

    #[test]
    fn a_standby_replica_tracks_pods_without_observing_them() {
        let (ledger, metrics) = new();
        let pending = pod("Pending", None, &[]);
        let running = pod("Running", Some("n"), &[]);
        let ready = pod("Running", Some("n"), &[is_true("Ready", 40)]);
        ledger.changed(&pending, at(20), None);
        ledger.changed(&running, at(30), None);
        // It becomes the leader.
        ledger.changed(&ready, at(40), Some(&metrics));
        assert_eq!(metrics.pods_bound_duration_seconds.count(&[]), 0.0);
        assert_eq!(metrics.pods_startup_duration_seconds.count(&[]), 1.0);
    }

    #[test]
    fn a_plan_for_a_bound_pod_is_not_recorded() {
        let (ledger, metrics) = new();
        let bound = pod("Pending", Some("n"), &[]);
        ledger.changed(&bound, at(20), Some(&metrics));
        // Its node is deleted, and the provisioner plans another place.
        ledger.decided("a", Decided::Placed { healthy: true }, at(30), &metrics);
        assert_eq!(ledger.schedulable_since("a"), None);
        let decisions = &metrics.pods_scheduling_decision_duration_seconds;
        assert_eq!(decisions.count(&[]), 0.0);
    }

    /// Conformance: DIS-017
    #[test]
    fn the_first_schedulable_time_counts_and_a_failure_clears_it() {
        let (ledger, metrics) = new();
        ledger.seen("a", at(1));
        let placed = Decided::Placed { healthy: false };
        ledger.decided("a", placed, at(2), &metrics);
        ledger.decided("a", placed, at(5), &metrics);
        assert_eq!(ledger.schedulable_since("a"), Some(at(2)));
        ledger.decided("a", Decided::Unplaced, at(6), &metrics);
        assert_eq!(ledger.schedulable_since("a"), None);
        // Never seen, such as a bound pod.
        ledger.decided("b", placed, at(6), &metrics);
        assert_eq!(ledger.schedulable_since("b"), None);
        let decisions = &metrics.pods_scheduling_decision_duration_seconds;
        assert_eq!(decisions.count(&[]), 1.0);
    }

    /// Conformance: DIS-018
    #[test]
    fn only_places_where_nodes_register_are_observed() {
        let (ledger, metrics) = new();
        let healthy = |healthy| Decided::Placed { healthy };
        let since = || (ledger.schedulable_since("a"), ledger.healthy_since("a"));
        ledger.seen("a", at(1));
        ledger.decided("a", healthy(false), at(2), &metrics);
        assert_eq!(since(), (Some(at(2)), None));
        ledger.decided("a", healthy(true), at(3), &metrics);
        ledger.decided("a", healthy(true), at(4), &metrics);
        assert_eq!(ledger.healthy_since("a"), Some(at(3)));
        ledger.decided("a", healthy(false), at(5), &metrics);
        assert_eq!(since(), (Some(at(2)), None));
        ledger.decided("a", healthy(true), at(6), &metrics);
        ledger.decided("a", Decided::Unplaced, at(7), &metrics);
        assert_eq!(ledger.healthy_since("a"), None);
    }

    #[test]
    fn a_pod_waits_for_its_first_plan_from_when_it_was_seen() {
        let (ledger, metrics) = new();
        assert_eq!(ledger.undecided_since("a"), None);
        ledger.seen("a", at(1));
        ledger.seen("a", at(2));
        assert_eq!(ledger.undecided_since("a"), Some(at(1)));
        ledger.decided("a", Decided::Unplaced, at(3), &metrics);
        assert_eq!(ledger.undecided_since("a"), None);
    }

    #[test]
    fn a_deleted_pod_is_forgotten() {
        let ledger = PodLedger::default();
        ledger.seen("a", at(1));
        assert!(ledger.is_starting("a"));
        ledger.forget("a");
        assert!(!ledger.is_starting("a"));
    }
}
