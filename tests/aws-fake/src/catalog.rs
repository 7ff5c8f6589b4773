//! Catalog of EC2: instance types, the zones they are offered in, and on-demand prices.
//!
//! The data is moto's copy of EC2's public responses, and upstream Karpenter's price tables; see `data/README.md`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::Value;

use crate::REGION;
use crate::wire::shape::embedded;

/// The properties of an instance type that the stand-in uses, besides the record it returns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InstanceType {
    pub(crate) name: String,
    /// The record with EC2's element names.
    pub(crate) wire: Value,
    pub(crate) vcpus: u32,
    pub(crate) architectures: Vec<String>,
    pub(crate) virtualization_types: Vec<String>,
    pub(crate) usage_classes: Vec<String>,
    /// Maximum number of interfaces by network card index.
    pub(crate) cards: Vec<u32>,
    pub(crate) efa_interfaces: u32,
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
            virtualization_types: texts("/supportedVirtualizationTypes"),
            usage_classes: texts("/supportedUsageClasses"),
            cards: if cards.is_empty() { vec![first] } else { cards },
            efa_interfaces: number(wire.pointer("/networkInfo/efaInfo/maximumEfaInterfaces"))
                .unwrap_or(0),
            placement_strategies: texts("/placementGroupInfo/supportedStrategies"),
            wire,
        })
    }

    pub(crate) fn memory_mib(&self) -> u64 {
        let size = self.wire.pointer("/memoryInfo/sizeInMiB");
        size.and_then(Value::as_u64).unwrap_or(0)
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

#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    pub(crate) zones: Vec<(String, String)>,
    pub(crate) types: BTreeMap<String, Arc<InstanceType>>,
    /// The zones (bit i = zone i) each instance type is offered in.
    pub(crate) offered: BTreeMap<String, u32>,
    prices: HashMap<String, f64>,
}

impl Catalog {
    /// Returns what EC2 publishes about the region.
    pub(crate) fn new() -> Self {
        let Some(Offered { zones, offered }) = OFFERED.get(REGION) else {
            return Self::default();
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
        Self {
            // The prices of us-west-2 are those of us-east-1.
            prices: PRICES.get("us-east-1").cloned().unwrap_or_default(),
            zones: zones.clone(),
            types,
            offered,
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

    /// Adds an instance type that is offered in every zone.
    pub(crate) fn add(&mut self, instance_type: Arc<InstanceType>) {
        let mask = (1 << self.zones.len()) - 1;
        self.offered.insert(instance_type.name.clone(), mask);
        self.types.insert(instance_type.name.clone(), instance_type);
    }

    /// Adds the recorded instance types of all regions.
    pub(crate) fn offer_recorded(&mut self) {
        TYPES.values().cloned().for_each(|found| self.add(found));
    }
}
