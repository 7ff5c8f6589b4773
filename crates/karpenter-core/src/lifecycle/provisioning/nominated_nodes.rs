//! What is written into `status.nominatedNodeName` of pods, so that kube-scheduler binds them where they were planned (feature gate
//! `PodNomination`).
//!
//! kube-scheduler tries the nominated node of a pod before it scores any other, and reserves the pod's requests there against pods of
//! the same or a lower priority (`evaluateNominatedNode` in its `schedule_one.go`, KEP-5278). Without a nominated node it takes the
//! node with the best score, and tight plans do not survive that: the first pods bound use what was planned for others.
//!
//! The name is written before the taint `karpenter.sh/unregistered` is removed from the new Node, for kube-scheduler tries the pods as
//! soon as it is gone. Before 1.35, kube-scheduler clears the name when an attempt fails; it is written again with a growing delay.
//! What preemption nominated is not changed: such pods are not provisionable.

use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::labels::taints::DISRUPTED;
use rustc_hash::{FxHashMap, FxHashSet};

use super::nominations::Nominations;
use crate::cluster::Snapshot;
use crate::lifecycle::after;
use crate::pod::{Pod, PodKey};

/// Delay until a name is written again that is not, or no longer, in the pod; doubles with each attempt.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(8);

/// A value of `status.nominatedNodeName` that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNomination {
    /// The pod.
    pub pod: PodKey,
    /// Name of the Node; `None` to remove the name.
    pub node: Option<String>,
}

/// The last write to a pod.
#[derive(Clone, Debug)]
struct Written {
    node: Option<String>,
    at: Timestamp,
    attempts: u32,
}

impl Written {
    /// Returns when the same name may be written again.
    fn due(&self) -> Timestamp {
        let delay = FIRST_DELAY.saturating_mul(1 << self.attempts.min(3));
        after(self.at, delay.min(MAX_DELAY))
    }
}

/// What was written, by the uid of the pod.
#[derive(Clone, Debug, Default)]
pub(super) struct NominatedNodes(FxHashMap<String, Written>);

impl NominatedNodes {
    /// Removes a pod that is bound or deleted.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Returns what is to be written for the pods of a NodeClaim whose Node is about to be registered, unless that is being deleted. Names
    /// that kube-scheduler has cleared since are written without delay: it tries all pods when another Node registers, and these before
    /// their own.
    pub(super) fn registering(
        &mut self,
        claim: &str,
        node: &str,
        nominations: &Nominations,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Vec<PodNomination> {
        let object = snapshot.node_object(node);
        if object.is_some_and(|it| it.metadata.deletion_timestamp.is_some()) {
            return Vec::new();
        }
        let pods = nominations.in_order();
        let pods = pods.filter(|(_, target)| *target == claim);
        let pods = pods.filter_map(|(key, _)| waiting(snapshot, key));
        let pods = pods.filter(|pod| pod.nominated_node.as_deref() != Some(node));
        pods.map(|pod| self.written(pod, Some(node), now)).collect()
    }

    /// Returns what is to be written: the Nodes of nominated pods, and the removal of names that no nomination stands for any more.
    /// Returns the time as well at which more is due.
    pub(super) fn due(
        &mut self,
        nominations: &Nominations,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> (Vec<PodNomination>, Option<Timestamp>) {
        let (mut due, mut next, mut nominated) = (Vec::new(), None, FxHashSet::default());
        let mut write =
            |this: &mut Self, pod: &Pod, node: Option<&str>| match this.write(pod, node, now) {
                Ok(nomination) => due.extend(nomination),
                Err(later) => next = next.into_iter().chain([later]).min(),
            };
        for (key, target) in nominations.in_order() {
            let node = snapshot.node(target).filter(|node| !node.is_deleting());
            let node = node.filter(|node| node.is_registered());
            let node = node.and_then(|node| node.node.as_ref());
            // The deletion of its NodeClaim follows, and may be reported late; a command that has tainted it may still be starting.
            let node = node.filter(|node| {
                node.deleted_at.is_none() && !node.taints.iter().any(|it| it.key == DISRUPTED)
            });
            if let Some(pod) = waiting(snapshot, key) {
                nominated.insert(key.uid.as_str());
                write(self, pod, node.map(|node| &*node.name));
            }
        }
        for pod in snapshot.pending_pods() {
            if pod.is_nominated_by_plan() && !nominated.contains(pod.key.uid.as_str()) {
                write(self, pod, None);
            }
        }
        (due, next)
    }

    /// Returns what is to be written for a pod, if anything; the time at which it is due if that is later.
    fn write(
        &mut self,
        pod: &Pod,
        node: Option<&str>,
        now: Timestamp,
    ) -> Result<Option<PodNomination>, Timestamp> {
        if pod.nominated_node.as_deref() == node {
            return Ok(None);
        }
        let before = self.0.get(&pod.key.uid);
        let before = before.filter(|before| before.node.as_deref() == node);
        match before.map(Written::due).filter(|due| *due > now) {
            Some(later) => Err(later),
            None => Ok(Some(self.written(pod, node, now))),
        }
    }

    fn written(&mut self, pod: &Pod, node: Option<&str>, now: Timestamp) -> PodNomination {
        let before = self.0.get(&pod.key.uid);
        let before = before.filter(|before| before.node.as_deref() == node);
        let written = Written {
            node: node.map(str::to_owned),
            at: now,
            attempts: before.map_or(0, |before| before.attempts.saturating_add(1)),
        };
        self.0.insert(pod.key.uid.clone(), written);
        PodNomination {
            pod: pod.key.clone(),
            node: node.map(str::to_owned),
        }
    }
}

/// Returns a pod that kube-scheduler may bind, if it is still the same one. Pods of other schedulers, which may not read the name, are
/// left alone.
fn waiting<'s>(snapshot: &'s Snapshot, key: &PodKey) -> Option<&'s Pod> {
    let pod = snapshot.pod(&key.namespace, &key.name)?;
    let waits = pod.is_untried() || pod.is_provisionable() && pod.scheduler_name.is_none();
    (pod.key.uid == key.uid && waits).then_some(pod)
}
