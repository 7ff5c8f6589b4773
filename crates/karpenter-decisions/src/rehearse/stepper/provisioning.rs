//! Scheduling passes, and the pods that kube-scheduler binds by them.

use std::collections::BTreeSet;
use std::time::Duration;

use karpenter_core::cluster::pdb::leaving_pods;
use karpenter_core::lifecycle::after;
use karpenter_core::pod::{Phase, Pod};
use karpenter_core::schedule::schedule;

use crate::rehearse::stepper::queue::Event;
use crate::rehearse::stepper::{Stepper, is_waiting};

impl Stepper {
    /// Places the pods of a closed batch.
    pub(super) fn provision(&mut self) {
        let Some((_, closes)) = self.batch_opened else {
            return;
        };
        if self.now < closes {
            self.queue.add(closes, Event::Provision);
            return;
        }
        self.batch_opened = None;
        let snapshot = self.cluster.snapshot();
        let standing = self.nominations.standing(&snapshot, self.now);
        let no_pods = standing.unplaced.is_empty() && leaving_pods(&snapshot, self.now).is_empty();
        if no_pods && self.buffers.is_empty() {
            return;
        }
        if !self.may_run() {
            return;
        }
        let (asked, query) = standing.question(&snapshot);
        let mut query = query.with_buffer_pods(self.disruption.query.buffer_pods.clone());
        query.cancel.clone_from(&self.cancel);
        let policy = self.scheduling.clone().with_now(self.now);
        let plan = schedule(&asked, &policy, &query);
        if !plan.undecided.is_empty() {
            self.cut_short();
            return;
        }
        let kept = standing.nominated.iter().map(|(_, target)| target.as_str());
        let existing = plan.existing.iter().filter(|placement| !placement.buffer);
        let existing = existing.map(|placement| placement.node.as_str());
        let targets: BTreeSet<String> = kept.chain(existing).map(str::to_owned).collect();
        self.nominate(targets.iter().map(String::as_str));
        let created = self.create_claims(&plan.new_node_claims, &BTreeSet::new());
        let names = || {
            created
                .iter()
                .map(|created| Some(created.as_ref()?.0.as_str()))
        };
        if self
            .buffers
            .record(&plan, names(), &self.cluster.snapshot())
        {
            // Nodes with other buffer pods than before are not in the epoch of a pass that found nothing.
            self.process.reconsider();
        }
        let with_pods = plan.new_node_claims.iter().zip(names());
        let with_pods = with_pods.filter(|(planned, _)| !planned.pods.is_empty());
        let launched: Vec<&str> = with_pods.filter_map(|(_, name)| name).collect();
        self.nominate(launched);
        self.nominations
            .nominate_planned(&snapshot, &plan, names(), self.now);
        let (mut for_pods, mut for_buffers, mut pods) = (Vec::new(), Vec::new(), 0);
        for (planned, created) in plan.new_node_claims.iter().zip(&created) {
            let Some((name, launch)) = created else {
                continue;
            };
            if planned.pods.is_empty() {
                for_buffers.push(launch.clone());
                continue;
            }
            pods += planned.pods.len();
            for_pods.push(launch.clone());
            let keys = planned.pods.iter();
            let keys = keys.map(|pod| (pod.namespace.clone(), pod.name.clone()));
            self.awaited.entry(name.clone()).or_default().extend(keys);
        }
        self.record_launches(for_pods, pods, "Pending");
        self.record_launches(for_buffers, 0, "CapacityBuffer");
        for placement in plan.existing.iter().filter(|placement| !placement.buffer) {
            let (namespace, name) = (&placement.pod.namespace, &placement.pod.name);
            let Some(node) = snapshot.node(&placement.node) else {
                continue;
            };
            if node.is_initialized() {
                self.bind(namespace, name, node.name());
            } else {
                let target = node.claim_name().unwrap_or(&placement.node).to_owned();
                let pods = self.awaited.entry(target).or_default();
                pods.insert((namespace.clone(), name.clone()));
            }
        }
    }

    /// Protects nodes, to which pods are nominated, from disruption for a while.
    pub(super) fn nominate<'n>(&mut self, nodes: impl IntoIterator<Item = &'n str>) {
        let window = (self.batch_max() * 2).max(Duration::from_secs(10));
        let until = after(self.now, window);
        for node in nodes {
            self.cluster.nominate(node, until);
        }
    }

    /// Binds the pods that waited for a NodeClaim's node.
    pub(super) fn bind_awaited(&mut self, claim: &str) {
        let snapshot = self.cluster.snapshot();
        let Some(node) = snapshot.node(claim).map(|node| node.name().to_owned()) else {
            return;
        };
        for (namespace, name) in self.awaited.remove(claim).unwrap_or_default() {
            self.bind(&namespace, &name, &node);
        }
        // Pods without a node: another node may have become possible for them.
        if self.cluster.snapshot().pending_pods().next().is_some() {
            self.trigger();
        }
    }

    /// Binds a pod that waits for a node.
    pub(super) fn bind(&mut self, namespace: &str, name: &str, node: &str) {
        let snapshot = self.cluster.snapshot();
        let Some(pod) = snapshot.pod(namespace, name).filter(|pod| is_waiting(pod)) else {
            return;
        };
        let mut pod = Pod::clone(pod);
        pod.node_name = Some(node.into());
        pod.unschedulable = false;
        pod.phase = Phase::Running;
        pod.started_at = Some(self.now.into());
        pod.scheduled_since = Some(self.now.into());
        let ready = after(self.now, self.timing.start(&pod));
        self.nominations.forget(&pod.key.uid);
        self.put_pod(pod);
        let event = Event::PodReady(namespace.to_owned(), name.to_owned());
        self.queue.add(ready, event);
    }

    pub(super) fn pod_ready(&mut self, namespace: &str, name: &str) {
        let snapshot = self.cluster.snapshot();
        let bound = |pod: &&std::sync::Arc<Pod>| pod.node_name.is_some() && pod.is_active();
        if let Some(pod) = snapshot.pod(namespace, name).filter(bound) {
            let mut pod = Pod::clone(pod);
            pod.ready = true;
            pod.ready_since = Some(self.now.into());
            self.put_pod(pod);
        }
    }
}
