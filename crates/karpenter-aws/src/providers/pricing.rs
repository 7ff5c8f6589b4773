//! Prices: on demand by instance type, spot by instance type and zone.
//!
//! A built-in table is used until AWS has answered, and for instance types that are missing in the answer.
//!
//! UPSTREAM: pkg/providers/pricing/pricing.go

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use karpenter_api::v1::Operator;
use karpenter_api::v1alpha1::NodeOverlay;
use rustc_hash::FxHashMap;

use crate::providers::changes::Changes;

/// The region whose prices are used for regions without a table.
const FALLBACK_REGION: &str = "us-east-1";

/// Relative change of a spot price below which it is ignored: prices move all the time, and recomputing offerings for a
/// hundredth of a cent changes nothing.
const SPOT_THRESHOLD: f64 = 0.05;

static TABLE: LazyLock<Table> = LazyLock::new(Table::read);

struct Table {
    regions: Vec<&'static str>,
    prices: Vec<(&'static str, Vec<Option<f64>>)>,
}

impl Table {
    fn read() -> Self {
        let text = include_str!("../../data/on-demand-prices.csv");
        let mut rows = text.lines().filter(|row| !row.starts_with('#'));
        let regions = rows.next().unwrap_or_default().split(',').skip(1).collect();
        let row = |row: &'static str| {
            let mut cells = row.split(',');
            let name = cells.next().unwrap_or_default();
            (name, cells.map(|cell| cell.parse().ok()).collect())
        };
        Self {
            regions,
            prices: rows.map(row).collect(),
        }
    }

    fn of_region(&self, region: &str) -> FxHashMap<String, f64> {
        let column = |region: &str| self.regions.iter().position(|known| *known == region);
        let Some(column) = column(region).or_else(|| column(FALLBACK_REGION)) else {
            return FxHashMap::default();
        };
        let price = |(name, prices): &(&str, Vec<Option<f64>>)| {
            Some(((*name).to_owned(), (*prices.get(column)?)?))
        };
        self.prices.iter().filter_map(price).collect()
    }
}

/// The Pricing API returned no on-demand prices of one kind; then none of its prices are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no on-demand prices of {kind} found")]
pub struct NoPrices {
    kind: &'static str,
}

/// Prices of one region.
#[derive(Clone, Debug)]
pub struct Pricing {
    on_demand: FxHashMap<String, f64>,
    spot: FxHashMap<String, BTreeMap<String, f64>>,
    /// Whether EC2 has returned spot prices.
    spot_known: bool,
    overlays: BTreeMap<String, f64>,
    changes: Changes,
}

impl Pricing {
    /// Creates the prices of the built-in table for a region.
    pub fn new(region: &str) -> Self {
        Self {
            on_demand: TABLE.of_region(region),
            spot: FxHashMap::default(),
            spot_known: false,
            overlays: BTreeMap::new(),
            changes: Changes::default(),
        }
    }

    /// Returns the on-demand price in dollars (CNY in China) per hour, if known.
    pub fn on_demand(&self, instance_type: &str) -> Option<f64> {
        self.on_demand.get(instance_type).copied()
    }

    /// Returns the spot price in dollars (CNY in China) per hour, if known. Until EC2 has answered, it is the table's
    /// on-demand price in every zone.
    pub fn spot(&self, instance_type: &str, zone: &str) -> Option<f64> {
        if !self.spot_known {
            return self.on_demand(instance_type);
        }
        self.spot.get(instance_type)?.get(zone).copied()
    }

    /// Returns the price that a NodeOverlay sets for a type without one.
    pub fn overlay(&self, instance_type: &str) -> Option<f64> {
        self.overlays.get(instance_type).copied()
    }

    /// Updates on-demand prices; types that are missing keep theirs. Returns whether anything changed.
    ///
    /// # Errors
    /// If one of the two lists is empty; nothing is changed then.
    pub fn update_on_demand(
        &mut self,
        shared: Vec<(String, f64)>,
        bare_metal: Vec<(String, f64)>,
    ) -> Result<bool, NoPrices> {
        for (kind, prices) in [("shared hardware", &shared), ("bare metal", &bare_metal)] {
            if prices.is_empty() {
                return Err(NoPrices { kind });
            }
        }
        let before = self.changes.version();
        for (name, price) in shared.into_iter().chain(bare_metal) {
            if self.on_demand.get(&name) != Some(&price) {
                self.changes.of(&name);
                self.on_demand.insert(name, price);
            }
        }
        Ok(self.changes.version() != before)
    }

