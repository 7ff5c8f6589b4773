//! A cluster to schedule in, with compact builders of its objects and short texts of the outcomes.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::k8s_openapi::serde::de::DeserializeOwned;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::fake;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::NodeClassKind;
use karpenter_core::schedule::{Plan, PlannedNodeClaim, Policy, Query, schedule};
use serde_json::{Value, json};

pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const HOSTNAME: &str = "kubernetes.io/hostname";
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
pub const ARCH: &str = "kubernetes.io/arch";
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
pub const POOL: &str = "karpenter.sh/nodepool";
pub const Z1: &str = "test-zone-1";
pub const Z2: &str = "test-zone-2";
pub const Z3: &str = "test-zone-3";

pub fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

pub fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A JSON object under construction.
#[derive(Clone, Debug)]
pub struct Object(pub Value);

impl Object {
    /// Sets the value at a JSON pointer, creating the objects on the way.
    pub fn set(mut self, pointer: &str, value: Value) -> Self {
        let mut at = &mut self.0;
        for part in pointer.split('/').filter(|part| !part.is_empty()) {
            let part = part.replace("~1", "/");
            if !at.is_object() {
                *at = json!({});
            }
            at = &mut at[part];
        }
        *at = value;
        self
    }

    /// Appends to the list at a JSON pointer.
    pub fn push(self, pointer: &str, value: Value) -> Self {
        let mut list = self
            .0
            .pointer(pointer)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        list.push(value);
        self.set(pointer, Value::Array(list))
    }

    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }
}

// Pods -----------------------------------------------------------------------------------------------------------------

/// Returns a pending pod without requests.
pub fn pod(name: &str) -> Object {
    Object(json!({
        "metadata": { "name": name, "namespace": "default", "uid": name, "labels": {} },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": {} } }] },
        "status": { "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
    }))
}

/// Returns copies with names `name-0`, `name-1`, …
pub fn copies(pod: &Object, count: usize) -> Vec<Object> {
    let name = pod.name().to_owned();
    (0..count)
        .map(|index| {
            let name = format!("{name}-{index:03}");
            pod.clone()
                .set("/metadata/name", json!(name))
                .set("/metadata/uid", json!(name))
        })
        .collect()
}

pub fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({ "key": key, "operator": operator, "values": values })
}

pub fn term(expressions: &[(&str, &str, &[&str])]) -> Value {
    let all: Vec<Value> = expressions
        .iter()
        .map(|(key, operator, values)| expression(key, operator, values))
        .collect();
    json!({ "matchExpressions": all })
}

impl Object {
    pub fn request(self, resource: &str, amount: &str) -> Self {
        let resource = resource.replace('/', "~1");
        let mut value = self.0["spec"]["containers"][0]["resources"]["requests"].clone();
        value[resource.replace("~1", "/")] = json!(amount);
        let mut copy = self;
        copy.0["spec"]["containers"][0]["resources"]["requests"] = value;
        copy
    }

    pub fn cpu(self, amount: &str) -> Self {
        self.request("cpu", amount)
    }

    pub fn memory(self, amount: &str) -> Self {
        self.request("memory", amount)
    }

    pub fn namespace(self, namespace: &str) -> Self {
        self.set("/metadata/namespace", json!(namespace))
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = json!(value);
        self
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    pub fn select(mut self, key: &str, value: &str) -> Self {
        self.0["spec"]["nodeSelector"][key] = json!(value);
        self
    }

    /// Adds one alternative to the required node affinity.
    pub fn require_term(self, expressions: &[(&str, &str, &[&str])]) -> Self {
        let at = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        self.push(at, term(expressions))
    }

    /// Adds an alternative with one expression to the required node affinity.
    pub fn require(self, key: &str, operator: &str, values: &[&str]) -> Self {
        self.require_term(&[(key, operator, values)])
    }

    pub fn prefer(self, weight: i32, key: &str, operator: &str, values: &[&str]) -> Self {
        let at = "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";
        self.push(
            at,
            json!({ "weight": weight, "preference": term(&[(key, operator, values)]) }),
        )
    }

    pub fn tolerate(self, toleration: Value) -> Self {
        self.push("/spec/tolerations", toleration)
    }

    pub fn host_port(self, port: i32) -> Self {
        let mut copy = self;
        copy.0["spec"]["containers"][0]["ports"] =
            json!([{ "containerPort": port, "hostPort": port }]);
        copy
    }

    /// Adds a hard spread constraint over pods with a label.
    pub fn spread(self, key: &str, max_skew: i32, label: (&str, &str)) -> Self {
        self.spread_with(key, max_skew, label, json!({}))
    }

    pub fn spread_with(
        self,
        key: &str,
        max_skew: i32,
        label: (&str, &str),
        further: Value,
    ) -> Self {
        let mut constraint = json!({
            "topologyKey": key, "maxSkew": max_skew, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { label.0: label.1 } },
        });
        for (field, value) in further.as_object().into_iter().flatten() {
            constraint[field] = value.clone();
        }
        self.push("/spec/topologySpreadConstraints", constraint)
    }

