//! The lifecycle of bound pods on simulated nodes: containers are created, run, and succeed in Jobs; pods stop gracefully.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::NodeAgentOptions;
use super::kubelets::{address_of, readiness};
use crate::loops::cache::{Change, Key, PodRecord, api};
use crate::loops::driver::{Context, Controller, Next, after, until};
use crate::loops::outcome::ignore_not_found;
use crate::loops::scheduler::shape::sidecar;
use crate::loops::workloads::pods::delete_pod;

/// The next step of a pod, and its time.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// Its containers are created.
    Create,
    Run,
    /// Its containers have succeeded, as those of Jobs do.
    Succeed,
    /// It has stopped and is deleted.
    Vanish,
}

/// Durations of the steps of a pod.
#[derive(Debug, Clone, Copy)]
struct Pace {
    start: Duration,
    stop: Duration,
    job: Duration,
}

/// Returns the next step of a bound pod. Pure.
fn next_step(pod: &PodRecord, pace: Pace) -> Option<(Timestamp, Step)> {
    if let Some(deletion) = &pod.meta.deletion_timestamp {
        let grace = pod.meta.deletion_grace_period_seconds.unwrap_or(0);
        if grace <= 0 {
            // Only finalizers remain.
            return None;
        }
        let grace = u64::try_from(grace).unwrap_or(0);
        let began = deletion
            .0
            .checked_sub(SignedDuration::from_secs(i64::try_from(grace).unwrap_or(0)))
            .unwrap_or(deletion.0);
        let grace = Duration::from_secs(grace);
        let at = if pod.is_terminal() {
            began
        } else {
            after(began, pace.stop.min(grace))
        };
        return Some((at, Step::Vanish));
    }
    let start = pod.status.start_time.as_ref().map(|t| t.0);
    match (pod.phase(), start) {
        ("Pending", None) => Some((Timestamp::MIN, Step::Create)),
        ("Pending", Some(started)) => Some((after(started, pace.start), Step::Run)),
        ("Running", _) if pod.controller().is_some_and(|o| o.kind == "Job") => {
            Some((after(running_since(pod)?, pace.job), Step::Succeed))
        }
        _ => None,
    }
}

fn running_since(pod: &PodRecord) -> Option<Timestamp> {
    let statuses = pod.status.container_statuses.as_ref()?;
    let state = statuses.first()?.state.as_ref()?;
    Some(state.running.as_ref()?.started_at.as_ref()?.0)
}

fn container_status(container: &Container, state: &Value, ready: bool) -> Value {
    let image = container.image.clone().unwrap_or_default();
    json!({
        "name": container.name, "image": image, "imageID": "", "ready": ready,
        "restartCount": 0, "started": ready, "state": state,
    })
}

fn is_true(pod: &PodRecord, type_: &str) -> bool {
    pod.condition(type_).is_some_and(|c| c.status == "True")
}

fn gates_are_open(pod: &PodRecord) -> bool {
    let mut gates = pod.spec.readiness_gates.iter().flatten();
    gates.all(|gate| is_true(pod, &gate.condition_type))
}

/// Whether the readiness of a running pod on a healthy node is outdated: the node had no heartbeat for a while, so that the node
/// lifecycle controller marked its pods as not ready; or a readiness gate has changed. Pure.
fn misstates_readiness(pod: &PodRecord) -> bool {
    let serves = is_true(pod, "ContainersReady") && gates_are_open(pod);
    pod.meta.deletion_timestamp.is_none() && pod.phase() == "Running" && serves != pod.is_ready()
}

fn is_well(node: &Node) -> bool {
    readiness(node).is_some_and(|(status, _)| status == "True")
}

fn conditions(pod: &PodRecord, ready: bool, reason: Option<&str>, now: Timestamp) -> Value {
    let open = gates_are_open(pod);
    let condition = |type_: &str, on: bool| {
        let status = if on { "True" } else { "False" };
        let since = match pod.condition(type_) {
            Some(c) if c.status == status => c.last_transition_time.clone(),
            _ => None,
        };
        json!({
            "type": type_, "status": status, "reason": if on { None } else { reason },
            "lastProbeTime": null, "lastTransitionTime": since.unwrap_or(Time(now)),
        })
    };
    json!([
        condition("PodReadyToStartContainers", true),
        condition("Initialized", true),
        condition("Ready", ready && open),
        condition("ContainersReady", ready),
    ])
}

