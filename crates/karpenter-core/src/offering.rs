//! Ways to buy an instance type: zone, capacity type, reservation, price.

use karpenter_api::labels;

use crate::{requirements::Requirements, resources::Resources};

/// The label that names a capacity reservation differs by provider; the engine learns it from the configuration.
pub const DEFAULT_RESERVATION_ID: &str = "karpenter.sh/reservation-id";

/// One way to buy an instance type.
#[derive(Clone, Debug, PartialEq)]
pub struct Offering {
    /// Zone, capacity type and, for reserved capacity, the reservation.
    pub requirements: Requirements,
    /// Dollars an hour.
    pub price: f64,
    /// Whether it can be bought now.
    pub available: bool,
    /// Machines left in the reservation, for reserved capacity.
    pub reservation_capacity: u32,
    /// Entries that replace the instance type's capacity.
    pub capacity_override: Option<Resources>,
    /// Entries that replace the instance type's overhead (all parts added up).
    pub overhead_override: Option<Resources>,
    /// A NodeOverlay changed the price.
    pub price_overlay: bool,
}

impl Offering {
    /// An available offering without reservation and overrides.
    pub fn new(requirements: Requirements, price: f64) -> Self {
        Self {
            requirements,
            price,
            available: true,
            reservation_capacity: 0,
            capacity_override: None,
            overhead_override: None,
            price_overlay: false,
        }
    }

    /// Whether it can be bought now, for a price that is a number.
    pub fn is_for_sale(&self) -> bool {
        self.available && !self.price.is_nan()
    }

    /// The zone, if it is a single one.
    pub fn zone(&self) -> Option<&str> {
        self.single(labels::ZONE)
    }

    /// `spot`, `on-demand` or `reserved`.
    pub fn capacity_type(&self) -> Option<&str> {
        self.single(labels::CAPACITY_TYPE)
    }

    /// The single value of `key`, if the offering requires one.
    pub fn single(&self, key: &str) -> Option<&str> {
        self.requirements
            .get(key)
            .and_then(|requirement| requirement.single())
    }
}
