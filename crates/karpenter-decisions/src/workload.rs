//! The workload that a user edits, of a pod.

use karpenter_core::pod::Pod;

/// The owner of pods; a pod without a controller is its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Workload {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Workload {
    /// Returns the owner that a user edits: for the ReplicaSet of a Deployment that Deployment.
    pub(crate) fn of(pod: &Pod) -> Self {
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

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}
