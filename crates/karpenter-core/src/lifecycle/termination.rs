//! The deletion of a node: its Node is tainted and drained, its volumes detached, its instance terminated; then its Node and its
//! NodeClaim are released.
//!
//! A NodeClaim that is deleted deletes its Nodes ([`on_node_claim`]), a Node that is deleted deletes its NodeClaim ([`on_node`]). What
//! has been reached stands in the NodeClaim's conditions, so that both begin again with each reconciliation.
//!
//! UPSTREAM: pkg/controllers/node/termination/controller.go, pkg/controllers/nodeclaim/lifecycle/controller.go (finalize)

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::k8s_openapi::api::core::v1::Node;
use karpenter_api::labels::{EXCLUDE_FROM_EXTERNAL_LOAD_BALANCERS, annotations, taints};
use karpenter_api::v1::NodeClaim;

use crate::cluster::Snapshot;
use crate::lifecycle::drain::{self, MIN_DRAIN, is_drainable};
use crate::pod::{Pod, VolumeRef};

/// Interval between steps of a drain.
const DRAIN_POLL: Duration = Duration::from_secs(1);
/// Interval between checks whether the instance is terminated.
const INSTANCE_POLL: Duration = Duration::from_secs(5);

/// A Node that is being deleted.
#[derive(Clone, Copy, Debug)]
pub struct TerminatingNode<'a> {
    /// The cluster.
    pub snapshot: &'a Snapshot,
    /// The Node.
    pub node: &'a Node,
    /// Its NodeClaim; `None` if there is none or more than one.
    pub claim: Option<&'a NodeClaim>,
}

/// What the deletion of a Node is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The Node is to be reconciled.
    Due,
    /// Whether the provider has the instance.
    InstanceFound(bool),
    /// Whether the API server has pods on the node that the drain waits for.
    PodsFound(bool),
    /// Whether the instance is terminated; else its termination has begun.
    Terminated(bool),
}

/// What is to be done about a Node that is being deleted, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEffect {
    /// Delete the NodeClaim.
    DeleteNodeClaim,
    /// Ask the provider for the instance: [`NodeEvent::InstanceFound`].
    FindInstance,
    /// Tell users until when all pods will be deleted.
    ReportDeadline(Timestamp),
    /// Write the Node with [`taint`].
    Taint,
    /// Evict pods, each in time for the deadline.
    Evict(Vec<Arc<Pod>>),
    /// Tell users how many pods the drain waits for.
    ReportWaiting(usize),
    /// List the node's pods, which the model may lack: [`NodeEvent::PodsFound`]. The next step terminates the instance with all of them.
    FindPods,
    /// Tell users which volume attachments are waited for, by name.
    ReportAttached(Vec<String>),
    /// Write conditions of the NodeClaim, if there is one.
    Mark(Progress),
    /// Terminate the instance: [`NodeEvent::Terminated`].
    Terminate,
    /// Remove the finalizer from the Node; it ends the process.
    Release,
    /// Begin again after a time, if nothing changes before; it ends the process.
    Wait(Duration),
    /// Ask again after a time whether something outside of Karpenter has happened; it ends the process.
    Poll(Duration),
}

/// What has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Pods are being evicted.
    Draining,
    /// No pods are left. Most nodes have no volumes to wait for: that is written with the same request.
    Drained {
        /// Whether no volumes are attached either.
        detached: bool,
    },
    /// Volumes are still attached.
    Detaching,
    /// No volumes are attached.
    Detached,
    /// Volumes are not waited for any more.
    DeadlinePassed,
    /// The provider has accepted the termination of the instance.
    Terminating,
}

impl Progress {
    /// Sets the conditions of a NodeClaim.
    pub fn mark(self, claim: &mut NodeClaim, now: Timestamp) {
        let (drained, detached) = (types::DRAINED, types::VOLUMES_DETACHED);
        match self {
            Self::Draining => {
                claim.set_unknown_with_reason(drained, reasons::DRAINING, "Draining", now);
            }
            Self::Drained { detached: also } => {
                claim.set_true(drained, now);
                if also {
                    claim.set_true(detached, now);
                }
            }
            Self::Detaching => {
                let (reason, message) = (
                    reasons::AWAITING_VOLUME_DETACHMENT,
                    "AwaitingVolumeDetachment",
                );
                claim.set_unknown_with_reason(detached, reason, message, now);
            }
            Self::Detached => {
                claim.set_true(detached, now);
            }
            Self::DeadlinePassed => {
                let (reason, message) = (
                    reasons::TERMINATION_GRACE_PERIOD_ELAPSED,
                    "TerminationGracePeriodElapsed",
                );
                claim.set_false(detached, reason, message, now);
            }
            Self::Terminating => {
                claim.set_true(types::INSTANCE_TERMINATING, now);
            }
        }
    }
}

