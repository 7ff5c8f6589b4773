//! The pods of the model: by namespace and name, by node, and those without a node.

mod access;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rpds::{HashTrieMapSync, RedBlackTreeMapSync};

use super::index::{NamespacedMap, named};
use super::node_pods::NodePods;
use crate::pod::Pod;

/// The pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Pods {
    by_name: HashTrieMapSync<ByName, ()>,
    unbound: NamespacedMap<Pod>,
    /// By name, so that the pods of all nodes are found in the order of the nodes.
    by_node: RedBlackTreeMapSync<Arc<str>, Arc<NodePods>>,
    /// The newest pod of each DaemonSet, by the uid of the set.
    of_daemon_sets: HashTrieMapSync<String, Arc<Pod>>,
}

/// A pod that is found by its namespace and name, which are those in the pod: a large cluster has a million pods, and a copy of
/// their names would take a fifth of their memory.
#[derive(Clone, Debug)]
struct ByName(Arc<Pod>);

trait HasName {
    fn name(&self) -> (&str, &str);
}

impl HasName for ByName {
    fn name(&self) -> (&str, &str) {
        (&self.0.key.namespace, &self.0.key.name)
    }
}

impl HasName for (&str, &str) {
    fn name(&self) -> (&str, &str) {
        *self
    }
}

impl Hash for dyn HasName + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl PartialEq for dyn HasName + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn HasName + '_ {}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for ByName {}

impl<'n> Borrow<dyn HasName + 'n> for ByName {
    fn borrow(&self) -> &(dyn HasName + 'n) {
        self
    }
}

impl Pods {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Pod>> {
        let key: &dyn HasName = &(namespace, name);
        self.by_name.get_key_value(key).map(|(pod, ())| &pod.0)
    }

    /// Adds a pod, or replaces the one of its name.
    pub(super) fn insert(&mut self, pod: Arc<Pod>) {
        self.record(&pod);
        if let Some(node) = &pod.node_name {
            self.change_node(node, |pods| pods.insert(&pod));
        }
    }

    /// Adds or replaces many pods. The pods of a node are added at once, which takes linear time.
    pub(super) fn insert_all(&mut self, pods: impl IntoIterator<Item = Arc<Pod>>) {
        let mut by_node: BTreeMap<Arc<str>, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in pods {
            let known = self.get(&pod.key.namespace, &pod.key.name);
            if known.is_some_and(|known| known.node_name.is_some()) {
                // It may be one of those that are not bound yet.
                self.bind(std::mem::take(&mut by_node));
            }
            self.record(&pod);
            if let Some(node) = &pod.node_name {
                by_node.entry(node.clone()).or_default().push(pod);
            }
        }
        self.bind(by_node);
    }

    fn bind(&mut self, by_node: BTreeMap<Arc<str>, Vec<Arc<Pod>>>) {
        for (node, pods) in by_node {
            self.change_node(&node, |bound| bound.extend(pods));
        }
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let pod = self.get(namespace, name).cloned()?;
        let key: &dyn HasName = &(namespace, name);
        self.by_name.remove_mut(key);
        self.unbind(&pod);
        Some(pod)
    }

    fn unbind(&mut self, pod: &Pod) {
        match &pod.node_name {
            Some(node) => self.change_node(node, |pods| pods.remove(pod)),
            None => {
                let key = named(&pod.key.namespace, &pod.key.name);
                self.unbound.remove_mut(&key);
            }
        }
    }

    /// Adds a pod, or replaces the one of its name, except that it is not added to the pods of its node.
    fn record(&mut self, pod: &Arc<Pod>) {
        let (namespace, name) = (&pod.key.namespace, &pod.key.name);
        if let Some(old) = self.get(namespace, name).cloned() {
            self.unbind(&old);
        }
        self.by_name.insert_mut(ByName(pod.clone()), ());
        if pod.node_name.is_none() {
            let key = named(namespace, name);
            self.unbound.insert_mut(key, pod.clone());
        }
        let mut owners = pod.owners.iter();
        if let Some(set) = owners.find(|owner| owner.kind == "DaemonSet" && owner.controller) {
            let age = |pod: &Pod| (pod.created_at, pod.key.uid.clone());
            let newest = self.of_daemon_sets.get(&set.uid);
            if newest.is_none_or(|known| age(known) <= age(pod)) {
                self.of_daemon_sets.insert_mut(set.uid.clone(), pod.clone());
            }
        }
    }

    fn change_node(&mut self, node: &Arc<str>, change: impl FnOnce(&mut NodePods)) {
        let present = self.by_node.get(node);
        let mut pods = present.map_or_else(NodePods::default, |pods| NodePods::clone(pods));
        change(&mut pods);
        if pods.pods().is_empty() {
            self.by_node.remove_mut(node);
        } else {
            self.by_node.insert_mut(node.clone(), Arc::new(pods));
        }
    }

    /// Sets the newest pod of the DaemonSet with this uid.
    pub(super) fn insert_daemon_pod(&mut self, uid: &str, pod: Arc<Pod>) {
        self.of_daemon_sets.insert_mut(uid.to_owned(), pod);
    }

    /// Returns the copy of a node's name that its pods share.
    pub(super) fn node_name(&self, name: &str) -> Option<&Arc<str>> {
        self.by_node.get_key_value(name).map(|(name, _)| name)
    }
}

/// Reports whether two states of a pod differ only in readiness and in the times of readiness and scheduling.
fn only_progress(old: &Pod, new: &Pod) -> bool {
    *old == Pod {
        gated: old.gated,
        ready: old.ready,
        ready_since: old.ready_since,
        scheduled_since: old.scheduled_since,
        ..new.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Resources;

    fn pod(namespace: &str, name: &str, cpu: i64) -> Arc<Pod> {
        let requests = Resources::new().with("cpu", cpu);
        Arc::new(Pod::pending(namespace, name, requests))
    }

    #[test]
    fn a_pod_replaces_the_pod_of_its_name_and_no_other_and_a_copy_stays() {
        let mut pods = Pods::default();
        pods.insert(pod("a", "web", 1));
        pods.insert(pod("b", "web", 2));
        let before = pods.clone();
        let new = pod("a", "web", 3);
        pods.insert(new.clone());
        assert!(
            pods.get("a", "web")
                .is_some_and(|pod| Arc::ptr_eq(pod, &new))
        );
        assert_eq!(pods.by_name.size(), 2);
        pods.remove("b", "web");
        assert!(pods.get("b", "web").is_none());
        let left: Vec<&Arc<Pod>> = pods.by_name.keys().map(|pod| &pod.0).collect();
        assert_eq!(left, [&new]);
        assert_eq!(before.by_name.size(), 2);
        assert_eq!(before.get("a", "web"), Some(&pod("a", "web", 1)));
    }
}
