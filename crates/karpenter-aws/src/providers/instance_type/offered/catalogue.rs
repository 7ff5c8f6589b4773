//! Instance types, zones and prices, as AWS returns them.
//!
//! UPSTREAM: pkg/providers/instancetype/instancetype.go, pkg/providers/pricing/pricing.go

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types as ec2;
use aws_sdk_pricing::types as pricing;
use jiff::Timestamp;
use serde_json::Value;

use crate::providers::instance_type::{
    Accelerator, Architecture, Gpu, InstanceTypeInfo, LocalStorage, NetworkCard, NetworkInfo,
    NeuronDevice,
};
use crate::providers::pricing::currency;
use crate::sdk::pages::{each_page, list_all};
use crate::sdk::terms::filter;
use crate::sdk::{Aws, AwsError};

/// Largest page of DescribeInstanceTypes.
const TYPES_PAGE: i32 = 100;
/// Largest page of the other lists.
const PAGE: i32 = 1000;
/// Largest page of GetProducts.
const PRODUCTS_PAGE: i32 = 100;

/// Returns all instance types that Kubernetes nodes can run on.
///
/// # Errors
/// If the call to EC2 fails.
pub async fn instance_types(aws: &Aws) -> Result<Vec<InstanceTypeInfo>, AwsError> {
    let filters = vec![
        filter("supported-virtualization-type", ["hvm"]),
        filter("processor-info.supported-architecture", ["x86_64", "arm64"]),
    ];
    let filters = &filters;
    let ask = |token: Option<String>| {
        aws.ec2("DescribeInstanceTypes", move |client| {
            client
                .describe_instance_types()
                .set_filters(Some(filters.clone()))
                .max_results(TYPES_PAGE)
                .set_next_token(token.clone())
                .send()
        })
    };
    list_all(ask, |page| {
        let types = page.instance_types.unwrap_or_default().into_iter();
        types.map(|raw| InstanceTypeInfo::from(&raw))
    })
    .await
}

/// Returns the zones each instance type is offered in.
///
/// # Errors
/// If the call to EC2 fails.
pub async fn zones(aws: &Aws) -> Result<BTreeMap<String, BTreeSet<String>>, AwsError> {
    let ask = |token: Option<String>| {
        aws.ec2("DescribeInstanceTypeOfferings", move |client| {
            client
                .describe_instance_type_offerings()
                .location_type(ec2::LocationType::AvailabilityZone)
                .max_results(PAGE)
                .set_next_token(token.clone())
                .send()
        })
    };
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    each_page(ask, |page| {
        for offering in page.instance_type_offerings() {
            if let (Some(t), Some(zone)) = (offering.instance_type(), offering.location()) {
                let zones = found.entry(t.as_str().to_owned()).or_default();
                zones.insert(zone.to_owned());
            }
        }
    })
    .await?;
    Ok(found)
}

/// Returns spot prices in dollars per hour, by instance type and zone.
///
/// # Errors
/// If the call to EC2 fails.
pub async fn spot_prices(
    aws: &Aws,
    now: Timestamp,
) -> Result<Vec<(String, String, f64)>, AwsError> {
    let start = aws_smithy_types::DateTime::from_secs(now.as_second());
    let ask = |token: Option<String>| {
        aws.ec2("DescribeSpotPriceHistory", move |client| {
            client
                .describe_spot_price_history()
                .start_time(start)
                .product_descriptions("Linux/UNIX")
                .product_descriptions("Linux/UNIX (Amazon VPC)")
                .max_results(PAGE)
                .set_next_token(token.clone())
                .send()
        })
    };
    let mut newest: BTreeMap<(String, String), (i64, f64)> = BTreeMap::new();
    each_page(ask, |page| {
        for raw in page.spot_price_history() {
            let price = raw.spot_price().and_then(amount);
            if let (Some(t), Some(zone), Some(price)) =
                (raw.instance_type(), raw.availability_zone(), price)
            {
                let at = raw.timestamp().map_or(0, |t| t.secs());
                let key = (t.as_str().to_owned(), zone.to_owned());
                let entry = newest.entry(key).or_insert((at, price));
                if at > entry.0 {
                    *entry = (at, price);
                }
            }
        }
    })
    .await?;
    Ok(newest
        .into_iter()
        .map(|((t, zone), (_, price))| (t, zone, price))
        .collect())
}

