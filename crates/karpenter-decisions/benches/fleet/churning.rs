//! A cluster like those of core issue 3225: `consolidateAfter: 5m`, and nodes that are nearly full.

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, ClusterConfig, Snapshot};
use karpenter_core::fake;
use serde_json::json;

/// The Deployments, with the cores and GiB of memory that their pods request. A node has two pods of each: 14.5 of 16 cores.
const DEPLOYMENTS: [(&str, f64, u32); 8] = [
    ("api", 2.0, 4),
    ("web", 1.0, 2),
    ("cart", 0.5, 2),
    ("search", 1.5, 6),
    ("queue", 0.25, 1),
    ("mail", 0.5, 1),
    ("jobs", 1.0, 4),
    ("auth", 0.5, 2),
];

/// Returns the time of the cluster.
pub fn now() -> Timestamp {
    "2026-08-11T09:00:00Z"
        .parse()
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns the cluster with so many nodes.
///
/// # Errors
/// If an object is not as the API has it.
pub fn fleet(nodes: usize) -> Result<Snapshot, serde_json::Error> {
    let mut cluster = Cluster::new(ClusterConfig {
        well_known: fake::well_known(),
        ..ClusterConfig::default()
    });
    let class = json!({ "group": "example.com", "kind": "Rack", "name": "any" });
    let is_true = |kind: &str| {
        json!({
            "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-08-11T00:01:00Z",
        })
    };
    let on_demand =
        json!({ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] });
    cluster.apply_node_pool(&serde_json::from_value(json!({
        "metadata": { "name": "default", "uid": "default" },
        "spec": {
            "template": { "spec": { "requirements": [on_demand], "expireAfter": "Never", "nodeClassRef": class } },
            "disruption": { "consolidateAfter": "5m", "budgets": [{ "nodes": "10%" }] },
        },
        "status": { "conditions": [is_true("Ready")] },
    }))?);
    let types = [4_i64, 8, 16, 32].map(|cpu| {
        let size = fake::instance_type(&format!("m-{cpu}x"))
            .cpu(cpu)
            .gib(4 * cpu);
        let size = size.pods(110).price(0.048 * cpu as f64);
        size.zones(&["test-zone-1"]).build()
    });
    cluster.set_instance_types("default", Ok(types.into()));
    let resources = json!({ "cpu": "16", "memory": "64Gi", "pods": "110" });
    for node in 0..nodes {
        let name = format!("node-{node:03}");
        let labels = json!({
            "karpenter.sh/nodepool": "default", "node.kubernetes.io/instance-type": "m-16x", "karpenter.sh/capacity-type": "on-demand",
            "topology.kubernetes.io/zone": "test-zone-1", "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
        });
        let id = format!("fake://{name}");
        let conditions = ["Launched", "Registered", "Initialized", "Consolidatable"].map(is_true);
        cluster.apply_node_claim(&serde_json::from_value(json!({
            "metadata": { "name": name, "uid": name, "labels": labels, "creationTimestamp": "2026-08-11T00:00:00Z" },
            "spec": { "nodeClassRef": class, "requirements": [], "expireAfter": "Never" },
            "status": { "providerID": id, "nodeName": name, "capacity": resources, "allocatable": resources, "conditions": conditions },
        }))?);
        cluster.apply_node(&serde_json::from_value(json!({
            "metadata": { "name": name, "uid": name, "labels": labels },
            "spec": { "providerID": id },
            "status": { "capacity": resources, "allocatable": resources, "conditions": [{ "type": "Ready", "status": "True" }] },
        }))?);
        for slot in 0..2 * DEPLOYMENTS.len() {
            let (app, cpu, gib) = DEPLOYMENTS[slot % DEPLOYMENTS.len()];
            let pod = format!("{app}-7c9-{node:03}-{slot:02}");
            cluster.apply_pod(&serde_json::from_value(json!({
                "metadata": {
                    "name": pod, "namespace": "shop", "uid": pod, "labels": { "app": app, "pod-template-hash": "7c9" },
                    "creationTimestamp": "2026-08-11T00:02:00Z",
                    "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-7c9"), "uid": app, "controller": true }],
                },
                "spec": {
                    "nodeName": name,
                    "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu.to_string(), "memory": format!("{gib}Gi") } } }],
                },
                "status": { "phase": "Running", "startTime": "2026-08-11T00:02:00Z", "conditions": [{ "type": "Ready", "status": "True" }] },
            }))?);
        }
    }
    Ok(cluster.snapshot())
}
