//! A small cluster of the fake cloud, and rehearsals of it.

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, ClusterConfig, Snapshot};
use karpenter_core::fake::{instance_type, offering, well_known};
use karpenter_core::provider::NodeClassKind;
use karpenter_decisions::rehearse::plan::{Plan, Step};
use karpenter_decisions::rehearse::request::PlanRequest;
use karpenter_decisions::rehearse::{InvalidPlan, Settings, rehearse};
use serde_json::{Value, json};

const ZONE: &str = "test-zone-1";

pub fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// The NodePool `default`; `spec` changes its spec.
pub fn pool(spec: Value) -> Value {
    let mut pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": { "name": "default" },
        "spec": {
            "template": { "spec": { "requirements": [], "expireAfter": "Never", "nodeClassRef": { "group": "example.com", "kind": "Rack", "name": "any" } } },
            "disruption": { "consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized", "budgets": [{ "nodes": "100%" }] },
        },
    });
    merge(&mut pool["spec"], &spec);
    pool
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// A Deployment whose pods request `cpu`, in namespace `shop`.
pub fn deployment(name: &str, replicas: u32, cpu: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": "shop" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] },
            },
        },
    })
}

pub struct World(pub Cluster);

impl World {
    /// A cluster with the NodePool `default` and instance types of 2, 4, 8 and 16 cores at a tenth of a dollar per core.
    pub fn new(spec: Value) -> Self {
        let config = ClusterConfig {
            well_known: well_known(),
            node_classes: vec![NodeClassKind {
                group: "example.com".into(),
                version: "v1".into(),
                kind: "Rack".into(),
                plural: "racks".into(),
            }],
            ..ClusterConfig::default()
        };
        let mut cluster = Cluster::new(config);
        let mut pool = read::<karpenter_api::v1::NodePool>(pool(spec));
        pool.metadata.uid = Some("default".into());
        pool.status = read(
            json!({ "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }),
        );
        karpenter_api::hash::stamp(&mut pool);
        cluster.apply_node_pool(&pool);
        let types = [2_i64, 4, 8, 16].map(|cpu| {
            instance_type(&format!("m-{cpu}"))
                .cpu(cpu)
                .gib(64)
                .pods(50)
                .offerings(vec![offering("on-demand", ZONE, cpu as f64 / 10.0)])
                .build()
        });
        cluster.set_instance_types("default", Ok(types.into()));
        Self(cluster)
    }

    pub fn node(mut self, name: &str, cpu: i64) -> Self {
        let snapshot = self.0.snapshot();
        let marks = &snapshot.node_pool("default").unwrap().metadata.annotations;
        let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let labels = json!({
            "karpenter.sh/nodepool": "default", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
            "topology.kubernetes.io/zone": ZONE, "kubernetes.io/hostname": name, "karpenter.sh/capacity-type": "on-demand",
            "node.kubernetes.io/instance-type": format!("m-{cpu}"), "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
        });
        let amounts = json!({ "cpu": cpu.to_string(), "memory": "64Gi", "pods": "50" });
        let id = format!("fake://{name}");
        self.0.apply_node_claim(&read(json!({
            "metadata": { "name": format!("{name}-claim"), "uid": name, "labels": labels, "annotations": marks, "creationTimestamp": "2025-12-31T23:59:00Z" },
            "spec": { "requirements": [], "expireAfter": "Never", "nodeClassRef": { "group": "example.com", "kind": "Rack", "name": "any" } },
            "status": { "providerID": id, "nodeName": name, "capacity": amounts, "allocatable": amounts,
                "conditions": (["Launched", "Registered", "Initialized", "Consolidatable"].map(condition)) },
        })));
        self.0.apply_node(&read(json!({
            "metadata": { "name": name, "uid": name, "labels": labels },
            "spec": { "providerID": id },
            "status": { "capacity": amounts, "allocatable": amounts, "conditions": [{ "type": "Ready", "status": "True" }] },
        })));
        self
    }

    /// Adds running pods of Deployment shop/<app> that request a core each.
    pub fn pods(self, app: &str, node: &str, count: usize) -> Self {
        self.pods_of(app, node, count, "1")
    }

    /// Adds running pods of Deployment shop/<app> that request that many cores each.
    pub fn pods_of(mut self, app: &str, node: &str, count: usize, cpu: &str) -> Self {
        for index in 0..count {
            let name = format!("{app}-x-{node}-{index}");
            self = self.pod(&name, node, (app, cpu), json!({}));
        }
        self
    }

    /// Adds a running pod of Deployment shop/<app> that requests that many cores.
    pub fn pod(
        mut self,
        name: &str,
        node: &str,
        (app, cpu): (&str, &str),
        annotations: Value,
    ) -> Self {
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z" });
        self.0.apply_pod(&read(json!({
            "metadata": { "name": name, "namespace": "shop", "uid": name, "labels": { "app": app, "pod-template-hash": "x" }, "annotations": annotations,
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-x"), "uid": "rs", "controller": true }] },
            "spec": { "nodeName": node, "terminationGracePeriodSeconds": 5, "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] },
            "status": { "phase": "Running", "conditions": [ready] },
        })));
        self
    }

    pub fn pdb(self, app: &str, spec: Value) -> Self {
        let status = json!({ "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3 });
        self.pdb_with(app, spec, status)
    }

    /// Adds a PodDisruptionBudget for the pods of an app.
    pub fn pdb_with(mut self, app: &str, mut spec: Value, status: Value) -> Self {
        spec["selector"] = json!({ "matchLabels": { "app": app } });
        self.0.apply_pdb(&read(json!({
            "metadata": { "name": app, "namespace": "shop" }, "spec": spec, "status": status,
        })));
        self
    }

    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    pub fn ask(&self, request: Value) -> Result<Plan, InvalidPlan> {
        self.ask_with(&Settings::at(now()), request)
    }

    pub fn ask_with(&self, settings: &Settings, request: Value) -> Result<Plan, InvalidPlan> {
        let request: PlanRequest = read(request);
        rehearse(&self.snapshot(), settings, &request)
    }

    pub fn plan(&self, request: Value) -> Plan {
        let plan = self.ask(request).unwrap();
        assert!(!plan.observed.truncated);
        plan
    }
}

/// Returns steps as texts: action, reason, nodes, launched instance types.
pub fn described(steps: &[Step]) -> Vec<String> {
    let one = |step: &Step| {
        let launches = step.launches.iter();
        let launches: Vec<String> = launches
            .map(|launch| format!("{}x{}", launch.count, launch.instance_type))
            .collect();
        let parts = [
            step.action.as_str().to_owned(),
            step.reason.clone(),
            step.nodes.join("+"),
            launches.join("+"),
        ];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join(" ")
    };
    steps.iter().map(one).collect()
}
