//! Deletion of nodes: drains, evicted pods and their successors.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::k8s_openapi::api::core::v1::Node;
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::labels::annotations::TERMINATION_TIMESTAMP;
use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::conditions::expires_at;
use karpenter_core::lifecycle::drain::{self, Eviction};
use karpenter_core::lifecycle::termination::{
    ClaimEffect, ClaimEvent, NodeEffect, NodeEvent, TerminatingNode, deadline, on_node,
    on_node_claim, taint,
};
use karpenter_core::pod::Pod;

use crate::rehearse::stepper::Stepper;
use crate::rehearse::stepper::evictions;
use crate::rehearse::stepper::queue::Event;
use crate::rehearse::workloads::pending;

/// How long the volumes of a drained node take to detach.
const DETACH: Duration = Duration::from_secs(1);

impl Stepper {
    /// Requests the deletion of a NodeClaim; its node is drained.
    pub(super) fn delete_claim(&mut self, name: &str) {
        let Some(mut claim) = self.live_claim(name) else {
            return;
        };
        claim.metadata.deletion_timestamp = Some(Time(self.now));
        self.write_claim(&claim);
        self.cloud.cancel(name);
        self.finalize(name);
        self.trigger(name);
    }

    /// Reconciles a NodeClaim that is being deleted.
    pub(super) fn finalize(&mut self, name: &str) {
        let mut event = ClaimEvent::Due;
        loop {
            let snapshot = self.cluster.snapshot();
            let claim = snapshot.node_claim(name);
            let Some(claim) = claim.filter(|claim| claim.is_deleting()) else {
                return;
            };
            let nodes: Vec<Arc<Node>> = self.node_object(name).map(Arc::new).into_iter().collect();
            for effect in on_node_claim(event, claim, &nodes) {
                match effect {
                    ClaimEffect::Announce(deadline) => {
                        let mut claim = NodeClaim::clone(claim);
                        let annotations = claim.metadata.annotations.get_or_insert_default();
                        let deadline = deadline.to_string();
                        annotations.insert(TERMINATION_TIMESTAMP.to_owned(), deadline);
                        self.cluster.apply_node_claim(&claim);
                    }
                    ClaimEffect::DeleteNodes => return self.delete_node(name),
                    ClaimEffect::FindNode => event = ClaimEvent::NodeFound(false),
                    ClaimEffect::Terminate => event = ClaimEvent::Terminated(true),
                    ClaimEffect::Release => return self.gone(name),
                    ClaimEffect::Mark(_) => {}
                    ClaimEffect::Poll(_) => return,
                }
            }
        }
    }

    fn delete_node(&mut self, name: &str) {
        let node = self.node_object(name);
        let staying = |node: &Node| node.metadata.deletion_timestamp.is_none();
        if let Some(mut node) = node.filter(staying) {
            node.metadata.deletion_timestamp = Some(Time(self.now));
            self.cluster.apply_node(&node);
        }
        self.terminate_node(name);
    }

    pub(super) fn expire(&mut self, name: &str) {
        let snapshot = self.cluster.snapshot();
        let claim = snapshot.node_claim(name);
        let due = claim.and_then(|claim| expires_at(claim));
        if due.is_some_and(|due| due <= self.now) && claim.is_some_and(|claim| !claim.is_deleting())
        {
            self.report.delete(self.now, &snapshot, name, "Expired");
            self.delete_claim(name);
        }
    }

    /// Reconciles the Node of a NodeClaim, both being deleted.
    fn terminate_node(&mut self, name: &str) {
        self.guards.refresh(&mut self.cluster);
        let mut event = NodeEvent::Due;
        loop {
            let snapshot = self.cluster.snapshot();
            let (Some(claim), Some(mut node)) = (snapshot.node_claim(name), self.node_object(name))
            else {
                return;
            };
            let of = TerminatingNode {
                snapshot: &snapshot,
                node: &node,
                claim: Some(claim),
            };
            let finalize = || Event::Finalize(name.to_owned());
            for effect in on_node(event, of, self.now) {
                match effect {
                    NodeEffect::FindInstance => event = NodeEvent::InstanceFound(true),
                    NodeEffect::Taint => {
                        taint(&mut node);
                        self.cluster.apply_node(&node);
                    }
                    NodeEffect::Evict(pods) => self.evict_all(&pods, claim),
                    NodeEffect::FindPods => event = NodeEvent::PodsFound(false),
                    NodeEffect::ReportAttached(names) => {
                        for name in &names {
                            self.cluster.remove_volume_attachment(name);
                        }
                        self.queue.add(after(self.now, DETACH), finalize());
                    }
                    NodeEffect::Mark(progress) => {
                        let Some(known) = self.cluster.snapshot().node_claim(name).cloned() else {
                            return;
                        };
                        let mut claim = NodeClaim::clone(&known);
                        progress.mark(&mut claim, self.now);
                        self.cluster.apply_node_claim(&claim);
                    }
                    NodeEffect::Terminate => event = NodeEvent::Terminated(true),
                    // The NodeClaim goes with its Node: the instance is terminated.
                    NodeEffect::Release => return self.gone(name),
                    NodeEffect::Wait(wait) => {
                        return self.queue.add(after(self.now, wait), finalize());
                    }
                    // The end of a pod comes as an event.
                    NodeEffect::Poll(_) => return,
                    NodeEffect::DeleteNodeClaim
                    | NodeEffect::ReportDeadline(_)
                    | NodeEffect::ReportWaiting(_) => {}
                }
            }
        }
    }

