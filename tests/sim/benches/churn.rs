//! Cost and savings of consolidation policies while pods are created and deleted: four simulated hours each.
//!
//! Everything runs in virtual time on one thread and follows from a seed. Deployments are scaled for forty minutes of each
//! hour, and not for the other twenty.

#![expect(clippy::expect_used, reason = "what fails here fails the benchmark")]

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use karpenter_api::v1::NodePool;
use karpenter_bench::{Run, Suite};
use karpenter_kwok::KWOKNodeClass;
use karpenter_lab::local_cluster::{LocalCluster, LocalClusterSettings};
use karpenter_lab::progress::Progress;
use karpenter_sim::Chance;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const SEED: u64 = 7;
const HOURS: u64 = 4;
const BUSY: Duration = Duration::from_secs(40 * 60);
const HOUR: Duration = Duration::from_secs(3600);
/// Requests of the Deployments' pods.
const SIZES: [(&str, &str); 12] = [
    ("100m", "128Mi"),
    ("250m", "512Mi"),
    ("250m", "2Gi"),
    ("500m", "512Mi"),
    ("500m", "4Gi"),
    ("1", "1Gi"),
    ("1", "8Gi"),
    ("1500m", "3Gi"),
    ("2", "2Gi"),
    ("2", "12Gi"),
    ("3", "6Gi"),
    ("4", "4Gi"),
];

fn main() {
    let mut suite = Suite::from_args("churn");
    for (name, policy) in [
        ("when-empty", "WhenEmpty"),
        ("underutilized", "WhenEmptyOrUnderutilized"),
        ("balanced", "Balanced"),
    ] {
        suite.case(name, |run| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime");
            runtime.block_on(churn(run, policy));
        });
    }
}

fn node_pool(policy: &str) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {
            "template": {"spec": {
                "expireAfter": "Never",
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [
                    {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
                    {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                ],
            }},
            "disruption": {"consolidationPolicy": policy, "consolidateAfter": "30s", "budgets": [{"nodes": "10%"}]},
        },
    })
}

fn deployment(n: usize, (cpu, memory): (&str, &str)) -> Value {
    let name = format!("app{n}");
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 12, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "terminationGracePeriodSeconds": 10,
                "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": memory}}}],
            }},
        },
    })
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a valid object")
}

async fn churn(run: &mut Run, policy: &str) {
    let mut chance = Chance::new(SEED);
    fastrand::seed(SEED);
    let mut options = LocalClusterSettings::default().options;
    options.cpu_requests = 1000;
    let settings = LocalClusterSettings {
        epoch: karpenter_sim::epoch(),
        seed: SEED,
        options,
        ..LocalClusterSettings::default()
    };
    let cluster = LocalCluster::start(settings).await.expect("a cluster");
    let client = cluster.client();
    let create = PostParams::default();
    let classes: Api<KWOKNodeClass> = Api::all(client.clone());
    let class = KWOKNodeClass::new("default", Default::default());
    classes.create(&create, &class).await.expect("a class");
    let pools: Api<NodePool> = Api::all(client.clone());
    let pool = read(node_pool(policy));
    pools.create(&create, &pool).await.expect("a pool");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let mut replicas = [12_u64; SIZES.len()];
    for (n, size) in SIZES.into_iter().enumerate() {
        let deployment = read(deployment(n, size));
        let made = deployments.create(&create, &deployment).await;
        made.expect("a deployment");
    }
    // The first nodes are launched, and half an hour passes until the measurement begins.
    cluster.clock.sleep(HOUR / 2).await;
    let start = cluster.clock.now();
    let (spent, launched) = (cluster.cloud.spent(start), cluster.cloud.launched());
    let evicted = evictions(&cluster);
    let (mut pods, mut samples) = (0, 0);
    let mut changes = 0_u64;
    for hour in 0..HOURS {
        let begins = HOUR * u32::try_from(hour).unwrap_or(0);
        while cluster.clock.since(start) < begins + BUSY {
            let pause = Duration::from_secs_f64(chance.seconds(2.0, 60.0));
            cluster.clock.sleep(pause).await;
            let n = usize::try_from(chance.between(0, SIZES.len() as u64 - 1)).unwrap_or(0);
            let step = chance.between(1, 8);
            let grows = chance.happens(0.5);
            replicas[n] = match grows {
                true => (replicas[n] + step).min(40),
                false => replicas[n].saturating_sub(step),
            };
            let patch = Patch::Merge(json!({"spec": {"replicas": replicas[n]}}));
            let (name, params) = (format!("app{n}"), PatchParams::default());
            let patched = deployments.patch(&name, &params, &patch).await;
            patched.expect("a deployment");
            changes += 1;
            let progress = Progress::of(&cluster).await.expect("the progress");
            pods += progress.running;
            samples += 1;
        }
        while cluster.clock.since(start) < begins + HOUR {
            cluster.clock.sleep(Duration::from_secs(60)).await;
        }
    }
    let now = cluster.clock.now();
    let hours = HOURS as f64;
    run.parameter("seed", SEED);
    run.parameter("policy", policy);
    run.parameter("hours", HOURS);
    run.sample(
        usize::try_from(changes).unwrap_or(0),
        cluster.clock.since(start),
    );
    run.record("changes_per_hour", changes as f64 / hours);
    run.record("pods", pods as f64 / f64::from(samples.max(1)));
    run.record(
        "evictions_per_hour",
        (evictions(&cluster) - evicted) / hours,
    );
    run.record(
        "dollars_per_hour",
        (cluster.cloud.spent(now) - spent) / hours,
    );
    run.record(
        "nodes_launched_per_hour",
        (cluster.cloud.launched() - launched) as f64 / hours,
    );
    cluster.shutdown().await;
}

/// Returns the number of granted evictions.
fn evictions(cluster: &LocalCluster) -> f64 {
    let text = cluster.registry.render();
    let granted = text.lines().filter(|line| {
        line.starts_with("karpenter_pods_eviction_requests_total{") && line.contains("code=\"20")
    });
    granted
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}
