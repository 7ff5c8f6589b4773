//! The lifecycle of bound pods on simulated nodes: containers are created, run, exit, restart; pods stop gracefully.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::kubelets::{address_of, readiness};
use super::{NodeAgentOptions, annotations};
use crate::loops::cache::{Change, Key, PodRecord, api};
use crate::loops::driver::{Context, Controller, Next, after, until};
use crate::loops::outcome::is_not_found;
use crate::loops::scheduler::shape::sidecar;
use crate::loops::workloads::pods::delete_pod;

/// The next step of a pod, and its time.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// Its containers are created.
    Create,
    Run,
    /// Its containers exit; with a restart policy they start again.
    Exit {
        code: i32,
        restart: bool,
    },
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

fn annotation<'a>(pod: &'a PodRecord, key: &str) -> Option<&'a str> {
    pod.meta.annotations.as_ref()?.get(key).map(String::as_str)
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
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
        let takes = match annotation(pod, annotations::STOP_SECONDS) {
            Some("grace") => grace,
            Some(text) => seconds(text).unwrap_or(pace.stop),
            None => pace.stop,
        };
        let at = if pod.is_terminal() {
            began
        } else {
            after(began, takes.min(grace))
        };
        return Some((at, Step::Vanish));
    }
    let start = pod.status.start_time.as_ref().map(|t| t.0);
    match (pod.phase(), start) {
        ("Pending", None) => Some((Timestamp::MIN, Step::Create)),
        ("Pending", Some(started)) => {
            let delay = annotation(pod, annotations::START_SECONDS).and_then(seconds);
            Some((after(started, delay.unwrap_or(pace.start)), Step::Run))
        }
        ("Running", _) => {
            let of_job = pod.controller().is_some_and(|o| o.kind == "Job");
            let run = annotation(pod, annotations::RUN_SECONDS)
                .and_then(seconds)
                .or(of_job.then_some(pace.job))?;
            let code = annotation(pod, annotations::EXIT_CODE)
                .and_then(|c| c.parse().ok())
                .unwrap_or(0);
            let restart = match pod.spec.restart_policy.as_deref() {
                Some("Never") => false,
                Some("OnFailure") => code != 0,
                _ => true,
            };
            Some((
                after(running_since(pod)?, run),
                Step::Exit { code, restart },
            ))
        }
        _ => None,
    }
}

fn running_since(pod: &PodRecord) -> Option<Timestamp> {
    let statuses = pod.status.container_statuses.as_ref()?;
    let state = statuses.first()?.state.as_ref()?;
    Some(state.running.as_ref()?.started_at.as_ref()?.0)
}

fn restarts(pod: &PodRecord) -> i32 {
    let statuses = pod.status.container_statuses.as_ref();
    statuses
        .and_then(|s| s.first())
        .map_or(0, |s| s.restart_count)
}

