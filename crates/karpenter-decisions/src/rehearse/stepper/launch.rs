//! Launches of NodeClaims: the offering that the cloud chooses, and the Node that joins.

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus};
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use karpenter_api::labels;
use karpenter_api::labels::annotations::REQUESTED_DRA_DRIVERS;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::conditions::expires_at;
use karpenter_core::lifecycle::node_claim::{
    Effect, Event as JoiningEvent, HookAnswers, Joining, LaunchFailure, Surroundings,
};
use karpenter_core::lifecycle::provisioning::admit;
use karpenter_core::schedule::PlannedNodeClaim;

use crate::rehearse::plan::Launch;
use crate::rehearse::stepper::Stepper;
use crate::rehearse::stepper::queue::Event;
use crate::rehearse::stepper::timing::LAUNCH;

impl Stepper {
    /// Creates the NodeClaims of planned nodes that limits allow; each result is that of the planned node at the same index.
    /// Nodes of `replaced` NodeClaims do not count against limits.
    pub(super) fn create_claims(
        &mut self,
        planned: &[PlannedNodeClaim],
        replaced: &BTreeSet<String>,
    ) -> Vec<Option<(String, Launch)>> {
        let snapshot = self.cluster.snapshot();
        let admitted = admit(&snapshot, planned, replaced);
        planned
            .iter()
            .zip(admitted)
            .map(|(planned, claim)| self.create(&snapshot, &planned.node_pool, claim.ok()?))
            .collect()
    }

    fn create(
        &mut self,
        snapshot: &Snapshot,
        pool: &str,
        mut claim: NodeClaim,
    ) -> Option<(String, Launch)> {
        let (chosen, launch) = self.cloud.choose(snapshot, pool, &claim)?;
        let name = self.cloud.name(snapshot, pool);
        claim.metadata.name = Some(name.clone());
        claim.metadata.generate_name = None;
        claim.metadata.uid = Some(name.clone());
        claim.metadata.creation_timestamp = Some(Time(self.now));
        self.cluster.apply_node_claim(&claim);
        self.cloud.launch(&name, chosen);
        let boot = self.timing.boot(pool);
        let queue = &mut self.queue;
        queue.add(after(self.now, LAUNCH), Event::Join(name.clone()));
        let registered = after(self.now, boot.registered.max(LAUNCH));
        queue.add(registered, Event::Registered(name.clone()));
        let initialized = after(self.now, boot.initialized.max(boot.registered).max(LAUNCH));
        queue.add(initialized, Event::Ready(name.clone()));
        if let Some(at) = expires_at(&claim) {
            queue.add(at, Event::Expire(name.clone()));
        }
        Some((name, launch))
    }

    /// Continues the launch of a NodeClaim of the cluster.
    pub(super) fn resume_launch(&mut self, snapshot: &Snapshot, claim: &Arc<NodeClaim>) {
        if claim.is_true(types::INITIALIZED) {
            return;
        }
        let (name, pool) = (
            claim.name().to_owned(),
            claim.node_pool().unwrap_or_default(),
        );
        let boot = self.timing.boot(pool);
        let created = claim.metadata.creation_timestamp.as_ref();
        let created = created.map_or(self.now, |created| created.0);
        let now = self.now;
        let due = |duration| after(created, duration).max(now);
        if !claim.is_true(types::LAUNCHED) {
            if let Some((chosen, _)) = self.cloud.choose(snapshot, pool, claim) {
                self.cloud.launch(&name, chosen);
            }
            self.queue.add(due(LAUNCH), Event::Join(name.clone()));
        }
        if !claim.is_true(types::REGISTERED) {
            self.queue
                .add(due(boot.registered), Event::Registered(name.clone()));
        }
        self.queue.add(due(boot.initialized), Event::Ready(name));
    }

    pub(super) fn live_claim(&self, name: &str) -> Option<NodeClaim> {
        let snapshot = self.cluster.snapshot();
        let claim = snapshot.node_claim(name)?;
        (!claim.is_deleting()).then(|| NodeClaim::clone(claim))
    }

