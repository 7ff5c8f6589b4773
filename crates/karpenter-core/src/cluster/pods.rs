//! The pods of the model by namespace and name.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rpds::HashTrieMapSync;

use crate::pod::Pod;

/// Pods by namespace and name, which are those in the pod: a large cluster has a million pods, and a copy of their names
/// would take a fifth of their memory. Cloning is O(1).
#[derive(Clone, Debug)]
pub(super) struct Pods {
    pods: HashTrieMapSync<ByName, ()>,
}

/// A pod that is found by its namespace and name.
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
    pub(super) fn new() -> Self {
        Self {
            pods: HashTrieMapSync::new_sync(),
        }
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Pod>> {
        let key: &dyn HasName = &(namespace, name);
        self.pods.get_key_value(key).map(|(pod, ())| &pod.0)
    }

    /// Adds a pod, or replaces the one of its name.
    pub(super) fn insert(&mut self, pod: Arc<Pod>) {
        self.pods.insert_mut(ByName(pod), ());
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) {
        let key: &dyn HasName = &(namespace, name);
        self.pods.remove_mut(key);
    }

    /// Iterates over all pods, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.keys().map(|pod| &pod.0)
    }

    pub(super) fn len(&self) -> usize {
        self.pods.size()
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
        let mut pods = Pods::new();
        pods.insert(pod("a", "web", 1));
        pods.insert(pod("b", "web", 2));
        let before = pods.clone();
        let new = pod("a", "web", 3);
        pods.insert(new.clone());
        assert!(
            pods.get("a", "web")
                .is_some_and(|pod| Arc::ptr_eq(pod, &new))
        );
        assert_eq!(pods.len(), 2);
        pods.remove("b", "web");
        assert!(pods.get("b", "web").is_none());
        let left: Vec<&Arc<Pod>> = pods.iter().collect();
        assert_eq!(left, [&new]);
        assert_eq!(before.len(), 2);
        assert_eq!(before.get("a", "web"), Some(&pod("a", "web", 1)));
    }
}
