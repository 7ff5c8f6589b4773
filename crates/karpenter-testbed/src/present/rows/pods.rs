//! Pods, nodes, events and the other kinds of the core group.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go printPod, printNode, printEvent, printService.

use serde_json::{Value, json};

use super::{
    AGE, CONTAINERS, Column, IMAGES, NAME, Painting, SELECTOR, View, labels_text, painting_of,
    string, text, whole, wide,
};
use crate::present::age::age;

/// Returns the columns of a kind of the core group.
pub(super) fn core(kind: &str) -> Option<&'static Painting> {
    Some(match kind {
        "Pod" => &POD,
        "Node" => &NODE,
        "Event" => &EVENT,
        "Namespace" => &NAMESPACE,
        "ConfigMap" => &CONFIG_MAP,
        "Secret" => &SECRET,
        "ServiceAccount" => &SERVICE_ACCOUNT,
        "Service" => &SERVICE,
        "Endpoints" => &ENDPOINTS,
        "PodTemplate" => &POD_TEMPLATE,
        "ReplicationController" => &REPLICATION_CONTROLLER,
        "LimitRange" => &LIMIT_RANGE,
        "ResourceQuota" => &RESOURCE_QUOTA,
        _ => return None,
    })
}

const POD_COLUMNS: &[Column] = &[
    NAME,
    text("Ready", ""),
    text("Status", "status.phase"),
    text("Restarts", ""),
    AGE,
    wide("IP", "status.podIP"),
    wide("Node", "spec.nodeName"),
    wide("Nominated Node", "status.nominatedNodeName"),
    wide("Readiness Gates", "spec.readinessGates"),
];

static POD: Painting = Painting {
    columns: POD_COLUMNS,
    cells: pod_cells,
    conditions: Some(pod_conditions),
};

/// The row of a finished pod has a condition, so that `kubectl get` can omit it.
fn pod_conditions(pod: &Value) -> Option<Value> {
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

fn condition<'a>(view: &View<'a>, kind: &str) -> Option<&'a Value> {
    view.list("/status/conditions")
        .iter()
        .find(|condition| condition["type"] == kind)
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
    if condition(view, "PodScheduled")
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
    if !initializing
        || condition(view, "Initialized").is_some_and(|condition| condition["status"] == "True")
    {
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
        let ready = condition(view, "Ready").is_some_and(|condition| condition["status"] == "True");
        summary.reason = if ready { "Running" } else { "NotReady" }.to_owned();
    }
}

fn pod_cells(view: &View<'_>) -> Vec<Value> {
    let summary = summarize(view);
    let restarts = match &summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, age(Some(last), view.now))
        }
        _ => summary.restarts.to_string(),
    };
    let address = view
        .list("/status/podIPs")
        .first()
        .map(|entry| string(entry, "ip"))
        .filter(|ip| !ip.is_empty());
    let address = address.unwrap_or_else(|| view.or("/status/podIP", "<none>").to_owned());
    let gates = view.list("/spec/readinessGates");
    let passed = gates.iter().filter(|gate| {
        let kind = gate["conditionType"].as_str().unwrap_or_default();
        condition(view, kind).is_some_and(|condition| condition["status"] == "True")
    });
    let gates_text = if gates.is_empty() {
        "<none>".to_owned()
    } else {
        format!("{}/{}", passed.count(), gates.len())
    };
    vec![
        json!(view.name()),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(summary.reason),
        json!(restarts),
        json!(view.age()),
        json!(address),
        json!(view.or("/spec/nodeName", "<none>")),
        json!(view.or("/status/nominatedNodeName", "<none>")),
        json!(gates_text),
    ]
}

