//! Why a pod is pending.

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::{Pod, UnixSecond};
use karpenter_core::reason::Reason;
use serde::Serialize;

use super::{CurrentReason, Metadata, Observed, Question};
use crate::blocking::Blocking;
use crate::change::Change;
use crate::index::{Key, Known};
use crate::passes::class;
use crate::record::RecordId;
use crate::stage::{Standing, standing};

/// Why a pod is pending, or where it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodExplanation {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub metadata: Metadata,
    /// When and on what the answer was made.
    pub observed: Observed,
    /// `Pending`, `Bound`, `Terminating` or `Terminated`.
    pub state: &'static str,
    /// The pod's node, if it is bound; its NodeClaim or node, if it has a place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Why the pod is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<CurrentReason>,
    /// What has happened so far, in order.
    pub stages: Vec<Stage>,
    /// Pending pods of the same workload and specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alike: Option<Alike>,
    /// Why no NodePool can launch a node for the pod, in the order in which they were tried.
    pub pools: Vec<PoolReason>,
    /// The records of the last decisions about the pod, latest first.
    pub records: Vec<RecordId>,
    /// The changes that were asked for; what blocks the pod is what does after them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// What blocks the pod, and what would help; absent unless it was asked for.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub blocking: Option<Blocking>,
}

impl PodExplanation {
    /// Reports whether the last decision left the pod without a place, so that [`blocking`](crate::blocking::blocking) has an answer.
    pub fn is_unschedulable(&self) -> bool {
        let of_pools =
            |reason: &CurrentReason| matches!(reason.id, "NoNodePools" | "NoInstanceTypes");
        self.state == "Pending"
            && (!self.pools.is_empty() || self.reason.as_ref().is_some_and(of_pools))
    }

    /// Says after which changes the pod is blocked.
    #[must_use]
    pub fn with_changes(mut self, changes: &[Change]) -> Self {
        self.changes = changes.iter().map(ToString::to_string).collect();
        self
    }

    /// Adds what blocks the pod.
    #[must_use]
    pub fn with_blocking(mut self, blocking: Blocking) -> Self {
        self.observed.truncated |= blocking.truncated;
        // The reason of the pass is about the whole batch; here the pod was run alone.
        if let Some(competition) = &blocking.competition {
            let owners = competition.takers.iter();
            let takers = owners.map(|taker| taker.owner.clone()).collect();
            let (since, least) = match &self.reason {
                Some(reason) => (reason.since, reason.at_least),
                None => (None, false),
            };
            let reason = Reason::Competition { takers };
            self.reason = Some(CurrentReason::with_id(
                reason.id(),
                Some(&reason),
                since,
                least,
            ));
        }
        self.blocking = Some(blocking);
        self
    }
}

/// An event in the life of a pending pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    /// `Created`, `Decided`, `Launched`, `Registered` or `Initialized`.
    pub stage: &'static str,
    pub at: Timestamp,
    /// The record of the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordId>,
}

/// Pods of the same workload and specification.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alike {
    /// Their class, as in records.
    pub class: String,
    /// How many of them are pending.
    pub pods: usize,
}

/// Why a NodePool cannot launch a node for a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolReason {
    pub name: String,
    pub reason: CurrentReason,
}

