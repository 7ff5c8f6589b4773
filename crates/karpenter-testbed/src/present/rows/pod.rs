//! Pods: their readiness, status and restarts.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go printPod

use serde_json::{Value, json};

use super::column::{AGE, Column, NAME, View, computed, field, string};
use crate::present::age::age;

pub(super) const POD: &[Column] = &[
    NAME,
    computed("Ready", "", |view| {
        let summary = summarize(view);
        json!(format!("{}/{}", summary.ready, summary.total))
    }),
    computed("Status", "status.phase", |view| {
        json!(summarize(view).reason)
    }),
    computed("Restarts", "", |view| json!(restarts(view))),
    AGE,
    computed("IP", "status.podIP", |view| json!(address(view))).wide(),
    field("Node", "spec.nodeName").or("<none>").wide(),
    field("Nominated Node", "status.nominatedNodeName")
        .or("<none>")
        .wide(),
    computed("Readiness Gates", "spec.readinessGates", |view| {
        json!(gates(view))
    })
    .wide(),
];

/// The row of a finished pod has a condition, so that `kubectl get` can omit it.
pub(super) fn pod_conditions(pod: &Value) -> Option<Value> {
    let (reason, message) = match pod.pointer("/status/phase").and_then(Value::as_str)? {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

/// The Status, Ready and Restarts columns of a pod's containers.
struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<String>,
}

/// Returns the time of a container's last termination, the later of it and `last`.
fn later(last: Option<String>, status: &Value) -> Option<String> {
    let end = status
        .pointer("/lastState/terminated/finishedAt")
        .and_then(Value::as_str)
        .map(str::to_owned);
    last.max(end)
}

/// Returns `Reason`, `Signal:9` or `ExitCode:1` of a terminated container.
fn end_reason(terminated: &Value) -> String {
    let reason = string(terminated, "reason");
    if !reason.is_empty() {
        return reason;
    }
    match terminated.get("signal").and_then(Value::as_i64) {
        Some(signal) if signal != 0 => format!("Signal:{signal}"),
        _ => format!(
            "ExitCode:{}",
            terminated
                .get("exitCode")
                .and_then(Value::as_i64)
                .unwrap_or(0)
        ),
    }
}

fn summarize(view: &View<'_>) -> Summary {
    let phase = view.str("/status/phase");
    let mut reason = view.or("/status/reason", phase).to_owned();
    if view
        .condition("PodScheduled")
        .is_some_and(|condition| condition["reason"] == "SchedulingGated")
    {
        reason = "SchedulingGated".to_owned();
    }
    let init_specs = view.list("/spec/initContainers");
    let sidecar = |name: &Value| {
        init_specs
            .iter()
            .any(|spec| spec["name"] == *name && spec["restartPolicy"] == "Always")
    };
    let mut summary = Summary {
        reason,
        ready: 0,
        total: view.count("/spec/containers")
            + init_specs
                .iter()
                .filter(|spec| spec["restartPolicy"] == "Always")
                .count(),
        restarts: 0,
        last_restart: None,
    };
    let (mut sidecar_restarts, mut sidecar_last) = (0, None);
    let mut initializing = false;
    for (index, status) in view
        .list("/status/initContainerStatuses")
        .iter()
        .enumerate()
    {
        let restarts = status["restartCount"].as_i64().unwrap_or(0);
        summary.restarts += restarts;
        summary.last_restart = later(summary.last_restart, status);
        let is_sidecar = sidecar(&status["name"]);
        if is_sidecar {
            sidecar_restarts += restarts;
            sidecar_last = later(sidecar_last, status);
        }
        let terminated = status
            .pointer("/state/terminated")
            .filter(|state| !state.is_null());
        let waiting = status
            .pointer("/state/waiting/reason")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if terminated.is_some_and(|state| state["exitCode"].as_i64().unwrap_or(0) == 0) {
            continue;
        }
        if is_sidecar && status["started"] == true {
            summary.ready += usize::from(status["ready"] == true);
            continue;
        }
        summary.reason = match terminated {
            Some(state) => format!("Init:{}", end_reason(state)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => {
                format!("Init:{waiting}")
            }
            None => format!("Init:{index}/{}", init_specs.len()),
        };
        initializing = true;
        break;
    }
    if !initializing || view.holds("Initialized") {
        (summary.restarts, summary.last_restart) = (sidecar_restarts, sidecar_last);
        summarize_containers(view, &mut summary);
    }
    if view.deleted() {
        if view.str("/status/reason") == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            summary.reason = "Terminating".to_owned();
        }
    }
    summary
}

fn summarize_containers(view: &View<'_>, summary: &mut Summary) {
    let mut running = false;
    for status in view.list("/status/containerStatuses").iter().rev() {
        summary.restarts += status["restartCount"].as_i64().unwrap_or(0);
        summary.last_restart = later(summary.last_restart.take(), status);
        let waiting = status
            .pointer("/state/waiting/reason")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let terminated = status
            .pointer("/state/terminated")
            .filter(|state| !state.is_null());
        if !waiting.is_empty() {
            summary.reason = waiting.to_owned();
        } else if let Some(state) = terminated {
            summary.reason = end_reason(state);
        } else if status["ready"] == true
            && status
                .pointer("/state/running")
                .is_some_and(|state| !state.is_null())
        {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" && running {
        let ready = view.holds("Ready");
        summary.reason = if ready { "Running" } else { "NotReady" }.to_owned();
    }
}

fn restarts(view: &View<'_>) -> String {
    let summary = summarize(view);
    match &summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, age(Some(last), view.now))
        }
        _ => summary.restarts.to_string(),
    }
}

