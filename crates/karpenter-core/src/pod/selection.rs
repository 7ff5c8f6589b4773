//! Selection of pods: pending ones that need a node, and ones that must be rescheduled.
//!
//! UPSTREAM: pkg/utils/pod/scheduling.go

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::labels::annotations::{DO_NOT_DISRUPT, DO_NOT_EVICT};

use super::{Phase, Pod};

/// The meaning of a pod's `karpenter.sh/do-not-disrupt` annotation at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoNotDisrupt {
    /// Not set, or its duration has elapsed.
    No,
    /// Set, permanently or until a time in the future.
    Yes,
    /// Set to a value that is neither `true` nor a positive duration; ignored.
    Invalid,
}

/// Why a pod is not placed by a scheduling pass over the waiting pods.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PodIgnored {
    /// The pod is bound to a node.
    Bound {
        /// The node.
        node: String,
    },
    /// The pod is being deleted.
    Terminating,
    /// The pod has succeeded or failed.
    Terminated,
    /// The pod is the mirror pod of a static pod, which belongs to its node.
    Static,
    /// A DaemonSet owns the pod: its node must exist first.
    DaemonSet,
    /// The pod has scheduling gates.
    SchedulingGated,
    /// kube-scheduler evicts other pods to make room for the pod.
    Preempting {
        /// The node.
        node: String,
    },
    /// Another scheduler is responsible for the pod and has not marked it unschedulable.
    OtherScheduler {
        /// The scheduler.
        scheduler: String,
    },
    /// kube-scheduler has not marked the pod unschedulable: its condition PodScheduled is not False for reason Unschedulable.
    NotMarkedUnschedulable,
}

impl fmt::Display for PodIgnored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bound { node } => write!(f, "the pod is bound to node {node}"),
            Self::Terminating => f.write_str("the pod is terminating"),
            Self::Terminated => f.write_str("the pod has terminated"),
            Self::Static => f.write_str("the pod is a static pod of its node"),
            Self::DaemonSet => f.write_str("no node is launched for a pod of a DaemonSet"),
            Self::SchedulingGated => f.write_str("the pod has scheduling gates"),
            Self::Preempting { node } => {
                write!(f, "kube-scheduler preempts pods on node {node} for the pod")
            }
            Self::OtherScheduler { scheduler } => {
                write!(
                    f,
                    "scheduler {scheduler} has not marked the pod unschedulable"
                )
            }
            Self::NotMarkedUnschedulable => {
                f.write_str("kube-scheduler has not marked the pod unschedulable")
            }
        }
    }
}

impl Pod {
    /// Returns why the pod is not pending; `None` if it [is provisionable](Self::is_provisionable).
    ///
    /// ```
    /// use karpenter_api::k8s_openapi::api::core::v1 as corev1;
    /// use karpenter_core::pod::{Pod, PodIgnored};
    ///
    /// let mut pod = corev1::Pod::default();
    /// assert_eq!(Pod::parse(&pod).ignored(), Some(PodIgnored::NotMarkedUnschedulable));
    /// pod.spec.get_or_insert_default().node_name = Some("node-1".to_owned());
    /// assert_eq!(Pod::parse(&pod).ignored().unwrap().to_string(), "the pod is bound to node node-1");
    /// ```
    pub fn ignored(&self) -> Option<PodIgnored> {
        if self.is_provisionable() {
            None
        } else if let Some(node) = &self.node_name {
            Some(PodIgnored::Bound {
                node: node.to_string(),
            })
        } else if self.deleted_at.is_some() {
            Some(PodIgnored::Terminating)
        } else if self.is_terminal() {
            Some(PodIgnored::Terminated)
        } else if self.is_mirror() {
            Some(PodIgnored::Static)
        } else if self.is_owned_by_daemon_set() {
            Some(PodIgnored::DaemonSet)
        } else if self.gated {
            Some(PodIgnored::SchedulingGated)
        } else if self.is_preempting() {
            Some(PodIgnored::Preempting {
                node: self.nominated_node.clone().unwrap_or_default(),
            })
        } else {
            Some(match self.scheduler_name.clone() {
                Some(scheduler) => PodIgnored::OtherScheduler { scheduler },
                None => PodIgnored::NotMarkedUnschedulable,
            })
        }
    }

    /// Reports whether a new node can help the pod: kube-scheduler found no node for it and is not preempting pods for it, and it is
    /// neither part of a DaemonSet nor a static pod.
    ///
    /// DIFFERS: no node is provisioned for a terminating pod.
    pub fn is_provisionable(&self) -> bool {
        self.unschedulable && self.needs_node()
    }

