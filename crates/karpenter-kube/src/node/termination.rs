//! The termination of a Node: executes the effects of `karpenter_core::lifecycle::termination`, each idempotent.
//!
//! UPSTREAM: pkg/controllers/node/termination/controller.go

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod as CorePod};
use karpenter_api::labels::{finalizers, taints};
use karpenter_api::v1::NodeClaim;
use karpenter_api::{events, labels};
use karpenter_core::lifecycle::drain;
use karpenter_core::lifecycle::termination::{self, NodeEffect, NodeEvent, Progress};
use karpenter_core::pod::Pod;
use kube::Api;
use kube::api::ListParams;

use super::eviction::EvictionQueue;
use super::protection;
use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Backoff, Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::events::{Event, reference};
use crate::logging;
use crate::model::{Change, View};
use crate::options::Options;

/// How many volume attachments an event names.
const NAMED_ATTACHMENTS: usize = 5;

/// Terminates Nodes that are being deleted.
#[derive(Debug)]
pub struct Termination {
    cx: Arc<Context>,
    evictions: Arc<EvictionQueue>,
}

/// A Node that is being deleted, and its objects.
struct TerminatingNode {
    view: Arc<View>,
    node: Node,
    name: String,
    /// The NodeClaim; `None` if there is none or more than one.
    claim: Option<Arc<NodeClaim>>,
}

/// What became of an effect.
enum Outcome {
    Done,
    Answer(NodeEvent),
    /// The process ends, and begins again after [`Next`].
    End(Next),
}

impl Termination {
    /// Creates the controller; `evictions` evicts the pods.
    #[must_use]
    pub fn new(cx: Arc<Context>, evictions: Arc<EvictionQueue>) -> Self {
        Self { cx, evictions }
    }

    async fn terminate(&self, terminating: &mut TerminatingNode) -> Result<Next, ReconcileError> {
        let mut event = NodeEvent::Due;
        loop {
            let of = termination::TerminatingNode {
                snapshot: &terminating.view.snapshot,
                node: &terminating.node,
                claim: terminating.claim.as_deref(),
            };
            for effect in termination::on_node(event, of, self.cx.clock.now()) {
                match self.execute(effect, terminating).await? {
                    Outcome::Done => {}
                    Outcome::Answer(answer) => event = answer,
                    Outcome::End(next) => return Ok(next),
                }
            }
        }
    }

    async fn execute(
        &self,
        effect: NodeEffect,
        terminating: &mut TerminatingNode,
    ) -> Result<Outcome, ReconcileError> {
        match effect {
            NodeEffect::DeleteNodeClaim => self.delete_claim(terminating).await?,
            NodeEffect::FindInstance => {
                let gone = self.instance_is_gone(terminating).await?;
                return Ok(Outcome::Answer(NodeEvent::InstanceFound(!gone)));
            }
            NodeEffect::ReportDeadline(deadline) => {
                let deadline = deadline.strftime("%Y-%m-%dT%H:%M:%SZ");
                let message = format!("All pods will be deleted by {deadline}");
                let reason = events::TERMINATION_GRACE_PERIOD_EXPIRING;
                let event = Event::warning(reference(&terminating.node), reason, message);
                self.cx.recorder.publish(event.dedupe_by_message());
            }
            NodeEffect::Taint => self.taint(terminating).await?,
            NodeEffect::Evict(pods) => {
                let deadline = terminating.deadline();
                self.evictions.add(&pods, deadline);
                pods.iter()
                    .for_each(|pod| protection::report(&self.cx, pod));
            }
            NodeEffect::ReportWaiting(pods) => {
                let message =
                    format!("Failed to drain node, {pods} pods are waiting to be evicted");
                let about = reference(&terminating.node);
                let event = Event::warning(about, events::FAILED_DRAINING, message);
                self.cx.recorder.publish(event);
            }
            NodeEffect::FindPods => {
                let found = self.finds_pods(terminating).await?;
                return Ok(Outcome::Answer(NodeEvent::PodsFound(found)));
            }
            NodeEffect::ReportAttached(names) => {
                let named = logging::shortened(&names, NAMED_ATTACHMENTS);
                let message = format!("Awaiting deletion of bound volumeattachments ({named})");
                let (about, reason) = (
                    reference(&terminating.node),
                    events::AWAITING_VOLUME_DETACHMENT,
                );
                self.cx
                    .recorder
                    .publish(Event::normal(about, reason, message));
            }
            NodeEffect::Mark(progress) => self.mark(terminating, progress).await?,
            NodeEffect::Terminate => {
                let Some(claim) = &terminating.claim else {
                    return Ok(Outcome::End(Next::Wait));
                };
                let gone = match self.cx.provider.delete(claim).await {
                    Ok(()) => false,
                    Err(error) if error.is_node_claim_not_found() => true,
                    Err(error) => return Err(error).doing("terminating instance"),
                };
                return Ok(Outcome::Answer(NodeEvent::Terminated(gone)));
            }
            NodeEffect::Release => return Ok(Outcome::End(self.release(terminating).await?)),
            NodeEffect::Wait(wait) | NodeEffect::Poll(wait) => {
                return Ok(Outcome::End(Next::After(wait)));
            }
        }
        Ok(Outcome::Done)
    }

