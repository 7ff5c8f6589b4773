//! Instance types, offerings and spot prices.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Ec2Call;
use super::filters::{Filterable, Filters, Tags};
use crate::catalog::InstanceType;
use crate::clock::rfc3339;
use crate::wire::error::AwsError;
use crate::wire::params::Params;
use crate::wire::{Reply, xml};

/// Filters of DescribeInstanceTypes and their paths in the record; arrays on the path are searched.
const TYPE_FILTERS: &[(&str, &str)] = &[
    ("auto-recovery-supported", "autoRecoverySupported"),
    ("bare-metal", "bareMetal"),
    (
        "burstable-performance-supported",
        "burstablePerformanceSupported",
    ),
    ("current-generation", "currentGeneration"),
    ("dedicated-hosts-supported", "dedicatedHostsSupported"),
    (
        "ebs-info.ebs-optimized-support",
        "ebsInfo.ebsOptimizedSupport",
    ),
    ("ebs-info.encryption-support", "ebsInfo.encryptionSupport"),
    ("ebs-info.nvme-support", "ebsInfo.nvmeSupport"),
    ("free-tier-eligible", "freeTierEligible"),
    ("hibernation-supported", "hibernationSupported"),
    ("hypervisor", "hypervisor"),
    (
        "instance-storage-info.nvme-support",
        "instanceStorageInfo.nvmeSupport",
    ),
    ("instance-storage-supported", "instanceStorageSupported"),
    ("instance-type", "instanceType"),
    ("memory-info.size-in-mib", "memoryInfo.sizeInMiB"),
    ("network-info.efa-supported", "networkInfo.efaSupported"),
    ("network-info.ena-support", "networkInfo.enaSupport"),
    (
        "network-info.encryption-in-transit-supported",
        "networkInfo.encryptionInTransitSupported",
    ),
    ("network-info.ipv6-supported", "networkInfo.ipv6Supported"),
    ("nitro-enclaves-support", "nitroEnclavesSupport"),
    (
        "processor-info.supported-architecture",
        "processorInfo.supportedArchitectures",
    ),
    (
        "processor-info.sustained-clock-speed-in-ghz",
        "processorInfo.sustainedClockSpeedInGhz",
    ),
    ("supported-boot-mode", "supportedBootModes"),
    ("supported-root-device-type", "supportedRootDeviceTypes"),
    ("supported-usage-class", "supportedUsageClasses"),
    (
        "supported-virtualization-type",
        "supportedVirtualizationTypes",
    ),
    ("vcpu-info.default-cores", "vCpuInfo.defaultCores"),
    ("vcpu-info.default-vcpus", "vCpuInfo.defaultVCpus"),
];

static NO_TAGS: Tags = BTreeMap::new();

impl Filterable for InstanceType {
    fn values(&self, name: &str) -> Vec<String> {
        let Some((_, path)) = TYPE_FILTERS.iter().find(|(n, _)| *n == name) else {
            return vec![];
        };
        let mut found = Vec::new();
        collect(&self.wire, &mut path.split('.'), &mut found);
        found
    }

    fn tags(&self) -> &Tags {
        &NO_TAGS
    }
}

fn collect<'a>(
    value: &Value,
    path: &mut (impl Iterator<Item = &'a str> + Clone),
    out: &mut Vec<String>,
) {
    if let Value::Array(elements) = value {
        for element in elements {
            collect(element, &mut path.clone(), out);
        }
        return;
    }
    match path.next() {
        Some(name) => {
            if let Some(inner) = value.get(name) {
                collect(inner, path, out);
            }
        }
        None => match value {
            Value::String(text) => out.push(text.clone()),
            Value::Null => {}
            other => out.push(other.to_string()),
        },
    }
}

