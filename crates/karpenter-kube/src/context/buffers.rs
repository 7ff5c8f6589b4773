//! The pods of all capacity buffers, and their nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::v1::NodeClaim;
use karpenter_core::capacity_buffer::{MAX_PODS, MAX_PODS_OF_ALL, pods};
use karpenter_core::cluster::Snapshot;
use karpenter_core::lifecycle::provisioning::PlacedBuffers;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::Plan;
use parking_lot::Mutex;

use crate::queue::{ObjectKey, Queue};

/// The in-memory pods of all buffers and their nodes. Cheap to clone; clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Buffers {
    state: Arc<Mutex<State>>,
    /// Buffers that are to be reconciled.
    pub(crate) changed: Queue<ObjectKey>,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<ObjectKey, Vec<Arc<Pod>>>,
    placed: PlacedBuffers,
}

impl Buffers {
    /// Returns the in-memory pods of all buffers.
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.state.lock().pods.values().flatten().cloned().collect()
    }

    /// Returns whether no buffer has pods.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.lock().pods.values().all(Vec::is_empty)
    }

    /// Returns the number of in-memory pods on each node of `snapshot`, by
    /// [`NodeState::name`](karpenter_core::cluster::NodeState::name).
    #[must_use]
    pub fn on_nodes(&self, snapshot: &Snapshot) -> BTreeMap<String, usize> {
        self.state.lock().placed.on_nodes(snapshot)
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
        let state = &mut *self.state.lock();
        let fitted: Vec<Option<bool>> = state.pods.keys().map(|key| state.fits(key)).collect();
        let created = claims.iter().map(|claim| Some(claim.as_ref()?.name()));
        state.placed.record(pods, plan, created, snapshot);
        // A buffer may have been deleted since the request.
        let known: BTreeSet<String> = state.pods.keys().map(ObjectKey::to_string).collect();
        state.placed.retain(|buffer| known.contains(buffer));
        for (key, fitted) in state.pods.keys().zip(fitted) {
            if state.fits(key) != fitted {
                self.changed.add(key.clone());
            }
        }
    }

    /// Replaces the pods of a buffer by `count` copies of the chunk, or as many as [`MAX_PODS`] and [`MAX_PODS_OF_ALL`] allow.
    /// Returns whether they have changed, and their number.
    pub(crate) fn set(&self, key: &ObjectKey, chunk: &Pod, count: u32) -> (bool, u32) {
        let state = &mut *self.state.lock();
        let others = state.pods.iter().filter(|(other, _)| *other != key);
        let others: usize = others.map(|(_, pods)| pods.len()).sum();
        let room = MAX_PODS_OF_ALL.saturating_sub(others);
        let count = count
            .min(MAX_PODS)
            .min(u32::try_from(room).unwrap_or(u32::MAX));
        let pods = pods(chunk, count);
        let changed = state.pods.get(key).map_or(&[][..], Vec::as_slice) != pods;
        if changed {
            state.forget(key);
            state.pods.insert(key.clone(), pods);
        }
        (changed, count)
    }

    /// Removes a buffer; returns false if it had no pods.
    pub(crate) fn forget(&self, key: &ObjectKey) -> bool {
        let pods = self.state.lock().forget(key);
        pods.is_some_and(|pods| !pods.is_empty())
    }

    /// Returns whether all pods of a buffer have a node; `None` before the first plan.
    pub(crate) fn fits(&self, key: &ObjectKey) -> Option<bool> {
        self.state.lock().fits(key)
    }
}

impl State {
    fn forget(&mut self, key: &ObjectKey) -> Option<Vec<Arc<Pod>>> {
        let forgotten = key.to_string();
        self.placed.retain(|buffer| buffer != forgotten);
        self.pods.remove(key)
    }

    fn fits(&self, key: &ObjectKey) -> Option<bool> {
        Some(self.placed.ready(&key.to_string())? == self.pods.get(key)?.len())
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
