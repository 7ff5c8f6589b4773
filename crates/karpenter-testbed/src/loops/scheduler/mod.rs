//! kube-scheduler: places pods, or reports why they stay pending.
//!
//! Filters and scores are kube-scheduler's default plugins: NodeUnschedulable, NodeName, TaintToleration, NodeAffinity,
//! NodePorts, NodeResourcesFit, VolumeRestrictions (ReadWriteOncePod), VolumeBinding, VolumeZone, PodTopologySpread,
//! InterPodAffinity, SchedulingGates; priority order; `status.nominatedNodeName` is tried first.
//!
//! Not implemented: preemption (the message is kube-scheduler's message without victims), NodeVolumeLimits and the topology keys
//! of CSINodes (a new volume is accessible in the zone of its node), the default spread constraints of services, the symmetric
//! score of existing pods' preferred affinity, ImageLocality, dynamic resources, extenders and profiles, the back-off of rejected
//! pods (an idle kube-scheduler has none either).
//! The message of a condition is rewritten at most every ten seconds, and a rejection is computed once for all pods of equal
//! shape.
//!
//! UPSTREAM: pkg/scheduler

mod counters;
mod engine;
mod node;
mod reason;
pub(crate) mod shape;
pub(crate) mod volumes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::engine::{Decision, Engine, PodInput, Uid};
use self::volumes::ClaimBinding;
use super::cache::{Change, Diff, Key, PodRecord, api};
use super::driver::{Context, until};
use super::events::{Note, Recorder};
use super::outcome::is_not_found;
use super::volume_binder;

const IN_FLIGHT: usize = 128;
const BATCH: usize = 8192;

/// Pods with this `spec.schedulerName` are placed.
const NAME: &str = "default-scheduler";

/// The result of a write.
enum Effect {
    Done,
    BindFailed(Uid),
    ReportFailed(Uid),
}

struct Scheduler {
    context: Context,
    engine: Engine,
    recorder: Recorder,
    /// Conditions to write without a decision.
    marks: Vec<BoxFuture<'static, Effect>>,
}

