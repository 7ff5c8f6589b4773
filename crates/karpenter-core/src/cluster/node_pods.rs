//! The pods bound to a node, and the sums of their requests.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::pod::eviction_cost::{eviction_cost, reschedule_cost};
use crate::pod::{Pod, may_refuse_disruption};
use crate::resources::{ALWAYS_COMPARED, CPU, MEMORY, Resources};

/// The pods bound to a node name.
#[derive(Clone, Default)]
pub struct NodePods {
    pods: Vec<Arc<Pod>>,
    requests: Resources,
    daemon_requests: Resources,
    /// Whether [`Self::requests`] has more than cpu, memory and a number of pods.
    requests_others: bool,
    facts: OnceLock<PodFacts>,
    moving: OnceLock<[Box<[i64]>; 2]>,
}

impl fmt::Debug for NodePods {
    /// Leaves the facts out: whether a pass has asked for them is not part of the state.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePods")
            .field("pods", &self.pods)
            .field("requests", &self.requests)
            .field("daemon_requests", &self.daemon_requests)
            .finish_non_exhaustive()
    }
}

/// What disruption passes ask about the pods of every node; computed when a pass asks first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PodFacts {
    /// The cost of rescheduling the pods; 1 if no pod must be rescheduled.
    pub(crate) reschedule_cost: f64,
    /// The sum of the costs of evicting the pods.
    pub(crate) eviction_cost: f64,
    /// A pod has an annotation that can block its eviction.
    pub(crate) may_refuse_disruption: bool,
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

    /// Reports whether some pod requests more than cpu, memory and a number of pods.
    pub(crate) fn requests_others(&self) -> bool {
        self.requests_others
    }

    /// Returns the part of [`Self::requests`] that belongs to DaemonSets.
    pub fn daemon_requests(&self) -> &Resources {
        &self.daemon_requests
    }

    pub(crate) fn facts(&self) -> PodFacts {
        *self.facts.get_or_init(|| {
            let pods = || self.pods.iter().map(|pod| &**pod);
            PodFacts {
                reschedule_cost: reschedule_cost(pods().filter(|pod| pod.is_reschedulable())),
                eviction_cost: pods().map(eviction_cost).sum(),
                may_refuse_disruption: pods().any(may_refuse_disruption),
            }
        })
    }

    /// Returns what the pods that must be rescheduled request of cpu, and of memory.
    pub(crate) fn moving(&self) -> &[Box<[i64]>; 2] {
        self.moving.get_or_init(|| {
            let pods = || self.pods.iter().filter(|pod| pod.is_reschedulable());
            [CPU, MEMORY].map(|name| pods().map(|pod| pod.shape.requests.get(name)).collect())
        })
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
        (self.facts, self.moving) = Default::default();
        self.requests = Resources::new();
        self.daemon_requests = Resources::new();
        for pod in self.pods.iter().filter(|pod| !pod.is_terminal()) {
            self.requests.add_assign(&pod.shape.requests);
            if pod.is_owned_by_daemon_set() {
                self.daemon_requests.add_assign(&pod.shape.requests);
            }
        }
        let mut names = self.requests.iter().map(|(name, _)| name);
        self.requests_others = names.any(|name| !ALWAYS_COMPARED.contains(&name));
    }
}
