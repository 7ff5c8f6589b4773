//! Offerings of an instance type: zone, capacity type, reservation, price.

use std::ops::{Deref, DerefMut, Not};
use std::slice;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::labels;
use serde::{Deserialize, Serialize};

use crate::requirements::Requirements;
use crate::resources::Resources;

/// The label with the id of a capacity reservation, unless the provider has its own (`CloudProvider::reservation_id_label`).
pub const DEFAULT_RESERVATION_ID: &str = "karpenter.sh/reservation-id";

/// A price, so that dollars per month are not taken for dollars per hour: clouds bill either way, and the engine counts hours.
/// Everywhere else prices are numbers in dollars per hour, and named so.
///
/// ```
/// use karpenter_core::offering::Price;
///
/// assert_eq!(Price::per_month(73.0).dollars_per_hour(), Price::per_hour(0.1).dollars_per_hour());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Price {
    dollars_per_hour: f64,
}

impl Price {
    /// A month as clouds count it: a twelfth of a year.
    const HOURS_PER_MONTH: f64 = 730.0;

    /// Returns a price in dollars per hour. Any currency does, if it is the same for all offerings.
    pub const fn per_hour(dollars: f64) -> Self {
        Self {
            dollars_per_hour: dollars,
        }
    }

    /// Returns a price in dollars per month of 730 hours.
    pub const fn per_month(dollars: f64) -> Self {
        Self::per_hour(dollars / Self::HOURS_PER_MONTH)
    }

    /// Returns dollars per hour.
    pub const fn dollars_per_hour(self) -> f64 {
        self.dollars_per_hour
    }
}

/// A combination of zone, capacity type and price in which an instance type can be launched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offering {
    /// Zone, capacity type and, for reserved capacity, the reservation id.
    pub requirements: Requirements,
    /// Price in dollars per hour.
    #[serde(with = "crate::json::price")]
    pub price: f64,
    /// Whether it can be launched now.
    pub available: bool,
    /// When it may be available again, if it is not and the provider knows.
    pub unavailable_until: Option<Timestamp>,
    /// The number of instances left in the reservation, for reserved capacity.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reservation_capacity: u32,
    /// Entries that replace the instance type's capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_override: Option<Resources>,
    /// Entries that replace the instance type's overhead (the sum of its parts).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_override: Option<Resources>,
    /// Whether a NodeOverlay changed the price.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub price_overlay: bool,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Offering {
    /// Creates an available offering without reservation and overrides; the price is in dollars per hour.
    pub fn new(requirements: Requirements, price: f64) -> Self {
        Self {
            requirements,
            price,
            available: true,
            unavailable_until: None,
            reservation_capacity: 0,
            capacity_override: None,
            overhead_override: None,
            price_overlay: false,
        }
    }

    /// Creates an available on-demand offering in a zone.
    ///
    /// ```
    /// use karpenter_core::offering::{Offering, Price};
    ///
    /// let offering = Offering::on_demand("hall-1", Price::per_hour(0.10)).with_available(false);
    /// assert_eq!((offering.zone(), offering.capacity_type()), (Some("hall-1"), Some("on-demand")));
    /// assert!(!offering.is_launchable());
    /// ```
    pub fn on_demand(zone: &str, price: Price) -> Self {
        Self::of(zone, labels::CAPACITY_TYPE_ON_DEMAND, price)
    }

    /// Creates an available spot offering in a zone.
    pub fn spot(zone: &str, price: Price) -> Self {
        Self::of(zone, labels::CAPACITY_TYPE_SPOT, price)
    }

    fn of(zone: &str, capacity_type: &str, price: Price) -> Self {
        let place = [(labels::ZONE, zone), (labels::CAPACITY_TYPE, capacity_type)];
        Self::new(place.into_iter().collect(), price.dollars_per_hour())
    }

    /// Sets whether it can be launched now.
    #[must_use]
    pub fn with_available(self, available: bool) -> Self {
        Self { available, ..self }
    }

    /// Makes it unavailable until a time.
    #[must_use]
    pub fn with_unavailable_until(self, until: Timestamp) -> Self {
        Self {
            available: false,
            unavailable_until: Some(until),
            ..self
        }
    }

    /// Reports whether it is available and its price is a number.
    pub fn is_launchable(&self) -> bool {
        self.available && !self.price.is_nan()
    }

    /// Returns the zone, if it is a single one.
    pub fn zone(&self) -> Option<&str> {
        self.single(labels::ZONE)
    }

    /// Returns the capacity type, if it is a single one: `spot`, `on-demand` or `reserved`.
    pub fn capacity_type(&self) -> Option<&str> {
        self.single(labels::CAPACITY_TYPE)
    }

    /// Returns the single value of `key`, if the offering requires one.
    pub fn single(&self, key: &str) -> Option<&str> {
        self.requirements
            .get(key)
            .and_then(|requirement| requirement.single())
    }
}

/// The offerings of an instance type. Copies share their data until one changes: when prices or availability change, a provider
/// returns all its instance types again with new offerings for a few.
#[derive(Clone, Debug, Default)]
pub struct Offerings(Arc<Vec<Offering>>);

impl PartialEq for Offerings {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Deref for Offerings {
    type Target = Vec<Offering>;

    fn deref(&self) -> &Vec<Offering> {
        &self.0
    }
}

impl DerefMut for Offerings {
    fn deref_mut(&mut self) -> &mut Vec<Offering> {
        Arc::make_mut(&mut self.0)
    }
}

impl From<Vec<Offering>> for Offerings {
    fn from(offerings: Vec<Offering>) -> Self {
        Self(Arc::new(offerings))
    }
}

impl FromIterator<Offering> for Offerings {
    fn from_iter<I: IntoIterator<Item = Offering>>(offerings: I) -> Self {
        Vec::from_iter(offerings).into()
    }
}

impl<'a> IntoIterator for &'a Offerings {
    type Item = &'a Offering;
    type IntoIter = slice::Iter<'a, Offering>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a mut Offerings {
    type Item = &'a mut Offering;
    type IntoIter = slice::IterMut<'a, Offering>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_offerings_share_them_until_one_changes() {
        let first: Offerings = vec![Offering::new(Requirements::new(), 1.0)].into();
        let mut second = first.clone();
        assert!(std::ptr::eq(&first[0], &second[0]));
        assert_eq!(first, second);
        second[0].price = 2.0;
        assert_eq!(first[0].price, 1.0);
        assert_ne!(first, second);
    }
}
