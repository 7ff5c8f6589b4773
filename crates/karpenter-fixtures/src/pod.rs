//! Pods, and the pod templates of workloads.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::Object;

/// Returns a pending pod without requests that kube-scheduler could not place.
pub fn pod(name: &str) -> Object<Pod> {
    Object::from_json(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "uid": name, "labels": {} },
        "spec": { "containers": [container("c")] },
        "status": { "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
    }))
}

pub(crate) fn container(name: &str) -> Value {
    json!({ "name": name, "image": "pause", "resources": { "requests": {} } })
}

/// A kind with a pod, whose objects have the methods of a pod.
pub trait HasPodSpec {
    /// The JSON pointer to the pod or pod template.
    const POD: &str;
}

impl HasPodSpec for Pod {
    const POD: &str = "";
}

impl HasPodSpec for Deployment {
    const POD: &str = "/spec/template";
}

impl HasPodSpec for DaemonSet {
    const POD: &str = "/spec/template";
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl<K: HasPodSpec> Object<K> {
    /// Sets a field of the pod: a JSON pointer inside the pod or pod template.
    #[must_use]
    pub fn set_pod(self, pointer: &str, value: impl Into<Value>) -> Self {
        self.set(&format!("{}{pointer}", K::POD), value)
    }

    /// Appends to a list of the pod: a JSON pointer inside the pod or pod template.
    #[must_use]
    pub fn push_pod(self, pointer: &str, value: impl Into<Value>) -> Self {
        self.push(&format!("{}{pointer}", K::POD), value)
    }

    /// Sets an annotation of the pod.
    #[must_use]
    pub fn pod_annotation(self, key: &str, value: &str) -> Self {
        self.set_pod(&format!("/metadata/annotations/{}", escaped(key)), value)
    }

    /// Sets a request of the first container.
    #[must_use]
    pub fn request(self, resource: &str, amount: &str) -> Self {
        let resource = escaped(resource);
        self.set_pod(
            &format!("/spec/containers/0/resources/requests/{resource}"),
            amount,
        )
    }

    /// Sets the CPU that the first container requests.
    #[must_use]
    pub fn cpu(self, amount: &str) -> Self {
        self.request("cpu", amount)
    }

    /// Sets the memory that the first container requests.
    #[must_use]
    pub fn memory(self, amount: &str) -> Self {
        self.request("memory", amount)
    }

    /// Adds a label to the node selector.
    #[must_use]
    pub fn select(self, key: &str, value: &str) -> Self {
        self.set_pod(&format!("/spec/nodeSelector/{}", escaped(key)), value)
    }

    /// Adds an alternative with several expressions to the required node affinity.
    #[must_use]
    pub fn require_term(self, expressions: &[(&str, &str, &[&str])]) -> Self {
        self.push_pod(
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
            term(expressions),
        )
    }

    /// Adds an alternative with one expression to the required node affinity.
    #[must_use]
    pub fn require(self, key: &str, operator: &str, values: &[&str]) -> Self {
        self.require_term(&[(key, operator, values)])
    }

    /// Adds an expression to the preferred node affinity.
    #[must_use]
    pub fn prefer(self, weight: i32, key: &str, operator: &str, values: &[&str]) -> Self {
        self.push_pod(
            "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution",
            json!({ "weight": weight, "preference": term(&[(key, operator, values)]) }),
        )
    }

    #[must_use]
    pub fn tolerate(self, toleration: Value) -> Self {
        self.push_pod("/spec/tolerations", toleration)
    }

    /// Sets a host port of the first container.
    #[must_use]
    pub fn host_port(self, port: i32) -> Self {
        self.set_pod(
            "/spec/containers/0/ports",
            json!([{ "containerPort": port, "hostPort": port }]),
        )
    }

    /// Adds a hard spread constraint over pods with a label.
    #[must_use]
    pub fn spread(self, key: &str, max_skew: i32, label: (&str, &str)) -> Self {
        self.spread_with(key, max_skew, label, json!({}))
    }

    /// Adds a spread constraint over pods with a label and further fields, which replace those of a hard constraint.
    #[must_use]
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
        self.push_pod("/spec/topologySpreadConstraints", constraint)
    }

    /// Adds a required affinity to pods with a label.
    #[must_use]
    pub fn affinity(self, key: &str, label: (&str, &str)) -> Self {
        self.push_pod(
            "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution",
            affinity_term(key, label),
        )
    }

    /// Adds a required anti-affinity to pods with a label.
    #[must_use]
    pub fn anti_affinity(self, key: &str, label: (&str, &str)) -> Self {
        self.push_pod(
            "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution",
            affinity_term(key, label),
        )
    }

    /// Adds a preferred affinity to pods with a label.
    #[must_use]
    pub fn prefer_affinity(self, weight: i32, key: &str, label: (&str, &str)) -> Self {
        self.push_pod(
            "/spec/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution",
            json!({ "weight": weight, "podAffinityTerm": affinity_term(key, label) }),
        )
    }

    /// Adds a preferred anti-affinity to pods with a label.
    #[must_use]
    pub fn prefer_anti_affinity(self, weight: i32, key: &str, label: (&str, &str)) -> Self {
        self.push_pod(
            "/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution",
            json!({ "weight": weight, "podAffinityTerm": affinity_term(key, label) }),
        )
    }

    /// Adds a volume of a PersistentVolumeClaim.
    #[must_use]
    pub fn volume(self, claim: &str) -> Self {
        self.push_pod(
            "/spec/volumes",
            json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }),
        )
    }

    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        self.set_pod("/spec/priority", priority)
    }

    /// Sets the grace period with which the pod is deleted, in seconds.
    #[must_use]
    pub fn grace_period(self, seconds: i64) -> Self {
        self.set_pod("/spec/terminationGracePeriodSeconds", seconds)
    }

    /// Asks Karpenter not to disrupt the pod's node.
    #[must_use]
    pub fn do_not_disrupt(self) -> Self {
        self.pod_annotation(karpenter_api::labels::annotations::DO_NOT_DISRUPT, "true")
    }
}

impl Object<Pod> {
    /// Binds the pod to a node and sets it running.
    #[must_use]
    pub fn on(self, node: &str) -> Self {
        self.set("/spec/nodeName", node)
            .set("/status", json!({ "phase": "Running" }))
    }

    /// Adds the ReplicaSet, DaemonSet or StatefulSet that created the pod.
    #[must_use]
    pub fn controlled_by(self, kind: &str, name: &str) -> Self {
        self.owned_by("apps/v1", kind, name)
    }
}

/// Returns an expression of a node selector or a requirement.
pub fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({ "key": key, "operator": operator, "values": values })
}

/// Returns a node selector term: all its expressions must hold.
pub fn term(expressions: &[(&str, &str, &[&str])]) -> Value {
    let all: Vec<Value> = expressions
        .iter()
        .map(|(key, operator, values)| expression(key, operator, values))
        .collect();
    json!({ "matchExpressions": all })
}

/// Returns a term of a pod affinity or anti-affinity to pods with a label.
pub fn affinity_term(key: &str, label: (&str, &str)) -> Value {
    json!({ "topologyKey": key, "labelSelector": { "matchLabels": { label.0: label.1 } } })
}
