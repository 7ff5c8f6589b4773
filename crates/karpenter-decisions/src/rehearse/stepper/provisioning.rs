//! The provisioning process in a rehearsal, and the pods that kube-scheduler binds by its plans.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use karpenter_core::cluster::Snapshot;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::provisioning::{self, Question};
use karpenter_core::pod::{Phase, Pod};
use karpenter_core::schedule::{Plan, Solver};

use crate::rehearse::plan::{EndedBy, Launch};
use crate::rehearse::stepper::queue::Event;
use crate::rehearse::stepper::{Stepper, is_waiting};

impl Stepper {
    /// Plans the pods of a batch, if it has closed.
    pub(super) fn provision(&mut self) {
        self.awaits_batch = false;
        if self.provisioning.closes(self.now) == Some(self.now) {
            let mut events = VecDeque::from([provisioning::Event::Closed {
                memory: None,
                buffer_pods: self.disruption.query.buffer_pods.clone(),
            }]);
            while let Some(event) = events.pop_front() {
                let snapshot = self.cluster.snapshot();
                for effect in self.provisioning.on(event, &snapshot, self.now) {
                    events.extend(self.execute_provisioning(effect, &snapshot));
                }
            }
        }
        self.await_batch();
    }

    /// Executes an effect of the provisioning process; returns its answer.
    fn execute_provisioning(
        &mut self,
        effect: provisioning::Effect,
        snapshot: &Snapshot,
    ) -> Option<provisioning::Event> {
        match effect {
            provisioning::Effect::Plan(question) => Some(match self.schedule(&question) {
                Some(plan) => provisioning::Event::Planned(plan),
                None => provisioning::Event::Unanswered,
            }),
            provisioning::Effect::Nominate(nodes) => {
                self.nominate(nodes.iter().map(String::as_str));
                None
            }
            provisioning::Effect::Launch(question, plan) => {
                let claims = self.launch_planned(&question, &plan, snapshot);
                Some(provisioning::Event::Launched(claims))
            }
            // Pods are bound where they were planned without it.
            provisioning::Effect::NominatePods(_) | provisioning::Effect::ReportIdle => None,
        }
    }

    fn schedule(&mut self, question: &Question) -> Option<Arc<Plan>> {
        if !self.may_run() {
            return None;
        }
        let mut query = question.query.clone().with_bounded_price();
        query.cancel.clone_from(&self.cancel);
        let policy = self.scheduling.clone().with_now(self.now);
        let solver = match &self.solver {
            Some(last) => last.prepare_after(&question.snapshot, &policy, &query),
            None => Solver::prepare_for(&question.snapshot, &policy, &query),
        };
        let plan = self.solver.insert(solver).solve(&query);
        if !plan.undecided.is_empty() {
            self.report.end_early(EndedBy::Timeout);
            return None;
        }
        Some(Arc::new(plan))
    }

    /// Creates the NodeClaims of a plan, and binds the pods that fit on existing nodes; returns the names of the NodeClaims.
    fn launch_planned(
        &mut self,
        question: &Question,
        plan: &Plan,
        snapshot: &Snapshot,
    ) -> Vec<Option<String>> {
        let created = self.create_claims(&plan.new_node_claims, &BTreeSet::new());
        let name = |created: &Option<(String, Launch)>| Some(created.as_ref()?.0.clone());
        let names: Vec<Option<String>> = created.iter().map(name).collect();
        let after = self.cluster.snapshot();
        let (pods, claims) = (
            &question.query.buffer_pods,
            names.iter().map(Option::as_deref),
        );
        self.buffers.record(pods, plan, claims, &after);
        let on_nodes = self.buffers.on_nodes(&after);
        self.disrupting.set_buffer_pods(on_nodes);
        if let Some(objective) = plan.objective.filter(|objective| objective.lowest > 0.0) {
            self.report.add_objective(objective);
        }
        let (mut for_pods, mut for_buffers, mut pods) = (Vec::new(), Vec::new(), 0);
        for (planned, created) in plan.new_node_claims.iter().zip(created) {
            let Some((name, launch)) = created else {
                continue;
            };
            if planned.pods.is_empty() {
                for_buffers.push(launch);
                continue;
            }
            pods += planned.pods.len();
            for_pods.push(launch);
            let keys = planned.pods.iter();
            let keys = keys.map(|pod| (pod.namespace.clone(), pod.name.clone()));
            self.awaited.entry(name).or_default().extend(keys);
        }
        self.report.launch(self.now, for_pods, pods, "Pending");
        self.report
            .launch(self.now, for_buffers, 0, "CapacityBuffer");
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
        names
    }

    /// Protects nodes, to which pods are nominated, from disruption for a while.
    pub(super) fn nominate<'n>(&mut self, nodes: impl IntoIterator<Item = &'n str>) {
        let until = after(self.now, self.window.nomination());
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
            self.trigger("pending");
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
        self.provisioning.forget(&pod.key.uid);
        self.put_pod(pod);
        let event = Event::PodReady(namespace.to_owned(), name.to_owned());
        self.queue.add(ready, event);
    }

    pub(super) fn pod_ready(&mut self, namespace: &str, name: &str) {
        let snapshot = self.cluster.snapshot();
        let bound = |pod: &&Arc<Pod>| pod.node_name.is_some() && pod.is_active();
        if let Some(pod) = snapshot.pod(namespace, name).filter(bound) {
            let mut pod = Pod::clone(pod);
            pod.ready = true;
            pod.ready_since = Some(self.now.into());
            self.put_pod(pod);
        }
    }
}
