//! A small cluster of the fake cloud, and rehearsals of it.

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::fake::{cluster_config, instance_type, offering};
use karpenter_decisions::rehearse::plan::{Plan, Step};
use karpenter_decisions::rehearse::request::PlanRequest;
use karpenter_decisions::rehearse::{InvalidPlan, Settings, rehearse};
use karpenter_fixtures::{EPOCH, INSTANCE_TYPE, NodePool, Object, Z1, claim_of, node, pod, read};
use serde_json::{Value, json};

pub fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// The NodePool `default`; `spec` changes its spec.
pub fn pool(spec: Value) -> Value {
    let mut pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": { "name": "default" },
        "spec": {
            "template": { "spec": { "requirements": [], "expireAfter": "Never", "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" } } },
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
        let mut cluster = Cluster::new(cluster_config());
        let pool = Object::<NodePool>::from_json(pool(spec)).uid("default");
        let mut pool = pool.condition("Ready", "True", "Ready", EPOCH).build();
        karpenter_api::hash::stamp(&mut pool);
        cluster.apply_node_pool(&pool);
        let types = [2_i64, 4, 8, 16].map(|cpu| {
            instance_type(&format!("m-{cpu}"))
                .cpu(cpu)
                .gib(64)
                .pods(50)
                .offerings(vec![offering("on-demand", Z1, cpu as f64 / 10.0)])
                .build()
        });
        cluster.set_instance_types("default", Ok(types.into()));
        Self(cluster)
    }

    pub fn node(mut self, name: &str, cpu: i64) -> Self {
        let snapshot = self.0.snapshot();
        let marks = &snapshot.node_pool("default").unwrap().metadata.annotations;
        let marks = serde_json::to_value(marks).unwrap();
        let node = node(name).label(INSTANCE_TYPE, &format!("m-{cpu}"));
        let node = node.cpu(&cpu.to_string()).memory("64Gi").pods("50").ready();
        let claim = claim_of(&node)
            .set("/metadata/annotations", marks)
            .created("2025-12-31T23:59:00Z")
            .expire_after("Never")
            .is("Consolidatable");
        self.0.apply_node_claim(&claim.build());
        self.0.apply_node(&node.build());
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
        let pod = pod(name)
            .namespace("shop")
            .label("app", app)
            .label("pod-template-hash", "x")
            .controlled_by("ReplicaSet", &format!("{app}-x"))
            .set("/metadata/annotations", annotations)
            .cpu(cpu)
            .grace_period(5)
            .on(node)
            .condition("Ready", "True", "Ready", "2026-01-01T00:00:02Z");
        self.0.apply_pod(&pod.build());
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
        let (action, nodes) = (step.action.as_str(), step.nodes.join("+"));
        let launches = step.launches.iter();
        let launches = launches.map(|it| format!("{}x{}", it.count, it.instance_type));
        let launches = Vec::from_iter(launches).join("+");
        let text = format!("{action} {} {nodes} {launches}", step.reason);
        Vec::from_iter(text.split_whitespace()).join(" ")
    };
    steps.iter().map(one).collect()
}