    pub fn affinity(self, key: &str, label: (&str, &str)) -> Self {
        self.push(
            "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution",
            affinity_term(key, label),
        )
    }

    pub fn anti_affinity(self, key: &str, label: (&str, &str)) -> Self {
        self.push(
            "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution",
            affinity_term(key, label),
        )
    }

    pub fn prefer_affinity(self, weight: i32, key: &str, label: (&str, &str)) -> Self {
        let at = "/spec/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution";
        self.push(
            at,
            json!({ "weight": weight, "podAffinityTerm": affinity_term(key, label) }),
        )
    }

    pub fn prefer_anti_affinity(self, weight: i32, key: &str, label: (&str, &str)) -> Self {
        let at = "/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution";
        self.push(
            at,
            json!({ "weight": weight, "podAffinityTerm": affinity_term(key, label) }),
        )
    }

    pub fn owned_by(self, api_version: &str, kind: &str, name: &str) -> Self {
        self.push("/metadata/ownerReferences", json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": true }))
    }

    pub fn volume(self, claim: &str) -> Self {
        self.push(
            "/spec/volumes",
            json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }),
        )
    }

    /// Binds the pod to a node and sets it running.
    pub fn on(self, node: &str) -> Self {
        self.set("/spec/nodeName", json!(node))
            .set("/status", json!({ "phase": "Running" }))
    }
}

pub fn affinity_term(key: &str, label: (&str, &str)) -> Value {
    json!({ "topologyKey": key, "labelSelector": { "matchLabels": { label.0: label.1 } } })
}

// NodePools ------------------------------------------------------------------------------------------------------------

/// Returns a ready NodePool without requirements.
pub fn pool(name: &str) -> Object {
    Object(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name, "uid": name },
        "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" }, "requirements": [],
        } } },
        "status": { "conditions": [{
            "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] },
    }))
}

impl Object {
    /// Adds a requirement to a NodePool.
    pub fn needs(self, key: &str, operator: &str, values: &[&str]) -> Self {
        self.push(
            "/spec/template/spec/requirements",
            expression(key, operator, values),
        )
    }

    pub fn needs_min(self, key: &str, operator: &str, values: &[&str], min_values: u32) -> Self {
        let mut requirement = expression(key, operator, values);
        requirement["minValues"] = json!(min_values);
        self.push("/spec/template/spec/requirements", requirement)
    }

    pub fn node_label(mut self, key: &str, value: &str) -> Self {
        self.0["spec"]["template"]["metadata"]["labels"][key] = json!(value);
        self
    }

    pub fn taint(self, key: &str, value: &str, effect: &str) -> Self {
        self.push(
            "/spec/template/spec/taints",
            json!({ "key": key, "value": value, "effect": effect }),
        )
    }

    pub fn weight(self, weight: i32) -> Self {
        self.set("/spec/weight", json!(weight))
    }

    pub fn limit(mut self, resource: &str, amount: &str) -> Self {
        self.0["spec"]["limits"][resource] = json!(amount);
        self
    }
}

// Nodes ----------------------------------------------------------------------------------------------------------------

/// Returns an initialized node of the NodePool `default` with 4 cores, 4 GiB and 5 pods in zone 1.
pub fn node(name: &str) -> Object {
    let resources = json!({ "cpu": "4", "memory": "4Gi", "pods": "5" });
    Object(json!({
        "metadata": { "name": name, "uid": name, "labels": {
            HOSTNAME: name, ZONE: Z1, POOL: "default", CAPACITY_TYPE: "on-demand", INSTANCE_TYPE: "default-instance-type",
            "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
            "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true", "karpenter.test.sh/testnodeclass": "default",
        } },
        "spec": { "providerID": format!("fake://{name}") },
        "status": { "capacity": resources, "allocatable": resources },
    }))
}

