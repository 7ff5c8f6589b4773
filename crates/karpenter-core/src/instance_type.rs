//! Instance types that a provider can launch.

use karpenter_api::labels;
use serde::{Deserialize, Serialize};

use crate::dra::DeviceTemplate;
use crate::offering::{Offering, Offerings};
use crate::requirements::{Operator, Requirement, Requirements};
use crate::resources::Resources;

/// Resources of an instance that are not available to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Overhead {
    /// Reserved for the kubelet and the container runtime.
    pub kube_reserved: Resources,
    /// Reserved for the operating system.
    pub system_reserved: Resources,
    /// The amount below which the kubelet evicts pods.
    pub eviction_threshold: Resources,
}

impl Overhead {
    /// Returns the sum of the three parts.
    pub fn total(&self) -> Resources {
        let mut total = self.kube_reserved.clone();
        total.add_assign(&self.system_reserved);
        total.add_assign(&self.eviction_threshold);
        total
    }
}

/// An instance type, with its offerings.
///
/// `requirements` should define every well-known label of the provider, with `DoesNotExist` where one does not apply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceType {
    /// Name, the value of `node.kubernetes.io/instance-type`.
    pub name: String,
    /// Labels its nodes can have.
    pub requirements: Requirements,
    /// Combinations of zone, capacity type and price in which it is offered.
    pub offerings: Offerings,
    /// Total resources of an instance.
    pub capacity: Resources,
    /// The part of `capacity` that is not available to pods.
    #[serde(default)]
    pub overhead: Overhead,
    /// Devices its nodes will publish through dynamic resource allocation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceTemplate>,
    /// Whether a NodeOverlay changed the capacity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capacity_overlay: bool,
}

impl InstanceType {
    /// Creates an instance type for Linux without offerings and overhead, with the labels that most pods and NodePools ask for:
    /// instance type, architecture (`amd64`, `arm64`) and operating system.
    ///
    /// ```
    /// use karpenter_core::instance_type::InstanceType;
    /// use karpenter_core::offering::{Offering, Price};
    /// use karpenter_core::resources::Resources;
    ///
    /// // CPUs are counted in thousandths, other resources in whole units.
    /// let capacity = Resources::new().with("cpu", 4000).with("memory", 8 << 30).with("pods", 110);
    /// let small = InstanceType::linux("small", "amd64", capacity)
    ///     .with_offering(Offering::on_demand("hall-1", Price::per_hour(0.10)))
    ///     .with_offering(Offering::spot("hall-2", Price::per_hour(0.04)));
    /// assert_eq!(small.offerings.len(), 2);
    /// ```
    pub fn linux(name: &str, arch: &str, capacity: Resources) -> Self {
        let labels = [
            (labels::INSTANCE_TYPE, name),
            (labels::ARCH, arch),
            (labels::OS, "linux"),
        ];
        Self::new(name, labels.into_iter().collect(), capacity)
    }

    /// Creates an instance type without offerings and overhead.
    pub fn new(name: &str, requirements: Requirements, capacity: Resources) -> Self {
        Self {
            name: name.to_owned(),
            requirements,
            offerings: Offerings::default(),
            capacity,
            overhead: Overhead::default(),
            devices: Vec::new(),
            capacity_overlay: false,
        }
    }

    /// Adds an offering. The zones of all offerings are values of the instance type's own zone label.
    #[must_use]
    pub fn with_offering(mut self, offering: Offering) -> Self {
        if let Some(zone) = offering.zone() {
            let known = self.requirements.get(labels::ZONE);
            let zones = known.into_iter().flat_map(Requirement::values);
            let zones: Vec<&str> = zones.chain([zone]).collect();
            let zones = Requirement::new(labels::ZONE, Operator::In, zones);
            self.requirements.replace(zones);
        }
        self.offerings.push(offering);
        self
    }

    /// Sets the part of the capacity that is not available to pods.
    #[must_use]
    pub fn with_overhead(self, overhead: Overhead) -> Self {
        Self { overhead, ..self }
    }

    /// Sets the values that its nodes can have for one label more.
    #[must_use]
    pub fn with_requirement(mut self, requirement: Requirement) -> Self {
        self.requirements.replace(requirement);
        self
    }

    /// Returns the resources available to pods: capacity minus overhead; hugepages are subtracted from memory, at least zero.
    pub fn allocatable(&self) -> Resources {
        allocatable(&self.capacity, &self.overhead.total())
    }

    /// Returns the resources available to pods on an instance of `offering`, whose overrides replace entries of capacity and
    /// overhead.
    pub fn allocatable_of(&self, offering: &Offering) -> Resources {
        let mut capacity = self.capacity.clone();
        let mut overhead = self.overhead.total();
        for (name, value) in offering.capacity_override.iter().flat_map(Resources::iter) {
            capacity.set(name, value);
        }
        for (name, value) in offering.overhead_override.iter().flat_map(Resources::iter) {
            overhead.set(name, value);
        }
        allocatable(&capacity, &overhead)
    }
}

fn allocatable(capacity: &Resources, overhead: &Resources) -> Resources {
    // Overhead of a resource that the instance does not have is ignored.
    let mut allocatable = Resources::new();
    for (name, value) in capacity.iter() {
        allocatable.set(name, value.saturating_sub(overhead.get(name)));
    }
    let huge = capacity
        .iter()
        .filter(|(name, _)| name.starts_with("hugepages-"))
        .fold(0_i64, |sum, (_, value)| sum.saturating_add(value));
    if huge != 0 {
        allocatable.set(
            "memory",
            allocatable.get("memory").saturating_sub(huge).max(0),
        );
    }
    allocatable
}
