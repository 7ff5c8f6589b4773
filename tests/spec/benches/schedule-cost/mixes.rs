//! Workloads of clusters, as deployments: replicas, CPU in millicores, memory in MiB, GPUs, and where they may run.

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::labels;
use karpenter_spec::catalogue::GPU;
use karpenter_spec::{World, catalogue};
use serde_json::json;

/// Where a deployment may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Anywhere,
    /// Built for amd64 only.
    Amd64,
    /// Built for amd64 only, and on demand only.
    OnDemand,
}

#[derive(Debug, Clone, Copy)]
pub struct Deployment {
    pub replicas: usize,
    pub cpu: i64,
    pub memory: i64,
    pub gpus: i64,
    pub place: Place,
}

const fn d(replicas: usize, cpu: i64, memory: i64, place: Place) -> Deployment {
    Deployment {
        replicas,
        cpu,
        memory,
        gpus: 0,
        place,
    }
}

const fn gpu(replicas: usize, cpu: i64, memory: i64, gpus: i64, place: Place) -> Deployment {
    Deployment {
        replicas,
        cpu,
        memory,
        gpus,
        place,
    }
}

use Place::{Amd64, Anywhere, OnDemand};

pub const MIXES: [(&str, &[Deployment]); 5] = [
    (
        "cpu-heavy",
        &[
            d(40, 2000, 2560, Amd64),
            d(30, 4000, 5120, Amd64),
            d(20, 7500, 9216, Anywhere),
            d(60, 1000, 1536, Anywhere),
            d(25, 3000, 3072, OnDemand),
            d(12, 15000, 16384, Amd64),
            d(80, 500, 512, Amd64),
            d(35, 1500, 1024, Anywhere),
        ],
    ),
    (
        "memory-heavy",
        &[
            d(30, 500, 8192, Amd64),
            d(20, 1000, 15360, Anywhere),
            d(12, 2000, 30720, OnDemand),
            d(40, 250, 3072, Amd64),
            d(8, 4000, 61440, Amd64),
            d(50, 500, 4096, Anywhere),
            d(6, 3000, 98304, OnDemand),
            d(25, 1000, 10240, Amd64),
        ],
    ),
    (
        "mixed",
        &[
            d(40, 900, 3100, Amd64),
            d(25, 3500, 28672, Amd64),
            d(50, 250, 512, Anywhere),
            d(20, 2000, 4096, OnDemand),
            d(30, 1000, 1024, Anywhere),
            d(15, 4000, 8192, Amd64),
            d(10, 500, 12288, Amd64),
            d(60, 100, 256, Anywhere),
            d(12, 6000, 7168, Anywhere),
            d(18, 1500, 6144, OnDemand),
        ],
    ),
    (
        "gpu",
        &[
            gpu(16, 3500, 14336, 1, Amd64),
            gpu(6, 15000, 61440, 4, Amd64),
            gpu(8, 7000, 28672, 1, OnDemand),
            gpu(3, 40000, 180224, 8, Amd64),
            d(30, 1000, 2048, Amd64),
            d(20, 2000, 8192, Amd64),
            d(40, 250, 512, Anywhere),
        ],
    ),
    (
        "many-small",
        &[
            d(200, 50, 64, Anywhere),
            d(150, 100, 128, Amd64),
            d(120, 250, 256, Amd64),
            d(100, 100, 512, Anywhere),
            d(80, 150, 384, OnDemand),
            d(100, 20, 96, Amd64),
            d(50, 500, 1024, Anywhere),
        ],
    ),
];

/// Returns whether an instance type is of a common family and not bare metal.
fn is_usual(name: &str) -> bool {
    const FAMILIES: [&str; 24] = [
        "c5", "c5a", "c6i", "c6a", "c6g", "c7i", "c7a", "c7g", "m5", "m5a", "m6i", "m6a", "m6g",
        "m7i", "m7a", "m7g", "r5", "r6i", "r6g", "r7i", "r7g", "g4dn", "g5", "g6",
    ];
    name.split_once('.')
        .is_some_and(|(family, size)| FAMILIES.contains(&family) && !size.starts_with("metal"))
}

/// Returns a cluster in which all pods of a mix are pending.
pub fn world(deployments: &[Deployment]) -> World {
    let well_known = karpenter_api::validation::WellKnown::default();
    let mut world = World {
        well_known: well_known.labels().map(str::to_owned).collect(),
        ..World::default()
    };
    let condition = json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default", "uid": "default" },
        "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
            "requirements": [{ "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand", "spot"] }],
        } } },
        "status": { "conditions": [condition] },
    });
    world.node_pools.extend(serde_json::from_value(pool));
    world
        .instance_types
        .insert("default".into(), catalogue::instance_types(is_usual));
    for (index, deployment) in deployments.iter().enumerate() {
        for replica in 0..deployment.replicas {
            world
                .pods
                .extend(pod(&format!("d{index}-{replica:03}"), deployment));
        }
    }
    world
}

fn pod(name: &str, deployment: &Deployment) -> Option<Pod> {
    let mut requests = json!({ "cpu": format!("{}m", deployment.cpu), "memory": format!("{}Mi", deployment.memory) });
    if deployment.gpus > 0 {
        requests[GPU] = json!(deployment.gpus.to_string());
    }
    let selector = match deployment.place {
        Anywhere => json!({}),
        Amd64 => json!({ labels::ARCH: "amd64" }),
        OnDemand => json!({ labels::ARCH: "amd64", labels::CAPACITY_TYPE: "on-demand" }),
    };
    let pod = json!({
        "metadata": { "namespace": "default", "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "nodeSelector": selector, "containers": [{ "name": "main", "resources": { "requests": requests } }] },
        "status": { "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
    });
    serde_json::from_value(pod).ok()
}
