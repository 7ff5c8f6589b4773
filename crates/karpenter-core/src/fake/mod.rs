//! A fake cloud for tests and examples (feature `fake`): upstream's fake instance types, and [`FakeCloud`], which offers them.
//!
//! UPSTREAM: pkg/cloudprovider/fake/instancetype.go

mod cloud;

use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::validation::WellKnown;

use crate::cluster::ClusterConfig;
use crate::instance_type::{InstanceType, Overhead};
use crate::offering::Offering;
use crate::provider::NodeClassKind;
use crate::requirements::{Operator, Requirement, Requirements};
use crate::resources::Resources;

pub use cloud::FakeCloud;

/// Well-known label: `large` with more than 4 cores and 8 GiB, else `small`.
pub const SIZE: &str = "size";
/// Well-known label: `optional` on large types, absent on others.
pub const SPECIAL: &str = "special";
/// Well-known label: the number of cores.
pub const INTEGER: &str = "integer";
/// Well-known label: the reservation.
pub const RESERVATION_ID: &str = "karpenter.test.sh/reservation-id";
/// GPU resource of the first vendor.
pub const GPU_VENDOR_A: &str = "fake.com/vendor-a";
/// GPU resource of the second vendor.
pub const GPU_VENDOR_B: &str = "fake.com/vendor-b";

const GIB: i64 = 1 << 30;
const MIB: i64 = 1 << 20;

/// Returns the well-known labels of the fake cloud.
pub fn well_known() -> WellKnown {
    WellKnown::default()
        .with_label(SIZE)
        .with_label(SPECIAL)
        .with_label(INTEGER)
        .with_label(RESERVATION_ID)
        .with_restricted_domain("karpenter.test.sh")
}

/// Returns the configuration of a cluster in the fake cloud.
pub fn cluster_config() -> ClusterConfig {
    ClusterConfig {
        well_known: well_known(),
        node_classes: vec![node_class_kind()],
        reservation_id_label: RESERVATION_ID.into(),
        ..ClusterConfig::default()
    }
}

fn node_class_kind() -> NodeClassKind {
    NodeClassKind {
        group: "karpenter.test.sh".into(),
        version: "v1alpha1".into(),
        kind: "TestNodeClass".into(),
        plural: "testnodeclasses".into(),
    }
}

/// Builds an instance type; the defaults are those of upstream's fake instance type.
#[derive(Clone, Debug)]
pub struct TypeBuilder {
    name: String,
    capacity: Resources,
    arch: String,
    os: Vec<String>,
    offerings: Option<Vec<Offering>>,
    price: Option<f64>,
    further: Vec<Requirement>,
    zones: Vec<String>,
}

/// Starts an instance type with 4 cores, 4 GiB of memory and 5 pods.
pub fn instance_type(name: &str) -> TypeBuilder {
    TypeBuilder {
        name: name.to_owned(),
        capacity: Resources::new()
            .with("cpu", 4000)
            .with("memory", 4 * GIB)
            .with("pods", 5),
        arch: labels::ARCH_AMD64.to_owned(),
        os: ["linux", "windows", "darwin"].map(str::to_owned).to_vec(),
        offerings: None,
        price: None,
        further: Vec::new(),
        zones: Vec::new(),
    }
}

/// Creates an available offering.
pub fn offering(capacity_type: &str, zone: &str, price: f64) -> Offering {
    let mut requirements: Requirements = [
        Requirement::equal(labels::CAPACITY_TYPE, capacity_type),
        Requirement::equal(labels::ZONE, zone),
    ]
    .into_iter()
    .collect();
    if capacity_type != labels::CAPACITY_TYPE_RESERVED {
        requirements.add(absent(RESERVATION_ID));
    }
    Offering::new(requirements, price)
}

fn absent(key: &str) -> Requirement {
    Requirement::new(key, Operator::DoesNotExist, [""; 0])
}

/// Creates an available offering of reserved capacity with `left` instances.
pub fn reserved(id: &str, left: u32, zone: &str, price: f64) -> Offering {
    let mut offering = offering(labels::CAPACITY_TYPE_RESERVED, zone, price);
    offering
        .requirements
        .add(Requirement::equal(RESERVATION_ID, id));
    offering.reservation_capacity = left;
    offering
}

impl TypeBuilder {
    /// Sets the number of cores.
    #[must_use]
    pub fn cpu(self, cores: i64) -> Self {
        self.resource("cpu", cores * 1000)
    }