/// An offering or a spot price: a few named strings.
struct Row(Vec<(&'static str, String)>);

impl Filterable for Row {
    fn values(&self, name: &str) -> Vec<String> {
        self.0
            .iter()
            .filter(|(n, _)| *n == name)
            .map(|(_, v)| v.clone())
            .collect()
    }

    fn tags(&self) -> &Tags {
        &NO_TAGS
    }
}

/// Products that have spot prices.
const PRODUCTS: [&str; 3] = ["Linux/UNIX", "Linux/UNIX (Amazon VPC)", "Windows"];

impl Ec2Call<'_> {
    pub(crate) fn describe_instance_types(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let known: Vec<&str> = TYPE_FILTERS.iter().map(|(name, _)| *name).collect();
        let filters = Filters::read(p, &known)?;
        let names = p.texts("InstanceType");
        let types = &self.ec2.catalog.types;
        let unknown: Vec<&str> = names
            .iter()
            .copied()
            .filter(|n| !n.contains('*') && !types.contains_key(*n))
            .collect();
        if !unknown.is_empty() {
            return Err(AwsError::new(
                "InvalidInstanceType",
                format!(
                    "The following supplied instance types do not exist: [{}]",
                    unknown.join(", ")
                ),
            ));
        }
        if !names.is_empty() && p.has("MaxResults") {
            return Err(AwsError::combination(
                "The parameter instanceTypes cannot be used with the parameter maxResults",
            ));
        }
        let page = self.page(p, (5, 100))?;
        let rows = types
            .values()
            .filter(|t| names.is_empty() || names.iter().any(|n| crate::glob::matches(n, &t.name)))
            .filter(|t| filters.matches(t.as_ref()))
            .map(|t| (t.name.clone(), t));
        let (rows, token) = page.cut(rows);
        let mut out = String::from("<instanceTypeSet>");
        for row in rows {
            out.push_str("<item>");
            xml::write_members(&row.wire, "item", &mut out);
            out.push_str("</item>");
        }
        out.push_str("</instanceTypeSet>");
        xml::write_members(&json!({"nextToken": token}), "item", &mut out);
        Ok(Reply::Xml(out))
    }

    pub(crate) fn describe_instance_type_offerings(
        &mut self,
        p: Params<'_>,
    ) -> Result<Reply, AwsError> {
        let filters = Filters::read(p, &["instance-type", "location"])?;
        let page = self.page(p, (5, 1000))?;
        let catalog = &self.ec2.catalog;
        let kind = p.text("LocationType").unwrap_or("region");
        let locations: Vec<(u32, &str)> = match kind {
            "region" => vec![(u32::MAX, self.ec2.region.as_str())],
            "outpost" => vec![],
            _ => catalog
                .zones
                .iter()
                .enumerate()
                .map(|(i, (name, id))| {
                    let place = if kind == "availability-zone" {
                        name
                    } else {
                        id
                    };
                    (1 << i, place.as_str())
                })
                .collect(),
        };
        let rows = catalog.offered.iter().flat_map(|(name, mask)| {
            locations
                .iter()
                .filter(move |(bit, _)| bit & mask != 0)
                .map(move |(_, place)| (format!("{name} {place}"), name, *place))
        });
        let rows = rows
            .filter(|(_, name, place)| {
                filters.matches(&Row(vec![
                    ("instance-type", (*name).clone()),
                    ("location", (*place).to_owned()),
                ]))
            })
            .map(|(key, name, place)| {
                let wire = json!({"instanceType": name, "location": place, "locationType": kind});
                (key, wire)
            })
            .collect::<BTreeMap<_, _>>();
        let (rows, token) = page.cut(rows);
        Ok(Reply::Tree(
            json!({"instanceTypeOfferingSet": rows, "nextToken": token}),
        ))
    }

    pub(crate) fn describe_spot_price_history(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let filters = Filters::read(
            p,
            &[
                "availability-zone",
                "availability-zone-id",
                "instance-type",
                "product-description",
                "spot-price",
                "timestamp",
            ],
        )?;
        let page = self.page(p, (1, 1000))?;
        let types = p.texts("InstanceType");
        let products = p.texts("ProductDescription");
        let zone = p.text("AvailabilityZone");
        let start: Option<jiff::Timestamp> = p.text("StartTime").and_then(|t| t.parse().ok());
        let end: Option<jiff::Timestamp> = p.text("EndTime").and_then(|t| t.parse().ok());
        if let (Some(start), Some(end)) = (start, end)
            && start > end
        {
            return Err(AwsError::invalid_value(
                "startTime must not be after endTime",
            ));
        }
        let (ec2, catalog) = (&*self.ec2, &self.ec2.catalog);
        let (types, products, filters) = (&types, &products, &filters);
        let rows = catalog
            .offered
            .iter()
            .filter(|(name, _)| {
                let spot = catalog
                    .types
                    .get(*name)
                    .is_some_and(|t| t.usage_classes.iter().any(|u| u == "spot"));
                spot && (types.is_empty() || types.contains(&name.as_str()))
            })
            .flat_map(|(name, mask)| {
                let offered = catalog.zones.iter().enumerate();
                offered
                    .filter(move |(i, (z, _))| mask >> i & 1 == 1 && zone.is_none_or(|w| w == z))
                    .map(move |(_, (z, id))| (name, z, id))
            })
            .flat_map(|(name, zone, id)| {
                PRODUCTS
                    .into_iter()
                    .filter(|p| products.is_empty() || products.contains(p))
                    .map(move |product| (name, zone, id, product))
            })
            .filter_map(|(name, zone, id, product)| {
                let (price, since) = ec2.spot_price_since(name, zone)?;
                let price = if product == "Windows" {
                    price * 1.9
                } else {
                    price
                };
                let row = vec![
                    ("instance-type", name.clone()),
                    ("product-description", product.to_owned()),
                    ("spot-price", format!("{price:.6}")),
                    ("timestamp", rfc3339(since)),
                    ("availability-zone", zone.clone()),
                    ("availability-zone-id", id.clone()),
                ];
                Some((format!("{name} {zone} {product}"), Row(row)))
            })
            .filter(|(_, row)| filters.matches(row));
        let (rows, token) = page.cut(rows);
        let rows: Vec<Value> = rows
            .iter()
            .map(|Row(row)| {
                json!({
                    "instanceType": row[0].1,
                    "productDescription": row[1].1,
                    "spotPrice": row[2].1,
                    "timestamp": row[3].1,
                    "availabilityZone": row[4].1,
                    "availabilityZoneId": row[5].1,
                })
            })
            .collect();
        // EC2 ends this list with an empty token, not without one.
        let token = token.unwrap_or_default();
        Ok(Reply::Tree(
            json!({"spotPriceHistorySet": rows, "nextToken": token}),
        ))
    }
}
