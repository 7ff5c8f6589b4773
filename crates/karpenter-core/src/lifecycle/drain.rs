//! The pods that a drain evicts and waits for, and their order.
//!
//! UPSTREAM: pkg/controllers/node/termination/terminator/terminator.go, pkg/utils/pod/scheduling.go

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::labels::taints;

use super::backoff::Backoff;
use crate::cluster::Snapshot;
use crate::cluster::pdb::{self, PdbBlock};
use crate::pod::{DoNotDisrupt, Pod, do_not_disrupt};
use crate::taints::Taint;

/// How long a drain lasts at least, so that pods that were bound at the last moment are seen.
pub const MIN_DRAIN: Duration = Duration::from_secs(5);

/// Back-off of an eviction that is refused or not allowed.
pub const RETRY: Backoff = Backoff {
    base: Duration::from_millis(100),
    max: Duration::from_secs(10),
};

/// A pod that still exists this long after the end of its grace period does not block the drain any more.
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// Admission allows this priority and higher to the two system classes only; users' classes end at a billion.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// The next step of a drain.
#[derive(Debug, Default, PartialEq)]
pub struct Drain {
    /// Pods to be evicted now, with the time from which they are deleted forcefully.
    pub evict: Vec<Arc<Pod>>,
    /// Number of pods that the drain waits for.
    pub waiting: usize,
}

/// What becomes of a pod that is to be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// It is deleted, to be gone by this time: see [`forced_grace`].
    Delete(Timestamp),
    /// Its eviction is requested.
    Request,
    /// A PodDisruptionBudget is certain to refuse the request. It is tried again.
    Refused(PdbBlock),
    /// It does not allow eviction. That is checked again.
    NotAllowed,
    /// Nothing: it ends or has ended.
    Done,
}

/// Returns what becomes of a pod that is to be evicted, and to be gone by a deadline.
pub fn eviction(
    snapshot: &Snapshot,
    pod: &Pod,
    deadline: Option<Timestamp>,
    now: Timestamp,
) -> Eviction {
    if let Some(deadline) = deadline.filter(|_| needs_force(pod, deadline, now)) {
        Eviction::Delete(deadline)
    } else if !pod.is_active() {
        Eviction::Done
    } else if !is_evictable(pod, now) {
        Eviction::NotAllowed
    } else {
        pdb::refuses(snapshot, pod).map_or(Eviction::Request, Eviction::Refused)
    }
}

/// Plans the next step of draining a node with these pods.
///
/// Pods that are due for forceful deletion are evicted at once. Of the others only the first group that is not empty is
/// evicted, in the order plain, DaemonSet, critical, critical DaemonSet; the next group waits until its pods are deleted.
pub fn plan(pods: &[Arc<Pod>], deadline: Option<Timestamp>, now: Timestamp) -> Drain {
    let waiting: Vec<&Arc<Pod>> = pods
        .iter()
        .filter(|pod| !pod.is_terminal() && is_drainable(pod, now))
        .collect();
    let (forced, asked): (Vec<_>, Vec<_>) = waiting
        .iter()
        .copied()
        .partition(|pod| needs_force(pod, deadline, now));
    let mut groups: [Vec<Arc<Pod>>; 4] = Default::default();
    for pod in asked {
        let critical = pod.shape.priority >= SYSTEM_CRITICAL;
        groups[usize::from(critical) * 2 + usize::from(pod.is_owned_by_daemon_set())]
            .push(Arc::clone(pod));
    }
    let first = groups
        .into_iter()
        .find(|group| !group.is_empty())
        .unwrap_or_default();
    let evict = forced.into_iter().cloned().chain(first).collect();
    Drain {
        evict,
        waiting: waiting.len(),
    }
}

/// Returns whether the drain waits for a pod.
pub fn is_drainable(pod: &Pod, now: Timestamp) -> bool {
    let stuck = pod
        .deleted_at
        .is_some_and(|due| now.duration_since(due.time()) > STUCK_AFTER);
    !tolerates_disruption(pod) && !stuck && !pod.is_mirror()
}

