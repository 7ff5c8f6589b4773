//! The API server of a large cluster, as a process that does as it is told on its standard input.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::crd;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_kwok::{KwokNodeClass, node_class};
use karpenter_testbed::Testbed;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const PARALLEL: usize = 64;
const POOL: &str = "default";

/// Serves a cluster of so many nodes and pods until the standard input ends.
///
/// It says `{"kubeconfig": "…"}` first. Then `events RATE SECONDS` changes pods, `burst PODS` makes pods that the scheduler
/// found no place for, and `claims` says how many NodeClaims were made and when the last was, in seconds after the burst.
pub fn serve(nodes: usize, pods: usize) {
    let runtime = tokio::runtime::Runtime::new();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run(nodes, pods)),
        Err(error) => Err(error.into()),
    };
    if let Err(error) = outcome {
        eprintln!("the cluster failed, {error}");
        std::process::exit(1);
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn say(what: &Value) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}")?;
    out.flush()?;
    Ok(())
}

async fn run(nodes: usize, pods: usize) -> Outcome<()> {
    let testbed = Testbed::builder().seed(1).start().await;
    let definitions = crd::all(&[], &[])
        .into_iter()
        .map(|(_, definition)| definition);
    testbed
        .apply_crds(definitions.chain([node_class::crd()]))
        .await?;
    let client = testbed.admin_client();
    furnish(&client, nodes, pods).await?;
    let served = testbed.serve(([127, 0, 0, 1], 0).into()).await?;
    say(&json!({"kubeconfig": served.kubeconfig()}))?;

    let clock = Arc::new(Clock::default());
    tokio::spawn(watch_claims(client.clone(), Arc::clone(&clock)));
    let (lines, mut commands) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    while let Some(line) = commands.recv().await {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|w| w.parse().ok()).unwrap_or(0);
        match words.first() {
            Some(&"events") => {
                events(&client, pods, number(1), number(2)).await?;
                say(&json!({"done": true}))?;
            }
            Some(&"burst") => {
                burst(&client, number(1)).await?;
                clock.start();
                say(&json!({"done": true}))?;
            }
            Some(&"claims") => say(&clock.report())?,
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// When the latest NodeClaim was made.
#[derive(Default)]
struct Clock {
    state: std::sync::Mutex<(Option<Instant>, Option<Instant>)>,
    made: AtomicU64,
}

impl Clock {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Option<Instant>, Option<Instant>)> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn start(&self) {
        self.lock().0 = Some(Instant::now());
    }

    fn made(&self) {
        self.made.fetch_add(1, Ordering::SeqCst);
        self.lock().1 = Some(Instant::now());
    }

    fn report(&self) -> Value {
        let (start, last) = *self.lock();
        let after = start.zip(last).map(|(start, last)| {
            let late = last.saturating_duration_since(start).as_secs_f64();
            late - start.saturating_duration_since(last).as_secs_f64()
        });
        json!({"made": self.made.load(Ordering::SeqCst), "seconds": after})
    }
}

async fn watch_claims(client: Client, clock: Arc<Clock>) {
    let api: Api<NodeClaim> = Api::all(client);
    let known = std::cell::RefCell::new(std::collections::BTreeSet::new());
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::InitApply(claim)) => {
                known.borrow_mut().insert(claim.name().to_owned());
            }
            Ok(watcher::Event::Apply(claim))
                if known.borrow_mut().insert(claim.name().to_owned()) =>
            {
                clock.made();
            }
            _ => {}
        }
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> Outcome<K>
where
    K: kube::Resource + DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object)?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

async fn furnish(client: &Client, nodes: usize, pods: usize) -> Outcome<()> {
    Api::<KwokNodeClass>::all(client.clone())
        .create(&PostParams::default(), &KwokNodeClass::new("default"))
        .await?;
    let api: Api<NodePool> = Api::all(client.clone());
    create(&api, node_pool()).await?;
    let made = futures::stream::iter(0..nodes).map(|n| node(client, n));
    made.buffer_unordered(PARALLEL)
        .try_for_each(|()| async { Ok(()) })
        .await?;
    let made = futures::stream::iter(0..pods).map(|n| bound_pod(client, n, nodes));
    made.buffer_unordered(PARALLEL)
        .try_for_each(|()| async { Ok(()) })
        .await
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

fn node_pool() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": POOL},
        "spec": {
            "template": {"spec": {"nodeClassRef": class_reference(), "requirements": requirements()}},
            "disruption": {"consolidateAfter": "0s"},
        },
    })
}

