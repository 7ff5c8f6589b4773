//! Instance types: generated ones, or those of a file in the same format.
//!
//! The file is a JSON array; each entry has `name`, `architecture`, `operatingSystems`, `resources` and `offerings`, an
//! offering being `{"Price": 0.1, "Requirements": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}`.
//!
//! UPSTREAM: kwok/tools/gen_instance_types.go, kwok/cloudprovider/helpers.go

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use karpenter_api::labels;
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::Offering;
use karpenter_core::quantity::Quantity;
use karpenter_core::requirements::{Operator, Requirement, Requirements};
use karpenter_core::resources::Resources;
use serde::{Deserialize, Serialize};

/// The size of an instance type: the part after the dot of AWS-style names, else its number of CPUs.
pub const INSTANCE_SIZE: &str = "karpenter.kwok.sh/instance-size";
/// The family of an instance type: the part before the first dot or dash of its name, else its first character.
pub const INSTANCE_FAMILY: &str = "karpenter.kwok.sh/instance-family";
/// The CPUs of an instance type.
pub const INSTANCE_CPU: &str = "karpenter.kwok.sh/instance-cpu";
/// The memory of an instance type as a quantity.
pub const INSTANCE_MEMORY: &str = "karpenter.kwok.sh/instance-memory";

/// The zones of the generated instance types.
pub const ZONES: [&str; 4] = ["test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"];

const CPUS: [u64; 12] = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256];
const FAMILIES: [(&str, u64); 3] = [("c", 2), ("s", 4), ("m", 8)];
const GIB: u64 = 1 << 30;

/// An instance type as written in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceTypeFile {
    /// Name, the value of `node.kubernetes.io/instance-type`.
    pub name: String,
    /// Zones, capacity types and prices of the type.
    pub offerings: Vec<OfferingFile>,
    /// `amd64` or `arm64`.
    pub architecture: String,
    pub operating_systems: Vec<String>,
    /// Capacity. Without `pods` the node can run 110 pods.
    pub resources: BTreeMap<String, K8sQuantity>,
}

/// An offering as written in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfferingFile {
    /// Dollars per hour.
    #[serde(rename = "Price", alias = "price")]
    pub price: f64,
    /// Ignored: every offering of a file is available.
    #[serde(rename = "Available", alias = "available", default)]
    pub available: bool,
    /// Number of instances left in the reservation.
    #[serde(
        rename = "ReservationCapacity",
        alias = "reservationCapacity",
        default,
        skip_serializing_if = "is_zero"
    )]
    pub reservation_capacity: u32,
    /// Labels of the offering, including zone and capacity type.
    #[serde(rename = "Requirements", alias = "requirements")]
    pub requirements: Vec<RequirementFile>,
}

/// A requirement as written in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequirementFile {
    pub key: String,
    /// `In` and the other operators.
    pub operator: String,
    #[serde(default)]
    pub values: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Why a file of instance types cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The text is not JSON of the format.
    #[error("the instance types are not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// An instance type has an invalid value.
    #[error("instance type `{name}`: {problem}")]
    Invalid {
        /// Name of the instance type.
        name: String,
        problem: String,
    },
}

/// Returns the 144 generated instance types.
#[must_use]
pub fn generate() -> Vec<InstanceTypeFile> {
    let mut types = Vec::with_capacity(144);
    for cpu in CPUS {
        for (family, factor) in FAMILIES {
            for os in ["linux", "windows"] {
                for arch in [labels::ARCH_AMD64, labels::ARCH_ARM64] {
                    types.push(generated(family, cpu, factor, arch, os));
                }
            }
        }
    }
    types
}

fn generated(family: &str, cpu: u64, factor: u64, arch: &str, os: &str) -> InstanceTypeFile {
    let memory = cpu * factor;
    let price = 0.025 * cpu as f64 + 0.001 * (memory * GIB) as f64 / 1e9;
    let offering = |zone: &str, capacity_type: &str| OfferingFile {
        price: rounded(if capacity_type == labels::CAPACITY_TYPE_SPOT {
            price * 0.7
        } else {
            price
        }),
        available: true,
        reservation_capacity: 0,
        requirements: [(labels::CAPACITY_TYPE, capacity_type), (labels::ZONE, zone)]
            .map(|(key, value)| RequirementFile {
                key: key.into(),
                operator: "In".into(),
                values: vec![value.into()],
            })
            .into(),
    };
    InstanceTypeFile {
        name: format!("{family}-{cpu}x-{arch}-{os}"),
        offerings: ZONES
            .iter()
            .flat_map(|zone| {
                [labels::CAPACITY_TYPE_SPOT, labels::CAPACITY_TYPE_ON_DEMAND]
                    .map(|ct| offering(zone, ct))
            })
            .collect(),
        architecture: arch.to_owned(),
        operating_systems: vec![os.to_owned()],
        resources: [
            ("cpu", cpu.to_string()),
            ("memory", format!("{memory}Gi")),
            ("pods", (cpu * 16).min(1024).to_string()),
            ("ephemeral-storage", "20Gi".to_owned()),
        ]
        .map(|(name, amount)| (name.to_owned(), K8sQuantity(amount)))
        .into(),
    }
}

