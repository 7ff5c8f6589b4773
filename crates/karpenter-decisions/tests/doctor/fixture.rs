//! The cluster of a check: a NodePool of four instance types, nodes, and pods of namespace `shop`.

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::disruption::{DisruptionPlan, DisruptionRequest, plan};
use karpenter_core::fake::{instance_type, well_known};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::schedule::Policy;
use karpenter_decisions::doctor::{
    BlockerReport, Examination, Finding, Installation, Severity, examine,
};
use karpenter_decisions::explain::Observed;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

pub fn now() -> Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
}

pub fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// Sets a field by its JSON pointer.
pub fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    for part in pointer.split('/').skip(1) {
        at = match part.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[part.replace("~1", "/")],
        };
    }
    *at = value;
}

/// Types of 2, 4, 8 and 16 cores with 2 GiB each, at 5 cents a core.
pub fn types() -> Vec<InstanceType> {
    let of = |cores: i64| {
        let name = format!("m-{cores}");
        let zones = ["test-zone-1", "test-zone-2", "test-zone-3"];
        let size = instance_type(&name).cpu(cores).gib(2 * cores).pods(20);
        size.price(0.05 * cores as f64).zones(&zones).build()
    };
    [2, 4, 8, 16].map(of).into()
}

pub struct World {
    pub cluster: Cluster,
    pub installation: Installation,
}