/// Returns until when all pods of a NodeClaim's node are deleted, as its annotation says.
pub fn deadline(claim: &NodeClaim) -> Option<Timestamp> {
    claim
        .annotation(annotations::TERMINATION_TIMESTAMP)?
        .parse()
        .ok()
}

/// Returns what is to be done about a Node after an event. The first event is [`NodeEvent::Due`].
pub fn on_node(event: NodeEvent, of: TerminatingNode<'_>, now: Timestamp) -> Vec<NodeEffect> {
    let mut effects = Vec::new();
    match event {
        NodeEvent::Due => {
            if of.claim.is_some_and(|claim| !claim.is_deleting()) {
                effects.push(NodeEffect::DeleteNodeClaim);
            }
            let id = of.node.spec.as_ref().and_then(|s| s.provider_id.as_ref());
            if !is_ready(of.node) && id.is_some_and(|id| !id.is_empty()) {
                effects.push(NodeEffect::FindInstance);
            } else {
                of.drain(now, &mut effects);
            }
        }
        NodeEvent::InstanceFound(true) => of.drain(now, &mut effects),
        NodeEvent::PodsFound(true) => effects.push(NodeEffect::Poll(DRAIN_POLL)),
        NodeEvent::PodsFound(false) => {
            let detached = of.attachments(now).is_empty();
            if of.claim.is_some() {
                effects.push(NodeEffect::Mark(Progress::Drained { detached }));
            }
            if detached {
                effects.push(of.terminate());
            } else {
                of.detach(now, &mut effects);
            }
        }
        NodeEvent::Terminated(false) => {
            effects.push(NodeEffect::Mark(Progress::Terminating));
            effects.push(NodeEffect::Poll(INSTANCE_POLL));
        }
        NodeEvent::InstanceFound(false) | NodeEvent::Terminated(true) => {
            effects.push(NodeEffect::Release);
        }
    }
    effects
}

impl TerminatingNode<'_> {
    fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    fn pods(&self) -> &[Arc<Pod>] {
        self.snapshot.pods_on(self.name())
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.claim.and_then(deadline)
    }

    fn drain(&self, now: Timestamp, effects: &mut Vec<NodeEffect>) {
        effects.extend(self.deadline().map(NodeEffect::ReportDeadline));
        effects.push(NodeEffect::Taint);
        if self
            .claim
            .is_some_and(|claim| claim.is_true(types::DRAINED))
        {
            return self.detach(now, effects);
        }
        let plan = drain::plan(self.pods(), self.deadline(), now);
        if !plan.evict.is_empty() {
            effects.push(NodeEffect::Evict(plan.evict));
        }
        if plan.waiting > 0 {
            effects.push(NodeEffect::ReportWaiting(plan.waiting));
            effects.push(NodeEffect::Mark(Progress::Draining));
            effects.push(NodeEffect::Poll(DRAIN_POLL));
            return;
        }
        let since = self.claim.map(|claim| claim.condition(types::DRAINED));
        match since {
            Some(None) => {
                effects.push(NodeEffect::Mark(Progress::Draining));
                effects.push(NodeEffect::Wait(MIN_DRAIN));
            }
            Some(Some(since)) => {
                let passed = now.duration_since(since.last_transition_time.0);
                let left = MIN_DRAIN.saturating_sub(passed.try_into().unwrap_or_default());
                effects.push(if left.is_zero() {
                    NodeEffect::FindPods
                } else {
                    NodeEffect::Wait(left)
                });
            }
            None => effects.push(NodeEffect::FindPods),
        }
    }

    /// Waits for volumes until none is attached, or the deadline has passed.
    fn detach(&self, now: Timestamp, effects: &mut Vec<NodeEffect>) {
        let detached = types::VOLUMES_DETACHED;
        let is_known = |claim: &NodeClaim| claim.is_true(detached) || claim.is_false(detached);
        if !self.claim.is_some_and(is_known) {
            let attached = self.attachments(now);
            if attached.is_empty() {
                effects.push(NodeEffect::Mark(Progress::Detached));
            } else if self.deadline().is_some_and(|deadline| now > deadline) {
                effects.push(NodeEffect::Mark(Progress::DeadlinePassed));
            } else {
                effects.push(NodeEffect::ReportAttached(attached));
                effects.push(NodeEffect::Mark(Progress::Detaching));
                effects.push(NodeEffect::Poll(DRAIN_POLL));
                return;
            }
        }
        effects.push(self.terminate());
    }

    /// Without a NodeClaim the instance is left to the provider's garbage collection.
    fn terminate(&self) -> NodeEffect {
        match self.claim {
            Some(_) => NodeEffect::Terminate,
            None => NodeEffect::Release,
        }
    }

    /// Returns the names of the attachments that must be detached first: those of volumes, except of pods that the drain ignores.
    fn attachments(&self, now: Timestamp) -> Vec<String> {
        let mut staying: BTreeSet<String> = BTreeSet::new();
        for pod in self.pods().iter().filter(|p| !is_drainable(p, now)) {
            for volume in &pod.shape.volumes {
                let claim = match volume {
                    VolumeRef::Claim(name) => name.clone(),
                    VolumeRef::Ephemeral { volume, .. } => format!("{}-{volume}", pod.key.name),
                };
                let claim = self.snapshot.volume_claim(&pod.key.namespace, &claim);
                staying.extend(claim.and_then(|claim| claim.volume_name.clone()));
            }
        }
        let blocking = self
            .snapshot
            .volume_attachments_on(self.name())
            .filter(|a| a.volume.as_ref().is_some_and(|v| !staying.contains(v)));
        blocking.map(|a| a.name.clone()).collect()
    }
}

