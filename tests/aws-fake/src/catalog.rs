//! Catalog of EC2: instance types, the zones they are offered in, and on-demand prices.
//!
//! The data is moto's copy of EC2's public responses, and upstream Karpenter's price tables; see `data/README.md`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::Value;

use crate::wire::shape::embedded;

/// The properties of an instance type that the stand-in uses, besides the record it returns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InstanceType {
    pub(crate) name: String,
    /// The record with EC2's element names.
    pub(crate) wire: Value,
    pub(crate) vcpus: u32,
    pub(crate) architectures: Vec<String>,
    pub(crate) usage_classes: Vec<String>,
    /// Maximum number of interfaces by network card index.
    pub(crate) cards: Vec<u32>,
    pub(crate) efa_interfaces: u32,
    pub(crate) ena: bool,
    pub(crate) placement_strategies: Vec<String>,
}

impl InstanceType {
    /// Parses a record with EC2's element names; `None` if it has no name.
    pub(crate) fn new(wire: Value) -> Option<Self> {
        let texts = |pointer: &str| -> Vec<String> {
            wire.pointer(pointer)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|v| v.as_str().map(str::to_owned))
                .collect()
        };
        let number = |value: Option<&Value>| -> Option<u32> {
            value
                .and_then(Value::as_u64)
                .and_then(|n| u32::try_from(n).ok())
        };
        let cards: Vec<u32> = wire
            .pointer("/networkInfo/networkCards")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|card| number(card.get("maximumNetworkInterfaces")).unwrap_or(0))
            .collect();
        let first = number(wire.pointer("/networkInfo/maximumNetworkInterfaces")).unwrap_or(1);
        Some(Self {
            name: wire.get("instanceType")?.as_str()?.to_owned(),
            vcpus: number(wire.pointer("/vCpuInfo/defaultVCpus")).unwrap_or(1),
            architectures: texts("/processorInfo/supportedArchitectures"),
            usage_classes: texts("/supportedUsageClasses"),
            cards: if cards.is_empty() { vec![first] } else { cards },
            efa_interfaces: number(wire.pointer("/networkInfo/efaInfo/maximumEfaInterfaces"))
                .unwrap_or(0),
            ena: wire
                .pointer("/networkInfo/enaSupport")
                .and_then(Value::as_str)
                != Some("unsupported"),
            placement_strategies: texts("/placementGroupInfo/supportedStrategies"),
            wire,
        })
    }

    pub(crate) fn memory_mib(&self) -> u64 {
        let size = self.wire.pointer("/memoryInfo/sizeInMiB");
        size.and_then(Value::as_u64).unwrap_or(0)
    }

    /// Returns the number of vCPUs that count against the quota.
    pub(crate) fn default_cores(&self) -> u64 {
        self.wire
            .pointer("/vCpuInfo/defaultCores")
            .and_then(Value::as_u64)
            .unwrap_or(1)
    }
}

/// Zones of a region as name and ID, and the instance types offered in each.
#[derive(Debug, Deserialize)]
struct Offered {
    zones: Vec<(String, String)>,
    /// Instance types separated by spaces, by the set of zones (bit i = zone i) they are offered in.
    offered: BTreeMap<String, String>,
}

static TYPES: LazyLock<BTreeMap<String, Arc<InstanceType>>> = LazyLock::new(|| {
    embedded::<Vec<Value>>(include_bytes!("../data/instance-types.json.gz"))
        .unwrap_or_default()
        .into_iter()
        .filter_map(InstanceType::new)
        .map(|t| (t.name.clone(), Arc::new(t)))
        .collect()
});

static OFFERED: LazyLock<BTreeMap<String, Offered>> =
    LazyLock::new(|| embedded(include_bytes!("../data/offerings.json.gz")).unwrap_or_default());

static PRICES: LazyLock<HashMap<String, HashMap<String, f64>>> =
    LazyLock::new(|| embedded(include_bytes!("../data/prices.json.gz")).unwrap_or_default());