fn container_status(container: &Container, state: &Value, ready: bool, restarts: i32) -> Value {
    let image = container.image.clone().unwrap_or_default();
    json!({
        "name": container.name, "image": image, "imageID": "", "ready": ready,
        "restartCount": restarts, "started": ready, "state": state,
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
        Step::Run | Step::Exit { restart: true, .. } => (
            "Running",
            true,
            None,
            json!({"running": {"startedAt": now_text}}),
        ),
        Step::Exit { code, .. } => {
            let since = running_since(pod).map_or(now_text.clone(), Time);
            let (phase, reason, why) = if *code == 0 {
                ("Succeeded", "PodCompleted", "Completed")
            } else {
                ("Failed", "PodFailed", "Error")
            };
            let state = json!({"terminated": {
                "exitCode": code, "reason": why, "startedAt": since, "finishedAt": now_text,
            }});
            (phase, false, Some(reason), state)
        }
        Step::Vanish => return Value::Null,
    };
    let restarted = restarts(pod) + i32::from(matches!(step, Step::Exit { restart: true, .. }));
    let containers: Vec<Value> = pod
        .spec
        .containers
        .iter()
        .map(|c| container_status(c, &state, ready, restarted))
        .collect();
    let done = json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now_text, "finishedAt": now_text}});
    let init: Vec<Value> = pod
        .spec
        .init_containers
        .iter()
        .flatten()
        .map(|c| match (step, sidecar(c)) {
            (Step::Create, _) => container_status(c, &state, false, 0),
            (_, true) => container_status(c, &state, ready, restarted),
            (_, false) => container_status(c, &done, true, 0),
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
#[derive(Debug)]
pub(crate) struct PodLives {
    context: Context,
    options: NodeAgentOptions,
}

impl PodLives {
    pub(crate) fn new(context: Context, options: NodeAgentOptions) -> Self {
        Self { context, options }
    }

    fn plays(&self, node: &str) -> bool {
        let node = self.context.cache.nodes.named(node);
        node.is_some_and(|n| (self.options.plays)(&n))
    }

    async fn write(&self, pod: &PodRecord, status: Value) -> Result<(), kube::Error> {
        let pods: Api<Pod> = api(&self.context.client(), &pod.key());
        // The UID precondition protects a new pod of the same name.
        let patch = json!({"metadata": {"uid": pod.meta.uid}, "status": status});
        let patch = Patch::Strategic(patch);
        match pods
            .patch_status(pod.name(), &PatchParams::default(), &patch)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Controller for PodLives {
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
        if !self.plays(node) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        start: Duration::from_secs(1),
        stop: Duration::from_secs(2),
        job: Duration::from_secs(5),
    };

    fn pod(value: Value) -> PodRecord {
        let pod: Pod = serde_json::from_value(value).unwrap();
        PodRecord {
            meta: pod.metadata,
            spec: Arc::new(pod.spec.unwrap_or_default()),
            node: Some("n".into()),
            status: pod.status.unwrap_or_default(),
        }
    }

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T00:00:{text}Z").parse().unwrap()
    }

    fn leaving(annotations: Value) -> PodRecord {
        pod(json!({
            "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:30Z",
                         "deletionGracePeriodSeconds": 30, "annotations": annotations},
            "status": {"phase": "Running"}
        }))
    }

    #[test]
    fn a_pod_starts_after_its_delay() {
        assert_eq!(
            next_step(&pod(json!({})), PACE),
            Some((Timestamp::MIN, Step::Create))
        );
        let creating =
            pod(json!({"status": {"phase": "Pending", "startTime": "2026-01-01T00:00:10Z"}}));
        assert_eq!(next_step(&creating, PACE), Some((at("11"), Step::Run)));
    }

    #[test]
    fn a_pod_stops_before_its_grace_ends_or_takes_all_of_it() {
        assert_eq!(
            next_step(&leaving(json!({})), PACE),
            Some((at("02"), Step::Vanish))
        );
        let slow = leaving(json!({annotations::STOP_SECONDS: "grace"}));
        assert_eq!(next_step(&slow, PACE), Some((at("30"), Step::Vanish)));
        let long = leaving(json!({annotations::STOP_SECONDS: "99"}));
        assert_eq!(next_step(&long, PACE), Some((at("30"), Step::Vanish)));
    }

    #[test]
    fn exits_follow_the_restart_policy() {
        let running = |policy: &str, code: &str| {
            pod(json!({
                "metadata": {"annotations": {annotations::RUN_SECONDS: "5", annotations::EXIT_CODE: code}},
                "spec": {"restartPolicy": policy, "containers": [{"name": "c"}]},
                "status": {"phase": "Running", "containerStatuses": [
                    {"name": "c", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}
            }))
        };
        let step = |policy, code| next_step(&running(policy, code), PACE).map(|(_, s)| s);
        assert_eq!(
            step("Never", "1"),
            Some(Step::Exit {
                code: 1,
                restart: false
            })
        );
        assert_eq!(
            step("OnFailure", "1"),
            Some(Step::Exit {
                code: 1,
                restart: true
            })
        );
        assert_eq!(
            step("OnFailure", "0"),
            Some(Step::Exit {
                code: 0,
                restart: false
            })
        );
        assert_eq!(
            step("Always", "0"),
            Some(Step::Exit {
                code: 0,
                restart: true
            })
        );
        let exit = Step::Exit {
            code: 1,
            restart: true,
        };
        let status = status_after(&running("Always", "1"), &exit, "n", at("05"));
        assert_eq!(status["containerStatuses"][0]["restartCount"], 1);
    }

    #[test]
    fn pods_of_a_recovered_node_are_ready_once_their_gates_are_open() {
        let running = |ready: &str, gate: &str| {
            pod(json!({
                "spec": {"containers": [], "readinessGates": [{"conditionType": "lb"}]},
                "status": {"phase": "Running", "conditions": [
                    {"type": "ContainersReady", "status": "True"},
                    {"type": "Ready", "status": ready},
                    {"type": "lb", "status": gate}]},
            }))
        };
        assert!(misstates_readiness(&running("False", "True")));
        assert!(misstates_readiness(&running("True", "False")));
        assert!(!misstates_readiness(&running("True", "True")));
        assert!(!misstates_readiness(&running("False", "False")));
        let truth = conditions(&running("False", "True"), true, None, at("05"));
        assert_eq!(truth[2]["status"], "True");
    }

    #[test]
    fn a_service_pod_runs_for_ever() {
        let running = pod(json!({"status": {"phase": "Running"}}));
        assert_eq!(next_step(&running, PACE), None);
    }
}