/// Prices by instance type, in dollars per hour; in China in yuan.
pub type Prices = BTreeMap<String, f64>;

/// Returns on-demand prices of instances on shared hardware, and of bare metal.
///
/// # Errors
/// If the call to the Pricing API fails.
pub async fn on_demand_prices(aws: &Aws) -> Result<(Prices, Prices), AwsError> {
    let shared = [("tenancy", "Shared"), ("productFamily", "Compute Instance")];
    let metal = [
        ("tenancy", "Dedicated"),
        ("productFamily", "Compute Instance (bare metal)"),
    ];
    let (shared, metal) = futures::join!(products(aws, &shared), products(aws, &metal));
    Ok((shared?, metal?))
}

async fn products(aws: &Aws, more: &[(&str, &str)]) -> Result<Prices, AwsError> {
    let common = [
        ("regionCode", aws.region()),
        ("serviceCode", "AmazonEC2"),
        ("preInstalledSw", "NA"),
        ("operatingSystem", "Linux"),
        ("capacitystatus", "Used"),
        ("marketoption", "OnDemand"),
    ];
    let filters: Vec<pricing::Filter> = common
        .iter()
        .chain(more)
        .filter_map(|(field, value)| {
            pricing::Filter::builder()
                .field(*field)
                .r#type(pricing::FilterType::TermMatch)
                .value(*value)
                .build()
                .ok()
        })
        .collect();
    let currency = currency(aws.region());
    let filters = &filters;
    let ask = |token: Option<String>| {
        aws.pricing("GetProducts", move |client| {
            client
                .get_products()
                .service_code("AmazonEC2")
                .set_filters(Some(filters.clone()))
                .max_results(PRODUCTS_PAGE)
                .set_next_token(token.clone())
                .send()
        })
    };
    let mut found = BTreeMap::new();
    each_page(ask, |page| {
        let list = page.price_list().iter();
        found.extend(list.filter_map(|text| price(text, currency)));
    })
    .await?;
    Ok(found)
}

/// Returns instance type and price of an entry of the price list.
fn price(text: &str, currency: &str) -> Option<(String, f64)> {
    let entry: Value = serde_json::from_str(text).ok()?;
    let name = entry["product"]["attributes"]["instanceType"].as_str()?;
    let terms = entry["terms"]["OnDemand"].as_object()?;
    let price = terms
        .values()
        .filter_map(|term| term["priceDimensions"].as_object())
        .flat_map(|dimensions| dimensions.values())
        .find_map(|dimension| amount(dimension["pricePerUnit"][currency].as_str()?))?;
    Some((name.to_owned(), price))
}

/// Parses a price. Zero counts as unknown, because it would be preferred to every other offering.
fn amount(text: &str) -> Option<f64> {
    let price: f64 = text.parse().ok()?;
    (price.is_finite() && price > 0.0).then_some(price)
}

