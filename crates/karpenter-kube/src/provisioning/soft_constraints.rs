//! Logs pods whose preferences can prevent consolidation: a node is not consolidated if its pods would lose a preference.
//!
//! UPSTREAM: pkg/controllers/provisioning/provisioner.go, consolidationWarnings

use std::collections::hash_map::Entry;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_core::pod::Pod;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::logging;

/// How often a pod is logged.
const LOG_INTERVAL: SignedDuration = SignedDuration::from_hours(24);
/// How many pods a log line names.
const NAMED_PODS: usize = 10;

/// A preference of a pod that consolidation respects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Preference {
    AntiAffinity,
    Spread,
}

impl Preference {
    fn is_of(self, pod: &Pod) -> bool {
        match self {
            Self::AntiAffinity => !pod.shape.preferred_anti_affinity.is_empty(),
            Self::Spread => pod.shape.spread.iter().any(|spread| !spread.hard),
        }
    }
}

/// Records when pods were logged, by uid.
#[derive(Debug, Default)]
pub(super) struct SoftConstraints(Mutex<FxHashMap<(Preference, String), Timestamp>>);

impl SoftConstraints {
    /// Logs the pods that were not logged in the last 24 hours.
    pub(super) fn log(&self, pods: &[Arc<Pod>], now: Timestamp) {
        let apart = self.fresh(Preference::AntiAffinity, pods, now);
        if !apart.is_empty() {
            tracing::info!(
                pods = logging::shortened(&apart, NAMED_PODS),
                "pod(s) have a preferred Anti-Affinity which can prevent consolidation"
            );
        }
        let spread = self.fresh(Preference::Spread, pods, now);
        if !spread.is_empty() {
            tracing::info!(
                pods = logging::shortened(&spread, NAMED_PODS),
                "pod(s) have a preferred TopologySpreadConstraint which can prevent consolidation"
            );
        }
    }

    fn fresh(&self, preference: Preference, pods: &[Arc<Pod>], now: Timestamp) -> Vec<String> {
        let mut named = self.0.lock();
        named.retain(|_, at| now.duration_since(*at) < LOG_INTERVAL);
        let mut fresh = Vec::new();
        for pod in pods.iter().filter(|pod| preference.is_of(pod)) {
            let key = (preference, pod.key.uid.clone());
            if let Entry::Vacant(entry) = named.entry(key) {
                entry.insert(now);
                fresh.push(pod.key.to_string());
            }
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use karpenter_fixtures::{HOSTNAME, pod};
    use serde_json::json;

    use super::*;

    const APP: (&str, &str) = ("app", "x");

    /// Conformance: SCH-261
    #[test]
    fn pods_whose_preferences_can_prevent_consolidation_are_named_once_a_day() {
        let soft = json!({"whenUnsatisfiable": "ScheduleAnyway"});
        let pods = [
            pod("apart").prefer_anti_affinity(1, HOSTNAME, APP),
            pod("kept-apart").anti_affinity(HOSTNAME, APP),
            pod("loose").spread_with(HOSTNAME, 1, APP, soft),
            pod("strict").spread(HOSTNAME, 1, APP),
        ]
        .map(|pod| Arc::new(Pod::parse(&pod.build())));
        let named = SoftConstraints::default();
        let at = |hours: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours);
        let fresh = |hours: i64| {
            [Preference::AntiAffinity, Preference::Spread]
                .map(|preference| named.fresh(preference, &pods, at(hours)))
        };
        let none: [Vec<String>; 2] = Default::default();
        let all = [
            vec!["default/apart".to_owned()],
            vec!["default/loose".to_owned()],
        ];
        assert_eq!(fresh(0), all);
        assert_eq!(fresh(23), none);
        assert_eq!(fresh(24), all);
    }
}