    /// Sets the memory, in GiB.
    #[must_use]
    pub fn gib(self, gib: i64) -> Self {
        self.resource("memory", gib * GIB)
    }

    /// Sets the maximum number of pods.
    #[must_use]
    pub fn pods(self, pods: i64) -> Self {
        self.resource("pods", pods)
    }

    /// Sets any resource, in the engine's units.
    #[must_use]
    pub fn resource(mut self, name: &str, amount: i64) -> Self {
        self.capacity.set(name, amount);
        self
    }

    /// Sets the architecture.
    #[must_use]
    pub fn arch(mut self, arch: &str) -> Self {
        arch.clone_into(&mut self.arch);
        self
    }

    /// Sets the operating systems.
    #[must_use]
    pub fn os(mut self, os: &[&str]) -> Self {
        self.os = os.iter().map(|os| (*os).to_owned()).collect();
        self
    }

    /// Sets the offerings, instead of spot in two zones and on-demand in three.
    #[must_use]
    pub fn offerings(mut self, offerings: Vec<Offering>) -> Self {
        self.offerings = Some(offerings);
        self
    }

    /// Sets the price of every default offering, in dollars per hour.
    #[must_use]
    pub fn price(mut self, price: f64) -> Self {
        self.price = Some(price);
        self
    }

    /// Adds a requirement.
    #[must_use]
    pub fn requires(mut self, requirement: Requirement) -> Self {
        self.further.push(requirement);
        self
    }

    /// Sets the zones of the default offerings, spot and on-demand.
    #[must_use]
    pub fn zones(mut self, zones: &[&str]) -> Self {
        self.zones = zones.iter().map(|zone| (*zone).to_owned()).collect();
        self
    }

    /// Builds the instance type.
    pub fn build(self) -> InstanceType {
        let cores = self.capacity.get("cpu") / 1000;
        let gib = self.capacity.get("memory") / GIB;
        let large = cores > 4 && gib > 8;
        let price = self.price.unwrap_or_else(|| price(&self.capacity));
        let offerings = self.offerings.unwrap_or_else(|| {
            let zones = |all: &[&str]| -> Vec<String> {
                if self.zones.is_empty() {
                    all.iter().map(|zone| (*zone).to_owned()).collect()
                } else {
                    self.zones.clone()
                }
            };
            let spot = zones(&["test-zone-1", "test-zone-2"])
                .into_iter()
                .map(|zone| offering("spot", &zone, price));
            let on_demand = zones(&["test-zone-1", "test-zone-2", "test-zone-3"])
                .into_iter()
                .map(|zone| offering("on-demand", &zone, price));
            spot.chain(on_demand).collect()
        });
        let values = |key: &str| -> Vec<String> {
            let mut values: Vec<String> = offerings
                .iter()
                .filter(|offering| offering.available)
                .filter_map(|offering| offering.single(key))
                .map(str::to_owned)
                .collect();
            values.sort();
            values.dedup();
            values
        };
        let any_of = |key: &str, values: Vec<String>| Requirement::new(key, Operator::In, values);
        let mut requirements: Requirements = [
            Requirement::equal(labels::INSTANCE_TYPE, &self.name),
            Requirement::equal(labels::ARCH, &self.arch),
            any_of(labels::OS, self.os),
            any_of(labels::ZONE, values(labels::ZONE)),
            any_of(labels::CAPACITY_TYPE, values(labels::CAPACITY_TYPE)),
            Requirement::equal(SIZE, if large { "large" } else { "small" }),
            if large {
                Requirement::equal(SPECIAL, "optional")
            } else {
                absent(SPECIAL)
            },
            Requirement::equal(INTEGER, &cores.to_string()),
        ]
        .into_iter()
        .collect();
        let reservations = values(RESERVATION_ID);
        requirements.add(if reservations.is_empty() {
            absent(RESERVATION_ID)
        } else {
            any_of(RESERVATION_ID, reservations)
        });
        self.further
            .into_iter()
            .for_each(|requirement| requirements.replace(requirement));
        let mut instance_type = InstanceType::new(&self.name, requirements, self.capacity);
        instance_type.offerings = offerings.into();
        instance_type.overhead = Overhead {
            kube_reserved: Resources::new().with("cpu", 100).with("memory", 10 * MIB),
            ..Overhead::default()
        };
        instance_type
    }
}

