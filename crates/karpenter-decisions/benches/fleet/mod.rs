//! A cluster of 5,000 nodes in 20 NodePools with 100,000 pods and 2,000 PodDisruptionBudgets, of which a tenth are impossible, 200
//! protected pods, and 700 instance types.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, ClusterConfig, Snapshot};
use karpenter_core::fake;
use karpenter_core::instance_type::InstanceType;
use serde_json::{Value, json};

pub const NODES: usize = 5_000;
/// Pods of a node.
pub const PODS: usize = 20;
/// Workloads, each with a PodDisruptionBudget.
pub const WORKLOADS: usize = 2_000;
const POOLS: usize = 20;
const ZONE: &str = "topology.kubernetes.io/zone";

/// Returns the time of the cluster.
pub fn now() -> Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
}

/// Returns 700 types from 1 to 192 cores in three zones.
fn types() -> Arc<[InstanceType]> {
    let cores = [1, 2, 4, 8, 16, 32, 48, 64, 96, 192];
    let of = |index: usize| {
        let cpu = cores[index % 10];
        let price = 0.04 * cpu as f64 * (1.0 + 0.01 * (index / 10) as f64);
        let zones = ["test-zone-1", "test-zone-2", "test-zone-3"];
        let name = format!("g{}-{cpu}x", index / 10);
        let size = fake::instance_type(&name).cpu(cpu).gib(4 * cpu);
        size.pods(60).price(price).zones(&zones).build()
    };
    (0..700).map(of).collect()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub fn fleet() -> Snapshot {
    let config = ClusterConfig {
        well_known: fake::well_known(),
        ..ClusterConfig::default()
    };
    let mut cluster = Cluster::new(config);
    let types = types();
    let class = json!({ "group": "example.com", "kind": "Rack", "name": "any" });
    let is_true = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:01:00Z" });
    for index in 0..POOLS {
        let name = format!("pool-{index:02}");
        cluster.apply_node_pool(&read(json!({
            "metadata": { "name": name, "uid": name },
            "spec": {
                "weight": index + 1, "template": { "spec": { "requirements": [], "nodeClassRef": class } },
                "disruption": { "consolidateAfter": "0s", "budgets": [{ "nodes": "0", "schedule": "* * * * *", "duration": "1h" }] },
            },
            "status": { "conditions": [is_true("Ready")] },
        })));
        cluster.set_instance_types(&name, Ok(types.clone()));
    }
    for index in 0..WORKLOADS {
        let app = format!("app-{index:04}");
        let rule = match index % 10 {
            0 => json!({ "maxUnavailable": 0, "selector": { "matchLabels": { "app": app } } }),
            _ => json!({ "maxUnavailable": 1, "selector": { "matchLabels": { "app": app } } }),
        };
        let allowed = i32::from(index % 10 != 0);
        cluster.apply_pdb(&read(json!({
            "metadata": { "name": app, "namespace": format!("team-{:02}", index % 50), "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": rule, "status": { "observedGeneration": 1, "expectedPods": 50, "currentHealthy": 50, "desiredHealthy": 49, "disruptionsAllowed": allowed },
        })));
    }
    let resources = json!({ "cpu": "16", "memory": "64Gi", "pods": "60" });
    for node in 0..NODES {
        let name = format!("node-{node:04}");
        let labels = json!({
            "karpenter.sh/nodepool": format!("pool-{:02}", node % POOLS), "node.kubernetes.io/instance-type": "g0-16x",
            "karpenter.sh/capacity-type": "on-demand", ZONE: "test-zone-1", "kubernetes.io/hostname": name,
            "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
        });
        let id = format!("fake://{name}");
        let conditions = ["Initialized", "Consolidatable"].map(is_true);
        cluster.apply_node_claim(&read(json!({
            "metadata": { "name": name, "uid": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeClassRef": class, "requirements": [] },
            "status": { "providerID": id, "nodeName": name, "capacity": resources, "allocatable": resources, "conditions": conditions },
        })));
        cluster.apply_node(&read(json!({
            "metadata": { "name": name, "uid": name, "labels": labels },
            "spec": { "providerID": id },
            "status": { "capacity": resources, "allocatable": resources, "conditions": [{ "type": "Ready", "status": "True" }] },
        })));
        for slot in 0..PODS {
            let number = node * PODS + slot;
            // Workloads of impossible budgets are on a few nodes only.
            let workload = (node / 5 + slot * 97) % WORKLOADS;
            let app = format!("app-{workload:04}");
            let name_of = format!("{app}-{number:06}");
            let annotations = match number % 500 {
                0 => json!({ "karpenter.sh/do-not-disrupt": "true" }),
                _ => json!({}),
            };
            cluster.apply_pod(&read(json!({
                "metadata": {
                    "name": name_of, "namespace": format!("team-{:02}", workload % 50), "uid": name_of, "labels": { "app": app, "pod-template-hash": "7c9" },
                    "annotations": annotations, "creationTimestamp": "2026-01-01T00:00:00Z",
                    "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-7c9"), "uid": app, "controller": true }],
                },
                "spec": { "nodeName": name, "containers": [{ "name": "c", "resources": { "requests": { "cpu": "500m", "memory": "2Gi" } } }] },
                "status": { "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [{ "type": "Ready", "status": "True" }] },
            })));
        }
    }
    cluster.snapshot()
}