/// Runs the scheduler until canceled. `changes` must start with all objects.
pub(crate) async fn run(
    context: Context,
    recorder: Recorder,
    mut changes: mpsc::UnboundedReceiver<Change>,
    token: CancellationToken,
) {
    tokio::select! {
        biased;
        () = token.cancelled() => return,
        () = context.cache.synced() => {}
    }
    let clock = context.clock;
    let mut scheduler = Scheduler {
        engine: Engine::default(),
        context,
        recorder,
        marks: Vec::new(),
    };
    let mut effects = FuturesUnordered::new();
    let mut decisions = VecDeque::new();
    let mut batch = Vec::new();
    loop {
        if decisions.is_empty() {
            decisions.extend(scheduler.engine.pass(clock.now()));
        }
        while effects.len() < IN_FLIGHT
            && let Some(decision) = decisions.pop_front()
        {
            match decision {
                Decision::Bind {
                    uid,
                    pod,
                    node,
                    claims,
                } => effects.push(scheduler.bind(uid, pod, node, claims).boxed()),
                Decision::Refuse { pod, message } => {
                    scheduler.report_refusal(&pod, &message);
                    effects.push(scheduler.mark(pod, "Unschedulable", &message));
                }
            }
        }
        let pause = scheduler
            .engine
            .next_report()
            .map(|at| until(clock.now(), at).max(Duration::from_millis(10)));
        tokio::select! {
            biased;
            () = token.cancelled() => return,
            count = changes.recv_many(&mut batch, BATCH) => {
                if count == 0 {
                    return;
                }
                for change in batch.drain(..) {
                    scheduler.take_in(change);
                }
                effects.extend(scheduler.marks.drain(..));
            }
            Some(effect) = effects.next(), if !effects.is_empty() => {
                match effect {
                    Effect::Done => {}
                    Effect::BindFailed(uid) => scheduler.engine.bind_failed(&uid),
                    Effect::ReportFailed(uid) => scheduler.engine.report_failed(&uid),
                }
            }
            () = clock.sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
    }
}

impl Scheduler {
    fn take_in(&mut self, change: Change) {
        match change {
            Change::Pod(diff) => self.take_in_pod(diff),
            Change::Node(diff) => self.engine.set_node(&diff.key().name, diff.new.as_deref()),
            Change::Namespace(Diff { new: Some(new), .. }) => self.engine.set_namespace(&new),
            Change::PersistentVolumeClaim(diff) => {
                let volumes = self.engine.volumes();
                volumes.set_claim(&diff.key(), diff.new.as_deref());
            }
            Change::PersistentVolume(diff) => {
                let volumes = self.engine.volumes();
                volumes.set_volume(&diff.key().name, diff.new.as_deref());
            }
            Change::StorageClass(diff) => {
                let volumes = self.engine.volumes();
                volumes.set_class(&diff.key().name, diff.new.as_deref());
            }
            _ => {}
        }
    }

    fn take_in_pod(&mut self, diff: Diff<PodRecord>) {
        if let (Some(old), new) = (&diff.old, &diff.new)
            && new.as_ref().is_none_or(|n| n.uid() != old.uid())
        {
            self.engine.remove_pod(old.uid());
        }
        let Some(pod) = diff.new else {
            return;
        };
        if pod.is_terminal() {
            self.engine.remove_pod(pod.uid());
            return;
        }
        let mut gates = pod.spec.scheduling_gates.iter().flatten();
        let gated = gates.next().is_some();
        let ours = pod.spec.scheduler_name.as_deref().unwrap_or(NAME) == NAME;
        let condition = pod.condition("PodScheduled");
        if ours
            && gated
            && pod.node.is_none()
            && !pod.is_terminating()
            && condition.is_none_or(|c| c.reason.as_deref() != Some("SchedulingGated"))
        {
            let message = "Scheduling is blocked due to non-empty scheduling gates";
            let mark = self.mark(pod.key(), "SchedulingGated", message);
            self.marks.push(mark);
        }
        let labels = pod.meta.labels.clone().unwrap_or_default();
        self.engine.set_pod(&PodInput {
            uid: pod.uid(),
            name: pod.name(),
            namespace: pod.namespace(),
            labels: &labels,
            spec: &pod.spec,
            node: pod.node.as_deref(),
            terminating: pod.is_terminating(),
            nominated: pod.status.nominated_node_name.as_deref(),
            message: condition
                .filter(|c| c.reason.as_deref() == Some("Unschedulable"))
                .and_then(|c| c.message.as_deref()),
            ours: ours && !gated,
        });
    }

    fn reference(&self, key: &Key) -> ObjectReference {
        let pod = self.context.cache.pod(key);
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(key.namespace.to_string()),
            name: Some(key.name.to_string()),
            uid: pod.and_then(|p| p.meta.uid.clone()),
            ..ObjectReference::default()
        }
    }

    fn report_refusal(&self, key: &Key, message: &str) {
        self.recorder.publish(Note {
            about: self.reference(key),
            warning: true,
            reason: "FailedScheduling",
            message: message.to_owned(),
        });
    }

    fn mark(&self, key: Key, reason: &str, message: &str) -> BoxFuture<'static, Effect> {
        let pods: Api<Pod> = api(&self.context.client(), &key);
        let clock = self.context.clock;
        let uid = self.context.cache.pod(&key).map(|p| Uid::from(p.uid()));
        let patch = json!({"status": {"conditions": [{
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": null,
            "lastTransitionTime": Time(clock.now()),
        }]}});
        let write = async move {
            let patch = Patch::Strategic(patch);
            let written = pods
                .patch_status(&key.name, &PatchParams::default(), &patch)
                .await;
            match (written, uid) {
                (Err(error), Some(uid)) if !is_not_found(&error) => {
                    tracing::debug!(pod = ?key, %error, "condition not written");
                    clock.sleep(Duration::from_secs(1)).await;
                    Effect::ReportFailed(uid)
                }
                _ => Effect::Done,
            }
        };
        write.boxed()
    }

    /// Binds claims, then the pod.
    fn bind(
        &self,
        uid: Uid,
        key: Key,
        node: Arc<str>,
        claims: Vec<ClaimBinding>,
    ) -> impl Future<Output = Effect> + use<> {
        let context = self.context.clone();
        let recorder = self.recorder.clone();
        let about = self.reference(&key);
        async move {
            for binding in &claims {
                if let Err(error) = volume_binder::bind(&context, binding).await {
                    tracing::debug!(?binding, %error, "claim not bound");
                    return Effect::BindFailed(uid);
                }
            }
            let pods: Api<Pod> = api(&context.client(), &key);
            let binding = Binding {
                metadata: ObjectMeta {
                    name: Some(key.name.to_string()),
                    namespace: Some(key.namespace.to_string()),
                    uid: Some(uid.to_string()),
                    ..ObjectMeta::default()
                },
                target: ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    name: Some(node.to_string()),
                    ..ObjectReference::default()
                },
            };
            let bound: Result<serde_json::Value, _> = pods
                .create_subresource("binding", &key.name, &PostParams::default(), &binding)
                .await;
            match bound {
                Ok(_) => {
                    recorder.publish(Note {
                        about,
                        warning: false,
                        reason: "Scheduled",
                        message: format!(
                            "Successfully assigned {}/{} to {node}",
                            key.namespace, key.name
                        ),
                    });
                    Effect::Done
                }
                Err(error) => {
                    tracing::debug!(pod = ?key, %node, %error, "binding failed");
                    // Backs off when the API server fails.
                    context.clock.sleep(Duration::from_secs(1)).await;
                    Effect::BindFailed(uid)
                }
            }
        }
    }
}
