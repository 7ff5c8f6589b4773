//! The API server of a large cluster, as a process that takes commands on its standard input.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::crd;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_kwok::{KWOKNodeClass, node_class};
use karpenter_testbed::Testbed;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::processes::{Outcome, commands, report};

const POOL: &str = "default";
/// Interval at which a kubelet reports an unchanged node status.
const HEARTBEAT: Duration = Duration::from_secs(300);

/// Serves a cluster with these numbers of nodes and pods until the standard input ends.
///
/// It first reports how it is reached. Then `events RATE SECONDS` changes pods, in addition to every node's heartbeat,
/// `burst PODS` creates unschedulable pods, and `claims` reports how many NodeClaims were created and when the last was, in
/// seconds after the burst.
pub async fn run(nodes: usize, pods: usize) -> Outcome<()> {
    let testbed = Testbed::builder().seed(1).start().await;
    let definitions = crd::all(&[], &[])
        .into_iter()
        .map(|(_, definition)| definition);
    testbed
        .apply_crds(definitions.chain([node_class::crd()]))
        .await?;
    let client = testbed.admin_client();
    Api::<KWOKNodeClass>::all(client.clone())
        .create(
            &PostParams::default(),
            &KWOKNodeClass::new("default", Default::default()),
        )
        .await?;
    Api::<NodePool>::all(client.clone())
        .create(
            &PostParams::default(),
            &serde_json::from_value(node_pool(pods))?,
        )
        .await?;
    let full_nodes = (0..nodes).flat_map(full_node);
    let bound = (0..pods).map(|n| bound_pod(n, nodes, pods));
    if testbed.load(full_nodes.chain(bound)) != 2 * nodes + pods {
        return Err("cannot load the whole cluster".into());
    }
    let served = testbed.serve(([127, 0, 0, 1], 0).into()).await?;
    report(&json!({"kubeconfig": served.kubeconfig(), "now": jiff::Timestamp::now().to_string()}))?;

    let clock = Arc::new(Clock::default());
    tokio::spawn(watch_claims(client.clone(), Arc::clone(&clock)));
    let mut commands = commands();
    while let Some(line) = commands.recv().await {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|w| w.parse().ok()).unwrap_or(0);
        match words.first() {
            Some(&"events") => {
                let start = Instant::now();
                let beating = beat(&client, nodes);
                tokio::select! {
                    done = events(&client, pods, number(1), number(2)) => done?,
                    failed = beating => failed?,
                }
                report(&json!({"seconds": start.elapsed().as_secs_f64()}))?;
            }
            Some(&"burst") => {
                let all = number(1);
                clock.start();
                let made = testbed.load((0..all).map(waiting_pod));
                report(&json!({"made": made}))?;
            }
            Some(&"claims") => report(&clock.report())?,
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Time of the latest NodeClaim.
#[derive(Default)]
struct Clock {
    state: parking_lot::Mutex<(Option<Instant>, Option<Instant>)>,
    made: AtomicU64,
}

impl Clock {
    fn start(&self) {
        self.state.lock().0 = Some(Instant::now());
        self.made.store(0, Ordering::SeqCst);
    }

    fn made(&self) {
        self.made.fetch_add(1, Ordering::SeqCst);
        self.state.lock().1 = Some(Instant::now());
    }

    fn report(&self) -> Value {
        let (start, last) = *self.state.lock();
        let after = start
            .zip(last)
            .map(|(start, last)| last.saturating_duration_since(start).as_secs_f64());
        json!({"made": self.made.load(Ordering::SeqCst), "seconds": after})
    }
}

async fn watch_claims(client: Client, clock: Arc<Clock>) {
    let api: Api<NodeClaim> = Api::all(client);
    let mut known = std::collections::BTreeSet::new();
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::InitApply(claim)) => {
                known.insert(claim.name().to_owned());
            }
            Ok(watcher::Event::Apply(claim)) if known.insert(claim.name().to_owned()) => {
                clock.made();
            }
            _ => {}
        }
    }
}

fn class_reference() -> Value {
    json!({"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"})
}

fn requirements() -> Value {
    json!([
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
    ])
}

/// Returns the NodePool. Nodes are consolidated, unless they are all empty: those without pods must stay.
fn node_pool(pods: usize) -> Value {
    let consolidate_after = if pods == 0 { "Never" } else { "0s" };
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": POOL},
        "spec": {
            "template": {"spec": {"nodeClassRef": class_reference(), "requirements": requirements()}},
            "disruption": {"consolidateAfter": consolidate_after},
        },
    })
}

/// Returns the managed fields of an object with a controller and a kubelet as field managers.
fn managed_fields(owner: &str, reporter: &str) -> Value {
    let conditions = json!({"f:lastTransitionTime": {}, "f:status": {}, "f:type": {}, ".": {}});
    let fields = json!({"f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}},
            "f:ownerReferences": {".": {}, "k:{\"uid\":\"0b5f9b2e-6b9f-4c53-8f0c-0c6f7d1c9a11\"}": {}}},
        "f:spec": {"f:containers": {"k:{\"name\":\"main\"}": {".": {}, "f:env": {".": {}, "k:{\"name\":\"POD_NAME\"}": {".": {}, "f:name": {}, "f:value": {}}},
            "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:resources": {".": {}, "f:requests": {".": {}, "f:cpu": {}, "f:memory": {}}},
            "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}}},
            "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
            "f:terminationGracePeriodSeconds": {}}});
    let status = json!({"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": conditions, "k:{\"type\":\"PodScheduled\"}": conditions},
        "f:phase": {}, "f:startTime": {}}});
    json!([
        {"manager": owner, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields},
        {"manager": reporter, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": status, "subresource": "status"},
    ])
}

