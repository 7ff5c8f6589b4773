//! Instance types that a provider can launch.

use crate::dra::DeviceTemplate;
use crate::offering::{Offering, Offerings};
use crate::requirements::Requirements;
use crate::resources::Resources;

/// Resources of an instance that are not available to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq)]
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
    pub overhead: Overhead,
    /// Devices its nodes will publish through dynamic resource allocation.
    pub devices: Vec<DeviceTemplate>,
    /// Whether a NodeOverlay changed the capacity.
    pub capacity_overlay: bool,
}

impl InstanceType {
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
