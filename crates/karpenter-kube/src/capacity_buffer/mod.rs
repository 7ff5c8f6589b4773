//! Capacity buffers (feature gate CapacityBuffer): spare capacity for pods that do not exist yet.
//!
//! 1. [`Resolution`] resolves the pods of a buffer and their number, and writes its status.
//! 2. The provisioner places the in-memory pods of all [`Buffers`] after the real ones and launches the nodes that they need.
//! 3. [`Buffers`] keeps the result: whether a buffer is provisioned (condition Provisioning), and which nodes hold its pods,
//!    because those nodes are not empty.
//!
//! UPSTREAM: pkg/controllers/capacitybuffer

mod resolution;
mod stores;

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::v1::NodeClaim;
use karpenter_core::capacity_buffer::{MAX_PODS, MAX_PODS_OF_ALL, buffer_of, pods};
use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::Plan;
use parking_lot::Mutex;

pub use resolution::Resolution;
pub use stores::{Stores, Watches};

use crate::controller::{ObjectKey, Queue};

/// The in-memory pods of all buffers and their nodes. Cheap to clone; clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Buffers {
    states: Arc<Mutex<BTreeMap<ObjectKey, BufferState>>>,
    changed: Queue<ObjectKey>,
}

#[derive(Debug, Default)]
struct BufferState {
    pods: Vec<Arc<Pod>>,
    /// Number of pods on each node, by the latest plan; `None` before the first plan. Nodes are named by their NodeClaim,
    /// whose name stays the same when the Node joins, or by their own name if they have none.
    placed: Option<BTreeMap<String, usize>>,
    /// Number of pods on nodes that are not launched yet.
    launching: usize,
}

impl Buffers {
    /// Returns the in-memory pods of all buffers.
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.states
            .lock()
            .values()
            .flat_map(|state| state.pods.iter().cloned())
            .collect()
    }

    /// Returns whether no buffer has pods.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.states
            .lock()
            .values()
            .all(|state| state.pods.is_empty())
    }

    /// Returns the number of in-memory pods on each node of `snapshot`, by
    /// [`NodeState::name`](karpenter_core::cluster::NodeState::name).
    #[must_use]
    pub fn on_nodes(&self, snapshot: &Snapshot) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        let states = self.states.lock();
        let placed = states.values().filter_map(|state| state.placed.as_ref());
        for (target, count) in placed.flatten() {
            if let Some(node) = snapshot.node(target) {
                *counts.entry(node.name().to_owned()).or_default() += count;
            }
        }
        counts
    }

    /// Records where a plan places `pods`, which are all buffer pods of the request. `claims` are the NodeClaims created
    /// from the plan.
    pub fn record(
        &self,
        pods: &[Arc<Pod>],
        plan: &Plan,
        claims: &[Option<Arc<NodeClaim>>],
        snapshot: &Snapshot,
    ) {
        #[derive(Default)]
        struct Found {
            placed: BTreeMap<String, usize>,
            launching: usize,
        }
        let mut found: BTreeMap<ObjectKey, Found> = BTreeMap::new();
        let mut owners = BTreeMap::new();
        for pod in pods {
            if let Some((namespace, name)) = buffer_of(pod) {
                let key = ObjectKey::namespaced(namespace, name);
                found.entry(key.clone()).or_default();
                owners.insert(pod.key.uid.as_str(), key);
            }
        }
        let existing = plan.existing.iter().filter(|p| p.buffer).map(|placement| {
            let claim = snapshot.node(&placement.node).and_then(|n| n.claim_name());
            (&placement.pod, claim.unwrap_or(&placement.node), false)
        });
        let launched = plan.new_node_claims.iter().zip(claims);
        let launched = launched.filter_map(|(planned, claim)| Some((planned, claim.as_ref()?)));
        let launched = launched.flat_map(|(planned, claim)| {
            let pods = planned.buffer_pods.iter();
            pods.map(move |pod| (pod, claim.name(), true))
        });
        for (pod, target, launching) in existing.chain(launched) {
            let owner = owners.get(pod.uid.as_str());
            if let Some(found) = owner.and_then(|key| found.get_mut(key)) {
                *found.placed.entry(target.to_owned()).or_default() += 1;
                found.launching += usize::from(launching);
            }
        }
        let mut states = self.states.lock();
        for (key, Found { placed, launching }) in found {
            if let Some(state) = states.get_mut(&key) {
                let fitted = state.fits();
                state.placed = Some(placed);
                state.launching = launching;
                if state.fits() != fitted {
                    self.changed.add(key);
                }
            }
        }
    }

    /// Replaces the pods of a buffer by `count` copies of the chunk, or as many as [`MAX_PODS`] and [`MAX_PODS_OF_ALL`] allow.
    /// Returns whether they have changed, and their number.
    fn set(&self, key: &ObjectKey, chunk: &Pod, count: u32) -> (bool, u32) {
        let mut states = self.states.lock();
        let others = states.iter().filter(|(other, _)| *other != key);
        let others: usize = others.map(|(_, state)| state.pods.len()).sum();
        let room = MAX_PODS_OF_ALL.saturating_sub(others);
        let count = count
            .min(MAX_PODS)
            .min(u32::try_from(room).unwrap_or(u32::MAX));
        let (state, pods) = (states.entry(key.clone()).or_default(), pods(chunk, count));
        let changed = state.pods != pods;
        if changed {
            *state = BufferState {
                pods,
                ..BufferState::default()
            };
        }
        (changed, count)
    }

    /// Removes a buffer; returns false if it had no pods.
    fn forget(&self, key: &ObjectKey) -> bool {
        self.states
            .lock()
            .remove(key)
            .is_some_and(|state| !state.pods.is_empty())
    }

    /// Returns whether all pods of a buffer have a node; `None` before the first plan.
    fn fits(&self, key: &ObjectKey) -> Option<bool> {
        self.states.lock().get(key)?.fits()
    }
}