/// A running pod of Deployment `app` that requests cores and has a memory limit.
pub fn pod(name: &str, app: &str, cpu: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": name, "labels": { "app": app, "pod-template-hash": "7c9" },
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-7c9"), "uid": app, "controller": true }],
        },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu }, "limits": { "memory": "64Mi" } } }] },
        "status": { "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// Changes fields of an object.
pub fn with(mut object: Value, fields: &[(&str, Value)]) -> Value {
    for (pointer, value) in fields {
        set(&mut object, pointer, value.clone());
    }
    object
}

impl World {
    /// A cluster with the NodePool `default`.
    pub fn new() -> Self {
        Self::empty().pool("default", &[])
    }

    pub fn empty() -> Self {
        let config = ClusterConfig {
            well_known: well_known(),
            ..ClusterConfig::default()
        };
        Self {
            cluster: Cluster::new(config),
            installation: Installation::default(),
        }
    }

    pub fn pool(self, name: &str, fields: &[(&str, Value)]) -> Self {
        self.pool_of(name, fields, Ok(types()))
    }

    pub fn pool_of(
        mut self,
        name: &str,
        fields: &[(&str, Value)],
        types: Result<Vec<InstanceType>, &str>,
    ) -> Self {
        let pool = json!({
            "metadata": { "name": name, "uid": name },
            "spec": {
                "template": { "spec": {
                    "requirements": [], "nodeClassRef": { "group": "example.com", "kind": "Rack", "name": "any" },
                } },
                "disruption": { "consolidateAfter": "0s", "budgets": [{ "nodes": "100%" }] },
            },
            "status": { "conditions": [{
                "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }] },
        });
        self.cluster.apply_node_pool(&read(with(pool, fields)));
        let types = types.map(Into::into).map_err(str::to_owned);
        self.cluster.set_instance_types(name, types);
        self
    }

    /// Adds an on-demand node of the NodePool `default` in zone 1, with its pods.
    pub fn node(self, name: &str, instance_type: &str, pods: Vec<Value>) -> Self {
        self.node_with(name, instance_type, pods, &[], &[])
    }

    /// The same, with changed fields of NodeClaim and Node.
    pub fn node_with(
        mut self,
        name: &str,
        instance_type: &str,
        pods: Vec<Value>,
        of_claim: &[(&str, Value)],
        of_node: &[(&str, Value)],
    ) -> Self {
        let is_true = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:01:00Z" });
        let conditions = [
            "Launched",
            "Registered",
            "Initialized",
            "Ready",
            "Consolidatable",
        ]
        .map(is_true);
        let labels = json!({
            "karpenter.sh/nodepool": "default", "node.kubernetes.io/instance-type": instance_type,
            "karpenter.sh/capacity-type": "on-demand", ZONE: "test-zone-1", "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
            "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
        });
        let cores: i64 = instance_type.trim_start_matches("m-").parse().unwrap();
        let resources =
            json!({ "cpu": cores.to_string(), "memory": format!("{}Gi", 2 * cores), "pods": "20" });
        let id = format!("fake://{name}");
        let claim = json!({
            "metadata": { "name": format!("{name}-claim"), "uid": format!("{name}-claim"), "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeClassRef": { "group": "example.com", "kind": "Rack", "name": "any" }, "requirements": [] },
            "status": { "providerID": id, "nodeName": name, "capacity": resources, "allocatable": resources, "conditions": conditions },
        });
        let node = json!({
            "metadata": { "name": name, "uid": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "providerID": id },
            "status": { "capacity": resources, "allocatable": resources, "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        self.cluster.apply_node_claim(&read(with(claim, of_claim)));
        self.cluster.apply_node(&read(with(node, of_node)));
        for mut pod in pods {
            pod["spec"]["nodeName"] = json!(name);
            self.cluster.apply_pod(&read(pod));
        }
        self
    }

    /// Adds a PodDisruptionBudget of namespace `shop` for the pods of an app.
    pub fn pdb(self, name: &str, app: &str, rule: Value, status: Value) -> Self {
        self.pdb_for(name, json!({ "matchLabels": { "app": app } }), rule, status)
    }

    pub fn pdb_for(mut self, name: &str, selector: Value, mut spec: Value, status: Value) -> Self {
        spec["selector"] = selector;
        self.cluster.apply_pdb(&read(json!({
            "metadata": { "name": name, "namespace": "shop", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": spec, "status": status,
        })));
        self
    }

    pub fn report(&self) -> BlockerReport {
        self.report_for(None)
    }

    pub fn report_for(&self, namespace: Option<&str>) -> BlockerReport {
        let snapshot = self.cluster.snapshot();
        let examination = Examination {
            snapshot: &snapshot,
            policy: &Policy::at(now()),
            cancel: None,
            spot_to_spot: false,
            installation: &self.installation,
        };
        let observed = Observed {
            at: now(),
            epoch: snapshot.epoch(),
            engine: "test".to_owned(),
            truncated: false,
        };
        examine(&examination, observed, namespace)
    }

    /// Returns the findings of a check.
    pub fn found(&self, id: &str) -> Vec<Finding> {
        let found = self.report().checks.into_iter();
        found.filter(|finding| finding.id == id).collect()
    }

    /// Returns the only finding of a check.
    pub fn one(&self, id: &str) -> Finding {
        let mut found = self.found(id);
        assert_eq!(found.len(), 1, "{id}: {:#?}", self.report().checks);
        found.remove(0)
    }

    /// Returns the only finding of a check, which has this first line.
    pub fn one_about(&self, id: &str, what: &str) -> Finding {
        let found = self.one(id);
        assert_eq!(found.what, what);
        found
    }

    /// Asserts that a check finds nothing.
    pub fn none(&self, id: &str) {
        assert_eq!(self.found(id), [], "{id}");
    }

    /// Runs a disruption pass.
    pub fn disrupt(&self) -> DisruptionPlan {
        plan(&self.cluster.snapshot(), &DisruptionRequest::at(now()))
    }
}

/// Status of a PodDisruptionBudget that is up to date.
pub fn status(expected: i32, healthy: i32, allowed: i32) -> Value {
    json!({
        "observedGeneration": 1, "expectedPods": expected, "currentHealthy": healthy, "desiredHealthy": healthy - allowed,
        "disruptionsAllowed": allowed,
    })
}

pub fn blocks(finding: &Finding) -> bool {
    finding.severity == Severity::Blocks
}