/// Returns the NodeClaim and the Node of a node of four cores, which its pods fill.
fn full_node(n: usize) -> [Value; 2] {
    let (name, claim) = (format!("kwok-node-{n:05}"), format!("{POOL}-{n:05}"));
    let id = format!("kwok://{name}");
    let zone = karpenter_kwok::catalogue::ZONES[n % 4];
    let mut labels = json!({
        "karpenter.sh/nodepool": POOL, "karpenter.kwok.sh/kwoknodeclass": "default",
        "karpenter.sh/capacity-type": "spot", "topology.kubernetes.io/zone": zone,
        "node.kubernetes.io/instance-type": "c-4x-amd64-linux",
        "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
        "karpenter.kwok.sh/instance-size": "4x", "karpenter.kwok.sh/instance-family": "c",
        "karpenter.kwok.sh/instance-cpu": "4", "karpenter.kwok.sh/instance-memory": "8Gi",
        "kubernetes.io/hostname": claim,
    });
    let resources = json!({"cpu": "4", "memory": "8Gi", "pods": "64", "ephemeral-storage": "20Gi"});
    let now = jiff::Timestamp::now().to_string();
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now});
    let conditions: Vec<Value> = [
        "Launched",
        "Registered",
        "Initialized",
        "Ready",
        "Consolidatable",
        "ConsistentStateFound",
    ]
    .map(condition)
    .into();
    let nodeclaim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": claim, "labels": labels, "finalizers": ["karpenter.sh/termination"]},
        "spec": {"nodeClassRef": class_reference(), "requirements": requirements(), "expireAfter": "Never"},
        "status": {"providerID": id, "nodeName": name, "capacity": resources, "allocatable": resources, "conditions": conditions},
    });
    for key in ["karpenter.sh/registered", "karpenter.sh/initialized"] {
        labels[key] = json!("true");
    }
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels, "finalizers": ["karpenter.sh/termination"],
            "managedFields": managed_fields("karpenter", "kubelet")},
        "spec": {"providerID": id},
        "status": {"capacity": resources, "allocatable": resources, "conditions": node_conditions()},
    });
    [nodeclaim, node]
}

fn node_conditions() -> Value {
    let now = jiff::Timestamp::now().to_string();
    let all = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ];
    all.map(|(kind, status, reason)| {
        json!({"type": kind, "status": status, "reason": reason, "message": "kubelet says so",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": now})
    })
    .into()
}

fn pod(name: &str, app: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app, "pod-template-hash": "744cc4c5ff"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true}],
            "managedFields": managed_fields("kube-controller-manager", "kubelet")},
        "spec": {"containers": [{"name": "main", "image": "registry.example/team/service:1.2.3",
            "env": [{"name": "POD_NAME", "value": name}],
            "resources": {"requests": {"cpu": cpu, "memory": "128Mi"}}}],
            "restartPolicy": "Always", "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30,
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ]},
    })
}

fn pod_name(n: usize) -> (String, String) {
    let app = format!("service-{}", n % 200);
    let name = format!("{app}-744cc4c5ff-{n:06}");
    (app, name)
}

/// Returns a pod of a cluster with these numbers of nodes and pods. The pods of a node request 3.98 of its four cores, so that no other
/// pod fits and no node is consolidated.
fn bound_pod(n: usize, nodes: usize, pods: usize) -> Value {
    let (app, name) = pod_name(n);
    let millicores = 3_980 / pods.div_ceil(nodes.max(1)).max(1);
    let mut pod = pod(&name, &app, &format!("{millicores}m"));
    pod["spec"]["nodeName"] = json!(format!("kwok-node-{:05}", n % nodes.max(1)));
    let now = jiff::Timestamp::now().to_string();
    pod["status"] = json!({"phase": "Running", "startTime": now, "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": now},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
    ]});
    pod
}

/// Returns a pod that kube-scheduler could not schedule.
fn waiting_pod(n: usize) -> Value {
    let mut pod = pod(&format!("burst-744cc4c5ff-{n:06}"), "burst", "1");
    let now = jiff::Timestamp::now().to_string();
    pod["status"] = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": now},
    ]});
    pod
}

/// Changes pods at this rate per second, as kubelets do.
async fn events(client: &Client, pods: usize, rate: usize, seconds: usize) -> Outcome<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate.max(1))?);
    for n in 0..rate * seconds {
        ticks.tick().await;
        // Each pod changes twice in a row: unready, and ready again.
        let (_, name) = pod_name((n / 2) * 7919 % pods.max(1));
        let status = if n % 2 == 0 { "False" } else { "True" };
        let now = jiff::Timestamp::now().to_string();
        let conditions = json!([
            {"type": "Ready", "status": status, "lastTransitionTime": now},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]);
        let patch = json!({"status": {"conditions": conditions}});
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
    }
    Ok(())
}

/// Updates every node's heartbeat once per interval.
async fn beat(client: &Client, nodes: usize) -> Outcome<()> {
    let api: Api<Node> = Api::all(client.clone());
    let mut ticks = tokio::time::interval(HEARTBEAT / u32::try_from(nodes.max(1))?);
    for n in (0..nodes.max(1)).cycle() {
        ticks.tick().await;
        let patch = json!({"status": {"conditions": node_conditions()}});
        let name = format!("kwok-node-{n:05}");
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
    }
    Ok(())
}