    async fn delete_claim(&self, terminating: &TerminatingNode) -> Result<(), ReconcileError> {
        let Some(claim) = terminating.claim.as_ref().filter(|c| !c.is_deleting()) else {
            return Ok(());
        };
        self.cx
            .claim_writes
            .delete(self.cx.node_claims(), claim, Lock::None)
            .await
            .doing("deleting nodeclaim")?;
        Ok(())
    }

    async fn instance_is_gone(
        &self,
        terminating: &TerminatingNode,
    ) -> Result<bool, ReconcileError> {
        let Some(id) = terminating
            .node
            .spec
            .as_ref()
            .and_then(|s| s.provider_id.as_deref())
            .filter(|id| !id.is_empty())
        else {
            return Ok(false);
        };
        match self.cx.provider.get(id).await {
            Ok(_) => Ok(false),
            Err(error) if error.is_node_claim_not_found() => Ok(true),
            Err(error) => Err(error).doing("getting instance"),
        }
    }

    async fn taint(&self, terminating: &mut TerminatingNode) -> Result<(), ReconcileError> {
        let mut wanted = terminating.node.clone();
        termination::taint(&mut wanted);
        if wanted == terminating.node {
            // A drain is reconciled every second: that must not cost a serialized node each time.
            return Ok(());
        }
        if let Some(written) = self
            .cx
            .node_writes
            .patch_object(
                self.cx.nodes(),
                &terminating.node,
                &wanted,
                Lock::Optimistic,
            )
            .await
            .doing("tainting node")?
        {
            tracing::info!(
                Node = logging::object(None, &terminating.name),
                node = terminating.name,
                "taint.Key" = taints::DISRUPTED,
                "taint.Value" = "",
                "taint.Effect" = taints::NO_SCHEDULE,
                "tainted node"
            );
            terminating.node = written;
        }
        Ok(())
    }