/// Returns the price of an instance in dollars per hour: 0.1 per core and per gigabyte, and 1 for each GPU vendor.
pub fn price(capacity: &Resources) -> f64 {
    let gpus = [GPU_VENDOR_A, GPU_VENDOR_B]
        .iter()
        .filter(|gpu| capacity.get(gpu) != 0)
        .count();
    0.1 * (capacity.get("cpu") as f64 / 1000.0)
        + 0.1 * (capacity.get("memory") as f64 / 1e9)
        + gpus as f64
}

/// Returns upstream's default instance types.
pub fn catalogue() -> Arc<[InstanceType]> {
    [
        instance_type("default-instance-type"),
        instance_type("small-instance-type").cpu(2).gib(2),
        instance_type("gpu-vendor-instance-type").resource(GPU_VENDOR_A, 2),
        instance_type("gpu-vendor-b-instance-type").resource(GPU_VENDOR_B, 2),
        instance_type("arm-instance-type")
            .arch("arm64")
            .os(&["ios", "linux", "windows", "darwin"])
            .cpu(16)
            .gib(128),
        instance_type("single-pod-instance-type").pods(1),
    ]
    .into_iter()
    .map(TypeBuilder::build)
    .collect()
}

/// Returns `fake-it-0` to `fake-it-<count - 1>`: the i-th has i+1 cores, 2(i+1) GiB and room for 10(i+1) pods.
pub fn instance_types(count: i64) -> Arc<[InstanceType]> {
    (0..count)
        .map(|index| {
            instance_type(&format!("fake-it-{index}"))
                .cpu(index + 1)
                .gib(2 * (index + 1))
                .pods(10 * (index + 1))
                .build()
        })
        .collect()
}

/// Returns all combinations of 1 to 64 cores and 1 to 128 GiB in powers of two, three zones, two capacity types, two operating
/// systems and two architectures: 1344 types with one offering each.
pub fn assorted() -> Arc<[InstanceType]> {
    let mut all = Vec::new();
    for cpu in (0..7).map(|power| 1 << power) {
        for gib in (0..8).map(|power| 1 << power) {
            for zone in ["test-zone-1", "test-zone-2", "test-zone-3"] {
                for capacity_type in ["spot", "on-demand"] {
                    for os in ["linux", "windows"] {
                        for arch in ["amd64", "arm64"] {
                            let name =
                                format!("{cpu}-cpu-{gib}-mem-{arch}-{os}-{zone}-{capacity_type}");
                            let builder = instance_type(&name)
                                .cpu(cpu)
                                .gib(gib)
                                .pods(5)
                                .arch(arch)
                                .os(&[os]);
                            let price = price(&builder.capacity);
                            all.push(
                                builder
                                    .offerings(vec![offering(capacity_type, zone, price)])
                                    .build(),
                            );
                        }
                    }
                }
            }
        }
    }
    all.into()
}

