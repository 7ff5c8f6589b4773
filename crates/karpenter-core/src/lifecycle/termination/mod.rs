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
use karpenter_api::labels::{
    EXCLUDE_FROM_EXTERNAL_LOAD_BALANCERS, REGISTERED, annotations, taints,
};
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

/// An event of the deletion of a Node.
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
    /// Report until when all pods will be deleted.
    ReportDeadline(Timestamp),
    /// Write the Node with [`taint`].
    Taint,
    /// Evict pods, each in time for the deadline.
    Evict(Vec<Arc<Pod>>),
    /// Report how many pods the drain waits for.
    ReportWaiting(usize),
    /// List the node's pods, which the model may lack: [`NodeEvent::PodsFound`]. The next step terminates the instance with all of them.
    FindPods,
    /// Report which volume attachments are waited for, by name.
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

fn has_registered(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels.is_some_and(|all| all.get(REGISTERED).is_some_and(|value| value == "true"))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// An event of the deletion of a NodeClaim.
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
    /// Write the deadline, by which all pods will be deleted, into the NodeClaim's annotation, and report it.
    Announce(Timestamp),
    /// Delete the Nodes, unless they are being deleted; it ends the process, which begins again once one is gone.
    DeleteNodes,
    /// Look for the Node, which the model may lack, and delete it: [`ClaimEvent::NodeFound`]. The next step terminates the instance with
    /// every pod on it.
    FindNode,
    /// Terminate the instance, which may exist although the NodeClaim has no provider id: [`ClaimEvent::Terminated`].
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
    // DIFFERS: upstream asks the provider only about a NodeClaim with a provider id. A launch whose answer is not recorded, or whose
    // provider id comes later, would leave its instance.
    let terminate = ClaimEffect::Terminate;
    match event {
        ClaimEvent::Due => {
            effects.extend(unannounced_deadline(claim).map(ClaimEffect::Announce));
            // The Node is registered before its NodeClaim says so: pods may be bound to it.
            let is_registered =
                claim.is_true(types::REGISTERED) || nodes.iter().any(|node| has_registered(node));
            effects.push(if !is_registered {
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
mod tests;