fn is_evictable(pod: &Pod, now: Timestamp) -> bool {
    pod.is_active()
        && !tolerates_disruption(pod)
        && !pod.is_mirror()
        && do_not_disrupt(pod, now) != DoNotDisrupt::Yes
}

fn tolerates_disruption(pod: &Pod) -> bool {
    Taint::parse(&taints::disrupted()).is_tolerated_by(&pod.shape.tolerations)
}

/// Returns whether a pod must be deleted now, to have its grace period before the node's deadline.
pub fn needs_force(pod: &Pod, deadline: Option<Timestamp>, now: Timestamp) -> bool {
    let Some(deadline) = deadline else {
        return false;
    };
    if let Some(due) = pod.deleted_at {
        return due.time() > deadline;
    }
    let grace = SignedDuration::from_secs(pod.termination_grace_seconds.unwrap_or(30));
    let latest = deadline.saturating_sub(grace).unwrap_or(Timestamp::MIN);
    now > latest
}

/// Returns the grace period of a pod that is deleted forcefully: the time until the deadline, never zero, which would mean
/// "skip the kubelet".
pub fn forced_grace(deadline: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(deadline.duration_since(now)).unwrap_or_default();
    Duration::from_secs(left.as_secs().max(1))
}

#[cfg(test)]
mod tests {
    use karpenter_fixtures::{Object, Pod as Wire};
    use serde_json::json;

    use super::*;
    use crate::cluster::Cluster;
    use crate::fake;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn now() -> Timestamp {
        at("2026-01-01T01:00:00Z")
    }

    fn pod(name: &str) -> Object<Wire> {
        karpenter_fixtures::pod(name).on("n")
    }

    fn daemon(name: &str) -> Object<Wire> {
        pod(name).controlled_by("DaemonSet", "d")
    }

    fn parsed(pod: Object<Wire>) -> Arc<Pod> {
        Arc::new(Pod::parse(&pod.build()))
    }

    fn names(drain: &Drain) -> Vec<&str> {
        drain.evict.iter().map(|p| p.key.name.as_str()).collect()
    }

    /// Returns how many pods are waited for if the node has only this one.
    fn waiting(pod: Object<Wire>) -> usize {
        plan(&[parsed(pod)], None, now()).waiting
    }

    const CRITICAL: i32 = 2_000_000_000;

    /// Conformance: DIS-069
    #[test]
    fn four_groups_are_evicted_one_after_another() {
        let mut pods = [
            daemon("critical-daemon").priority(CRITICAL),
            pod("critical").priority(CRITICAL),
            daemon("daemon"),
            pod("plain"),
        ]
        .map(parsed)
        .to_vec();
        for expected in ["plain", "daemon", "critical", "critical-daemon"] {
            let drain = plan(&pods, None, now());
            assert_eq!(names(&drain), [expected]);
            assert_eq!(drain.waiting, pods.len());
            pods.pop();
        }
        assert_eq!(plan(&pods, None, now()), Drain::default());
    }

    /// Conformance: DIS-200
    #[test]
    fn only_the_two_system_priority_classes_are_critical() {
        // A user's PriorityClass has a thousand million at most.
        let pods = [CRITICAL, CRITICAL + 1000, 1_000_000_000, 0]
            .map(|priority| parsed(pod(&priority.to_string()).priority(priority)));
        assert_eq!(names(&plan(&pods, None, now())), ["1000000000", "0"]);
        let critical = plan(&pods[..2], None, now());
        assert_eq!(names(&critical), ["2000000000", "2000001000"]);
    }

    /// Conformance: DIS-065, DIS-066, DIS-067
    #[test]
    fn tolerating_terminal_and_static_pods_are_not_evicted() {
        let tolerating = |key: &str, operator: &str, value: Option<&str>| {
            let toleration =
                json!({"key": key, "operator": operator, "value": value, "effect": "NoSchedule"});
            waiting(pod("t").tolerate(toleration))
        };
        assert_eq!(tolerating("karpenter.sh/disrupted", "Exists", None), 0);
        assert_eq!(tolerating("karpenter.sh/disrupted", "Equal", Some("")), 0);
        let cordoned = "node.kubernetes.io/unschedulable";
        assert_eq!(tolerating(cordoned, "Exists", None), 1);
        assert_eq!(waiting(pod("e").set("/status/phase", "Succeeded")), 0);
        assert_eq!(waiting(pod("m").owned_by("v1", "Node", "n")), 0);
        let ownerless = [parsed(pod("ownerless"))];
        assert_eq!(names(&plan(&ownerless, None, now())), ["ownerless"]);
    }