/// A full machine: twenty pods of 190 millicores on four cores.
async fn node(client: &Client, n: usize) -> Outcome<()> {
    let (name, claim) = (format!("kwok-node-{n:05}"), format!("{POOL}-{n:05}"));
    let id = format!("kwok://{name}");
    let zone = karpenter_kwok::catalogue::ZONES[n % 4];
    let labels = json!({
        "karpenter.sh/nodepool": POOL, "karpenter.kwok.sh/kwoknodeclass": "default",
        "karpenter.sh/capacity-type": "spot", "topology.kubernetes.io/zone": zone,
        "node.kubernetes.io/instance-type": "c-4x-amd64-linux",
        "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
        "karpenter.kwok.sh/instance-size": "4x", "karpenter.kwok.sh/instance-family": "c",
        "karpenter.kwok.sh/instance-cpu": "4", "karpenter.kwok.sh/instance-memory": "8Gi",
        "kubernetes.io/hostname": claim,
    });
    let resources = json!({"cpu": "4", "memory": "8Gi", "pods": "64", "ephemeral-storage": "20Gi"});
    let claims: Api<NodeClaim> = Api::all(client.clone());
    create(
        &claims,
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": claim, "labels": labels, "finalizers": ["karpenter.sh/termination"]},
            "spec": {"nodeClassRef": class_reference(), "requirements": requirements(), "expireAfter": "Never"},
        }),
    )
    .await?;
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
    let status = json!({"status": {
        "providerID": id, "nodeName": name, "capacity": resources, "allocatable": resources, "conditions": conditions,
    }});
    let params = PatchParams::default();
    claims
        .patch_status(&claim, &params, &Patch::Merge(status))
        .await?;
    let mut labels = labels;
    for key in ["karpenter.sh/registered", "karpenter.sh/initialized"] {
        labels[key] = json!("true");
    }
    let nodes: Api<Node> = Api::all(client.clone());
    create(
        &nodes,
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels, "finalizers": ["karpenter.sh/termination"]},
            "spec": {"providerID": id},
        }),
    )
    .await?;
    let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": now, "lastHeartbeatTime": now}]);
    let status =
        json!({"status": {"capacity": resources, "allocatable": resources, "conditions": ready}});
    nodes
        .patch_status(&name, &params, &Patch::Merge(status))
        .await?;
    Ok(())
}

fn pod(name: &str, app: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app, "pod-template-hash": "744cc4c5ff"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true}]},
        "spec": {"containers": [{"name": "main", "image": "registry.example/team/service:1.2.3",
            "env": [{"name": "POD_NAME", "value": name}],
            "resources": {"requests": {"cpu": cpu, "memory": "128Mi"}}}]},
    })
}

async fn bound_pod(client: &Client, n: usize, nodes: usize) -> Outcome<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let app = format!("service-{}", n % 200);
    let name = format!("{app}-744cc4c5ff-{n:06}");
    let mut pod = pod(&name, &app, "190m");
    pod["spec"]["nodeName"] = json!(format!("kwok-node-{:05}", n % nodes.max(1)));
    create(&api, pod).await?;
    let now = jiff::Timestamp::now().to_string();
    let status = json!({"status": {"phase": "Running", "startTime": now, "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": now},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
    ]}});
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

/// Changes so many pods a second, as kubelets and controllers do.
async fn events(client: &Client, pods: usize, rate: usize, seconds: usize) -> Outcome<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate.max(1))?);
    for n in 0..rate * seconds {
        ticks.tick().await;
        let pod = n * 7919 % pods.max(1);
        let name = format!("service-{}-744cc4c5ff-{pod:06}", pod % 200);
        let status = if (n / 2) % 2 == 0 { "False" } else { "True" };
        let now = jiff::Timestamp::now().to_string();
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": now}]}});
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
    }
    Ok(())
}

/// Makes pods that kube-scheduler has found no place for.
async fn burst(client: &Client, pods: usize) -> Outcome<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let now = jiff::Timestamp::now().to_string();
    let made = futures::stream::iter(0..pods).map(|n| {
        let (api, now) = (api.clone(), now.clone());
        async move {
            let name = format!("burst-744cc4c5ff-{n:06}");
            create(&api, pod(&name, "burst", "1")).await?;
            let status = json!({"status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": now},
            ]}});
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
                .await?;
            Outcome::Ok(())
        }
    });
    made.buffer_unordered(PARALLEL)
        .try_for_each(|()| async { Ok(()) })
        .await
}