// The world ------------------------------------------------------------------------------------------------------------

/// A cluster, the policy, the query, and the instance types of the provider.
pub struct World {
    pub cluster: Cluster,
    pub policy: Policy,
    pub query: Query,
    types: Arc<[InstanceType]>,
}

impl World {
    /// Creates a world with one NodePool called `default` and upstream's fake instance types.
    pub fn new() -> Self {
        Self::empty().with_pool(pool("default"))
    }

    /// Creates a world without NodePools.
    pub fn empty() -> Self {
        Self::configured(|_| ())
    }

    pub fn configured(change: impl FnOnce(&mut ClusterConfig)) -> Self {
        let mut config = ClusterConfig {
            well_known: fake::well_known(),
            node_classes: vec![NodeClassKind {
                group: "karpenter.test.sh".into(),
                version: "v1alpha1".into(),
                kind: "TestNodeClass".into(),
                plural: "testnodeclasses".into(),
            }],
            reservation_id_label: fake::RESERVATION_ID.into(),
            ..ClusterConfig::default()
        };
        change(&mut config);
        Self {
            cluster: Cluster::new(config),
            policy: Policy::at(now()),
            query: Query::default(),
            types: fake::catalogue(),
        }
    }

    /// Sets the instance types of all NodePools.
    pub fn with_types(mut self, types: Arc<[InstanceType]>) -> Self {
        self.types = types;
        self.reprice();
        self
    }

    fn reprice(&mut self) {
        let names: Vec<String> = self
            .cluster
            .snapshot()
            .node_pools()
            .map(|pool| pool.metadata.name.clone().unwrap())
            .collect();
        for name in names {
            self.cluster
                .set_instance_types(&name, Ok(self.types.clone()));
        }
    }

    pub fn with_pool(mut self, pool: Object) -> Self {
        let pool: NodePool = read(pool.0);
        let name = pool.metadata.name.clone().unwrap();
        self.cluster.apply_node_pool(&pool);
        self.cluster
            .set_instance_types(&name, Ok(self.types.clone()));
        self
    }

    pub fn with(mut self, objects: impl IntoIterator<Item = Object>) -> Self {
        objects.into_iter().for_each(|object| self.add(object));
        self
    }

    /// Adds a pod, or a node if the object has no containers.
    pub fn add(&mut self, object: Object) {
        let value = object.0;
        if value["spec"].get("containers").is_some() {
            self.cluster.apply_pod(&read(value));
        } else {
            self.cluster.apply_node(&read(value));
        }
    }

    pub fn plan(&self) -> Plan {
        schedule(&self.cluster.snapshot(), &self.policy, &self.query)
    }

    /// Schedules, launches a node of the cheapest type for each new claim, and binds the placed pods.
    pub fn launch_and_bind(&mut self) -> Plan {
        let plan = self.plan();
        let before = self.cluster.snapshot().nodes().count();
        for (index, draft) in plan.new_node_claims.iter().enumerate() {
            let name = format!("node-{:03}", before + index);
            self.launch(&name, draft);
            for pod in &draft.pods {
                self.bind(&pod.namespace, &pod.name, &name);
            }
        }
        for placement in &plan.existing {
            self.bind(
                &placement.pod.namespace,
                &placement.pod.name,
                &placement.node,
            );
        }
        plan
    }