static NODE: Painting = painting_of(
    &[
        NAME,
        text("Status", ""),
        text("Roles", ""),
        AGE,
        text("Version", "status.nodeInfo.kubeletVersion"),
        wide("Internal-IP", "status.addresses"),
        wide("External-IP", "status.addresses"),
        wide("OS-Image", "status.nodeInfo.osImage"),
        wide("Kernel-Version", "status.nodeInfo.kernelVersion"),
        wide(
            "Container-Runtime",
            "status.nodeInfo.containerRuntimeVersion",
        ),
    ],
    |view| {
        let mut status = match condition(view, "Ready") {
            Some(ready) if ready["status"] == "True" => "Ready",
            Some(_) => "NotReady",
            None => "Unknown",
        }
        .to_owned();
        if view
            .at("/spec/unschedulable")
            .is_some_and(|value| value == true)
        {
            status.push_str(",SchedulingDisabled");
        }
        let mut roles: Vec<String> = Vec::new();
        for (key, value) in view
            .at("/metadata/labels")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let role = match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => role.to_owned(),
                None if key == "kubernetes.io/role" => {
                    value.as_str().unwrap_or_default().to_owned()
                }
                None => continue,
            };
            if !role.is_empty() && !roles.contains(&role) {
                roles.push(role);
            }
        }
        roles.sort();
        let roles = if roles.is_empty() {
            "<none>".to_owned()
        } else {
            roles.join(",")
        };
        let address = |kind: &str| {
            let found = view
                .list("/status/addresses")
                .iter()
                .find(|address| address["type"] == kind);
            found.map_or_else(|| "<none>".to_owned(), |address| string(address, "address"))
        };
        vec![
            json!(view.name()),
            json!(status),
            json!(roles),
            json!(view.age()),
            json!(view.str("/status/nodeInfo/kubeletVersion")),
            json!(address("InternalIP")),
            json!(address("ExternalIP")),
            json!(view.or("/status/nodeInfo/osImage", "<unknown>")),
            json!(view.or("/status/nodeInfo/kernelVersion", "<unknown>")),
            json!(view.or("/status/nodeInfo/containerRuntimeVersion", "<unknown>")),
        ]
    },
);

static EVENT: Painting = painting_of(
    &[
        text("Last Seen", "lastTimestamp"),
        text("Type", "type"),
        text("Reason", "reason"),
        text("Object", "involvedObject"),
        wide("Subobject", "involvedObject.fieldPath"),
        wide("Source", "source"),
        text("Message", "message"),
        wide("First Seen", "firstTimestamp"),
        wide("Count", "count"),
        Column {
            format: "name",
            ..wide("Name", "metadata.name")
        },
    ],
    event_cells,
);

/// Events of both groups: `regarding`, `note`, `deprecated…` are the new names of the same fields.
fn event_cells(view: &View<'_>) -> Vec<Value> {
    let either = |old: &str, new: &str| view.at(old).or_else(|| view.at(new));
    let either_text =
        |old: &str, new: &str| either(old, new).and_then(Value::as_str).unwrap_or_default();
    let time = |value: Option<&Value>| age(value.and_then(Value::as_str), view.now);
    let event_time = view.at("/eventTime");
    let first = either("/firstTimestamp", "/deprecatedFirstTimestamp");
    let first_seen = time(first.or(event_time));
    let last = view
        .at("/series/lastObservedTime")
        .or_else(|| either("/lastTimestamp", "/deprecatedLastTimestamp"));
    let last_seen = match last {
        Some(last) => time(Some(last)),
        None => first_seen.clone(),
    };
    let object = either("/involvedObject", "/regarding")
        .cloned()
        .unwrap_or_default();
    let kind = string(&object, "kind").to_lowercase();
    let target = if kind.is_empty() {
        string(&object, "name")
    } else {
        format!("{kind}/{}", string(&object, "name"))
    };
    let component = Some(either_text(
        "/source/component",
        "/deprecatedSource/component",
    ))
    .filter(|text| !text.is_empty());
    let component =
        component.unwrap_or_else(|| either_text("/reportingComponent", "/reportingController"));
    let host =
        Some(either_text("/source/host", "/deprecatedSource/host")).filter(|text| !text.is_empty());
    let source = match host.or(Some(view.str("/reportingInstance")).filter(|text| !text.is_empty()))
    {
        Some(host) => format!("{component}, {host}"),
        None => component.to_owned(),
    };
    let count = match view
        .at("/series/count")
        .or_else(|| either("/count", "/deprecatedCount"))
        .and_then(Value::as_i64)
    {
        Some(count) if count > 0 => count,
        _ => 1,
    };
    vec![
        json!(last_seen),
        json!(view.str("/type")),
        json!(view.str("/reason")),
        json!(target),
        json!(string(&object, "fieldPath")),
        json!(source),
        json!(either_text("/message", "/note").trim()),
        json!(first_seen),
        json!(count),
        json!(view.name()),
    ]
}