    /// Returns whether the API server has pods that the drain waits for.
    async fn finds_pods(&self, terminating: &TerminatingNode) -> Result<bool, ReconcileError> {
        let pods: Api<CorePod> = Api::all(self.cx.clients.api.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={}", terminating.name));
        let listed = pods.list(&here).await.doing("listing pods")?;
        let listed = listed.items.iter().map(|pod| Arc::new(Pod::parse(pod)));
        let listed: Vec<Arc<Pod>> = listed.collect();
        let step = drain::plan(&listed, terminating.deadline(), self.cx.clock.now());
        Ok(step.waiting > 0)
    }

    async fn release(&self, terminating: &TerminatingNode) -> Result<Next, ReconcileError> {
        let mut released = terminating.node.clone();
        released
            .metadata
            .finalizers
            .get_or_insert_default()
            .retain(|f| f != finalizers::TERMINATION);
        self.cx
            .node_writes
            .patch_object(
                self.cx.nodes(),
                &terminating.node,
                &released,
                Lock::Optimistic,
            )
            .await
            .doing("removing finalizer")?;
        tracing::info!(
            Node = logging::object(None, &terminating.name),
            node = terminating.name,
            "deleted node"
        );
        let metrics = &self.cx.metrics;
        let pool = pool_of(&terminating.node);
        metrics
            .nodes_terminated_total
            .inc(&[pool, label_of(&terminating.node, labels::ZONE)]);
        if let Some(deleted) = &terminating.node.metadata.deletion_timestamp {
            metrics
                .nodes_termination_duration_seconds
                .observe(&[pool], self.cx.clock.since(deleted.0).as_secs_f64());
        }
        if let Some(created) = &terminating.node.metadata.creation_timestamp {
            metrics
                .nodes_lifetime_duration_seconds
                .observe(&[pool], self.cx.clock.since(created.0).as_secs_f64());
        }
        Ok(Next::Wait)
    }

    /// Writes the NodeClaim's conditions, if there is a NodeClaim and they differ.
    async fn mark(
        &self,
        terminating: &mut TerminatingNode,
        progress: Progress,
    ) -> Result<(), ReconcileError> {
        let Some(before) = &terminating.claim else {
            return Ok(());
        };
        let now = self.cx.clock.now();
        // No other controller writes these conditions: other changes of the NodeClaim do not matter.
        let written = self
            .cx
            .change_claim_status(before, |claim| progress.mark(claim, now));
        terminating.claim = Some(written.await?);
        if let Progress::Drained { .. } = progress {
            let drained = &self.cx.metrics.nodes_drained_total;
            drained.inc(&[pool_of(&terminating.node)]);
        }
        Ok(())
    }
}

impl TerminatingNode {
    fn deadline(&self) -> Option<Timestamp> {
        self.claim.as_deref().and_then(termination::deadline)
    }
}

fn label_of<'a>(node: &'a Node, key: &str) -> &'a str {
    node.metadata
        .labels
        .as_ref()
        .and_then(|l| l.get(key))
        .map_or("", String::as_str)
}

fn pool_of(node: &Node) -> &str {
    label_of(node, labels::NODE_POOL)
}

impl Controller for Termination {
    type Key = ObjectKey;
    const NAME: &'static str = "node.termination";
    const KIND: &'static str = "Node";

    fn concurrency(&self, options: &Options) -> usize {
        options.concurrency(100, 5000)
    }

    fn backoff(&self) -> Backoff {
        Backoff {
            base: Duration::from_millis(100),
            max: Duration::from_secs(10),
        }
    }

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        let terminating = |name: &str| {
            view.node(name)
                .is_some_and(|n| n.metadata.deletion_timestamp.is_some())
        };
        match change {
            Change::Node { name, .. } if terminating(name) => queue.add(ObjectKey::cluster(name)),
            Change::NodeClaim {
                after: Some(claim), ..
            } if claim.is_deleting() => {
                if let Some(node) = claim
                    .status
                    .node_name
                    .as_deref()
                    .filter(|name| terminating(name))
                {
                    queue.add(ObjectKey::cluster(node));
                }
            }
            Change::Pod { before, after } => {
                for node in [before, after]
                    .into_iter()
                    .flatten()
                    .filter_map(|p| p.node_name.as_deref())
                    .filter(|n| terminating(n))
                {
                    queue.add(ObjectKey::cluster(node));
                }
            }
            Change::VolumeAttachment { node } if terminating(node) => {
                queue.add(ObjectKey::cluster(node))
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(node) = view.node(&key.name) else {
            return Ok(Next::Wait);
        };
        let node = Node::clone(&self.cx.node_writes.latest(node));
        let held = node
            .metadata
            .finalizers
            .as_ref()
            .is_some_and(|f| f.iter().any(|f| f == finalizers::TERMINATION));
        let managed = |kind: &karpenter_core::provider::NodeClassKind| {
            node.metadata
                .labels
                .as_ref()
                .is_some_and(|l| l.contains_key(&labels::node_class(&kind.group, &kind.kind)))
        };
        if node.metadata.deletion_timestamp.is_none()
            || !held
            || !self.cx.provider.profile().node_classes.iter().any(managed)
        {
            return Ok(Next::Wait);
        }
        let claims = self.cx.node_claims_of(&view, &node);
        let claim = match claims.as_slice() {
            [claim] => Some(Arc::clone(claim)),
            _ => None,
        };
        let mut terminating = TerminatingNode {
            view,
            node,
            name: key.name.to_string(),
            claim,
        };
        self.terminate(&mut terminating).await
    }
}
