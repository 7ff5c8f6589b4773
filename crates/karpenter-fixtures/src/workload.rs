//! Deployments, DaemonSets and PodDisruptionBudgets.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

use crate::Object;
use crate::pod::container;

/// Returns a Deployment of one pod with the label `app: <name>` and without requests.
pub fn deployment(name: &str) -> Object<Deployment> {
    Object::from_json(workload("Deployment", "default", name)).set("/spec/replicas", 1)
}

/// Returns a DaemonSet in kube-system of pods with the label `app: <name>` and without requests.
pub fn daemon_set(name: &str) -> Object<DaemonSet> {
    Object::from_json(workload("DaemonSet", "kube-system", name))
}

fn workload(kind: &str, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": { "name": name, "namespace": namespace, "uid": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [container(name)] },
            },
        },
    })
}

impl Object<Deployment> {
    /// Sets the number of pods.
    #[must_use]
    pub fn replicas(self, replicas: i32) -> Self {
        self.set("/spec/replicas", replicas)
    }
}

/// Returns a PodDisruptionBudget for pods with the label `app: <name>`.
pub fn pdb(name: &str) -> Object<PodDisruptionBudget> {
    Object::from_json(json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": name, "namespace": "default", "uid": name },
        "spec": { "selector": { "matchLabels": { "app": name } } },
    }))
}

impl Object<PodDisruptionBudget> {
    /// Selects pods with a label, and no others.
    #[must_use]
    pub fn of(self, label: (&str, &str)) -> Self {
        self.set(
            "/spec/selector",
            json!({ "matchLabels": { label.0: label.1 } }),
        )
    }

    /// Sets how many pods must stay available: a number or a percentage.
    #[must_use]
    pub fn min_available(self, pods: impl Into<Value>) -> Self {
        self.set("/spec/minAvailable", pods)
    }

    /// Sets how many pods may be unavailable: a number or a percentage.
    #[must_use]
    pub fn max_unavailable(self, pods: impl Into<Value>) -> Self {
        self.set("/spec/maxUnavailable", pods)
    }

    /// Sets how many disruptions the disruption controller allows now.
    #[must_use]
    pub fn allows(self, disruptions: i32) -> Self {
        self.set(
            "/status",
            json!({ "disruptionsAllowed": disruptions, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 }),
        )
    }
}
