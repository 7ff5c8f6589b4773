//! NodePools, and what NodeClaims have in common with them.

use karpenter_api::v1::{NodeClaim, NodePool};
use serde_json::{Value, json};

use crate::{EPOCH, Object, expression};

/// Returns a ready NodePool without requirements, of the fake cloud's NodeClass.
pub fn node_pool(name: &str) -> Object<NodePool> {
    Object::from_json(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": { "name": name, "uid": name },
        "spec": { "template": { "spec": { "nodeClassRef": test_class(), "requirements": [] } } },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": EPOCH }] },
    }))
}

/// The NodeClass of `karpenter_core::fake`.
pub(crate) fn test_class() -> Value {
    class_reference("karpenter.test.sh", "TestNodeClass", "default")
}

pub(crate) fn class_reference(group: &str, kind: &str, name: &str) -> Value {
    json!({ "group": group, "kind": kind, "name": name })
}

/// Returns a requirement of a NodePool or NodeClaim with `minValues`.
pub fn requirement(key: &str, operator: &str, values: &[&str], min_values: u32) -> Value {
    let mut requirement = expression(key, operator, values);
    requirement["minValues"] = json!(min_values);
    requirement
}

/// A kind that describes nodes to launch.
pub trait Launches {
    /// The JSON pointer to the NodeClaim's spec.
    const SPEC: &str;
}

impl Launches for NodePool {
    const SPEC: &str = "/spec/template/spec";
}

impl Launches for NodeClaim {
    const SPEC: &str = "/spec";
}

impl<K: Launches> Object<K> {
    fn set_spec(self, field: &str, value: impl Into<Value>) -> Self {
        self.set(&format!("{}/{field}", K::SPEC), value)
    }

    fn push_spec(self, field: &str, value: impl Into<Value>) -> Self {
        self.push(&format!("{}/{field}", K::SPEC), value)
    }

    /// Sets the NodeClass, which is the fake cloud's otherwise.
    #[must_use]
    pub fn class(self, group: &str, kind: &str, name: &str) -> Self {
        self.set_spec("nodeClassRef", class_reference(group, kind, name))
    }

    #[must_use]
    pub fn requires(self, key: &str, operator: &str, values: &[&str]) -> Self {
        self.push_spec("requirements", expression(key, operator, values))
    }

    /// Adds a requirement with `minValues`.
    #[must_use]
    pub fn requires_min(self, key: &str, operator: &str, values: &[&str], min_values: u32) -> Self {
        self.push_spec(
            "requirements",
            requirement(key, operator, values, min_values),
        )
    }

    #[must_use]
    pub fn without_requirements(self) -> Self {
        self.set_spec("requirements", json!([]))
    }

    /// Adds a taint of the nodes.
    #[must_use]
    pub fn taint(self, key: &str, value: &str, effect: &str) -> Self {
        let taint = json!({ "key": key, "value": value, "effect": effect });
        self.push_spec("taints", taint)
    }

    /// Adds a startup taint of the nodes.
    #[must_use]
    pub fn startup_taint(self, key: &str, effect: &str) -> Self {
        self.push_spec("startupTaints", json!({ "key": key, "effect": effect }))
    }

    /// Sets after what time a node expires: a duration as `720h`, or `Never`.
    #[must_use]
    pub fn expire_after(self, duration: &str) -> Self {
        self.set_spec("expireAfter", duration)
    }

    /// Sets how long a node may drain: a duration as `30m`.
    #[must_use]
    pub fn termination_grace_period(self, duration: &str) -> Self {
        self.set_spec("terminationGracePeriod", duration)
    }
}

impl Object<NodePool> {
    /// Sets a label of the nodes.
    #[must_use]
    pub fn node_label(self, key: &str, value: &str) -> Self {
        let key = key.replace('/', "~1");
        self.set(&format!("/spec/template/metadata/labels/{key}"), value)
    }

    /// Sets an annotation of the nodes.
    #[must_use]
    pub fn node_annotation(self, key: &str, value: &str) -> Self {
        let key = key.replace('/', "~1");
        self.set(&format!("/spec/template/metadata/annotations/{key}"), value)
    }

    #[must_use]
    pub fn weight(self, weight: i32) -> Self {
        self.set("/spec/weight", weight)
    }

    /// Sets the limit of a resource.
    #[must_use]
    pub fn limit(self, resource: &str, amount: &str) -> Self {
        let resource = resource.replace('/', "~1");
        self.set(&format!("/spec/limits/{resource}"), amount)
    }

    /// Adds a disruption budget for all reasons: a number or percentage of nodes.
    #[must_use]
    pub fn budget(self, nodes: &str) -> Self {
        self.push("/spec/disruption/budgets", json!({ "nodes": nodes }))
    }

    /// Sets the disruption budgets for all reasons, and removes the previous ones.
    #[must_use]
    pub fn budgets(self, nodes: &[&str]) -> Self {
        let budgets: Vec<Value> = nodes
            .iter()
            .map(|nodes| json!({ "nodes": nodes }))
            .collect();
        self.set("/spec/disruption/budgets", budgets)
    }

    /// Sets when a node is consolidatable: a duration as `30s`, or `Never`.
    #[must_use]
    pub fn consolidate_after(self, duration: &str) -> Self {
        self.set("/spec/disruption/consolidateAfter", duration)
    }

    #[must_use]
    pub fn consolidation_policy(self, policy: &str) -> Self {
        self.set("/spec/disruption/consolidationPolicy", policy)
    }

    /// Sets the number of nodes of a static NodePool.
    #[must_use]
    pub fn replicas(self, replicas: i64) -> Self {
        self.set("/spec/replicas", replicas)
    }
}
