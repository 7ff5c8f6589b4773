//! NodePools of a fixed size (gate StaticCapacity): [`Provisioning`] makes what is missing, [`Deprovisioning`] gives back
//! what is too much, and [`StaticCapacity`] keeps the two and static drift below `limits.nodes` together.

mod deprovisioning;
mod provisioning;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use karpenter_api::v1::NodePool;
use karpenter_core::static_capacity::{Population, Reservations, node_limit};

pub use deprovisioning::Deprovisioning;
pub use provisioning::Provisioning;

use crate::model::{ModelHandle, View};

/// Machines of static pools that are about to be made. Cheap to clone; clones share it.
#[derive(Debug, Clone, Default)]
pub struct StaticCapacity {
    reservations: Arc<Mutex<Reservations>>,
}

impl StaticCapacity {
    fn with<R>(&self, act: impl FnOnce(&mut Reservations) -> R) -> R {
        act(&mut self
            .reservations
            .lock()
            .unwrap_or_else(PoisonError::into_inner))
    }

    /// Reserves up to `wanted` machines below the pool's limit, and says how many. Each is to be released once the model
    /// counts it, or once it could not be made.
    #[must_use]
    pub fn reserve(&self, model: &ModelHandle, pool: &NodePool, wanted: u32) -> u32 {
        self.with(|reservations| {
            // INVARIANT: the view is read under the lock. What was released before is in it.
            let population = population(&model.view(), pool.name());
            reservations.reserve(pool.name(), population, node_limit(pool), wanted)
        })
    }

    /// Gives reserved machines back.
    pub fn release(&self, pool: &str, count: u32) {
        self.with(|reservations| reservations.release(pool, count));
    }

    /// How many drifted machines of each static pool may be replaced now.
    #[must_use]
    pub fn drift_room(&self, model: &ModelHandle) -> BTreeMap<String, u32> {
        self.with(|reservations| {
            let view = model.view();
            let pools = view.snapshot.node_pools().filter(|pool| pool.is_static());
            pools
                .map(|pool| {
                    let room = reservations.drift_room(pool, population(&view, pool.name()));
                    (pool.name().to_owned(), room)
                })
                .collect()
        })
    }
}

/// The machines of a pool by what is happening to them.
fn population(view: &View, pool: &str) -> Population {
    let claims = view.node_claims_of_pool(pool);
    Population::count(&view.snapshot, claims.iter().map(AsRef::as_ref))
}