    /// Launches the cheapest offering of a draft: adds its NodeClaim and an initialized node.
    pub fn launch(&mut self, name: &str, draft: &PlannedNodeClaim) {
        let types = self
            .cluster
            .snapshot()
            .instance_types(&draft.node_pool)
            .cloned()
            .unwrap()
            .unwrap();
        let requirement = |key: &str| {
            draft
                .to_node_claim()
                .spec
                .requirements
                .into_iter()
                .find(|requirement| requirement.key == key && requirement.operator.as_str() == "In")
        };
        let admits = |key: &str, value: Option<&str>| {
            requirement(key).is_none_or(|requirement| {
                value.is_some_and(|value| {
                    requirement.values.iter().any(|admitted| admitted == value)
                })
            })
        };
        let mut best = None;
        for instance_type in types
            .iter()
            .filter(|instance_type| draft.instance_types.contains(&instance_type.name))
        {
            for offering in instance_type.offerings.iter().filter(|offering| {
                offering.available
                    && admits(ZONE, offering.zone())
                    && admits(CAPACITY_TYPE, offering.capacity_type())
                    && (offering.capacity_type() != Some("reserved")
                        || admits(fake::RESERVATION_ID, offering.single(fake::RESERVATION_ID)))
            }) {
                if best.is_none_or(|(_, cheapest): (_, &karpenter_core::offering::Offering)| {
                    offering.price < cheapest.price
                }) {
                    best = Some((instance_type, offering));
                }
            }
        }
        let (instance_type, offering) = best.expect("an offering for the draft");
        let mut labels: BTreeMap<String, String> = draft
            .to_node_claim()
            .metadata
            .labels
            .clone()
            .unwrap_or_default();
        for requirement in instance_type
            .requirements
            .iter()
            .chain(offering.requirements.iter())
        {
            if let Some(value) = requirement.single() {
                labels.insert(requirement.key().to_owned(), value.to_owned());
            }
        }
        let mut claim: NodeClaim = draft.to_node_claim();
        claim.metadata.name = Some(format!("{name}-claim"));
        claim.metadata.uid = Some(format!("{name}-claim"));
        claim.metadata.labels = Some(labels.clone());
        claim.status.provider_id = Some(format!("fake://{name}"));
        claim.status.capacity = instance_type.capacity.to_quantities();
        claim.status.allocatable = instance_type.allocatable_of(offering).to_quantities();
        self.cluster.apply_node_claim(&claim);
        labels.insert(HOSTNAME.into(), name.into());
        labels.insert("karpenter.sh/registered".into(), "true".into());
        labels.insert("karpenter.sh/initialized".into(), "true".into());
        self.cluster.apply_node(&read(json!({
            "metadata": { "name": name, "uid": name, "labels": labels },
            "spec": { "providerID": format!("fake://{name}"), "taints": claim.spec.taints },
            "status": { "capacity": claim.status.capacity, "allocatable": claim.status.allocatable },
        })));
    }

    pub fn bind(&mut self, namespace: &str, name: &str, node: &str) {
        let pod = self
            .cluster
            .snapshot()
            .pod(namespace, name)
            .cloned()
            .unwrap();
        let mut pod = pod.as_ref().clone();
        pod.node_name = Some(node.to_owned());
        pod.unschedulable = false;
        self.cluster.insert_pod(pod);
    }

    /// Returns the numbers of bound pods with a label per value of a node label, in descending order.
    pub fn skew(&self, key: &str, label: (&str, &str)) -> Vec<usize> {
        let snapshot = self.cluster.snapshot();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for node in snapshot.nodes() {
            let pods = snapshot.pods_on(node.name());
            let count = pods
                .iter()
                .filter(|pod| pod.shape.labels.get(label.0).map(String::as_str) == Some(label.1))
                .count();
            if let Some(value) = node.labels().get(key).filter(|_| count > 0) {
                *counts.entry(value.clone()).or_default() += count;
            }
        }
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }
}

/// Returns whether every pod was placed.
pub fn all_placed(plan: &Plan) -> bool {
    plan.unplaced.is_empty() && plan.undecided.is_empty()
}

/// Returns the values that a claim's requirement lists.
pub fn values(draft: &PlannedNodeClaim, key: &str) -> Vec<String> {
    let requirements = draft.to_node_claim().spec.requirements.into_iter();
    requirements
        .filter(|requirement| requirement.key == key)
        .flat_map(|requirement| requirement.values)
        .collect()
}

/// Returns the numbers of pods of the new claims, in descending order.
pub fn sizes(plan: &Plan) -> Vec<usize> {
    let mut sizes: Vec<usize> = plan
        .new_node_claims
        .iter()
        .map(|draft| draft.pods.len())
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// Returns the event text of a pod that was not placed.
pub fn why(plan: &Plan, pod: &str) -> String {
    let unplaced = plan
        .unplaced
        .iter()
        .find(|unplaced| unplaced.pod.name == pod);
    unplaced
        .map(|unplaced| unplaced.why.to_string())
        .unwrap_or_default()
}