/// Rounds off the last bits, which are noise: prices print as they do in upstream's file.
fn rounded(price: f64) -> f64 {
    (price * 1e13).round() / 1e13
}

/// Parses the entries of a file.
///
/// # Errors
/// When the text is not JSON of the format.
pub fn parse(text: &str) -> Result<Vec<InstanceTypeFile>, CatalogueError> {
    Ok(serde_json::from_str(text)?)
}

impl InstanceTypeFile {
    /// Converts the entry to the engine's instance type.
    ///
    /// # Errors
    /// When a quantity, an operator or an offering's price is invalid.
    pub fn instance_type(&self) -> Result<InstanceType, CatalogueError> {
        let invalid = |problem: String| CatalogueError::Invalid {
            name: self.name.clone(),
            problem,
        };
        let mut resources = self.resources.clone();
        resources
            .entry("pods".into())
            .or_insert_with(|| K8sQuantity("110".into()));
        let canonical = |resource: &str| -> Result<String, CatalogueError> {
            let text = resources.get(resource).map_or("0", |q| q.0.as_str());
            let quantity: Quantity = text
                .parse()
                .map_err(|_| invalid(format!("`{text}` is not a valid quantity")))?;
            Ok(quantity.to_string())
        };
        let (cpu, memory) = (canonical("cpu")?, canonical("memory")?);
        for (resource, quantity) in &resources {
            quantity.0.parse::<Quantity>().map_err(|_| {
                invalid(format!(
                    "`{}` is not a valid quantity of {resource}",
                    quantity.0
                ))
            })?;
        }

        let offerings = self
            .offerings
            .iter()
            .map(|o| o.offering().map_err(invalid))
            .collect::<Result<Vec<_>, _>>()?;
        let values = |key: &str| {
            let mut values: Vec<String> = Vec::new();
            for requirement in self
                .offerings
                .iter()
                .flat_map(|o| &o.requirements)
                .filter(|r| r.key == key)
            {
                values.extend(
                    requirement
                        .values
                        .iter()
                        .filter(|v| !values.contains(v))
                        .cloned()
                        .collect::<Vec<_>>(),
                );
            }
            values
        };
        let mut requirements = Requirements::new();
        let mut add = |key: &str, values: Vec<String>| {
            let operator = if values.is_empty() {
                Operator::DoesNotExist
            } else {
                Operator::In
            };
            requirements.add(Requirement::new(key, operator, values));
        };
        add(labels::INSTANCE_TYPE, vec![self.name.clone()]);
        add(labels::ARCH, vec![self.architecture.clone()]);
        add(labels::OS, self.operating_systems.clone());
        add(labels::ZONE, values(labels::ZONE));
        add(labels::CAPACITY_TYPE, values(labels::CAPACITY_TYPE));
        add(INSTANCE_SIZE, vec![size(&self.name, &cpu)]);
        add(INSTANCE_FAMILY, vec![family(&self.name)]);
        add(INSTANCE_CPU, vec![cpu]);
        add(INSTANCE_MEMORY, vec![memory]);

        let reserved = Resources::new().with("cpu", 100).with("memory", 10 << 20);
        let capacity =
            Resources::allocatable_from(&resources).map_err(|error| invalid(error.to_string()))?;
        let mut instance_type = InstanceType::new(&self.name, requirements, capacity);
        instance_type.offerings = offerings.into();
        instance_type.overhead = Overhead {
            kube_reserved: reserved,
            ..Overhead::default()
        };
        Ok(instance_type)
    }
}

impl OfferingFile {
    fn offering(&self) -> Result<Offering, String> {
        if !self.price.is_finite() || self.price < 0.0 {
            return Err(format!("`{}` is not a valid price", self.price));
        }
        let mut requirements = Requirements::new();
        for requirement in &self.requirements {
            let operator = Operator::from(&*requirement.operator);
            if let Operator::Other(unknown) = operator {
                return Err(format!("`{unknown}` is not a valid operator"));
            }
            requirements.add(Requirement::new(
                &requirement.key,
                operator,
                requirement.values.clone(),
            ));
        }
        let mut offering = Offering::new(requirements, self.price);
        offering.reservation_capacity = self.reservation_capacity;
        Ok(offering)
    }
}

/// Returns `large` for `m5.large`, else the number of CPUs.
fn size(name: &str, cpu: &str) -> String {
    let aws = name.split_once('.').filter(|(family, size)| {
        let word = !family.is_empty()
            && family
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_');
        let known = matches!(
            *size,
            "nano" | "micro" | "small" | "medium" | "large" | "metal"
        );
        let xlarge = size
            .strip_suffix("xlarge")
            .is_some_and(|n| n.chars().all(|c| c.is_ascii_digit()));
        word && (known || xlarge)
    });
    aws.map_or_else(|| cpu.to_owned(), |(_, size)| size.to_owned())
}

