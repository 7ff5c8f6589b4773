//! The kubelets of simulated nodes: heartbeats, readiness, and the lifecycle of bound pods.
//!
//! One pair of loops serves all simulated nodes. Not implemented: container images and logs, probes (a started container is
//! ready), admission (every bound pod is run), eviction under pressure, static pods, volumes.

mod kubelets;
mod pod_life;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

pub(crate) use kubelets::{Kubelets, LEASES, readiness, write_taints};
pub(crate) use pod_life::PodLifecycle;

/// The label or annotation of a simulated node, with the value `fake`.
const SIMULATED: &str = "kwok.x-k8s.io/node";

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NodeFault {
    /// The instance boots but the node never becomes ready.
    NeverReady,
    /// The instance is terminated: no heartbeat, and its pods do not change.
    Dead,
    /// All actions of the kubelet take this many times as long.
    Slow(f64),
}

/// The faults of nodes. Cheap to clone; clones share the faults.
#[derive(Debug, Clone, Default)]
pub struct NodeFaults(Arc<Mutex<FxHashMap<String, NodeFault>>>);

impl NodeFaults {
    pub fn set(&self, node: &str, fault: NodeFault) {
        self.0.lock().insert(node.to_owned(), fault);
    }

    pub fn clear(&self, node: &str) {
        self.0.lock().remove(node);
    }

    #[must_use]
    pub fn of(&self, node: &str) -> Option<NodeFault> {
        self.0.lock().get(node).copied()
    }
}

/// Selects the nodes to simulate.
pub type NodePredicate = Arc<dyn Fn(&Node) -> bool + Send + Sync>;

/// Settings of simulated nodes.
#[derive(Clone)]
pub struct NodeAgentOptions {
    /// Selects the nodes to simulate; by default those labeled or annotated `kwok.x-k8s.io/node=fake`.
    pub simulates: NodePredicate,
    /// Time from the Node's creation to `Ready`.
    pub boot_delay: Duration,
    /// Interval of lease renewals.
    pub heartbeat: Duration,
    /// Time from a pod's binding to `Running`.
    pub start_delay: Duration,
    /// How long pods take to stop, unless their grace period is shorter.
    pub stop_delay: Duration,
    /// How long pods of Jobs run before they succeed.
    pub job_duration: Duration,
    pub faults: NodeFaults,
}

impl Default for NodeAgentOptions {
    fn default() -> Self {
        Self {
            simulates: Arc::new(is_fake),
            boot_delay: Duration::from_secs(2),
            heartbeat: Duration::from_secs(10),
            start_delay: Duration::from_secs(1),
            stop_delay: Duration::from_secs(1),
            job_duration: Duration::from_secs(5),
            faults: NodeFaults::default(),
        }
    }
}

impl fmt::Debug for NodeAgentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeAgentOptions")
            .field("boot_delay", &self.boot_delay)
            .field("heartbeat", &self.heartbeat)
            .field("start_delay", &self.start_delay)
            .field("stop_delay", &self.stop_delay)
            .field("job_duration", &self.job_duration)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl NodeAgentOptions {
    /// Returns `delay` with the node's fault, or `None` if the node is dead.
    fn slowed(&self, node: &str, delay: Duration) -> Option<Duration> {
        match self.faults.of(node) {
            Some(NodeFault::Dead) => None,
            Some(NodeFault::Slow(factor)) => {
                Some(Duration::try_from_secs_f64(delay.as_secs_f64() * factor).unwrap_or(delay))
            }
            Some(NodeFault::NeverReady) | None => Some(delay),
        }
    }
}

fn is_fake(node: &Node) -> bool {
    [&node.metadata.labels, &node.metadata.annotations]
        .into_iter()
        .flatten()
        .any(|map| map.get(SIMULATED).is_some_and(|v| v == "fake"))
}
