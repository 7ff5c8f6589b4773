//! Capacity buffers (gate CapacityBuffer): spare room for pods that do not exist yet.
//!
//! 1. [`Resolution`] finds out what a buffer stands for and how much of it is kept, and says so in its status.
//! 2. The provisioner places the in-memory pods of all [`Buffers`] after the real ones and launches what they lack.
//! 3. What came of it goes back into [`Buffers`]: whether a buffer has its room (condition Provisioning), and which machines
//!    hold some of it, as those do not count as empty.
//!
//! UPSTREAM: pkg/controllers/capacitybuffer

mod resolution;
mod stores;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use karpenter_core::capacity_buffer::buffer_of;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::Plan;

pub use resolution::Resolution;
pub use stores::{Stores, Watches};

use crate::controller::{ObjectKey, Queue};

/// The in-memory pods of all buffers and where they are. Cheap to clone; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Buffers {
    rooms: Arc<Mutex<BTreeMap<ObjectKey, Room>>>,
    changed: Queue<ObjectKey>,
}

/// What is known of one buffer.
#[derive(Debug, Default)]
struct Room {
    pods: Vec<Arc<Pod>>,
    /// How many of the pods each existing machine holds, by the latest decision; nothing before the first one.
    placed: Option<BTreeMap<String, usize>>,
}

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Room>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The in-memory pods of all buffers.
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.lock()
            .values()
            .flat_map(|room| room.pods.iter().cloned())
            .collect()
    }

    /// Whether no buffer has pods.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().values().all(|room| room.pods.is_empty())
    }

    /// How many in-memory pods each existing machine (Node or NodeClaim name) holds.
    #[must_use]
    pub fn on_machines(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (machine, count) in self
            .lock()
            .values()
            .filter_map(|room| room.placed.as_ref())
            .flatten()
        {
            *counts.entry(machine.clone()).or_default() += count;
        }
        counts
    }

    /// Takes in where a decision put `pods`, all that were asked for.
    pub fn record(&self, pods: &[Arc<Pod>], plan: &Plan) {
        let mut placed: BTreeMap<ObjectKey, BTreeMap<String, usize>> = BTreeMap::new();
        let mut owners = BTreeMap::new();
        for pod in pods {
            if let Some((namespace, name)) = buffer_of(pod) {
                let key = ObjectKey::namespaced(namespace, name);
                placed.entry(key.clone()).or_default();
                owners.insert(pod.key.uid.as_str(), key);
            }
        }
        for placement in plan.existing.iter().filter(|placement| placement.buffer) {
            if let Some(machines) = owners
                .get(placement.pod.uid.as_str())
                .and_then(|key| placed.get_mut(key))
            {
                *machines.entry(placement.node.clone()).or_default() += 1;
            }
        }
        let mut rooms = self.lock();
        for (key, machines) in placed {
            if let Some(room) = rooms.get_mut(&key) {
                let fitted = room.fits();
                room.placed = Some(machines);
                if room.fits() != fitted {
                    self.changed.add(key);
                }
            }
        }
    }

    /// Replaces the pods of a buffer; false if they are the same.
    fn set(&self, key: &ObjectKey, pods: Vec<Arc<Pod>>) -> bool {
        let mut rooms = self.lock();
        let room = rooms.entry(key.clone()).or_default();
        if room.pods == pods {
            return false;
        }
        *room = Room { pods, placed: None };
        true
    }

    /// Forgets a buffer; false if it had no pods.
    fn forget(&self, key: &ObjectKey) -> bool {
        self.lock()
            .remove(key)
            .is_some_and(|room| !room.pods.is_empty())
    }

    /// Whether all of a buffer's room is there; nothing is known before the first decision.
    fn fits(&self, key: &ObjectKey) -> Option<bool> {
        self.lock().get(key)?.fits()
    }
}

impl Room {
    fn fits(&self) -> Option<bool> {
        let placed: usize = self.placed.as_ref()?.values().sum();
        Some(placed == self.pods.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use karpenter_core::schedule::Placement;
    use serde_json::json;

    fn pods(namespace: &str, count: u32) -> Vec<Arc<Pod>> {
        let pod = json!({"metadata": {"name": "b", "namespace": namespace, "uid": namespace, "annotations": {
            "karpenter.sh/capacity-buffer-fake-pod": "true",
            "karpenter.sh/capacity-buffer-name": "b", "karpenter.sh/capacity-buffer-namespace": namespace}}, "spec": {"containers": []}});
        karpenter_core::capacity_buffer::pods(
            &Pod::parse(&serde_json::from_value(pod).unwrap()),
            count,
        )
    }

    fn plan(placements: &[(&Arc<Pod>, &str)]) -> Plan {
        let placement = |(pod, node): &(&Arc<Pod>, &str)| Placement {
            pod: pod.key.clone(),
            node: (*node).to_owned(),
            buffer: true,
        };
        Plan {
            existing: placements.iter().map(placement).collect(),
            ..Plan::default()
        }
    }

    /// Conformance: DIS-118
    #[tokio::test]
    async fn a_machine_holds_a_buffer_until_a_later_decision_or_the_buffers_end() {
        let (buffers, key) = (Buffers::default(), ObjectKey::namespaced("x", "b"));
        let (mine, others) = (pods("x", 2), pods("y", 1));
        assert!(buffers.set(&key, mine.clone()));
        assert!(!buffers.set(&key, pods("x", 2)), "the same again");
        buffers.set(&ObjectKey::namespaced("y", "b"), others.clone());
        assert_eq!(buffers.fits(&key), None);
        let all = buffers.pods();
        assert_eq!(all.len(), 3);
        buffers.record(&all, &plan(&[(&mine[0], "n"), (&others[0], "n")]));
        assert_eq!(buffers.on_machines(), [("n".to_owned(), 2)].into());
        assert_eq!(buffers.fits(&key), Some(false));
        buffers.record(
            &all,
            &plan(&[(&mine[0], "n"), (&mine[1], "m"), (&others[0], "m")]),
        );
        assert_eq!(
            buffers.on_machines(),
            [("m".to_owned(), 2), ("n".to_owned(), 1)].into()
        );
        assert_eq!(buffers.fits(&key), Some(true));
        assert!(buffers.forget(&key));
        assert_eq!(buffers.on_machines(), [("m".to_owned(), 1)].into());
        assert!(!buffers.is_empty());
    }
}