fn family(name: &str) -> String {
    match name.split_once(['.', '-']) {
        Some((family, _)) => family.to_owned(),
        None => name.chars().take(1).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types() -> Vec<InstanceType> {
        generate()
            .iter()
            .map(|t| t.instance_type().unwrap())
            .collect()
    }

    /// Conformance: API-120, API-122
    #[test]
    fn there_are_144_types_with_eight_offerings_each() {
        let types = types();
        assert_eq!(types.len(), 144);
        assert!(
            types
                .iter()
                .all(|t| t.offerings.len() == 8 && t.offerings.iter().all(|o| o.available))
        );
        let names: std::collections::BTreeSet<_> = types.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names.len(), 144);
        assert!(
            names.contains("c-1x-amd64-linux")
                && names.contains("m-256x-arm64-windows")
                && names.contains("s-48x-arm64-linux")
        );
    }

    /// Conformance: API-121
    #[test]
    fn prices_follow_the_formula_to_the_last_digit() {
        let price = |name: &str, capacity_type: &str| {
            let file = generate().into_iter().find(|t| t.name == name).unwrap();
            file.offerings
                .iter()
                .find(|o| o.requirements[0].values[0] == capacity_type)
                .unwrap()
                .price
        };
        assert_eq!(price("c-1x-amd64-linux", "on-demand"), 0.027147483648);
        assert_eq!(price("c-1x-amd64-linux", "spot"), 0.0190032385536);
        assert_eq!(price("m-256x-amd64-linux", "on-demand"), 8.599023255552);
    }

    /// Conformance: API-120
    #[test]
    fn allocatable_is_capacity_less_100_millicores_and_10_mebibytes() {
        let types = types();
        let small = types.iter().find(|t| t.name == "c-1x-amd64-linux").unwrap();
        let allocatable = small.allocatable();
        assert_eq!(allocatable.get("cpu"), 900);
        assert_eq!(allocatable.get("memory"), 2 * (1 << 30) - 10 * (1 << 20));
        assert_eq!(allocatable.get("pods"), 16);
        assert_eq!(allocatable.get("ephemeral-storage"), 20 * (1 << 30));
        let big = types
            .iter()
            .find(|t| t.name == "m-256x-arm64-linux")
            .unwrap();
        assert_eq!(big.capacity.get("pods"), 1024);
    }

    #[test]
    fn labels_describe_size_family_cpu_and_memory() {
        let types = types();
        let big = types
            .iter()
            .find(|t| t.name == "s-256x-amd64-linux")
            .unwrap();
        let value = |key: &str| big.requirements.get(key).unwrap().any().unwrap();
        assert_eq!(value(INSTANCE_SIZE), "256");
        assert_eq!(value(INSTANCE_FAMILY), "s");
        assert_eq!(value(INSTANCE_CPU), "256");
        assert_eq!(value(INSTANCE_MEMORY), "1Ti");
        assert_eq!(
            (size("m5.2xlarge", "8"), family("m5.2xlarge")),
            ("2xlarge".into(), "m5".into())
        );
        assert_eq!(
            (size("n2-standard-8", "8"), family("e2micro")),
            ("8".into(), "e".into())
        );
    }

    /// Conformance: API-130
    #[test]
    fn the_file_format_reads_what_it_writes_and_pods_default_to_110() {
        let text = serde_json::to_string(&generate()).unwrap();
        let mut read = parse(&text).unwrap();
        for offering in read.iter_mut().flat_map(|t| &mut t.offerings) {
            offering.price = rounded(offering.price);
        }
        assert!(read == generate());
        let own = r#"[{"name": "tiny", "architecture": "arm64", "operatingSystems": ["linux"],
            "resources": {"cpu": "2", "memory": "1Gi", "example.com/gpu": "1"},
            "offerings": [{"Price": 0.1, "Requirements": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z"]},
                                                         {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]}]}]"#;
        let tiny = parse(own).unwrap()[0].instance_type().unwrap();
        assert_eq!(tiny.capacity.get("pods"), 110);
        assert_eq!(tiny.capacity.get("example.com/gpu"), 1);
        assert_eq!(tiny.offerings[0].price, 0.1);
        assert!(tiny.offerings[0].available);
    }

    #[test]
    fn an_invalid_value_in_a_file_is_reported_with_its_instance_type() {
        let mut bad = generate().swap_remove(0);
        bad.resources
            .insert("cpu".into(), K8sQuantity("many".into()));
        assert_eq!(
            bad.instance_type().unwrap_err().to_string(),
            "instance type `c-1x-amd64-linux`: `many` is not a valid quantity"
        );
        let mut bad = generate().swap_remove(0);
        bad.offerings[0].price = f64::NAN;
        assert!(bad.instance_type().is_err());
        assert!(parse("{}").is_err());
    }
}