/// Returns the status after a step, as a strategic merge patch. Pure.
fn status_after(pod: &PodRecord, step: &Step, node: &str, now: Timestamp) -> Value {
    let now_text = Time(now);
    let (phase, ready, reason, state) = match step {
        Step::Create => {
            let state = json!({"waiting": {"reason": "ContainerCreating"}});
            ("Pending", false, Some("ContainersNotReady"), state)
        }
        Step::Run => (
            "Running",
            true,
            None,
            json!({"running": {"startedAt": now_text}}),
        ),
        Step::Succeed => {
            let since = running_since(pod).map_or(now_text.clone(), Time);
            let state = json!({"terminated": {
                "exitCode": 0, "reason": "Completed", "startedAt": since, "finishedAt": now_text,
            }});
            ("Succeeded", false, Some("PodCompleted"), state)
        }
        Step::Vanish => return Value::Null,
    };
    let containers: Vec<Value> = pod
        .spec
        .containers
        .iter()
        .map(|c| container_status(c, &state, ready))
        .collect();
    let done = json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now_text, "finishedAt": now_text}});
    let init: Vec<Value> = pod
        .spec
        .init_containers
        .iter()
        .flatten()
        .map(|c| match (step, sidecar(c)) {
            (Step::Create, _) => container_status(c, &state, false),
            (_, true) => container_status(c, &state, ready),
            (_, false) => container_status(c, &done, true),
        })
        .collect();
    let host = address_of(node);
    let mut status = json!({
        "phase": phase,
        "conditions": conditions(pod, ready, reason, now),
        "containerStatuses": containers,
        "hostIP": host,
        "hostIPs": [{"ip": host}],
    });
    if !init.is_empty() {
        status["initContainerStatuses"] = json!(init);
    }
    if *step == Step::Create {
        status["startTime"] = json!(now_text);
    } else if pod.status.pod_ip.is_none() {
        let own = if pod.spec.host_network == Some(true) {
            host
        } else {
            address_of(pod.uid())
        };
        status["podIP"] = json!(own);
        status["podIPs"] = json!([{"ip": own}]);
    }
    status
}

/// The loop over bound pods.
pub(crate) struct PodLifecycle {
    context: Context,
    options: NodeAgentOptions,
}

impl PodLifecycle {
    pub(crate) fn new(context: Context, options: NodeAgentOptions) -> Self {
        Self { context, options }
    }

    fn simulates(&self, node: &str) -> bool {
        let node = self.context.cache.nodes.named(node);
        node.is_some_and(|n| (self.options.simulates)(&n))
    }

    async fn write(&self, pod: &PodRecord, status: Value) -> Result<(), kube::Error> {
        let pods: Api<Pod> = api(&self.context.client(), &pod.key());
        // The UID precondition protects a new pod of the same name.
        let patch = json!({"metadata": {"uid": pod.meta.uid}, "status": status});
        let patch = Patch::Strategic(patch);
        let params = PatchParams::default();
        ignore_not_found(pods.patch_status(pod.name(), &params, &patch).await)
    }
}

impl Controller for PodLifecycle {
    const NAME: &'static str = "pod-agent";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::Pod(diff) => {
                if let Some(pod) = &diff.new
                    && pod.node.is_some()
                {
                    keys.push(pod.key());
                }
            }
            Change::Node(diff) => {
                let before = diff.old.as_deref().is_some_and(is_well);
                if let Some(node) = &diff.new
                    && (diff.old.is_none() || is_well(node) && !before)
                {
                    let name = node.metadata.name.as_deref().unwrap_or_default();
                    let pods = self.context.cache.pods_on(name);
                    keys.extend(pods.iter().map(|p| p.key()));
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(pod): Option<Arc<PodRecord>> = self.context.cache.pod(key) else {
            return Ok(Next::Wait);
        };
        let Some(node) = pod.node.as_deref() else {
            return Ok(Next::Wait);
        };
        if !self.simulates(node) {
            return Ok(Next::Wait);
        }
        let slowed = |delay| self.options.slowed(node, delay);
        let (Some(start), Some(stop)) = (
            slowed(self.options.start_delay),
            slowed(self.options.stop_delay),
        ) else {
            // A dead node may recover.
            return Ok(Next::After(self.options.heartbeat));
        };
        let node_is_well = self.context.cache.nodes.named(node);
        if node_is_well.is_some_and(|n| is_well(&n)) && misstates_readiness(&pod) {
            let ready = is_true(&pod, "ContainersReady");
            let now = self.context.clock.now();
            let truth = conditions(&pod, ready, Some("ReadinessGatesNotReady"), now);
            self.write(&pod, json!({"conditions": truth})).await?;
        }
        let pace = Pace {
            start,
            stop,
            job: self.options.job_duration,
        };
        let Some((at, step)) = next_step(&pod, pace) else {
            return Ok(Next::Wait);
        };
        let now = self.context.clock.now();
        if at > now {
            return Ok(Next::After(until(now, at)));
        }
        match step {
            Step::Vanish => delete_pod(&self.context, &pod, Some(0)).await?,
            step => {
                self.write(&pod, status_after(&pod, &step, node, now))
                    .await?
            }
        }
        Ok(Next::Wait)
    }
}