    /// Reconciles a NodeClaim that is not being deleted.
    pub(super) fn join(&mut self, name: &str) {
        let Some(claim) = self.live_claim(name) else {
            return;
        };
        let was_initialized = claim.is_true(types::INITIALIZED);
        let mut joining = Joining::new(claim, self.now);
        let (mut event, mut is_launched) = (JoiningEvent::Due, true);
        loop {
            let snapshot = self.cluster.snapshot();
            let nodes: Vec<Arc<Node>> = self.node_object(name).map(Arc::new).into_iter().collect();
            let around = Surroundings {
                snapshot: &snapshot,
                nodes: &nodes,
            };
            let effects = joining.on(event, around, self.now);
            event = JoiningEvent::Due;
            for effect in effects {
                event = match effect {
                    Effect::Launch => match self.cloud.answer(joining.claim()) {
                        Some((answer, price)) => {
                            self.report.add_instance(name, price);
                            JoiningEvent::Launched(Box::new(answer))
                        }
                        None => {
                            is_launched = false;
                            JoiningEvent::NotLaunched(no_offering())
                        }
                    },
                    Effect::WarnOfMissingTaint(_) => JoiningEvent::Due,
                    Effect::RunHooks => JoiningEvent::HooksRan(HookAnswers::default()),
                    Effect::Register(_, node) => {
                        self.cluster.apply_node(&node);
                        JoiningEvent::Registered(true)
                    }
                    Effect::Initialize(_, node) => {
                        self.cluster.apply_node(&node);
                        JoiningEvent::Initialized(true)
                    }
                    Effect::Delete { .. } => {
                        self.report
                            .delete(self.now, &snapshot, name, "LaunchTimeout");
                        return self.delete_claim(name);
                    }
                    Effect::Write { next } => {
                        self.write_claim(joining.claim());
                        // The Node of a launched instance is sure to join in time.
                        if let Some(next) = next.filter(|_| !is_launched) {
                            let again = Event::Join(name.to_owned());
                            self.queue.add(after(self.now, next), again);
                        }
                        if !was_initialized && joining.claim().is_true(types::INITIALIZED) {
                            self.became_initialized(name);
                        }
                        return;
                    }
                };
            }
        }
    }

    /// kubelet registers the Node of a NodeClaim.
    pub(super) fn registered(&mut self, name: &str) {
        let Some(claim) = self.live_claim(name) else {
            return;
        };
        if self.node_object(name).is_none() {
            self.cluster.apply_node(&node_of(&claim));
        }
        self.join(name);
    }

    /// Returns the Node of a NodeClaim, as the API server has it.
    pub(super) fn node_object(&self, claim: &str) -> Option<Node> {
        let snapshot = self.cluster.snapshot();
        let node = snapshot.node(claim)?.node.clone()?;
        snapshot
            .node_object(&node.name)
            .map(|node| Node::clone(node))
    }

    /// A Node becomes ready: kubelet and drivers have published its resources, and its startup taints are gone.
    pub(super) fn ready(&mut self, name: &str) {
        let (Some(mut claim), Some(mut node)) = (self.live_claim(name), self.node_object(name))
        else {
            return;
        };
        if let Some(annotations) = &mut claim.metadata.annotations
            && annotations.remove(REQUESTED_DRA_DRIVERS).is_some()
        {
            self.cluster.apply_node_claim(&claim);
        }
        let config = self.cluster.config().clone();
        let spec = node.spec.get_or_insert_default();
        if let Some(taints) = &mut spec.taints {
            let startup = &claim.spec.startup_taints;
            taints.retain(|taint| {
                !config.is_ephemeral(taint)
                    && !startup
                        .iter()
                        .any(|other| labels::taints::same(other, taint))
            });
        }
        let status = node.status.get_or_insert_default();
        let allocatable = status.allocatable.get_or_insert_default();
        allocatable.extend(claim.status.allocatable);
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != "Ready");
        conditions.push(NodeCondition {
            type_: "Ready".into(),
            status: "True".into(),
            ..NodeCondition::default()
        });
        self.cluster.apply_node(&node);
        self.join(name);
    }

    fn became_initialized(&mut self, name: &str) {
        if let Some(node) = self.cluster.snapshot().node(name) {
            self.bindings.touch(node.name());
        }
        self.nominate([name]);
        self.bind_awaited(name);
        self.check_commands();
        self.pass_at(self.now);
    }
}

/// What a launch of a NodeClaim of the cluster fails with whose requirements no offering meets.
fn no_offering() -> LaunchFailure {
    LaunchFailure::Retryable {
        reason: reasons::LAUNCH_FAILED.to_owned(),
        message: "no offering meets the requirements".to_owned(),
    }
}

/// Returns the Node that kubelet registers for a NodeClaim.
fn node_of(claim: &NodeClaim) -> Node {
    let name = claim.name().to_owned();
    Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            uid: Some(format!("node/{name}")),
            labels: Some([(labels::HOSTNAME.to_owned(), name)].into()),
            creation_timestamp: claim.metadata.creation_timestamp.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: claim.status.provider_id.clone(),
            taints: Some(vec![labels::taints::unregistered()]),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(claim.status.capacity.clone()),
            allocatable: Some(claim.status.allocatable.clone()),
            ..NodeStatus::default()
        }),
    }
}