    /// Evicts the pods that allow it; the others are tried again.
    fn evict_all(&mut self, pods: &[Arc<Pod>], claim: &NodeClaim) {
        let deadline = deadline(claim);
        let mut blocked = false;
        for pod in pods.iter().filter(|pod| pod.deleted_at.is_none()) {
            let snapshot = self.cluster.snapshot();
            let evicted = match drain::eviction(&snapshot, pod, deadline, self.now) {
                Eviction::Delete(_) => true,
                Eviction::Request => evictions::take(&mut self.cluster, pod),
                _ => false,
            };
            if evicted {
                self.evict(pod);
            } else {
                blocked = true;
            }
        }
        if blocked {
            let again = Event::Finalize(claim.name().to_owned());
            self.queue.add(after(self.now, drain::RETRY.max), again);
        }
    }

    fn evict(&mut self, pod: &Arc<Pod>) {
        self.report.evict(pod);
        let (namespace, name) = (&pod.key.namespace, &pod.key.name);
        self.end_pod(namespace, name);
        let controller = pod.shape.controller.as_ref();
        let succeeded = controller.is_some_and(|owner| {
            !matches!(owner.kind.as_str(), "DaemonSet" | "StatefulSet" | "Node")
        });
        if succeeded && !pod.is_terminal() {
            self.succeed(pod, "next");
        }
    }

    /// Creates a pod like another one, as its controller does.
    pub(super) fn succeed(&mut self, pod: &Pod, suffix: &str) {
        self.successors += 1;
        let (namespace, name) = (&pod.key.namespace, &pod.key.name);
        let controller = pod.shape.controller.as_ref();
        let base = controller.map_or(name.as_str(), |owner| owner.name.as_str());
        let successor = format!("{base}-{suffix}-{:06}", self.successors);
        self.put_pod(pending(pod, namespace, &successor, self.now));
        self.arrive(namespace, &successor);
    }

    /// Begins the end of a pod, after its grace period if it runs.
    pub(super) fn end_pod(&mut self, namespace: &str, name: &str) {
        let snapshot = self.cluster.snapshot();
        let Some(pod) = snapshot.pod(namespace, name) else {
            return;
        };
        if pod.node_name.is_none() {
            self.remove_pod(namespace, name);
            return;
        }
        let mut pod = Pod::clone(pod);
        let gone = after(self.now, self.timing.end(&pod));
        pod.deleted_at = Some(gone.into());
        pod.ready = false;
        self.put_pod(pod);
        let event = Event::PodGone(namespace.to_owned(), name.to_owned());
        self.queue.add(gone, event);
    }

    pub(super) fn pod_gone(&mut self, namespace: &str, name: &str) {
        let snapshot = self.cluster.snapshot();
        let is_ending = |pod: &&Arc<Pod>| pod.deleted_at.is_some();
        if snapshot.pod(namespace, name).filter(is_ending).is_none() {
            return;
        }
        let Some(pod) = self.remove_pod(namespace, name) else {
            return;
        };
        let node = pod
            .node_name
            .as_deref()
            .and_then(|node| snapshot.node(node));
        let deleting = node.filter(|node| node.is_deleting());
        if let Some(claim) = deleting.and_then(|node| node.claim_name()) {
            if pod.is_owned_by_stateful_set() {
                self.put_pod(pending(&pod, namespace, name, self.now));
                self.arrive(namespace, name);
            }
            self.queue.add(self.now, Event::Finalize(claim.to_owned()));
        }
        // There may be room for a pod that waits.
        if self.pending > 0 {
            self.trigger(&pod.key.uid);
        }
    }

    /// Removes a drained node and its instance.
    fn gone(&mut self, name: &str) {
        let snapshot = self.cluster.snapshot();
        let node = snapshot.node(name).and_then(|state| state.node.clone());
        if let Some(node) = node {
            for pod in snapshot.pods_on(&node.name) {
                self.remove_pod(&pod.key.namespace, &pod.key.name);
            }
            self.cluster.remove_node(&node.name);
            self.bindings.touch(&node.name);
        } else {
            self.provisioning.release(name);
        }
        let removed = self.cluster.remove_node_claim(name);
        self.claim_changed(&removed);
        self.awaited.remove(name);
        self.report.remove_instance(name);
        self.check_commands();
        self.trigger(name);
    }
}
