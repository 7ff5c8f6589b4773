//! What users do to the cluster.

use karpenter_api::v1::NodePool;
use karpenter_core::pod::Pod;

/// What a user does.
#[derive(Clone, Debug)]
pub enum Change {
    /// Annotates a pod of a workload with `karpenter.sh/do-not-disrupt`.
    Protect(&'static str),
    /// Scales a workload down by a pod.
    RemovePod(&'static str),
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
