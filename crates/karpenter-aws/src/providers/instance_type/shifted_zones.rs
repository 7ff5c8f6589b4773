//! Zones with an active zonal shift: no instance is launched there, and missing instances in DescribeInstances are not
//! taken as terminated.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;

/// IDs of the zones with an active zonal shift. Cheap to clone; clones share the set. Empty if zonal shifts are not
/// observed.
#[derive(Clone, Debug, Default)]
pub struct ShiftedZones(Arc<RwLock<BTreeSet<String>>>);

impl ShiftedZones {
    /// Replaces the zones. Returns whether the set changed.
    pub fn set(&self, zone_ids: BTreeSet<String>) -> bool {
        let mut shifted = self.0.write();
        let changed = *shifted != zone_ids;
        *shifted = zone_ids;
        changed
    }

    pub fn ids(&self) -> BTreeSet<String> {
        let shifted = self.0.read();
        shifted.clone()
    }

    /// Returns whether a zone has an active shift; its name `zone` is used if its ID is unknown.
    pub fn contains(&self, zone: &str, zone_id: Option<&str>) -> bool {
        let shifted = self.0.read();
        shifted.contains(zone_id.unwrap_or(zone))
    }
}
