//! NodePools of a fixed size (feature gate StaticCapacity): [`Provisioning`] creates missing NodeClaims, [`Deprovisioning`]
//! deletes surplus ones, and [`StaticCapacity`] keeps both and static drift below `limits.nodes` together.

mod deprovisioning;
mod provisioning;

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::v1::NodePool;
use karpenter_core::static_capacity::{Reservations, node_limit, population};
use parking_lot::Mutex;

pub use deprovisioning::Deprovisioning;
pub use provisioning::Provisioning;

use crate::model::ModelHandle;

/// NodeClaims of static NodePools that are about to be created. Cheap to clone; clones share the state.
#[derive(Debug, Clone, Default)]
pub struct StaticCapacity {
    reservations: Arc<Mutex<Reservations>>,
}

impl StaticCapacity {
    fn with<R>(&self, act: impl FnOnce(&mut Reservations) -> R) -> R {
        act(&mut self.reservations.lock())
    }

    /// Reserves up to `wanted` nodes below the NodePool's limit, and returns how many. Each is to be released once the
    /// model counts its NodeClaim, or once it could not be created.
    #[must_use]
    pub fn reserve(&self, model: &ModelHandle, pool: &NodePool, wanted: u32) -> u32 {
        self.with(|reservations| {
            // INVARIANT: the view is read under the lock. It contains what was released before.
            let population = population(&model.view().snapshot, pool.name());
            reservations.reserve(pool.name(), population, node_limit(pool), wanted)
        })
    }

    /// Releases reserved nodes.
    pub fn release(&self, pool: &str, count: u32) {
        self.with(|reservations| reservations.release(pool, count));
    }

    /// Returns how many drifted nodes of each static NodePool may be replaced now.
    #[must_use]
    pub fn drift_headroom(&self, model: &ModelHandle) -> BTreeMap<String, u32> {
        self.with(|reservations| {
            let view = model.view();
            let pools = view.snapshot.node_pools().filter(|pool| pool.is_static());
            pools
                .map(|pool| {
                    let headroom =
                        reservations.drift_headroom(pool, population(&view.snapshot, pool.name()));
                    (pool.name().to_owned(), headroom)
                })
                .collect()
        })
    }
}