/// Adds the disrupted taint to a Node, which replaces others of its key, and the label that excludes it from load balancers.
pub fn taint(node: &mut Node) {
    let disrupted = taints::disrupted();
    let spec = node.spec.get_or_insert_default();
    let present = spec.taints.get_or_insert_default();
    if !present.iter().any(|t| taints::same(t, &disrupted)) {
        present.retain(|t| t.key != disrupted.key);
        present.push(disrupted);
    }
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert(
        EXCLUDE_FROM_EXTERNAL_LOAD_BALANCERS.into(),
        "karpenter".into(),
    );
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// What the deletion of a NodeClaim is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimEvent {
    /// The NodeClaim is to be reconciled.
    Due,
    /// Whether the API server has its Node, although the model has none.
    NodeFound(bool),
    /// Whether the instance is terminated; else its termination has begun.
    Terminated(bool),
}

/// What is to be done about a NodeClaim that is being deleted, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEffect {
    /// Write the deadline, by which all pods will be deleted, into the NodeClaim's annotation, and tell users.
    Announce(Timestamp),
    /// Delete the Nodes, unless they are being deleted; it ends the process, which begins again once one is gone.
    DeleteNodes,
    /// Look for the Node, which the model may lack, and delete it: [`ClaimEvent::NodeFound`]. The next step terminates the instance with
    /// every pod on it.
    FindNode,
    /// Terminate the instance: [`ClaimEvent::Terminated`].
    Terminate,
    /// Write conditions.
    Mark(Progress),
    /// Remove the finalizer; it ends the process.
    Release,
    /// Ask again after a time whether something outside of Karpenter has happened; it ends the process.
    Poll(Duration),
}

/// Returns what is to be done about a NodeClaim that is being deleted, after an event; `nodes` have its provider id. The first event is
/// [`ClaimEvent::Due`].
pub fn on_node_claim(
    event: ClaimEvent,
    claim: &NodeClaim,
    nodes: &[Arc<Node>],
) -> Vec<ClaimEffect> {
    let mut effects = Vec::new();
    let terminate = match claim.status.provider_id {
        Some(_) => ClaimEffect::Terminate,
        None => ClaimEffect::Release,
    };
    match event {
        ClaimEvent::Due => {
            effects.extend(unannounced_deadline(claim).map(ClaimEffect::Announce));
            effects.push(if !claim.is_true(types::REGISTERED) {
                terminate
            } else if !nodes.is_empty() {
                ClaimEffect::DeleteNodes
            } else if claim.is_true(types::INSTANCE_TERMINATING) {
                // The API server was asked for a Node by then.
                terminate
            } else {
                ClaimEffect::FindNode
            });
        }
        ClaimEvent::NodeFound(true) => effects.push(ClaimEffect::Poll(INSTANCE_POLL)),
        ClaimEvent::NodeFound(false) => effects.push(terminate),
        ClaimEvent::Terminated(true) => effects.push(ClaimEffect::Release),
        ClaimEvent::Terminated(false) => {
            effects.push(ClaimEffect::Mark(Progress::Terminating));
            effects.push(ClaimEffect::Poll(INSTANCE_POLL));
        }
    }
    effects
}

