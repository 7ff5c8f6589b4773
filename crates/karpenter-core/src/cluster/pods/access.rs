//! Pods, as the cluster takes them and snapshots return them.

use std::sync::Arc;

use karpenter_api::k8s_openapi::api::core::v1 as corev1;

use super::only_progress;
use crate::cluster::{Cluster, DaemonSet, Delta, NodePods, Snapshot};
use crate::pod::Pod;

impl Cluster {
    /// Adds or replaces a pod.
    pub fn apply_pod(&mut self, pod: &corev1::Pod) -> Delta<Pod> {
        self.insert_pod(Pod::parse(pod))
    }

    /// Adds or replaces a parsed pod.
    pub fn insert_pod(&mut self, pod: Pod) -> Delta<Pod> {
        let pod = self.shared(pod);
        let known = self.state.pods.get(&pod.key.namespace, &pod.key.name);
        let before = known.cloned();
        if before.as_deref() == Some(&pod) {
            return Delta::unchanged(before);
        }
        let progress = before
            .as_deref()
            .is_some_and(|old| only_progress(old, &pod));
        self.state.epoch += u64::from(!progress);
        let after = Arc::new(pod);
        self.state.pods.insert(after.clone());
        Delta {
            before,
            after: Some(after),
        }
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, namespace: &str, name: &str) -> Delta<Pod> {
        let before = self.state.pods.remove(namespace, name);
        self.counted(Delta::removed(before))
    }
}

impl Snapshot {
    /// Returns a pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Arc<Pod>> {
        self.state.pods.get(namespace, name)
    }

    /// Iterates over all pods, in no particular order.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.state.pods.by_name.keys().map(|pod| &pod.0)
    }

    /// Returns the number of pods.
    pub fn pod_count(&self) -> usize {
        self.state.pods.by_name.size()
    }

    /// Returns the pods bound to a Node.
    pub fn pods_on(&self, node: &str) -> &[Arc<Pod>] {
        self.state
            .pods
            .by_node
            .get(node)
            .map(|pods| pods.pods())
            .unwrap_or_default()
    }

    /// Returns the pods bound to a Node, with the sums of their requests.
    pub fn node_pods(&self, node: &str) -> Option<&Arc<NodePods>> {
        self.state.pods.by_node.get(node)
    }

    /// Iterates over node names with the pods bound to them, by name. A name need not have a Node.
    pub fn bound_pods(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<NodePods>)> {
        self.state.pods.by_node.iter()
    }

    /// Iterates over pods without a node, by namespace and name.
    pub fn unbound_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.state.pods.unbound.values()
    }

    /// Iterates over DaemonSets by namespace and name, each with its newest pod, if there is one.
    pub fn daemon_sets(&self) -> impl Iterator<Item = (&Arc<DaemonSet>, Option<&Arc<Pod>>)> {
        let sets = self.state.workloads.daemon_sets.values();
        sets.map(|set| (set, self.state.pods.of_daemon_sets.get(&set.uid)))
    }
}