    fn needs_node(&self) -> bool {
        self.node_name.is_none()
            && !self.is_preempting()
            && !self.is_owned_by_daemon_set()
            && !self.is_mirror()
            && self.deleted_at.is_none()
    }

    /// Reports whether kube-scheduler has still to try the pod for the first time.
    pub(crate) fn is_untried(&self) -> bool {
        !self.unschedulable
            && !self.gated
            && self.scheduler_name.is_none()
            && self.phase == Phase::Pending
            && self.needs_node()
    }

    /// Reports whether kube-scheduler is preempting other pods for it.
    fn is_preempting(&self) -> bool {
        self.nominated_node.is_some() && !self.nominated_by_plan
    }

    /// Reports whether `status.nominatedNodeName` is where a plan placed the pod.
    pub fn is_nominated_by_plan(&self) -> bool {
        self.nominated_node.is_some() && self.nominated_by_plan
    }

    /// Reports whether the pod is neither terminated nor terminating.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && self.deleted_at.is_none()
    }

    /// Reports whether the pod has succeeded or failed.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Reports whether the pod must be rescheduled when its node is deleted; a terminating pod of a StatefulSet is, because the
    /// StatefulSet creates it again, whatever its phase.
    pub fn is_reschedulable(&self) -> bool {
        (self.is_active() || (self.is_owned_by_stateful_set() && self.deleted_at.is_some()))
            && !self.is_owned_by_daemon_set()
            && !self.is_mirror()
    }

    /// Reports whether a DaemonSet owns the pod.
    pub fn is_owned_by_daemon_set(&self) -> bool {
        self.is_owned_by("apps/v1", "DaemonSet")
    }

    /// Reports whether a StatefulSet owns the pod.
    pub fn is_owned_by_stateful_set(&self) -> bool {
        self.is_owned_by("apps/v1", "StatefulSet")
    }

    /// Reports whether this is the mirror pod of a static pod.
    pub fn is_mirror(&self) -> bool {
        self.is_owned_by("v1", "Node")
    }

    fn is_owned_by(&self, api_version: &str, kind: &str) -> bool {
        self.owners
            .iter()
            .any(|owner| owner.api_version == api_version && owner.kind == kind)
    }
}

/// Evaluates the pod's `karpenter.sh/do-not-disrupt` annotation at `now`. `karpenter.sh/do-not-evict: "true"`, its name up to
/// v0.32, still counts. DIFFERS: upstream has dropped it.
pub fn do_not_disrupt(pod: &Pod, now: Timestamp) -> DoNotDisrupt {
    if pod
        .annotations
        .get(DO_NOT_EVICT)
        .is_some_and(|value| value == "true")
    {
        return DoNotDisrupt::Yes;
    }
    let Some(value) = pod.annotations.get(DO_NOT_DISRUPT) else {
        return DoNotDisrupt::No;
    };
    if value == "true" {
        return DoNotDisrupt::Yes;
    }
    let Some(duration) = protection(value) else {
        return DoNotDisrupt::Invalid;
    };
    match pod.started_at {
        None => DoNotDisrupt::Yes,
        Some(start) if now.duration_since(start.time()) < duration => DoNotDisrupt::Yes,
        Some(_) => DoNotDisrupt::No,
    }
}

/// Reports whether [`do_not_disrupt`] can be other than `No` at some time.
pub(crate) fn may_refuse_disruption(pod: &Pod) -> bool {
    let keys = [DO_NOT_EVICT, DO_NOT_DISRUPT];
    keys.iter().any(|key| pod.annotations.contains_key(*key))
}

/// Returns the end of the protection by a duration in the pod's `karpenter.sh/do-not-disrupt` annotation; `None` without a
/// duration, or if the pod has not started yet.
pub fn protected_until(pod: &Pod) -> Option<Timestamp> {
    let duration = protection(pod.annotations.get(DO_NOT_DISRUPT)?)?;
    Some(
        pod.started_at?
            .time()
            .saturating_add(duration)
            .unwrap_or(Timestamp::MAX),
    )
}