static NAMESPACE: Painting = painting_of(&[NAME, text("Status", "status.phase"), AGE], |view| {
    vec![
        json!(view.name()),
        json!(view.str("/status/phase")),
        json!(view.age()),
    ]
});

static CONFIG_MAP: Painting = painting_of(&[NAME, whole("Data", "data"), AGE], |view| {
    vec![
        json!(view.name()),
        json!(view.count("/data") + view.count("/binaryData")),
        json!(view.age()),
    ]
});

static SECRET: Painting = painting_of(
    &[NAME, text("Type", "type"), whole("Data", "data"), AGE],
    |view| {
        vec![
            json!(view.name()),
            json!(view.str("/type")),
            json!(view.count("/data")),
            json!(view.age()),
        ]
    },
);

static SERVICE_ACCOUNT: Painting = painting_of(&[NAME, whole("Secrets", "secrets"), AGE], |view| {
    vec![
        json!(view.name()),
        json!(view.count("/secrets")),
        json!(view.age()),
    ]
});

static SERVICE: Painting = painting_of(
    &[
        NAME,
        text("Type", "spec.type"),
        text("Cluster-IP", "spec.clusterIP"),
        text("External-IP", "spec.externalIPs"),
        text("Port(s)", "spec.ports"),
        AGE,
        SELECTOR,
    ],
    |view| {
        let kind = view.str("/spec/type");
        let port = |port: &Value| {
            let protocol = Some(string(port, "protocol"))
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| "TCP".into());
            match port["nodePort"].as_i64() {
                Some(node_port) if node_port > 0 => {
                    format!("{}:{node_port}/{protocol}", string(port, "port"))
                }
                _ => format!("{}/{protocol}", string(port, "port")),
            }
        };
        let ports: Vec<String> = view.list("/spec/ports").iter().map(port).collect();
        let ports = if ports.is_empty() {
            "<none>".to_owned()
        } else {
            ports.join(",")
        };
        let mut external: Vec<String> = Vec::new();
        if kind == "LoadBalancer" {
            for ingress in view.list("/status/loadBalancer/ingress") {
                let ip = string(ingress, "ip");
                external.push(if ip.is_empty() {
                    string(ingress, "hostname")
                } else {
                    ip
                });
            }
        }
        external.extend(
            view.list("/spec/externalIPs")
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned),
        );
        let external = match kind {
            "ExternalName" => view.str("/spec/externalName").to_owned(),
            "LoadBalancer" if external.is_empty() => "<pending>".to_owned(),
            _ if external.is_empty() => "<none>".to_owned(),
            _ => external.join(","),
        };
        vec![
            json!(view.name()),
            json!(kind),
            json!(view.or("/spec/clusterIP", "<none>")),
            json!(external),
            json!(ports),
            json!(view.age()),
            json!(labels_text(view.at("/spec/selector"))),
        ]
    },
);