    /// Updates spot prices by type and zone. A type in the answer has no price in zones that are missing from it; types
    /// that are missing keep theirs. Small changes are ignored. Returns whether anything changed.
    // DIFFERS: upstream keeps prices of zones that are no longer in the answer.
    pub fn update_spot(&mut self, prices: impl IntoIterator<Item = (String, String, f64)>) -> bool {
        let mut by_type: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
        for (name, zone, price) in prices {
            by_type.entry(name).or_default().insert(zone, price);
        }
        if by_type.is_empty() {
            return false;
        }
        let before = self.changes.version();
        if !self.spot_known {
            self.spot_known = true;
            self.changes.of_all();
        }
        for (name, mut zones) in by_type {
            for (zone, price) in &mut zones {
                if let Some(known) = self.spot.get(&name).and_then(|known| known.get(zone))
                    && (*price - known).abs() < SPOT_THRESHOLD * known
                {
                    *price = *known;
                }
            }
            if self.spot.get(&name) != Some(&zones) {
                self.changes.of(&name);
                self.spot.insert(name, zones);
            }
        }
        self.changes.version() != before
    }

    /// Replaces the prices that NodeOverlays set for types without one. Returns whether anything changed.
    pub fn update_overlays(&mut self, prices: BTreeMap<String, f64>) -> bool {
        if self.overlays == prices {
            return false;
        }
        let old = std::mem::replace(&mut self.overlays, prices.clone());
        let differs = |name: &&String| old.get(*name) != prices.get(*name);
        let names: std::collections::BTreeSet<&String> = old.keys().chain(prices.keys()).collect();
        for name in names.iter().filter(|name| differs(name)) {
            self.changes.of(name);
        }
        true
    }

    /// Returns the tracked changes of prices.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }
}

/// Returns whether on-demand prices are available: GovCloud has no Pricing API, and an isolated VPC cannot reach one.
pub fn has_price_list(region: &str, isolated_vpc: bool) -> bool {
    !isolated_vpc && !region.starts_with("us-gov-")
}

pub fn currency(region: &str) -> &'static str {
    if region.starts_with("cn-") {
        "CNY"
    } else {
        "USD"
    }
}