impl BufferState {
    fn fits(&self) -> Option<bool> {
        let placed: usize = self.placed.as_ref()?.values().sum();
        Some(placed - self.launching == self.pods.len())
    }
}

#[cfg(test)]
mod tests {
    use karpenter_core::cluster::{Cluster, ClusterConfig};
    use karpenter_core::schedule::{Placement, PlannedNodeClaim, Policy, Query, schedule};
    use karpenter_fixtures::{bare_node, node_claim};

    use super::*;

    fn chunk(namespace: &str) -> Pod {
        let pod = karpenter_fixtures::pod("b")
            .namespace(namespace)
            .uid(namespace)
            .annotation("karpenter.sh/capacity-buffer-fake-pod", "true")
            .annotation("karpenter.sh/capacity-buffer-name", "b")
            .annotation("karpenter.sh/capacity-buffer-namespace", namespace);
        Pod::parse(&pod.build())
    }

    fn plan(placements: &[(&Arc<Pod>, &str)]) -> Plan {
        let placement = |(pod, node): &(&Arc<Pod>, &str)| Placement {
            pod: pod.key.clone(),
            node: (*node).to_owned(),
            buffer: true,
        };
        let mut plan = Plan::default();
        plan.existing = placements.iter().map(placement).collect();
        plan
    }

    fn node(name: &str) -> k8s_openapi::api::core::v1::Node {
        let id = format!("test://{name}");
        bare_node(name).set("/spec/providerID", id).build()
    }

    fn claim(name: &str, provider_id: &str) -> NodeClaim {
        node_claim(name)
            .set("/status/providerID", provider_id)
            .build()
    }

    /// Conformance: DIS-118
    #[tokio::test]
    async fn a_node_holds_a_buffer_until_a_later_plan_or_the_deletion_of_the_buffer() {
        let (buffers, key) = (Buffers::default(), ObjectKey::namespaced("x", "b"));
        let (mine, others) = (pods(&chunk("x"), 2), pods(&chunk("y"), 1));
        let mut cluster = Cluster::new(ClusterConfig::default());
        cluster.apply_node(&node("n"));
        cluster.apply_node(&node("m"));
        let nodes = cluster.snapshot();
        assert_eq!(buffers.set(&key, &chunk("x"), 2), (true, 2));
        assert_eq!(buffers.set(&key, &chunk("x"), 2), (false, 2), "unchanged");
        buffers.set(&ObjectKey::namespaced("y", "b"), &chunk("y"), 1);
        assert_eq!(buffers.fits(&key), None);
        let all = buffers.pods();
        assert_eq!(all.len(), 3);
        let first = plan(&[(&mine[0], "n"), (&others[0], "n")]);
        buffers.record(&all, &first, &[], &nodes);
        assert_eq!(buffers.on_nodes(&nodes), [("n".to_owned(), 2)].into());
        assert_eq!(buffers.fits(&key), Some(false));
        let second = plan(&[(&mine[0], "n"), (&mine[1], "m"), (&others[0], "m")]);
        buffers.record(&all, &second, &[], &nodes);
        assert_eq!(
            buffers.on_nodes(&nodes),
            [("m".to_owned(), 2), ("n".to_owned(), 1)].into()
        );
        assert_eq!(buffers.fits(&key), Some(true));
        assert!(buffers.forget(&key));
        assert_eq!(buffers.on_nodes(&nodes), [("m".to_owned(), 1)].into());
        assert!(!buffers.is_empty());
    }

    #[tokio::test]
    async fn buffers_have_a_largest_number_of_pods_each_and_together() {
        let buffers = Buffers::default();
        let key = |number: usize| ObjectKey::namespaced("x", &number.to_string());
        let kept: Vec<u32> = (0..6)
            .map(|number| buffers.set(&key(number), &chunk("x"), u32::MAX).1)
            .collect();
        assert_eq!(kept, [10_000, 10_000, 10_000, 10_000, 10_000, 0]);
        assert_eq!(buffers.pods().len(), 50_000);
        assert_eq!(buffers.set(&key(0), &chunk("x"), 7), (true, 7));
        assert_eq!(buffers.set(&key(5), &chunk("x"), u32::MAX), (true, 9_993));
    }

    #[tokio::test]
    async fn a_buffer_is_on_the_nodes_launched_for_it_before_and_after_they_join() {
        let (buffers, key) = (Buffers::default(), ObjectKey::namespaced("x", "b"));
        buffers.set(&key, &chunk("x"), 2);
        let all = buffers.pods();
        let mut cluster = Cluster::new(ClusterConfig::default());
        let mut plan = schedule(
            &cluster.snapshot(),
            &Policy::at(jiff::Timestamp::UNIX_EPOCH),
            &Query::default(),
        );
        let mut planned = PlannedNodeClaim::new("p", claim("", ""));
        planned.buffer_pods = all.iter().map(|pod| pod.key.clone()).collect();
        plan.new_node_claims = vec![planned];
        let created = [Some(Arc::new(claim("p-1", "")))];
        buffers.record(&all, &plan, &created, &cluster.snapshot());
        assert_eq!(buffers.fits(&key), Some(false), "it is not there yet");
        cluster.apply_node_claim(&claim("p-1", "test://joined"));
        let launched = cluster.snapshot();
        assert_eq!(buffers.on_nodes(&launched), [("p-1".to_owned(), 2)].into());
        cluster.apply_node(&node("joined"));
        let joined = cluster.snapshot();
        assert_eq!(buffers.on_nodes(&joined), [("joined".to_owned(), 2)].into());
    }
}