/// Parses a positive duration. What is too long for 64-bit nanoseconds is invalid, as in Go.
fn protection(value: &str) -> Option<SignedDuration> {
    let duration = karpenter_api::duration::parse(value).ok()?;
    let is_valid = duration.is_positive() && duration < SignedDuration::from_nanos(i64::MAX);
    is_valid.then_some(duration)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod as Wire;
    use karpenter_fixtures::Object;
    use serde_json::json;

    use super::*;

    const DELETED: &str = "2026-01-01T00:00:00Z";

    fn pod() -> Object<Wire> {
        karpenter_fixtures::pod("p")
    }

    fn owned(api_version: &str, kind: &str) -> Object<Wire> {
        pod().owned_by(api_version, kind, "o")
    }

    fn parsed(pod: Object<Wire>) -> Pod {
        Pod::parse(&pod.build())
    }

    fn with_reason(reason: &str) -> Object<Wire> {
        pod().set("/status/conditions/0/reason", reason)
    }

    /// Conformance: SCH-183, SCH-262
    #[test]
    fn only_unschedulable_pods_are_provisionable_and_the_others_are_ignored() {
        for provisionable in [
            pod(),
            owned("apps/v1", "ReplicaSet"),
            owned("extensions/v1", "DaemonSet"),
        ] {
            let pod = parsed(provisionable);
            assert!(pod.is_provisionable());
            assert_eq!(pod.ignored(), None);
        }
        let unmarked = || pod().set("/status/conditions", json!([]));
        for (pod, why) in [
            (
                with_reason("SchedulingGated"),
                "the pod has scheduling gates",
            ),
            (
                with_reason("SchedulerError"),
                "kube-scheduler has not marked the pod unschedulable",
            ),
            (
                unmarked(),
                "kube-scheduler has not marked the pod unschedulable",
            ),
            (
                unmarked().set("/spec/schedulerName", "batch"),
                "scheduler batch has not marked the pod unschedulable",
            ),
            (
                pod().set("/spec/nodeName", "n"),
                "the pod is bound to node n",
            ),
            (
                pod().set("/status/nominatedNodeName", "n"),
                "kube-scheduler preempts pods on node n for the pod",
            ),
            (pod().deleted(DELETED), "the pod is terminating"),
            (
                owned("apps/v1", "DaemonSet"),
                "no node is launched for a pod of a DaemonSet",
            ),
            (owned("v1", "Node"), "the pod is a static pod of its node"),
            (
                unmarked().set("/status/phase", "Succeeded"),
                "the pod has terminated",
            ),
        ] {
            let pod = parsed(pod);
            assert!(!pod.is_provisionable(), "{why}");
            assert_eq!(pod.ignored().unwrap().to_string(), why);
        }
    }

    /// Conformance: SCH-163, SCH-185
    #[test]
    fn a_terminating_pod_is_replaced_only_if_a_stateful_set_recreates_it() {
        let stateful = || owned("apps/v1", "StatefulSet").deleted(DELETED);
        for (pod, expected) in [
            (pod(), true),
            (pod().deleted(DELETED), false),
            (owned("apps/v1", "ReplicaSet").deleted(DELETED), false),
            (stateful(), true),
            (stateful().set("/status/phase", "Failed"), true),
            (owned("apps/v1", "DaemonSet"), false),
            (pod().set("/status/phase", "Succeeded"), false),
        ] {
            let text = format!("{pod:?}");
            assert_eq!(parsed(pod).is_reschedulable(), expected, "{text}");
        }
    }

    /// Conformance: API-092
    #[test]
    fn do_not_evict_still_counts() {
        let parsed = |value: &str| {
            let pod = parsed(pod().annotation(DO_NOT_EVICT, value));
            do_not_disrupt(&pod, Timestamp::UNIX_EPOCH)
        };
        assert_eq!(parsed("true"), DoNotDisrupt::Yes);
        assert_eq!(parsed("false"), DoNotDisrupt::No);
        assert_eq!(parsed("2h"), DoNotDisrupt::No);
    }

    /// Conformance: SCH-188
    #[test]
    fn do_not_disrupt_is_true_or_a_duration_from_the_start() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let parsed = |value: &str, started: bool| {
            let mut pod = pod().annotation(DO_NOT_DISRUPT, value);
            if started {
                pod = pod.set("/status/startTime", "2026-01-01T00:00:00Z");
            }
            do_not_disrupt(&self::parsed(pod), now)
        };
        assert_eq!(parsed("true", true), DoNotDisrupt::Yes);
        assert_eq!(parsed("2h", true), DoNotDisrupt::Yes);
        assert_eq!(parsed("1h30m", true), DoNotDisrupt::Yes);
        assert_eq!(parsed("30m", true), DoNotDisrupt::No);
        assert_eq!(parsed("30m", false), DoNotDisrupt::Yes);
        assert_eq!(parsed("-1h", true), DoNotDisrupt::Invalid);
        assert_eq!(parsed("soon", true), DoNotDisrupt::Invalid);
        assert_eq!(parsed("9999999h", true), DoNotDisrupt::Invalid);
        let none = do_not_disrupt(&self::parsed(pod()), now);
        assert_eq!(none, DoNotDisrupt::No);
    }
}
