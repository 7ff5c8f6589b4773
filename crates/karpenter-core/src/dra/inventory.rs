//! Parsing the resource claims, device classes and resource slices of a snapshot.

use super::allocator::Inventory;
use super::model::{Claim, Slice, parse_class};
use crate::cluster::Snapshot;

impl Inventory {
    /// Parses the objects of a snapshot. An invalid slice is left out: its pool is then incomplete.
    pub fn of(snapshot: &Snapshot) -> Self {
        let names = &snapshot.config().well_known;
        let mut inventory = Self::default();
        for slice in snapshot.resource_slices() {
            let name = slice.metadata.name.clone().unwrap_or_default();
            let owner = slice.metadata.owner_references.iter().flatten();
            let node = owner
                .filter(|owner| owner.kind == "Node")
                .map(|owner| owner.name.clone())
                .next();
            if let Ok(slice) = Slice::parse(&slice.spec, node, names) {
                inventory.slices.insert(name, slice);
            }
        }
        for class in snapshot.device_classes() {
            let name = class.metadata.name.clone().unwrap_or_default();
            inventory.classes.insert(name, parse_class(&class.spec));
        }
        for claim in snapshot.resource_claims() {
            let claim = Claim::parse(claim, names);
            let key = (claim.namespace.clone(), claim.name.clone());
            inventory.claims.insert(key, claim);
        }
        inventory
    }
}