/// Returns prices by instance type that NodeOverlays set: overlays that fix the price and require nothing but the type.
/// Overlays with greater weight win.
pub fn overlay_prices(overlays: &[Arc<NodeOverlay>]) -> BTreeMap<String, f64> {
    let mut lightest_first: Vec<&Arc<NodeOverlay>> = overlays.iter().collect();
    lightest_first.sort_by_key(|overlay| (overlay.spec.weight.unwrap_or(0), overlay.name()));
    let mut prices = BTreeMap::new();
    for overlay in lightest_first {
        let price = overlay
            .spec
            .price
            .as_deref()
            .and_then(|price| price.parse::<f64>().ok());
        let [requirement] = overlay.spec.requirements.as_slice() else {
            continue;
        };
        if requirement.key != karpenter_api::labels::INSTANCE_TYPE
            || requirement.operator != Operator::In
        {
            continue;
        }
        if let Some(price) = price {
            prices.extend(requirement.values.iter().map(|name| (name.clone(), price)));
        }
    }
    prices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::changes::Changed;

    fn on_demand(name: &str, price: f64) -> (String, f64) {
        (name.to_owned(), price)
    }

    fn spot(name: &str, zone: &str, price: f64) -> (String, String, f64) {
        (name.to_owned(), zone.to_owned(), price)
    }

    /// Conformance: AWS-pricing-01
    #[test]
    fn the_table_stays_when_the_answer_is_broken() {
        let mut pricing = Pricing::new("us-east-1");
        let before = pricing.on_demand("m5.large").unwrap();
        assert!(before > 0.0);
        let broken = pricing.update_on_demand(vec![on_demand("m5.large", 9.0)], Vec::new());
        assert_eq!(
            broken.unwrap_err().to_string(),
            "no on-demand prices of bare metal found"
        );
        assert_eq!(pricing.on_demand("m5.large"), Some(before));
        assert_eq!(
            Pricing::new("eu-west-7").on_demand("m5.large"),
            Some(before)
        );
        assert_ne!(
            Pricing::new("us-gov-west-1").on_demand("m5.large"),
            Some(before)
        );
    }

    /// Conformance: AWS-pricing-02
    #[test]
    fn a_partial_answer_keeps_other_prices() {
        let mut pricing = Pricing::new("us-east-1");
        let before = pricing.on_demand("c5.large");
        let changed = pricing
            .update_on_demand(
                vec![on_demand("m5.large", 9.0)],
                vec![on_demand("m5.metal", 10.0)],
            )
            .unwrap();
        assert!(changed);
        assert_eq!(pricing.on_demand("m5.large"), Some(9.0));
        assert_eq!(pricing.on_demand("m5.metal"), Some(10.0));
        assert_eq!(pricing.on_demand("c5.large"), before);
        pricing.update_spot([spot("m5.large", "a", 1.0), spot("c5.large", "a", 2.0)]);
        pricing.update_spot([spot("m5.large", "a", 1.5)]);
        assert_eq!(pricing.spot("m5.large", "a"), Some(1.5));
        assert_eq!(pricing.spot("c5.large", "a"), Some(2.0));
    }

    #[test]
    fn a_small_change_of_a_spot_price_is_ignored_and_small_changes_add_up() {
        let mut pricing = Pricing::new("us-east-1");
        let mut update = |price: f64| {
            let prices = [spot("m5.large", "a", price), spot("m5.large", "b", 2.0)];
            (
                pricing.update_spot(prices),
                pricing.spot("m5.large", "a").unwrap(),
            )
        };
        assert_eq!(update(1.0), (true, 1.0));
        assert_eq!(update(1.02), (false, 1.0));
        assert_eq!(update(0.97), (false, 1.0));
        assert_eq!(update(1.04), (false, 1.0));
        assert_eq!(update(1.06), (true, 1.06), "relative to the price in use");
        assert_eq!(update(1.03), (false, 1.06));
        assert_eq!(update(0.5), (true, 0.5));
    }

    /// Conformance: AWS-pricing-03, AWS-pricing-08
    #[test]
    fn govcloud_and_isolated_vpcs_use_the_table_only() {
        assert!(!has_price_list("us-gov-west-1", false));
        assert!(!has_price_list("us-west-2", true));
        assert!(has_price_list("us-west-2", false));
        assert_eq!(
            (currency("cn-north-1"), currency("us-west-2")),
            ("CNY", "USD")
        );
    }

    /// Conformance: AWS-pricing-04
    #[test]
    fn spot_prices_are_unknown_where_ec2_has_none() {
        let mut pricing = Pricing::new("us-east-1");
        assert_eq!(
            pricing.spot("m5.large", "anywhere"),
            pricing.on_demand("m5.large")
        );
        assert!(pricing.update_spot([spot("m5.large", "a", 0.5), spot("m5.large", "b", 0.6)]));
        assert_eq!(pricing.spot("m5.large", "a"), Some(0.5));
        assert_eq!(pricing.spot("m5.large", "c"), None);
        assert_eq!(pricing.spot("c5.large", "a"), None);
        assert!(
            pricing.update_spot([spot("m5.large", "a", 0.5)]),
            "zone b is missing"
        );
        assert_eq!(pricing.spot("m5.large", "b"), None);
    }

    #[test]
    fn versions_move_with_changes_only() {
        let mut pricing = Pricing::new("us-east-1");
        pricing.update_spot([spot("m5.large", "a", 0.5), spot("c5.large", "a", 0.5)]);
        assert_eq!(pricing.changes().since(0), Changed::Everything);
        let seen = pricing.changes().version();
        assert!(!pricing.update_spot([spot("m5.large", "a", 0.5)]));
        assert_eq!(pricing.changes().version(), seen);
        assert!(pricing.update_spot([spot("m5.large", "a", 0.4)]));
        let changed = pricing.changes().since(seen);
        assert_eq!(changed, Changed::These(["m5.large"].into()));
        assert!(!pricing.update_overlays(BTreeMap::new()));
        assert!(pricing.update_overlays(BTreeMap::from([("z1.new".to_owned(), 3.0)])));
        assert_eq!(pricing.overlay("z1.new"), Some(3.0));
        assert!(pricing.update_overlays(BTreeMap::new()));
    }

    /// Conformance: AWS-offering-03
    #[test]
    fn overlays_that_require_only_a_type_set_prices() {
        let overlay = |name: &str, weight: i32, spec: serde_json::Value| -> Arc<NodeOverlay> {
            let mut spec = spec;
            spec["weight"] = weight.into();
            let overlay: NodeOverlay = serde_json::from_value(
                serde_json::json!({ "metadata": { "name": name }, "spec": spec }),
            )
            .unwrap();
            overlay.into()
        };
        let types = |values: &[&str]| serde_json::json!([{ "key": "node.kubernetes.io/instance-type", "operator": "In", "values": values }]);
        let overlays = [
            overlay(
                "heavy",
                10,
                serde_json::json!({ "price": "2.5", "requirements": types(&["a.x", "b.x"]) }),
            ),
            overlay(
                "light",
                1,
                serde_json::json!({ "price": "1", "requirements": types(&["a.x", "c.x"]) }),
            ),
            overlay(
                "adjusts",
                1,
                serde_json::json!({ "priceAdjustment": "+1", "requirements": types(&["d.x"]) }),
            ),
            overlay(
                "broad",
                1,
                serde_json::json!({ "price": "1", "requirements": [{ "key": "a", "operator": "In", "values": ["e.x"] }] }),
            ),
        ];
        let all = overlay_prices(&overlays);
        assert_eq!(
            all,
            BTreeMap::from([
                ("a.x".into(), 2.5),
                ("b.x".into(), 2.5),
                ("c.x".into(), 1.0)
            ])
        );
    }
}