    /// Conformance: DIS-071
    #[test]
    fn a_pod_stuck_for_more_than_a_minute_is_not_waited_for() {
        assert_eq!(waiting(pod("t").deleted("2026-01-01T00:59:30Z")), 1);
        assert_eq!(waiting(pod("t").deleted("2026-01-01T00:58:59Z")), 0);
    }

    /// Conformance: DIS-073, DIS-074, DIS-076, DIS-209
    #[test]
    fn pods_are_deleted_early_enough_to_have_their_grace_before_the_deadline() {
        let deadline = at("2026-01-01T01:05:00Z");
        let forced = |grace: i64, deadline: Option<Timestamp>, now: &str| {
            needs_force(&parsed(pod("g").grace_period(grace)), deadline, at(now))
        };
        assert!(!forced(60, Some(deadline), "2026-01-01T01:01:30Z"));
        assert!(forced(60, Some(deadline), "2026-01-01T01:04:01Z"));
        assert!(forced(300, Some(deadline), "2026-01-01T01:00:01Z"));
        assert!(!forced(300, None, "2026-01-01T01:00:00Z"));
        let far = parsed(pod("f").deleted("2026-01-01T02:40:00Z"));
        assert!(needs_force(&far, Some(deadline), now()));
        assert_eq!(forced_grace(deadline, now()), Duration::from_secs(300));
        assert_eq!(forced_grace(now(), deadline), Duration::from_secs(1));
    }

    /// Conformance: DIS-154
    #[test]
    fn protected_pods_are_waited_for_but_not_evictable() {
        assert_eq!(waiting(pod("p").do_not_disrupt()), 1);
        let mut cluster = Cluster::new(fake::cluster_config());
        cluster.apply_pdb(&karpenter_fixtures::pdb("guarded").allows(0).build());
        let snapshot = cluster.snapshot();
        let deadline = at("2026-01-01T01:00:20Z");
        let [none, soon] = [None, Some(deadline)];
        let guarded = || {
            pod("p").label("app", "guarded").condition(
                "Ready",
                "True",
                "Ready",
                "2026-01-01T00:00:00Z",
            )
        };
        let refused = PdbBlock::Prevents {
            budget: "guarded".to_owned(),
        };
        for (pod, deadline, expected) in [
            (pod("p"), none, Eviction::Request),
            (pod("p").do_not_disrupt(), none, Eviction::NotAllowed),
            (guarded(), none, Eviction::Refused(refused)),
            (guarded(), soon, Eviction::Delete(deadline)),
            (
                pod("p").deleted("2026-01-01T01:00:30Z"),
                none,
                Eviction::Done,
            ),
            (
                pod("p").deleted("2026-01-01T01:00:30Z"),
                soon,
                Eviction::Delete(deadline),
            ),
        ] {
            assert_eq!(eviction(&snapshot, &parsed(pod), deadline, now()), expected);
        }
    }

    /// Conformance: DIS-075
    #[test]
    fn a_critical_pod_due_for_deletion_does_not_wait_for_a_blocked_group() {
        let urgent = pod("critical").priority(CRITICAL).grace_period(240);
        let pods = [pod("blocked").grace_period(10), urgent].map(parsed);
        let deadline = Some(at("2026-01-01T01:05:00Z"));
        let early = plan(&pods, deadline, now());
        assert_eq!(names(&early), ["blocked"], "the deadline is far enough");
        let later = plan(&pods, deadline, at("2026-01-01T01:01:01Z"));
        assert_eq!(names(&later), ["critical", "blocked"]);
    }
}
