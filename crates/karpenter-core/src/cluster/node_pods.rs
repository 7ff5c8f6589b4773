//! The pods bound to a node, and the sums of their requests.

use std::sync::Arc;

use crate::pod::Pod;
use crate::resources::Resources;

/// The pods bound to a node name.
#[derive(Clone, Debug, Default)]
pub struct NodePods {
    pods: Vec<Arc<Pod>>,
    requests: Resources,
    daemon_requests: Resources,
}

impl NodePods {
    /// Returns the pods, sorted by namespace and name.
    pub fn pods(&self) -> &[Arc<Pod>] {
        &self.pods
    }

    /// Returns the requests of all pods that have not terminated, DaemonSets' pods included.
    pub fn requests(&self) -> &Resources {
        &self.requests
    }

    /// Returns the part of [`Self::requests`] that belongs to DaemonSets.
    pub fn daemon_requests(&self) -> &Resources {
        &self.daemon_requests
    }

    fn position(&self, pod: &Pod) -> Result<usize, usize> {
        self.pods.binary_search_by(|other| {
            (&other.key.namespace, &other.key.name).cmp(&(&pod.key.namespace, &pod.key.name))
        })
    }

    pub(super) fn insert(&mut self, pod: &Arc<Pod>) {
        if let Err(at) = self.position(pod) {
            self.pods.insert(at, pod.clone());
            self.sum();
        }
    }

    /// Adds pods and recomputes the sums once.
    pub(super) fn extend(&mut self, pods: Vec<Arc<Pod>>) {
        self.pods.extend(pods);
        self.pods
            .sort_by(|a, b| (&a.key.namespace, &a.key.name).cmp(&(&b.key.namespace, &b.key.name)));
        self.sum();
    }

    pub(super) fn remove(&mut self, pod: &Pod) {
        if let Ok(at) = self.position(pod) {
            self.pods.remove(at);
            self.sum();
        }
    }

    /// Recomputes the sums from all pods, so that saturation at the limits of i64 has no lasting effect.
    fn sum(&mut self) {
        self.requests = Resources::new();
        self.daemon_requests = Resources::new();
        for pod in self.pods.iter().filter(|pod| !pod.is_terminal()) {
            self.requests.add_assign(&pod.shape.requests);
            if pod.is_owned_by_daemon_set() {
                self.daemon_requests.add_assign(&pod.shape.requests);
            }
        }
    }
}
