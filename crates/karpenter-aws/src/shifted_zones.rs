//! Zones that traffic is shifted away from: nothing is launched there, and what EC2 says about them is not believed.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

/// The zones that are shifted away at the moment, by zone id. Cheap to clone; clones agree. Empty unless somebody watches.
#[derive(Clone, Debug, Default)]
pub struct ShiftedZones(Arc<RwLock<BTreeSet<String>>>);

impl ShiftedZones {
    /// Replaces the zones. Whether that changed anything.
    pub fn set(&self, zone_ids: BTreeSet<String>) -> bool {
        let mut shifted = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let changed = *shifted != zone_ids;
        *shifted = zone_ids;
        changed
    }

    /// The ids of the zones.
    pub fn ids(&self) -> BTreeSet<String> {
        let shifted = self.0.read().unwrap_or_else(PoisonError::into_inner);
        shifted.clone()
    }

    /// Whether a zone is among them; `zone` counts where its id is not known.
    pub fn contains(&self, zone: &str, zone_id: Option<&str>) -> bool {
        let shifted = self.0.read().unwrap_or_else(PoisonError::into_inner);
        shifted.contains(zone_id.unwrap_or(zone))
    }
}
