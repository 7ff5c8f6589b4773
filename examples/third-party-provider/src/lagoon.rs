//! The imaginary cloud: what a cloud's own client library would be. It rents machines by the hour, called by a token so that
//! asking twice rents one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What Lagoon rents: name, cores, GiB of memory, dollars an hour.
pub const SIZES: [(&str, i64, i64, f64); 3] = [
    ("pond", 2, 8, 0.08),
    ("lake", 8, 32, 0.30),
    ("sea", 32, 128, 1.15),
];

/// Where it rents.
pub const ISLANDS: [&str; 2] = ["island-1", "island-2"];

/// A rented machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name, which follows from the token.
    pub id: String,
    /// One of [`SIZES`].
    pub size: String,
    /// One of [`ISLANDS`].
    pub island: String,
    /// The image it was booted from.
    pub image: String,
    /// The cluster it was rented for.
    pub cluster: String,
}

/// The cloud. Clones are the same cloud.
#[derive(Clone, Debug, Default)]
pub struct Lagoon(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    rented: BTreeMap<String, Machine>,
    sold_out: Vec<(String, String)>,
}

impl Lagoon {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rents a machine, or returns the one rented with its id before. `None`: the size is sold out on that island.
    #[must_use]
    pub fn rent(&self, machine: Machine) -> Option<Machine> {
        let mut state = self.lock();
        if let Some(rented) = state.rented.get(&machine.id) {
            return Some(rented.clone());
        }
        if state
            .sold_out
            .contains(&(machine.size.clone(), machine.island.clone()))
        {
            return None;
        }
        state.rented.insert(machine.id.clone(), machine.clone());
        Some(machine)
    }

    /// Gives a machine back; whether there was one.
    #[must_use]
    pub fn give_back(&self, id: &str) -> bool {
        self.lock().rented.remove(id).is_some()
    }

    /// The machine of this id.
    #[must_use]
    pub fn machine(&self, id: &str) -> Option<Machine> {
        self.lock().rented.get(id).cloned()
    }

    /// All machines of a cluster.
    #[must_use]
    pub fn machines(&self, cluster: &str) -> Vec<Machine> {
        let state = self.lock();
        state
            .rented
            .values()
            .filter(|m| m.cluster == cluster)
            .cloned()
            .collect()
    }

    /// Runs out of a size on an island.
    pub fn sell_out(&self, size: &str, island: &str) {
        self.lock()
            .sold_out
            .push((size.to_owned(), island.to_owned()));
    }

    /// Whether a size is to be had on an island.
    #[must_use]
    pub fn has(&self, size: &str, island: &str) -> bool {
        !self
            .lock()
            .sold_out
            .contains(&(size.to_owned(), island.to_owned()))
    }
}
