//! Nodes and NodeClaims.

use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::NodeClaim;
use serde_json::{Map, Value, json};

use crate::node_pool::test_class;
use crate::{
    ARCH, CAPACITY_TYPE, EPOCH, HOSTNAME, INITIALIZED, INSTANCE_TYPE, NODE_POOL, OS, Object,
    REGISTERED, Z1, ZONE,
};

/// Returns an initialized on-demand node of the NodePool `default` with 4 cores, 4 GiB and 5 pods in zone 1.
pub fn node(name: &str) -> Object<Node> {
    bare_node(name)
        .pool("default")
        .zone(Z1)
        .label(CAPACITY_TYPE, "on-demand")
        .label(INSTANCE_TYPE, "default-instance-type")
        .label(ARCH, "amd64")
        .label(OS, "linux")
        .label(REGISTERED, "true")
        .label(INITIALIZED, "true")
        .label("karpenter.test.sh/testnodeclass", "default")
        .cpu("4")
        .memory("4Gi")
        .pods("5")
}

/// Returns a node with a hostname and a provider id, of which Karpenter knows nothing more.
pub fn bare_node(name: &str) -> Object<Node> {
    Object::from_json(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "uid": name, "labels": { HOSTNAME: name } },
        "spec": { "providerID": provider_id(name) },
        "status": {},
    }))
}

fn provider_id(name: &str) -> String {
    format!("fake://{name}")
}

impl Object<Node> {
    #[must_use]
    pub fn pool(self, name: &str) -> Self {
        self.label(NODE_POOL, name)
    }

    #[must_use]
    pub fn zone(self, zone: &str) -> Self {
        self.label(ZONE, zone)
    }

    /// Sets capacity and allocatable amount of a resource.
    #[must_use]
    pub fn resource(self, name: &str, amount: &str) -> Self {
        let field = name.replace('/', "~1");
        self.set(&format!("/status/capacity/{field}"), amount)
            .set(&format!("/status/allocatable/{field}"), amount)
    }

    /// Sets the number of cores.
    #[must_use]
    pub fn cpu(self, amount: &str) -> Self {
        self.resource("cpu", amount)
    }

    #[must_use]
    pub fn memory(self, amount: &str) -> Self {
        self.resource("memory", amount)
    }

    /// Sets the maximum number of pods.
    #[must_use]
    pub fn pods(self, amount: &str) -> Self {
        self.resource("pods", amount)
    }

    #[must_use]
    pub fn taint(self, key: &str, value: &str, effect: &str) -> Self {
        let taint = json!({ "key": key, "value": value, "effect": effect });
        self.push("/spec/taints", taint)
    }

    #[must_use]
    pub fn ready(self) -> Self {
        self.condition("Ready", "True", "KubeletReady", EPOCH)
    }
}

/// Returns a NodeClaim of the fake cloud's NodeClass without requirements, which is not launched.
pub fn node_claim(name: &str) -> Object<NodeClaim> {
    Object::from_json(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": name, "uid": name },
        "spec": { "nodeClassRef": test_class(), "requirements": [] },
    }))
}

/// Returns the NodeClaim `<name>-claim` of an initialized node: launched, registered, initialized and ready.
pub fn claim_of(node: &Object<Node>) -> Object<NodeClaim> {
    let not_of_the_claim = [HOSTNAME, REGISTERED, INITIALIZED];
    let labels: Map<String, Value> = node.json()["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| !not_of_the_claim.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut claim = node_claim(&format!("{}-claim", node.name()))
        .set("/metadata/labels", labels)
        .set("/status/nodeName", node.name());
    for field in ["capacity", "allocatable"] {
        let amounts = node.json()["status"][field].clone();
        claim = claim.set(&format!("/status/{field}"), amounts);
    }
    if let Some(id) = node.json()["spec"]["providerID"].as_str() {
        claim = claim.launched(id);
    }
    ["Registered", "Initialized", "Ready"]
        .into_iter()
        .fold(claim, Object::is)
}

impl Object<NodeClaim> {
    #[must_use]
    pub fn pool(self, name: &str) -> Self {
        self.label(NODE_POOL, name)
    }

    #[must_use]
    pub fn request(self, resource: &str, amount: &str) -> Self {
        let resource = resource.replace('/', "~1");
        self.set(&format!("/spec/resources/requests/{resource}"), amount)
    }

    /// Sets the provider id, and the condition `Launched`.
    #[must_use]
    pub fn launched(self, provider_id: &str) -> Self {
        self.set("/status/providerID", provider_id).is("Launched")
    }

    /// Sets a condition to true.
    #[must_use]
    pub fn is(self, condition: &str) -> Self {
        self.is_since(condition, EPOCH)
    }

    /// Sets a condition to true since a time.
    #[must_use]
    pub fn is_since(self, condition: &str, time: &str) -> Self {
        self.condition(condition, "True", condition, time)
    }
}