/// Explains a pod; `None` if it does not exist.
pub fn explain_pod(question: &Question<'_>, namespace: &str, name: &str) -> Option<PodExplanation> {
    let Question {
        snapshot, history, ..
    } = question;
    let pod = snapshot.pod(namespace, name)?;
    let message = (question.messages)(&pod.key.uid);
    let standing = standing(snapshot, history, pod, message.as_deref());
    let entry = history.pods().get(Key::of(&pod.key.uid));
    let entry = entry.filter(|_| standing.is_some());
    let records = question.records(entry);
    let pools = match entry.map(|entry| &**entry.known()) {
        Some(Known::Reason { pools, .. }) => pools.as_slice(),
        Some(Known::Placed { .. }) | None => &[],
    };
    let pools: Vec<PoolReason> = pools
        .iter()
        .map(|(name, reason)| PoolReason {
            name: name.clone(),
            reason: CurrentReason::of(&with_until(snapshot, std::slice::from_ref(name), reason)),
        })
        .collect();
    let of_pools: Vec<String> = pools.iter().map(|pool| pool.name.clone()).collect();
    let target = standing
        .as_ref()
        .and_then(|standing| standing.target.clone());
    let left_out = entry.is_none() && history.pods().left_out() > 0;
    Some(PodExplanation {
        api_version: crate::API_VERSION,
        kind: "PodExplanation",
        metadata: Metadata {
            namespace: Some(pod.key.namespace.clone()),
            name: pod.key.name.clone(),
            uid: Some(pod.key.uid.clone()),
        },
        observed: question.observed(left_out && standing.is_some()),
        state: state(pod),
        stages: stages(
            question,
            pod,
            target.as_deref(),
            entry.map(|e| e.since()),
            &records,
        ),
        node: pod.node_name.as_deref().map(str::to_owned).or(target),
        alike: standing.is_some().then(|| alike(question, pod)),
        reason: standing.map(|standing| {
            let Standing {
                id,
                reason,
                since,
                at_least,
                ..
            } = standing;
            let reason = reason.map(|reason| with_until(snapshot, &of_pools, &reason));
            CurrentReason::with_id(id, reason.as_ref(), since, at_least)
        }),
        pools,
        records,
        changes: Vec::new(),
        blocking: None,
    })
}

/// Returns a reason with the time at which the first unavailable offering of these NodePools may be available again, if it is about
/// that and the provider knows.
fn with_until(snapshot: &Snapshot, pools: &[String], reason: &Reason) -> Reason {
    let Reason::OfferingUnavailable { requirements, .. } = reason else {
        return reason.clone();
    };
    let types = pools
        .iter()
        .filter_map(|name| snapshot.instance_types(name));
    let types = types.flatten().flat_map(|types| types.iter());
    let offerings = types.flat_map(|kind| kind.offerings.iter());
    let until = offerings.filter_map(|offering| offering.unavailable_until);
    Reason::OfferingUnavailable {
        requirements: requirements.clone(),
        until: until.min().map(|until| until.to_string()),
    }
}

fn state(pod: &Pod) -> &'static str {
    if pod.is_terminal() {
        "Terminated"
    } else if pod.deleted_at.is_some() {
        "Terminating"
    } else if pod.node_name.is_some() {
        "Bound"
    } else {
        "Pending"
    }
}

fn alike(question: &Question<'_>, pod: &Pod) -> Alike {
    let unbound = question.snapshot.unbound_pods();
    let same = unbound.filter(|other| other.is_active() && other.shape == pod.shape);
    Alike {
        class: class(&pod.shape),
        pods: same.count(),
    }
}

fn stages(
    question: &Question<'_>,
    pod: &Pod,
    target: Option<&str>,
    decided: Option<Timestamp>,
    records: &[RecordId],
) -> Vec<Stage> {
    let stage = |stage, at: Option<Timestamp>| {
        at.map(|at| Stage {
            stage,
            at,
            record: None,
        })
    };
    let created = stage("Created", pod.created_at.map(UnixSecond::time));
    let decided = decided.map(|at| Stage {
        stage: "Decided",
        at,
        record: records.first().copied(),
    });
    let claim = target.and_then(|target| question.snapshot.node(target)?.claim.clone());
    let reached = |name: &str| {
        let condition = claim.as_ref()?.condition(name)?;
        (condition.status == "True").then_some(condition.last_transition_time.0)
    };
    let joined = [
        stage("Launched", reached(types::LAUNCHED)),
        stage("Registered", reached(types::REGISTERED)),
        stage("Initialized", reached(types::INITIALIZED)),
    ];
    let all = [created, decided].into_iter().chain(joined);
    all.flatten().collect()
}
