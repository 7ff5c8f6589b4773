//! Deletion of nodes: drains, evicted pods and their successors.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::labels::taints;
use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::conditions::expires_at;
use karpenter_core::lifecycle::drain;
use karpenter_core::pod::Pod;

use crate::rehearse::stepper::Stepper;
use crate::rehearse::stepper::evictions;
use crate::rehearse::stepper::queue::Event;
use crate::rehearse::workloads::pending;
use crate::workload::Workload;

/// Interval between steps of a drain that waits for a PodDisruptionBudget or a protected pod.
const RETRY: Duration = Duration::from_secs(10);

impl Stepper {
    /// Requests the deletion of a NodeClaim; its node is drained.
    pub(super) fn delete_claim(&mut self, name: &str) {
        let snapshot = self.cluster.snapshot();
        let Some(claim) = snapshot
            .node_claim(name)
            .filter(|claim| !claim.is_deleting())
        else {
            return;
        };
        let mut claim = NodeClaim::clone(claim);
        claim.metadata.deletion_timestamp = Some(Time(self.now));
        self.cluster.apply_node_claim(&claim);
        self.launching.remove(name);
        match self.node_object(name) {
            Some(mut node) => {
                node.metadata.deletion_timestamp = Some(Time(self.now));
                let spec = node.spec.get_or_insert_default();
                let present = spec.taints.get_or_insert_default();
                let disrupted = taints::disrupted();
                if !present.iter().any(|taint| taints::same(taint, &disrupted)) {
                    present.push(disrupted);
                }
                self.cluster.apply_node(&node);
                self.queue.add(self.now, Event::Drain(name.to_owned()));
            }
            None => self.gone(name),
        }
        self.trigger(name);
    }

    pub(super) fn expire(&mut self, name: &str) {
        let snapshot = self.cluster.snapshot();
        let claim = snapshot.node_claim(name);
        let due = claim.and_then(|claim| expires_at(claim));
        if due.is_some_and(|due| due <= self.now) && claim.is_some_and(|claim| !claim.is_deleting())
        {
            self.record_deletion(name, "Expired");
            self.delete_claim(name);
        }
    }

    /// Takes a step of a drain.
    pub(super) fn drain(&mut self, name: &str) {
        self.guards.refresh(&mut self.cluster);
        let snapshot = self.cluster.snapshot();
        let Some(claim) = snapshot.node_claim(name) else {
            return;
        };
        let deleted = claim.metadata.deletion_timestamp.as_ref();
        let Some(deleted) = deleted.map(|deleted| deleted.0) else {
            return;
        };
        let Some(node) = snapshot.node(name).and_then(|state| state.node.clone()) else {
            self.gone(name);
            return;
        };
        let grace = claim.spec.termination_grace_period.as_ref();
        let deadline = grace.and_then(|grace| deleted.checked_add(grace.value()).ok());
        let step = drain::plan(snapshot.pods_on(&node.name), deadline, self.now);
        if step.waiting == 0 {
            let earliest = after(deleted, drain::MIN_DRAIN);
            if self.now < earliest {
                self.queue.add(earliest, Event::Drain(name.to_owned()));
            } else {
                self.gone(name);
            }
            return;
        }
        let mut blocked = false;
        for pod in step.evict.iter().filter(|pod| pod.deleted_at.is_none()) {
            let forced = drain::needs_force(pod, deadline, self.now);
            let evicted = forced
                || (drain::is_evictable(pod, self.now) && evictions::take(&mut self.cluster, pod));
            if evicted {
                self.evict(pod);
            } else {
                blocked = true;
            }
        }
        // Otherwise the end of an evicted pod is the next step.
        if blocked {
            self.queue
                .add(after(self.now, RETRY), Event::Drain(name.to_owned()));
        }
    }

    fn evict(&mut self, pod: &Arc<Pod>) {
        let workload = Workload::of(pod).to_string();
        *self.evicted.entry(workload).or_default() += 1;
        let (namespace, name) = (&pod.key.namespace, &pod.key.name);
        self.end_pod(namespace, name);
        let controller = pod.shape.controller.as_ref();
        let succeeded = controller.is_some_and(|owner| {
            !matches!(owner.kind.as_str(), "DaemonSet" | "StatefulSet" | "Node")
        });
        if succeeded && !pod.is_terminal() {
            self.successors += 1;
            let base = controller.map_or(name.as_str(), |owner| owner.name.as_str());
            let successor = format!("{base}-next-{:06}", self.successors);
            self.put_pod(pending(pod, namespace, &successor, self.now));
            self.arrive(namespace, &successor);
            self.trigger(&successor);
        }
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
            self.queue.add(self.now, Event::Drain(claim.to_owned()));
        }
        self.trigger(&pod.key.uid);
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
        } else {
            self.provisioning.release(name);
        }
        self.cluster.remove_node_claim(name);
        self.awaited.remove(name);
        self.remove_instance(name);
        self.replacement_lost(name);
        self.trigger(name);
    }
}
