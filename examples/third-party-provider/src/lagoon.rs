//! The imaginary cloud: it stands for a cloud's own client library. It bills instances by the hour and launches them
//! idempotently: two launches with one id give one instance.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The instance sizes: name, cores, GiB of memory, dollars per hour.
pub const SIZES: [(&str, i64, i64, f64); 3] = [
    ("pond", 2, 8, 0.08),
    ("lake", 8, 32, 0.30),
    ("sea", 32, 128, 1.15),
];

pub const ISLANDS: [&str; 2] = ["island-1", "island-2"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Id of the instance, chosen by the client.
    pub id: String,
    /// One of [`SIZES`].
    pub size: String,
    /// One of [`ISLANDS`], which are the zones.
    pub island: String,
    /// The image that it boots.
    pub image: String,
    /// The cluster that it was launched for.
    pub cluster: String,
}

/// The cloud. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Lagoon(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<String, Instance>,
    exhausted: Vec<(String, String)>,
}

impl Lagoon {
    /// Launches an instance, or returns the one launched with its id before. Returns `None` if the size has no capacity on
    /// that island.
    #[must_use]
    pub fn launch(&self, instance: Instance) -> Option<Instance> {
        let mut state = self.0.lock();
        if let Some(running) = state.running.get(&instance.id) {
            return Some(running.clone());
        }
        if state
            .exhausted
            .contains(&(instance.size.clone(), instance.island.clone()))
        {
            return None;
        }
        state.running.insert(instance.id.clone(), instance.clone());
        Some(instance)
    }

    /// Terminates an instance; returns whether there was one.
    #[must_use]
    pub fn terminate(&self, id: &str) -> bool {
        self.0.lock().running.remove(id).is_some()
    }

    /// Returns the instance of this id.
    #[must_use]
    pub fn instance(&self, id: &str) -> Option<Instance> {
        self.0.lock().running.get(id).cloned()
    }

    /// Returns all instances of a cluster.
    #[must_use]
    pub fn instances(&self, cluster: &str) -> Vec<Instance> {
        let state = self.0.lock();
        state
            .running
            .values()
            .filter(|m| m.cluster == cluster)
            .cloned()
            .collect()
    }

    /// Exhausts the capacity of a size on an island.
    pub fn exhaust(&self, size: &str, island: &str) {
        self.0
            .lock()
            .exhausted
            .push((size.to_owned(), island.to_owned()));
    }

    /// Returns whether a size has capacity on an island.
    #[must_use]
    pub fn has_capacity(&self, size: &str, island: &str) -> bool {
        !self
            .0
            .lock()
            .exhausted
            .contains(&(size.to_owned(), island.to_owned()))
    }
}