/// Returns the deadline of a NodeClaim with a grace period whose annotation is missing.
fn unannounced_deadline(claim: &NodeClaim) -> Option<Timestamp> {
    let grace = claim.spec.termination_grace_period.as_ref()?;
    let deleted = claim.metadata.deletion_timestamp.as_ref()?;
    if claim
        .annotation(annotations::TERMINATION_TIMESTAMP)
        .is_some()
    {
        return None;
    }
    let deadline = deleted.0.saturating_add(grace.value());
    Some(deadline.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use karpenter_api::k8s_openapi::api::core::v1::Taint;
    use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::cluster::{Cluster, ClusterConfig};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node(ready: &str) -> Node {
        let node = json!({
            "metadata": {"name": "n"}, "spec": {"providerID": "i"},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        serde_json::from_value(node).unwrap()
    }

    /// A registered NodeClaim that was deleted at the epoch, with a grace period of 100 seconds.
    fn claim() -> NodeClaim {
        let mut claim = NodeClaim::new("c", Default::default());
        claim.metadata.deletion_timestamp = Some(Time(at(0)));
        claim.spec.termination_grace_period = Some("100s".parse().unwrap());
        claim.status.provider_id = Some("i".to_owned());
        claim.set_true(types::REGISTERED, at(0));
        let annotations = claim.metadata.annotations.get_or_insert_default();
        let deadline = (annotations::TERMINATION_TIMESTAMP.to_owned(), at(100));
        annotations.insert(deadline.0, deadline.1.to_string());
        claim
    }

    /// What is done about a ready Node, which has a pod or an attached volume if so asked, without its deadline and taint.
    fn on(
        event: NodeEvent,
        claim: Option<&NodeClaim>,
        on_node: (bool, bool),
        second: i64,
    ) -> Vec<NodeEffect> {
        let mut cluster = Cluster::new(ClusterConfig::default());
        let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "p"}, "spec": {"nodeName": "n", "containers": []}});
        let attachment = json!({"metadata": {"name": "a"}, "spec": {
            "nodeName": "n", "attacher": "csi", "source": {"persistentVolumeName": "v"}}, "status": {"attached": true}});
        if on_node.0 {
            cluster.insert_pod(Pod::parse(&serde_json::from_value(pod).unwrap()));
        }
        if on_node.1 {
            cluster.apply_volume_attachment(&serde_json::from_value(attachment).unwrap());
        }
        let terminating = TerminatingNode {
            snapshot: &cluster.snapshot(),
            node: &node("True"),
            claim,
        };
        let mut effects = super::on_node(event, terminating, at(second));
        effects.retain(|it| !matches!(it, NodeEffect::ReportDeadline(_) | NodeEffect::Taint));
        effects
    }

    #[test]
    fn pods_are_evicted_until_none_is_left_and_the_drain_lasts_five_seconds() {
        let mut claim = claim();
        let effects = on(NodeEvent::Due, Some(&claim), (true, false), 0);
        let [NodeEffect::Evict(pods), rest @ ..] = &effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!(pods.len(), 1);
        let draining = NodeEffect::Mark(Progress::Draining);
        let expected = [
            NodeEffect::ReportWaiting(1),
            draining.clone(),
            NodeEffect::Poll(DRAIN_POLL),
        ];
        assert_eq!(rest, expected);
        let begins = [draining, NodeEffect::Wait(MIN_DRAIN)];
        assert_eq!(on(NodeEvent::Due, Some(&claim), (false, false), 0), begins);
        Progress::Draining.mark(&mut claim, at(0));
        let due = |second| on(NodeEvent::Due, Some(&claim), (false, false), second);
        assert_eq!(due(3), [NodeEffect::Wait(Duration::from_secs(2))]);
        assert_eq!(due(5), [NodeEffect::FindPods]);
    }

    #[test]
    fn a_pod_that_the_model_lacks_keeps_the_instance() {
        let found = |found| {
            on(
                NodeEvent::PodsFound(found),
                Some(&claim()),
                (false, false),
                9,
            )
        };
        assert_eq!(found(true), [NodeEffect::Poll(DRAIN_POLL)]);
        let drained = NodeEffect::Mark(Progress::Drained { detached: true });
        assert_eq!(found(false), [drained, NodeEffect::Terminate]);
    }

    #[test]
    fn volumes_are_waited_for_until_the_deadline() {
        let mut claim = claim();
        Progress::Drained { detached: false }.mark(&mut claim, at(5));
        let due = |volume, second| on(NodeEvent::Due, Some(&claim), (false, volume), second);
        let mark = NodeEffect::Mark;
        let waits = [
            NodeEffect::ReportAttached(vec!["a".to_owned()]),
            mark(Progress::Detaching),
            NodeEffect::Poll(DRAIN_POLL),
        ];
        assert_eq!(due(true, 100), waits);
        let gives_up = [mark(Progress::DeadlinePassed), NodeEffect::Terminate];
        assert_eq!(due(true, 101), gives_up);
        let detached = [mark(Progress::Detached), NodeEffect::Terminate];
        assert_eq!(due(false, 10), detached);
    }

    #[test]
    fn an_instance_that_is_gone_is_not_drained() {
        let cluster = Cluster::new(ClusterConfig::default());
        let due = |ready: &str, event| {
            let (snapshot, claim, node) = (&cluster.snapshot(), claim(), node(ready));
            let claim = Some(&claim);
            let terminating = TerminatingNode {
                snapshot,
                node: &node,
                claim,
            };
            on_node(event, terminating, at(0))
        };
        assert_eq!(due("False", NodeEvent::Due), [NodeEffect::FindInstance]);
        let gone = due("False", NodeEvent::InstanceFound(false));
        assert_eq!(gone, [NodeEffect::Release]);
        assert!(due("False", NodeEvent::InstanceFound(true)).contains(&NodeEffect::Taint));
        assert!(due("True", NodeEvent::Due).contains(&NodeEffect::Taint));
    }

    #[test]
    fn a_node_without_a_claim_is_drained_and_its_instance_left_to_garbage_collection() {
        let found = |volume| on(NodeEvent::PodsFound(false), None, (false, volume), 9);
        assert_eq!(found(false), [NodeEffect::Release]);
        assert_eq!(found(true).last(), Some(&NodeEffect::Poll(DRAIN_POLL)));
    }

    #[test]
    fn the_termination_is_marked_and_asked_for_again_until_the_instance_is_gone() {
        let terminated = |gone| {
            on(
                NodeEvent::Terminated(gone),
                Some(&claim()),
                (false, false),
                9,
            )
        };
        let marks = NodeEffect::Mark(Progress::Terminating);
        assert_eq!(terminated(false), [marks, NodeEffect::Poll(INSTANCE_POLL)]);
        assert_eq!(terminated(true), [NodeEffect::Release]);
    }

    #[test]
    fn a_deleted_claim_deletes_its_node_before_its_instance() {
        let mut claim = claim();
        let due =
            |claim: &NodeClaim, nodes: &[Arc<Node>]| on_node_claim(ClaimEvent::Due, claim, nodes);
        let nodes = [Arc::new(node("True"))];
        assert_eq!(due(&claim, &nodes), [ClaimEffect::DeleteNodes]);
        assert_eq!(
            due(&claim, &[]),
            [ClaimEffect::FindNode],
            "the model may lack it"
        );
        let found = |found| on_node_claim(ClaimEvent::NodeFound(found), &claim, &[]);
        assert_eq!(found(true), [ClaimEffect::Poll(INSTANCE_POLL)]);
        assert_eq!(found(false), [ClaimEffect::Terminate]);
        claim.set_true(types::INSTANCE_TERMINATING, at(1));
        assert_eq!(due(&claim, &[]), [ClaimEffect::Terminate]);
        claim.status.provider_id = None;
        assert_eq!(due(&claim, &[]), [ClaimEffect::Release]);
    }

    #[test]
    fn the_deadline_is_announced_once() {
        let mut claim = claim();
        claim.metadata.annotations = None;
        let effects = on_node_claim(ClaimEvent::Due, &claim, &[]);
        let announces = [ClaimEffect::Announce(at(100)), ClaimEffect::FindNode];
        assert_eq!(effects, announces);
        claim.spec.termination_grace_period = None;
        let effects = on_node_claim(ClaimEvent::Due, &claim, &[]);
        assert_eq!(effects, [ClaimEffect::FindNode]);
    }

    /// Conformance: DIS-151
    #[test]
    fn the_disrupted_taint_replaces_others_of_its_key_and_excludes_from_load_balancers() {
        let mut node = Node::default();
        let of = |key: &str, effect: &str| Taint {
            key: key.into(),
            effect: effect.into(),
            ..Taint::default()
        };
        let (old, other) = (of(taints::DISRUPTED, "NoExecute"), of("a", "NoSchedule"));
        node.spec.get_or_insert_default().taints = Some(vec![old, other.clone()]);
        taint(&mut node);
        let present = node.spec.clone().unwrap().taints;
        assert_eq!(present, Some(vec![other, taints::disrupted()]));
        let labels = node.metadata.labels.as_ref().unwrap();
        assert_eq!(labels[EXCLUDE_FROM_EXTERNAL_LOAD_BALANCERS], "karpenter");
        let before = node.clone();
        taint(&mut node);
        assert_eq!(node, before);
    }
}
