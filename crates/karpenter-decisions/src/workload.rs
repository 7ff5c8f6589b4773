//! The owner of pods that a user edits.

use std::fmt;

use karpenter_core::pod::Pod;

/// The owner of pods; a pod without a controller is its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    /// The kind: `Deployment`, `StatefulSet`, `Pod`.
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl Workload {
    /// Returns the owner that a user edits: for the ReplicaSet of a Deployment that Deployment.
    pub fn of(pod: &Pod) -> Self {
        let namespace = pod.key.namespace.clone();
        let Some(owner) = &pod.shape.controller else {
            return Self {
                kind: "Pod".to_owned(),
                namespace,
                name: pod.key.name.clone(),
            };
        };
        let hash = pod.shape.labels.get("pod-template-hash");
        let deployment = hash.and_then(|hash| owner.name.strip_suffix(hash)?.strip_suffix('-'));
        match (owner.kind.as_str(), deployment) {
            ("ReplicaSet", Some(name)) => Self {
                kind: "Deployment".to_owned(),
                namespace,
                name: name.to_owned(),
            },
            _ => Self {
                kind: owner.kind.clone(),
                namespace,
                name: owner.name.clone(),
            },
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

impl Workload {
    /// Returns the workload as the target of a patch, if its pod template can be changed.
    pub fn target(&self) -> Option<String> {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        matches!(kind.as_str(), "Deployment" | "StatefulSet")
            .then(|| format!("{kind}/{namespace}/{name}"))
    }
}
