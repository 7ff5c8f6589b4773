//! The cluster of a check: a NodePool of four instance types, nodes, and pods of namespace `shop`.

use jiff::Timestamp;
use karpenter_core::cluster::Cluster;
use karpenter_core::disruption::{DisruptionPlan, DisruptionRequest, plan};
use karpenter_core::fake::{cluster_config, instance_type};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::schedule::Policy;
use karpenter_decisions::doctor::{
    BlockerReport, Examination, Finding, Installation, Severity, examine,
};
use karpenter_decisions::explain::Observed;
use karpenter_fixtures::{
    self as fixtures, EPOCH, INSTANCE_TYPE, Object, Pod, claim_of, node_pool,
};
use serde_json::{Value, json};

pub use karpenter_fixtures::{ZONE, read};

pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

pub fn now() -> Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
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
    fixtures::pod(name)
        .namespace("shop")
        .label("app", app)
        .label("pod-template-hash", "7c9")
        .controlled_by("ReplicaSet", &format!("{app}-7c9"))
        .created(EPOCH)
        .cpu(cpu)
        .set("/spec/containers/0/resources/limits/memory", "64Mi")
        .set("/status", json!({ "phase": "Running", "startTime": EPOCH }))
        .condition("Ready", "True", "Ready", EPOCH)
        .into_json()
}

/// Changes fields of an object.
pub fn with(object: Value, fields: &[(&str, Value)]) -> Value {
    let object = Object::<Pod>::from_json(object);
    let set =
        |object: Object<Pod>, (pointer, value): &(&str, Value)| object.set(pointer, value.clone());
    fields.iter().fold(object, set).into_json()
}

impl World {
    /// A cluster with the NodePool `default`.
    pub fn new() -> Self {
        Self::empty().pool("default", &[])
    }

    pub fn empty() -> Self {
        Self {
            cluster: Cluster::new(cluster_config()),
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
        let pool = node_pool(name).consolidate_after("0s").budgets(&["100%"]);
        let pool = with(pool.into_json(), fields);
        self.cluster.apply_node_pool(&read(pool));
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
        let cores: i64 = instance_type.trim_start_matches("m-").parse().unwrap();
        let node = fixtures::node(name)
            .label(INSTANCE_TYPE, instance_type)
            .cpu(&cores.to_string())
            .memory(&format!("{}Gi", 2 * cores))
            .pods("20")
            .created(EPOCH)
            .ready();
        let claim = claim_of(&node).created(EPOCH).is("Consolidatable");
        // It took a minute to start.
        let claim = claim.is_since("Initialized", "2026-01-01T00:01:00Z");
        let (claim, node) = (claim.into_json(), node.into_json());
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

/// Asserts that a finding says why in these words.
pub fn says(finding: &Finding, words: &str) {
    assert!(finding.evidence.text.contains(words), "{finding:?}");
}

pub fn blocks(finding: &Finding) -> bool {
    finding.severity == Severity::Blocks
}