fn small(n: Option<i32>) -> u32 {
    n.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

fn large(n: Option<i64>) -> u64 {
    n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

impl From<&ec2::InstanceTypeInfo> for InstanceTypeInfo {
    fn from(raw: &ec2::InstanceTypeInfo) -> Self {
        let processor = raw.processor_info();
        let ebs = raw.ebs_info();
        let by_default =
            ebs.and_then(|e| e.ebs_optimized_support()) == Some(&ec2::EbsOptimizedSupport::Default);
        Self {
            name: raw
                .instance_type()
                .map(|t| t.as_str().to_owned())
                .unwrap_or_default(),
            architectures: processor
                .map(|p| p.supported_architectures())
                .unwrap_or_default()
                .iter()
                .filter_map(|a| Architecture::from_ec2(a.as_str()))
                .collect(),
            usage_classes: raw
                .supported_usage_classes()
                .iter()
                .map(|c| c.as_str().to_owned())
                .collect(),
            vcpus: small(raw.v_cpu_info().and_then(|v| v.default_v_cpus())),
            memory_mib: large(raw.memory_info().and_then(|m| m.size_in_mib())),
            hypervisor: raw
                .hypervisor()
                .map(|h| h.as_str().to_owned())
                .filter(|h| !h.is_empty()),
            bare_metal: raw.bare_metal().unwrap_or(false),
            cpu_manufacturer: processor.and_then(|p| p.manufacturer()).map(str::to_owned),
            clock_ghz: processor.and_then(|p| p.sustained_clock_speed_in_ghz()),
            nested_virtualization: processor
                .map(|p| p.supported_features())
                .unwrap_or_default()
                .iter()
                .any(|f| f.as_str() == "nested-virtualization"),
            ebs_bandwidth_mbps: ebs
                .and_then(|e| e.ebs_optimized_info())
                .and_then(|i| i.maximum_bandwidth_in_mbps())
                .filter(|_| by_default)
                .map(|n| small(Some(n))),
            network: raw.network_info().map(network).unwrap_or_default(),
            local_storage: raw.instance_storage_info().map(|s| LocalStorage {
                total_gb: large(s.total_size_in_gb()),
                nvme: s
                    .nvme_support()
                    .is_some_and(|n| *n != ec2::EphemeralNvmeSupport::Unsupported),
            }),
            gpus: raw
                .gpu_info()
                .map(|g| g.gpus())
                .unwrap_or_default()
                .iter()
                .map(|g| Gpu {
                    name: g.name().unwrap_or_default().to_owned(),
                    manufacturer: g.manufacturer().unwrap_or_default().to_owned(),
                    count: small(g.count()),
                    memory_mib: u64::from(small(g.memory_info().and_then(|m| m.size_in_mib()))),
                })
                .collect(),
            accelerators: raw
                .inference_accelerator_info()
                .map(|a| a.accelerators())
                .unwrap_or_default()
                .iter()
                .map(|a| Accelerator {
                    name: a.name().unwrap_or_default().to_owned(),
                    manufacturer: a.manufacturer().unwrap_or_default().to_owned(),
                    count: small(a.count()),
                })
                .collect(),
            neuron: raw
                .neuron_info()
                .map(|n| n.neuron_devices())
                .unwrap_or_default()
                .iter()
                .map(|n| NeuronDevice {
                    name: n.name().unwrap_or_default().to_owned(),
                    count: small(n.count()),
                    cores: small(n.core_info().and_then(|c| c.count())),
                })
                .collect(),
            nitro_enclaves: raw.nitro_enclaves_support()
                == Some(&ec2::NitroEnclavesSupport::Supported),
            placement_strategies: raw
                .placement_group_info()
                .map(|p| p.supported_strategies())
                .unwrap_or_default()
                .iter()
                .map(|s| s.as_str().to_owned())
                .collect(),
        }
    }
}

fn network(raw: &ec2::NetworkInfo) -> NetworkInfo {
    let mut cards: Vec<NetworkCard> = raw
        .network_cards()
        .iter()
        .map(|card| NetworkCard {
            index: small(card.network_card_index()),
            max_interfaces: small(card.maximum_network_interfaces()),
            baseline_mbps: card
                .baseline_bandwidth_in_gbps()
                .map(|gbps| (gbps * 1000.0).round() as u32),
        })
        .collect();
    let interfaces = small(raw.maximum_network_interfaces());
    // Old instance types have no list of cards.
    if cards.is_empty() && interfaces > 0 {
        cards.push(NetworkCard {
            index: 0,
            max_interfaces: interfaces,
            baseline_mbps: None,
        });
    }
    NetworkInfo {
        cards,
        default_card: small(raw.default_network_card_index()),
        ipv4_per_interface: small(raw.ipv4_addresses_per_interface()),
        max_efa: small(raw.efa_info().and_then(|e| e.maximum_efa_interfaces())),
        ena: raw
            .ena_support()
            .is_none_or(|e| *e != ec2::EnaSupport::Unsupported),
        encryption_in_transit: raw.encryption_in_transit_supported().unwrap_or(false),
    }
}