static ENDPOINTS: Painting = painting_of(&[NAME, text("Endpoints", "subsets"), AGE], |view| {
    let mut all = Vec::new();
    for subset in view.list("/subsets") {
        let addresses = subset["addresses"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let ports = subset["ports"].as_array().map_or(&[][..], Vec::as_slice);
        for address in addresses {
            let ip = string(address, "ip");
            if ports.is_empty() {
                all.push(ip);
            } else {
                all.extend(
                    ports
                        .iter()
                        .map(|port| format!("{ip}:{}", string(port, "port"))),
                );
            }
        }
    }
    vec![
        json!(view.name()),
        json!(shortened(&all)),
        json!(view.age()),
    ]
});

/// Formats the first three items, and the number of the others.
pub(super) fn shortened(items: &[String]) -> String {
    match items.len() {
        0 => "<none>".to_owned(),
        1..=3 => items.join(","),
        more => format!("{} + {} more...", items[..3].join(","), more - 3),
    }
}

static POD_TEMPLATE: Painting = painting_of(
    &[
        NAME,
        text("Containers", ""),
        text("Images", ""),
        text("Pod Labels", ""),
    ],
    |view| {
        let (names, images) = view.containers("/template/spec/containers");
        vec![
            json!(view.name()),
            json!(names),
            json!(images),
            json!(labels_text(view.at("/template/metadata/labels"))),
        ]
    },
);

static REPLICATION_CONTROLLER: Painting = painting_of(
    &[
        NAME,
        whole("Desired", "spec.replicas"),
        whole("Current", "status.replicas"),
        whole("Ready", "status.readyReplicas"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    |view| {
        let (names, images) = view.containers("/spec/template/spec/containers");
        vec![
            json!(view.name()),
            json!(view.int("/spec/replicas")),
            json!(view.int("/status/replicas")),
            json!(view.int("/status/readyReplicas")),
            json!(view.age()),
            json!(names),
            json!(images),
            json!(labels_text(view.at("/spec/selector"))),
        ]
    },
);

static LIMIT_RANGE: Painting = painting_of(
    &[NAME, text("Created At", "metadata.creationTimestamp")],
    |view| {
        vec![
            json!(view.name()),
            json!(view.str("/metadata/creationTimestamp")),
        ]
    },
);

static RESOURCE_QUOTA: Painting = painting_of(
    &[NAME, text("Request", ""), text("Limit", ""), AGE],
    |view| {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (name, hard) in view
            .at("/status/hard")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let used = view
                .at("/status/used")
                .and_then(|used| used.get(name))
                .and_then(Value::as_str)
                .unwrap_or("0");
            let entry = format!("{name}: {used}/{}", hard.as_str().unwrap_or_default());
            if name.starts_with("limits.") {
                limits.push(entry)
            } else {
                requests.push(entry)
            }
        }
        vec![
            json!(view.name()),
            json!(requests.join(", ")),
            json!(limits.join(", ")),
            json!(view.age()),
        ]
    },
);

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(painting: &Painting, object: &Value) -> String {
        let view = View {
            object,
            now: "2026-01-01T01:00:00Z".parse().unwrap(),
        };
        (painting.cells)(&view)
            .iter()
            .map(|cell| {
                cell.as_str()
                    .map_or_else(|| cell.to_string(), str::to_owned)
            })
            .collect::<Vec<_>>()
            .join(" | ")
    }

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
            assert_eq!(cells(&POD, &pod), wanted);
        }
        let mut leaving = pod(two, json!({"phase": "Running"}));
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T01:00:00Z");
        assert_eq!(
            cells(&POD, &leaving),
            "p | 0/2 | Terminating | 0 | 3m12s | <none> | n1 | <none> | <none>"
        );
    }

    #[test]
    fn a_node_shows_readiness_roles_and_cordon() {
        let node = json!({"metadata": {"name": "n", "creationTimestamp": "2025-12-31T23:00:00Z", "labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "blue"}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": ""}}});
        assert_eq!(
            cells(&NODE, &node),
            "n | Ready,SchedulingDisabled | blue,worker | 120m | v1.36.0 | 10.1.1.1 | <none> | <unknown> | <unknown> | <unknown>"
        );
        assert_eq!(
            cells(&NODE, &json!({"metadata": {"name": "m"}})),
            "m | Unknown | <none> | <unknown> |  | <none> | <none> | <unknown> | <unknown> | <unknown>"
        );
    }

    #[test]
    fn events_of_both_groups_show_the_same() {
        let core = json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "Launched", "message": "hello\n", "count": 2,
            "involvedObject": {"kind": "NodeClaim", "name": "c"}, "source": {"component": "karpenter"},
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:59:30Z"});
        assert_eq!(
            cells(&EVENT, &core),
            "30s | Normal | Launched | nodeclaim/c |  | karpenter | hello | 60m | 2 | e"
        );
        let new = json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "Launched", "note": "hello", "reportingController": "karpenter",
            "regarding": {"kind": "NodeClaim", "name": "c"}, "eventTime": "2026-01-01T00:59:00.000000Z"});
        assert_eq!(
            cells(&EVENT, &new),
            "60s | Normal | Launched | nodeclaim/c |  | karpenter | hello | 60s | 1 | e"
        );
    }

    #[test]
    fn a_service_shows_ports_and_addresses() {
        let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "selector": {"a": "b"},
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
        assert_eq!(
            cells(&SERVICE, &service),
            "s | NodePort | 10.0.0.1 | <none> | 80:30080/TCP,53/UDP | <unknown> | a=b"
        );
    }
}
