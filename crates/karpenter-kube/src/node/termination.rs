//! The termination of a Node: taint, drain, volumes, instance, finalizer; one step after another, each idempotent.
//!
//! UPSTREAM: pkg/controllers/node/termination/controller.go

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod as CorePod, Taint};
use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::labels::{annotations, finalizers, taints};
use karpenter_api::v1::NodeClaim;
use karpenter_api::{events, labels};
use karpenter_core::lifecycle::drain::{self, MIN_DRAIN, is_drainable};
use karpenter_core::pod::{Pod, VolumeRef};
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

/// Interval between steps of a drain.
const DRAIN_POLL: Duration = Duration::from_secs(1);
/// Interval between checks whether the instance is terminated.
const INSTANCE_POLL: Duration = Duration::from_secs(5);
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
    deadline: Option<Timestamp>,
}

impl Termination {
    /// Creates the controller; `evictions` evicts the pods.
    #[must_use]
    pub fn new(cx: Arc<Context>, evictions: Arc<EvictionQueue>) -> Self {
        Self { cx, evictions }
    }

    async fn terminate(&self, terminating: &mut TerminatingNode) -> Result<Next, ReconcileError> {
        self.delete_claim(terminating).await?;
        if !is_ready(&terminating.node) && self.instance_is_gone(terminating).await? {
            return self.release(terminating).await;
        }
        self.announce_deadline(terminating);
        self.taint(terminating).await?;
        if let Some(next) = self.drain(terminating).await? {
            return Ok(next);
        }
        if let Some(next) = self.detach_volumes(terminating).await? {
            return Ok(next);
        }
        if let Some(next) = self.delete_instance(terminating).await? {
            return Ok(next);
        }
        self.release(terminating).await
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

    fn announce_deadline(&self, terminating: &TerminatingNode) {
        if let Some(deadline) = terminating.deadline {
            let message = format!(
                "All pods will be deleted by {}",
                deadline.strftime("%Y-%m-%dT%H:%M:%SZ")
            );
            let event = Event::warning(
                reference(&terminating.node),
                events::TERMINATION_GRACE_PERIOD_EXPIRING,
                message,
            );
            self.cx.recorder.publish(event.dedupe_by_message());
        }
    }

    async fn taint(&self, terminating: &mut TerminatingNode) -> Result<(), ReconcileError> {
        let wanted = tainted(&terminating.node);
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

    /// Evicts pods; returns `None` once every pod has left.
    async fn drain(
        &self,
        terminating: &mut TerminatingNode,
    ) -> Result<Option<Next>, ReconcileError> {
        if terminating
            .claim
            .as_ref()
            .is_some_and(|c| c.is_true(types::DRAINED))
        {
            return Ok(None);
        }
        let now = self.cx.clock.now();
        let plan = drain::plan(
            terminating.view.pods_on(&terminating.name),
            terminating.deadline,
            now,
        );
        self.evictions.add(&plan.evict, terminating.deadline);
        plan.evict
            .iter()
            .for_each(|pod| protection::report(&self.cx, pod));
        if plan.waiting > 0 {
            let message = format!(
                "Failed to drain node, {} pods are waiting to be evicted",
                plan.waiting
            );
            self.cx.recorder.publish(Event::warning(
                reference(&terminating.node),
                events::FAILED_DRAINING,
                message,
            ));
            self.set(terminating, |c| {
                c.set_unknown_with_reason(types::DRAINED, reasons::DRAINING, "Draining", now);
            })
            .await?;
            return Ok(Some(Next::After(DRAIN_POLL)));
        }
        let drained = terminating.claim.as_ref().map(|claim| {
            let since = claim.condition(types::DRAINED);
            since.map(|c| self.cx.clock.since(c.last_transition_time.0))
        });
        match drained {
            Some(None) => {
                self.set(terminating, |c| {
                    c.set_unknown_with_reason(types::DRAINED, reasons::DRAINING, "Draining", now);
                })
                .await?;
                Ok(Some(Next::After(MIN_DRAIN)))
            }
            Some(Some(passed)) if passed < MIN_DRAIN => Ok(Some(Next::After(MIN_DRAIN - passed))),
            _ if self.has_unseen_pods(terminating, now).await? => Ok(Some(Next::After(DRAIN_POLL))),
            None => Ok(None),
            Some(Some(_)) => {
                // Most nodes have no volumes to wait for: that condition is written with the same request.
                let detached = pending_attachments(terminating, now).is_empty();
                self.set(terminating, |c| {
                    c.set_true(types::DRAINED, now);
                    if detached {
                        c.set_true(types::VOLUMES_DETACHED, now);
                    }
                })
                .await?;
                self.cx
                    .metrics
                    .nodes_drained_total
                    .inc(&[pool_of(&terminating.node)]);
                Ok(None)
            }
        }
    }

    /// Returns whether the API server has pods to wait for that the model does not have.
    ///
    /// The model may lag behind, and the next step terminates the instance with every pod on it.
    async fn has_unseen_pods(
        &self,
        terminating: &TerminatingNode,
        now: Timestamp,
    ) -> Result<bool, ReconcileError> {
        let pods: Api<CorePod> = Api::all(self.cx.clients.api.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={}", terminating.name));
        let listed = pods.list(&here).await.doing("listing pods")?;
        let listed = listed.items.iter().map(|pod| Arc::new(Pod::parse(pod)));
        let listed: Vec<Arc<Pod>> = listed.collect();
        Ok(drain::plan(&listed, terminating.deadline, now).waiting > 0)
    }

    /// Waits for volumes; returns `None` once no volume is attached, or the deadline has passed.
    async fn detach_volumes(
        &self,
        terminating: &mut TerminatingNode,
    ) -> Result<Option<Next>, ReconcileError> {
        if terminating.claim.as_ref().is_some_and(|c| {
            c.is_true(types::VOLUMES_DETACHED) || c.is_false(types::VOLUMES_DETACHED)
        }) {
            return Ok(None);
        }
        let now = self.cx.clock.now();
        let pending = pending_attachments(terminating, now);
        if pending.is_empty() {
            self.set(terminating, |c| {
                c.set_true(types::VOLUMES_DETACHED, now);
            })
            .await?;
            return Ok(None);
        }
        if terminating.deadline.is_some_and(|deadline| now > deadline) {
            let (reason, message) = (
                reasons::TERMINATION_GRACE_PERIOD_ELAPSED,
                "TerminationGracePeriodElapsed",
            );
            self.set(terminating, |c| {
                c.set_false(types::VOLUMES_DETACHED, reason, message, now);
            })
            .await?;
            return Ok(None);
        }
        let named = logging::shortened(&pending, NAMED_ATTACHMENTS);
        let event = Event::normal(
            reference(&terminating.node),
            events::AWAITING_VOLUME_DETACHMENT,
            format!("Awaiting deletion of bound volumeattachments ({named})"),
        );
        self.cx.recorder.publish(event);
        let (reason, message) = (
            reasons::AWAITING_VOLUME_DETACHMENT,
            "AwaitingVolumeDetachment",
        );
        self.set(terminating, |c| {
            c.set_unknown_with_reason(types::VOLUMES_DETACHED, reason, message, now);
        })
        .await?;
        Ok(Some(Next::After(DRAIN_POLL)))
    }

    /// Deletes the instance; returns `None` once it is terminated. Without a NodeClaim the instance is left to the
    /// provider's garbage collection.
    async fn delete_instance(
        &self,
        terminating: &mut TerminatingNode,
    ) -> Result<Option<Next>, ReconcileError> {
        let Some(claim) = terminating.claim.clone() else {
            return Ok(None);
        };
        match self.cx.provider.delete(&claim).await {
            Ok(()) => {
                let now = self.cx.clock.now();
                self.set(terminating, |c| {
                    c.set_true(types::INSTANCE_TERMINATING, now);
                })
                .await?;
                Ok(Some(Next::After(INSTANCE_POLL)))
            }
            Err(error) if error.is_node_claim_not_found() => Ok(None),
            Err(error) => Err(error).doing("terminating instance"),
        }
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

    /// Changes the NodeClaim's conditions, if there is a NodeClaim and they differ.
    async fn set(
        &self,
        terminating: &mut TerminatingNode,
        change: impl FnOnce(&mut NodeClaim),
    ) -> Result<(), ReconcileError> {
        let Some(before) = &terminating.claim else {
            return Ok(());
        };
        // No other controller writes these conditions: other changes of the NodeClaim do not matter.
        let written = self.cx.change_claim_status(before, change);
        terminating.claim = Some(written.await?);
        Ok(())
    }
}

/// Returns the Node with the disrupted taint, which replaces others of its key, and with the label that excludes it from
/// load balancers.
fn tainted(node: &Node) -> Node {
    let mut wanted = node.clone();
    let disrupted = taints::disrupted();
    let present: &mut Vec<Taint> = wanted
        .spec
        .get_or_insert_default()
        .taints
        .get_or_insert_default();
    if !present.iter().any(|t| taints::same(t, &disrupted)) {
        present.retain(|t| t.key != disrupted.key);
        present.push(disrupted);
    }
    let labels = wanted.metadata.labels.get_or_insert_default();
    labels.insert(
        labels::EXCLUDE_FROM_EXTERNAL_LOAD_BALANCERS.into(),
        "karpenter".into(),
    );
    wanted
}

/// Returns the names of the attachments that must be detached first: those of volumes, except of pods that the drain ignores.
fn pending_attachments(terminating: &TerminatingNode, now: Timestamp) -> Vec<String> {
    let snapshot = &terminating.view.snapshot;
    let mut staying: BTreeSet<String> = BTreeSet::new();
    for pod in terminating
        .view
        .pods_on(&terminating.name)
        .iter()
        .filter(|p| !is_drainable(p, now))
    {
        for volume in &pod.shape.volumes {
            let claim = match volume {
                VolumeRef::Claim(name) => name.clone(),
                VolumeRef::Ephemeral { volume, .. } => format!("{}-{volume}", pod.key.name),
            };
            staying.extend(
                snapshot
                    .volume_claim(&pod.key.namespace, &claim)
                    .and_then(|c| c.volume_name.clone()),
            );
        }
    }
    let blocking = snapshot
        .volume_attachments_on(&terminating.name)
        .filter(|a| a.volume.as_ref().is_some_and(|v| !staying.contains(v)));
    blocking.map(|a| a.name.clone()).collect()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
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

    fn name(&self) -> &'static str {
        "node.termination"
    }

    fn kind(&self) -> &'static str {
        "Node"
    }

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
        let deadline = claim
            .as_ref()
            .and_then(|c| c.annotation(annotations::TERMINATION_TIMESTAMP))
            .and_then(|text| text.parse::<Timestamp>().ok());
        let mut terminating = TerminatingNode {
            view,
            node,
            name: key.name.to_string(),
            claim,
            deadline,
        };
        self.terminate(&mut terminating).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: DIS-151
    #[test]
    fn the_disrupted_taint_replaces_others_of_its_key_and_the_node_is_excluded_from_load_balancers()
    {
        let mut node = Node::default();
        let old = Taint {
            key: taints::DISRUPTED.into(),
            effect: "NoExecute".into(),
            ..Taint::default()
        };
        let other = Taint {
            key: "a".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        node.spec.get_or_insert_default().taints = Some(vec![old, other.clone()]);
        let wanted = tainted(&node);
        assert_eq!(
            wanted.spec.as_ref().unwrap().taints,
            Some(vec![other, taints::disrupted()])
        );
        assert_eq!(
            label_of(
                &wanted,
                "node.kubernetes.io/exclude-from-external-load-balancers"
            ),
            "karpenter"
        );
        assert_eq!(tainted(&wanted), wanted);
    }
}
