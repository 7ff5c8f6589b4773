//! Instance types as EC2 describes them, reduced to the fields that are used.

// Tests read samples.
#[cfg(test)]
use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(Deserialize))]
pub enum Architecture {
    /// `x86_64`, `amd64` in Kubernetes.
    Amd64,
    Arm64,
}

impl Architecture {
    /// Returns the architecture with this name in EC2; `None` for those that Kubernetes nodes do not run on.
    pub fn from_ec2(name: &str) -> Option<Self> {
        match name {
            "x86_64" => Some(Self::Amd64),
            "arm64" => Some(Self::Arm64),
            _ => None,
        }
    }

    /// Returns the value of `kubernetes.io/arch`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Amd64 => karpenter_api::labels::ARCH_AMD64,
            Self::Arm64 => karpenter_api::labels::ARCH_ARM64,
        }
    }
}

/// An instance type as EC2 describes it.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub struct InstanceTypeInfo {
    pub name: String,
    /// Supported architectures in EC2's order; those that Kubernetes has no name for are left out.
    pub architectures: Vec<Architecture>,
    /// Supported usage classes: `on-demand`, `spot`, `capacity-block`.
    pub usage_classes: Vec<String>,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// `nitro` or `xen`; `None` for bare metal.
    pub hypervisor: Option<String>,
    /// Whether instances are bare metal.
    pub bare_metal: bool,
    pub cpu_manufacturer: Option<String>,
    /// Sustained clock speed in GHz.
    pub clock_ghz: Option<f64>,
    /// Whether virtual machines can run on instances.
    pub nested_virtualization: bool,
    /// Maximum EBS bandwidth in megabits per second, where EBS optimization is the default.
    pub ebs_bandwidth_mbps: Option<u32>,
    /// Network cards and interfaces.
    pub network: NetworkInfo,
    /// Instance store volumes.
    pub local_storage: Option<LocalStorage>,
    /// GPUs, one entry per kind.
    pub gpus: Vec<Gpu>,
    /// Inference accelerators, one entry per kind.
    pub accelerators: Vec<Accelerator>,
    /// Neuron devices, one entry per kind.
    pub neuron: Vec<NeuronDevice>,
    /// Whether Nitro Enclaves are supported.
    pub nitro_enclaves: bool,
    /// Placement group strategies that the instance type supports.
    pub placement_strategies: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub struct NetworkInfo {
    pub cards: Vec<NetworkCard>,
    /// Index of the card with the primary interface.
    pub default_card: u32,
    /// IPv4 addresses per interface, including the primary address.
    pub ipv4_per_interface: u32,
    /// Maximum number of Elastic Fabric Adapters.
    pub max_efa: u32,
    /// Whether ENA is supported, which interfaces on chosen cards need.
    pub ena: bool,
    /// Whether the hardware encrypts traffic between instances.
    pub encryption_in_transit: bool,
}

impl NetworkInfo {
    pub fn card(&self, index: u32) -> Option<&NetworkCard> {
        self.cards.iter().find(|card| card.index == index)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub struct NetworkCard {
    pub index: u32,
    /// Maximum number of interfaces on the card.
    pub max_interfaces: u32,
    /// Baseline bandwidth in megabits per second, if EC2 reports it.
    pub baseline_mbps: Option<u32>,
}

/// Instance store volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub struct LocalStorage {
    /// Total size in GB.
    pub total_gb: u64,
    /// Whether the volumes are NVMe.
    pub nvme: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub struct Gpu {
    pub name: String,
    pub manufacturer: String,
    pub count: u32,
    /// Memory of one GPU in MiB.
    pub memory_mib: u64,
}

/// A kind of inference accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub struct Accelerator {
    pub name: String,
    pub manufacturer: String,
    pub count: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub struct NeuronDevice {
    pub name: String,
    pub count: u32,
    /// Cores per device.
    pub cores: u32,
}
