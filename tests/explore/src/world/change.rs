//! What users do to the cluster.

use std::fmt;

use karpenter_api::v1::NodePool;
use karpenter_core::pod::Pod;

/// What a user does.
#[derive(Clone, Debug)]
pub enum Change {
    /// Annotates a pod of a workload with `karpenter.sh/do-not-disrupt`.
    Protect(&'static str),
    /// Scales a workload down by a pod.
    RemovePod(&'static str),
    /// Scales a workload up by a pod.
    AddPodLike(&'static str),
    /// Creates a pod.
    AddPod(Box<Pod>),
    /// Deletes the NodeClaim of a pod's node.
    DeleteNodeOf(&'static str),
    /// Writes a NodePool.
    PutPool(Box<NodePool>),
    /// Writes a pod; one that has a node keeps it.
    PutPod(Box<Pod>),
    /// Deletes a pod for good.
    EndPod(String),
    /// Deletes a NodeClaim.
    DeleteClaim(String),
    /// Deletes a Node.
    DeleteNode(String),
    /// Makes the NodeClass ready, or not.
    SetClassReady(bool),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protect(app) => write!(f, "a user annotates a pod of {app} with do-not-disrupt"),
            Self::RemovePod(app) => write!(f, "a user scales {app} down by a pod"),
            Self::AddPodLike(app) => write!(f, "a user scales {app} up by a pod"),
            Self::AddPod(_) => f.write_str("a user creates a pod"),
            Self::DeleteNodeOf(app) => write!(f, "a user deletes the NodeClaim of a node of {app}"),
            Self::PutPool(pool) => write!(f, "a user changes NodePool {}", pool.name()),
            Self::PutPod(pod) => write!(f, "pod {} is written", pod.key.name),
            Self::EndPod(name) => write!(f, "a user deletes pod {name}"),
            Self::DeleteClaim(name) => write!(f, "a user deletes NodeClaim {name}"),
            Self::DeleteNode(name) => write!(f, "a user deletes Node {name}"),
            Self::SetClassReady(ready) => write!(f, "the NodeClass is ready: {ready}"),
        }
    }
}