/// The catalog of one region.
#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    pub(crate) zones: Vec<(String, String)>,
    pub(crate) types: BTreeMap<String, Arc<InstanceType>>,
    /// The zones (bit i = zone i) each instance type is offered in.
    pub(crate) offered: BTreeMap<String, u32>,
    prices: HashMap<String, f64>,
}

impl Catalog {
    /// Returns the catalog of `region`. A region without data has three zones with the offerings of us-east-1.
    pub(crate) fn of(region: &str) -> Self {
        let (zones, offered) = match OFFERED.get(region) {
            Some(data) => (data.zones.clone(), data.offered.clone()),
            None => {
                let zones = ["a", "b", "c"]
                    .iter()
                    .zip(1..)
                    .map(|(letter, n)| {
                        (
                            format!("{region}{letter}"),
                            format!("{}-az{n}", short(region)),
                        )
                    })
                    .collect();
                let all = OFFERED
                    .get("us-east-1")
                    .map(|o| o.offered.values().cloned().collect::<Vec<_>>().join(" "));
                (
                    zones,
                    BTreeMap::from([("7".to_owned(), all.unwrap_or_default())]),
                )
            }
        };
        let offered: BTreeMap<String, u32> = offered
            .iter()
            .flat_map(|(mask, types)| {
                let mask = mask.parse().unwrap_or(0);
                types.split_whitespace().map(move |t| (t.to_owned(), mask))
            })
            .filter(|(name, _)| TYPES.contains_key(name))
            .collect();
        let types = offered
            .keys()
            .filter_map(|name| Some((name.clone(), TYPES.get(name)?.clone())))
            .collect();
        let prices = PRICES
            .get(region)
            .or_else(|| PRICES.get("us-east-1"))
            .cloned()
            .unwrap_or_default();
        Self {
            zones,
            types,
            offered,
            prices,
        }
    }

    pub(crate) fn zone_index(&self, zone: &str) -> Option<usize> {
        self.zones.iter().position(|(name, _)| name == zone)
    }

    pub(crate) fn zone_id(&self, zone: &str) -> &str {
        self.zone_index(zone)
            .map_or("", |i| self.zones[i].1.as_str())
    }

    pub(crate) fn offers(&self, instance_type: &str, zone: &str) -> bool {
        self.zone_index(zone).is_some_and(|i| {
            self.offered
                .get(instance_type)
                .is_some_and(|mask| mask >> i & 1 == 1)
        })
    }

    /// Returns the on-demand price per hour; types without a published price have one by their vCPUs.
    pub(crate) fn price(&self, instance_type: &str) -> f64 {
        self.prices
            .get(instance_type)
            .copied()
            .or_else(|| {
                self.types
                    .get(instance_type)
                    .map(|t| f64::from(t.vcpus) * 0.05)
            })
            .unwrap_or(1.0)
    }

    pub(crate) fn prices(&self) -> impl Iterator<Item = (&String, f64)> {
        self.prices.iter().map(|(name, price)| (name, *price))
    }

    pub(crate) fn set_price(&mut self, instance_type: &str, price: f64) {
        self.prices.insert(instance_type.to_owned(), price);
    }

    /// Adds or replaces an instance type, offered in `zones` (all if empty).
    pub(crate) fn add(&mut self, instance_type: InstanceType, zones: &[&str]) {
        let mask = self
            .zones
            .iter()
            .enumerate()
            .filter(|(_, (name, _))| zones.is_empty() || zones.contains(&name.as_str()))
            .fold(0, |mask, (i, _)| mask | 1 << i);
        self.offered.insert(instance_type.name.clone(), mask);
        self.types
            .insert(instance_type.name.clone(), Arc::new(instance_type));
    }
}

/// Returns the prefix of a region's zone IDs: `apse7` for `ap-southeast-7`.
fn short(region: &str) -> String {
    region
        .split('-')
        .flat_map(|part| match part {
            "northeast" => "ne".chars().collect::<Vec<_>>(),
            "southeast" => "se".chars().collect(),
            p if p.len() <= 2 => p.chars().collect(),
            p => p.chars().take(1).collect(),
        })
        .collect()
}
