//! Machines a provider can launch.

use crate::{
    dra::DeviceTemplate,
    offering::{Offering, Offerings},
    requirements::Requirements,
    resources::Resources,
};

/// Resources of a machine that pods cannot use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Kept for the kubelet and the container runtime.
    pub kube_reserved: Resources,
    /// Kept for the operating system.
    pub system_reserved: Resources,
    /// What must stay free before the kubelet evicts.
    pub eviction_threshold: Resources,
}

impl Overhead {
    /// The three parts added up.
    pub fn total(&self) -> Resources {
        let mut total = self.kube_reserved.clone();
        total.add_assign(&self.system_reserved);
        total.add_assign(&self.eviction_threshold);
        total
    }
}

/// A kind of machine, and where and how it can be bought.
///
/// `requirements` should define every well-known label of the provider, with `DoesNotExist` where one does not apply.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceType {
    /// Name, the value of `node.kubernetes.io/instance-type`.
    pub name: String,
    /// Labels its nodes can have.
    pub requirements: Requirements,
    /// Ways to buy it.
    pub offerings: Offerings,
    /// What the machine has.
    pub capacity: Resources,
    /// What of it pods cannot use.
    pub overhead: Overhead,
    /// Devices its nodes will publish through dynamic resource allocation.
    pub devices: Vec<DeviceTemplate>,
    /// A NodeOverlay changed the capacity.
    pub capacity_overlay: bool,
}

impl InstanceType {
    /// A type without offerings and overhead.
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

    /// What pods can use: capacity minus overhead; hugepages are taken out of memory, which does not drop below zero.
    pub fn allocatable(&self) -> Resources {
        allocatable(&self.capacity, &self.overhead.total())
    }

    /// What pods can use on a machine bought through `offering`, whose overrides replace entries of capacity and overhead.
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
    // Overhead of what the machine does not have is of no account.
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
