//! Where a pending pod stands: before a decision, without a place, or on its way to a node.

use jiff::Timestamp;
use karpenter_api::conditions::{Condition, HasConditions, reasons, types};
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::pod::{Pod, PodIgnored, UnixSecond};
use karpenter_core::reason::{Reason, ignored_reason};

use crate::history::History;
use crate::index::{Entry, Key, Known};

/// Where a pending pod stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The id of its reason.
    pub id: &'static str,
    /// The reason; absent if only its id is known.
    pub reason: Option<Reason>,
    /// Since when, if that is known.
    pub since: Option<Timestamp>,
    /// Whether `since` is a time of the pod, which may have had another reason at first.
    pub at_least: bool,
    /// The pod's node, if it has a place: the name of a NodeClaim, or of a Node without one.
    pub target: Option<String>,
}

impl Standing {
    fn new(reason: Reason, since: Option<Timestamp>) -> Self {
        Self {
            id: reason.id(),
            reason: Some(reason),
            since,
            at_least: false,
            target: None,
        }
    }
}

/// Returns where a pod stands; `None` if it is bound, terminated or terminating. `message` is kube-scheduler's.
pub fn standing(
    snapshot: &Snapshot,
    history: &History,
    pod: &Pod,
    message: Option<&str>,
) -> Option<Standing> {
    if !pod.is_active() {
        return None;
    }
    let created = pod.created_at.map(UnixSecond::time);
    if let Some(why) = pod.ignored() {
        return Some(Standing {
            at_least: matches!(why, PodIgnored::Preempting { .. }),
            ..Standing::new(ignored_reason(&why)?, created)
        });
    }
    let Some(entry) = history.pods().get(Key::of(&pod.key.uid)) else {
        return Some(Standing {
            at_least: true,
            ..Standing::new(Reason::Batching {}, created)
        });
    };
    Some(match &**entry.known() {
        Known::Reason { id, reason, .. } => Standing {
            id,
            reason: reason.clone(),
            since: Some(entry.since()),
            at_least: entry.is_at_least(),
            target: None,
        },
        Known::Placed { target } => Standing {
            target: Some(target.clone()),
            ..placed(snapshot.node(target).map(AsRef::as_ref), entry, message)
        },
    })
}

/// Returns where a pod with a place stands; without its node, it waits for the next pass.
fn placed(node: Option<&NodeState>, entry: &Entry, message: Option<&str>) -> Standing {
    let decided = Some(entry.since());
    let Some(node) = node else {
        return Standing::new(Reason::Batching {}, None);
    };
    let bind = |since| {
        let reason = Reason::WaitingForBind {
            node: node.name().to_owned(),
            message: message.map(str::to_owned),
        };
        Standing::new(reason, since)
    };
    let Some(claim) = &node.claim else {
        return bind(decided);
    };
    let node_claim = || claim.name().to_owned();
    let changed = |name: &str| {
        let condition = claim.condition(name);
        condition.map(|condition: &Condition| condition.last_transition_time.0)
    };
    let message_of = |name: &str| {
        let condition = claim.condition(name);
        condition.map_or_else(String::new, |condition| condition.message.clone())
    };
    if !claim.is_true(types::LAUNCHED) {
        let condition = claim.condition(types::LAUNCHED);
        let fails = condition.is_some_and(|condition| condition.reason == reasons::LAUNCH_FAILED);
        return if fails {
            let reason = Reason::LaunchFailing {
                node_claim: node_claim(),
                message: message_of(types::LAUNCHED),
            };
            Standing::new(reason, changed(types::LAUNCHED).or(decided))
        } else {
            let node_claim = node_claim();
            Standing::new(Reason::WaitingForLaunch { node_claim }, decided)
        };
    }
    // A pod may have been placed on a node that was launched for others before.
    let since = |name: &str| changed(name).max(decided);
    if !claim.is_true(types::REGISTERED) {
        let node_claim = node_claim();
        let reason = Reason::WaitingForRegistration { node_claim };
        return Standing::new(reason, since(types::LAUNCHED));
    }
    if !claim.is_true(types::INITIALIZED) {
        let reason = Reason::WaitingForInitialization {
            node_claim: node_claim(),
            message: message_of(types::INITIALIZED),
        };
        return Standing::new(reason, since(types::REGISTERED));
    }
    bind(since(types::INITIALIZED))
}