/// Returns types of 2, 4 and 8 GiB per core, from 1 to 192 cores, in three zones, on demand and as spot for 0.6 of the price; later
/// generations are more expensive. The catalogue of the benchmarks.
pub fn families(count: usize) -> Arc<[InstanceType]> {
    let cores = [1, 2, 4, 8, 16, 32, 48, 64, 96, 192];
    let of = |index: usize| {
        let (cpu, ratio) = (cores[index % 10], [2, 4, 8][index / 10 % 3]);
        let price =
            (0.03 * cpu as f64 + 0.004 * (cpu * ratio) as f64) * (1.0 + 0.01 * (index / 30) as f64);
        let zones = ["test-zone-1", "test-zone-2", "test-zone-3"].iter();
        let offers = zones.flat_map(|zone| {
            [("spot", 0.6), ("on-demand", 1.0)]
                .map(|(kind, factor)| offering(kind, zone, price * factor))
        });
        instance_type(&format!("g{}-{ratio}-{cpu}x", index / 30))
            .cpu(cpu)
            .gib(cpu * ratio)
            .pods((cpu * 15).clamp(8, 110))
            .offerings(offers.collect())
            .build()
    };
    (0..count).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(instance_type: &InstanceType, key: &str) -> String {
        let requirement = instance_type.requirements.get(key).unwrap();
        let mut values: Vec<_> = requirement.values().map(str::to_owned).collect();
        values.sort();
        values.join(",")
    }

    /// Conformance: API-140
    #[test]
    fn a_type_has_upstreams_defaults() {
        let built = instance_type("x").build();
        let capacity = |name: &str| built.capacity.get(name);
        assert_eq!(
            (capacity("cpu"), capacity("memory"), capacity("pods")),
            (4000, 4 * GIB, 5)
        );
        assert_eq!(
            (text(&built, labels::ARCH), text(&built, labels::OS)),
            ("amd64".into(), "darwin,linux,windows".into())
        );
        assert_eq!(built.allocatable().get("cpu"), 3900);
        assert_eq!(built.allocatable().get("memory"), 4 * GIB - 10 * MIB);
        let offered: Vec<_> = built
            .offerings
            .iter()
            .map(|o| (o.capacity_type().unwrap(), o.zone().unwrap(), o.available))
            .collect();
        let expected = [
            ("spot", "test-zone-1", true),
            ("spot", "test-zone-2", true),
            ("on-demand", "test-zone-1", true),
            ("on-demand", "test-zone-2", true),
            ("on-demand", "test-zone-3", true),
        ];
        assert_eq!(offered, expected);
        let expected = 0.4 + 0.1 * (4 * GIB) as f64 / 1e9;
        assert!(
            built
                .offerings
                .iter()
                .all(|o| (o.price - expected).abs() < 1e-12)
        );
        let gpus = instance_type("x").resource(GPU_VENDOR_A, 2).build();
        assert!(
            (gpus.offerings[0].price - expected - 1.0).abs() < 1e-12,
            "a dollar for GPUs, however many"
        );
    }

    /// Conformance: API-141
    #[test]
    fn size_special_and_integer_are_well_known() {
        let names = well_known();
        assert!(
            [SIZE, SPECIAL, INTEGER]
                .iter()
                .all(|label| names.contains(label))
        );
        let (small, large) = (
            instance_type("s").build(),
            instance_type("l").cpu(8).gib(16).build(),
        );
        assert_eq!(
            (text(&small, SIZE), text(&large, SIZE)),
            ("small".into(), "large".into())
        );
        assert_eq!(
            small.requirements.get(SPECIAL).unwrap().operator(),
            Operator::DoesNotExist
        );
        assert_eq!(text(&large, SPECIAL), "optional");
        assert_eq!(
            (text(&small, INTEGER), text(&large, INTEGER)),
            ("4".into(), "8".into())
        );
    }

    /// Conformance: API-142
    #[test]
    fn the_catalogue_has_upstreams_types_and_sizes() {
        let types = catalogue();
        let all: Vec<_> = types
            .iter()
            .map(|t| {
                let size = ["cpu", "memory", "pods", GPU_VENDOR_A, GPU_VENDOR_B]
                    .map(|name| t.capacity.get(name));
                let values = |key: &str| {
                    let values = t.requirements.get(key).unwrap().values();
                    values.collect::<Vec<_>>().join(" ")
                };
                let system = format!("{}: {}", values(labels::ARCH), values(labels::OS));
                (t.name.as_str(), size, system)
            })
            .collect();
        let usual = || "amd64: darwin linux windows".to_owned();
        let expected = [
            ("default-instance-type", [4000, 4 * GIB, 5, 0, 0], usual()),
            ("small-instance-type", [2000, 2 * GIB, 5, 0, 0], usual()),
            (
                "gpu-vendor-instance-type",
                [4000, 4 * GIB, 5, 2, 0],
                usual(),
            ),
            (
                "gpu-vendor-b-instance-type",
                [4000, 4 * GIB, 5, 0, 2],
                usual(),
            ),
            (
                "arm-instance-type",
                [16_000, 128 * GIB, 5, 0, 0],
                "arm64: darwin ios linux windows".to_owned(),
            ),
            (
                "single-pod-instance-type",
                [4000, 4 * GIB, 1, 0, 0],
                usual(),
            ),
        ];
        assert_eq!(all, expected);
    }

    /// Conformance: API-143
    #[test]
    fn generated_types_grow_one_by_one() {
        let types = instance_types(100);
        assert_eq!(types.len(), 100);
        for (i, instance_type) in (0..).zip(types.iter()) {
            let capacity = |name: &str| instance_type.capacity.get(name);
            assert_eq!(instance_type.name, format!("fake-it-{i}"));
            let expected = ((i + 1) * 1000, 2 * (i + 1) * GIB, 10 * (i + 1));
            assert_eq!(
                (capacity("cpu"), capacity("memory"), capacity("pods")),
                expected
            );
        }
    }

    /// Conformance: API-144
    #[test]
    fn assorted_types_are_all_combinations_with_one_offering_each() {
        let types = assorted();
        assert_eq!(types.len(), 1344);
        assert!(types.iter().all(|t| t.offerings.len() == 1));
        let names: std::collections::BTreeSet<_> = types.iter().map(|t| &t.name).collect();
        assert_eq!(names.len(), 1344);
    }
}