fn address(view: &View<'_>) -> String {
    let first = view.list("/status/podIPs").first();
    first
        .map(|entry| string(entry, "ip"))
        .filter(|ip| !ip.is_empty())
        .unwrap_or_else(|| view.or("/status/podIP", "<none>").to_owned())
}

fn gates(view: &View<'_>) -> String {
    let gates = view.list("/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let passed = gates
        .iter()
        .filter(|gate| view.holds(gate["conditionType"].as_str().unwrap_or_default()));
    format!("{}/{}", passed.count(), gates.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::present::rows::column::tests::cells;

    fn pod(spec: Value, status: Value) -> Value {
        json!({"metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:56:48Z"}, "spec": spec, "status": status})
    }

    #[test]
    fn a_pod_is_shown_as_kubectl_shows_it() {
        let two = json!({"containers": [{"name": "a"}, {"name": "b"}], "nodeName": "n1"});
        let running =
            json!({"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}});
        let cases = [
            (
                pod(two.clone(), json!({"phase": "Pending"})),
                "p | 0/2 | Pending | 0 | 3m12s | <none> | n1 | <none> | <none>",
            ),
            (
                pod(
                    two.clone(),
                    json!({"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [running, {"name": "b", "ready": false, "restartCount": 3,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"finishedAt": "2026-01-01T00:59:00Z"}}}]}),
                ),
                "p | 1/2 | CrashLoopBackOff | 3 (60s ago) | 3m12s | 10.0.0.1 | n1 | <none> | <none>",
            ),
            (
                pod(
                    two.clone(),
                    json!({"phase": "Succeeded", "containerStatuses": [{"name": "a", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}]}),
                ),
                "p | 0/2 | Completed | 0 | 3m12s | <none> | n1 | <none> | <none>",
            ),
            (
                pod(
                    json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]}),
                    json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}),
                ),
                "p | 0/2 | Init:0/2 | 0 | 3m12s | <none> | <none> | <none> | <none>",
            ),
            (
                pod(
                    json!({"containers": [{"name": "a"}], "readinessGates": [{"conditionType": "x"}]}),
                    json!({"phase": "Failed", "reason": "Evicted", "conditions": [{"type": "x", "status": "True"}]}),
                ),
                "p | 0/1 | Evicted | 0 | 3m12s | <none> | <none> | <none> | 1/1",
            ),
            (
                pod(
                    two.clone(),
                    json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
                ),
                "p | 0/2 | SchedulingGated | 0 | 3m12s | <none> | n1 | <none> | <none>",
            ),
        ];
        for (pod, wanted) in cases {
            assert_eq!(cells(POD, &pod), wanted);
        }
        let mut leaving = pod(two, json!({"phase": "Running"}));
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T01:00:00Z");
        assert_eq!(
            cells(POD, &leaving),
            "p | 0/2 | Terminating | 0 | 3m12s | <none> | n1 | <none> | <none>"
        );
    }
}
