//! Instance types as EC2 describes them, reduced to the fields that are used.
//!
//! Parsed from the JSON of DescribeInstanceTypes (`aws ec2 describe-instance-types`), or converted from the SDK's type.

use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "wire::InstanceType")]
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
pub struct NetworkCard {
    pub index: u32,
    /// Maximum number of interfaces on the card.
    pub max_interfaces: u32,
    /// Baseline bandwidth in megabits per second, if EC2 reports it.
    pub baseline_mbps: Option<u32>,
}

/// Instance store volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalStorage {
    /// Total size in GB.
    pub total_gb: u64,
    /// Whether the volumes are NVMe.
    pub nvme: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "wire::Gpu")]
pub struct Gpu {
    pub name: String,
    pub manufacturer: String,
    pub count: u32,
    /// Memory of one GPU in MiB.
    pub memory_mib: u64,
}

/// A kind of inference accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Accelerator {
    pub name: String,
    pub manufacturer: String,
    pub count: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "wire::NeuronDevice")]
pub struct NeuronDevice {
    pub name: String,
    pub count: u32,
    /// Cores per device.
    pub cores: u32,
}

/// The structure of DescribeInstanceTypes.
mod wire {
    use serde::Deserialize;

    use super::{Accelerator, Architecture, InstanceTypeInfo, NetworkInfo};

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    pub(super) struct InstanceType {
        instance_type: String,
        supported_usage_classes: Vec<String>,
        bare_metal: bool,
        hypervisor: Option<String>,
        processor_info: ProcessorInfo,
        #[serde(rename = "VCpuInfo")]
        vcpu_info: VcpuInfo,
        memory_info: MemoryInfo,
        ebs_info: EbsInfo,
        network_info: Network,
        instance_storage_info: Option<InstanceStorage>,
        gpu_info: GpuInfo,
        inference_accelerator_info: AcceleratorInfo,
        neuron_info: NeuronInfo,
        nitro_enclaves_support: Option<String>,
        placement_group_info: PlacementGroupInfo,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct ProcessorInfo {
        supported_architectures: Vec<String>,
        sustained_clock_speed_in_ghz: Option<f64>,
        supported_features: Vec<String>,
        manufacturer: Option<String>,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct VcpuInfo {
        #[serde(rename = "DefaultVCpus")]
        default_vcpus: u32,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct MemoryInfo {
        #[serde(rename = "SizeInMiB")]
        size_in_mib: u64,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct EbsInfo {
        ebs_optimized_support: Option<String>,
        ebs_optimized_info: EbsOptimizedInfo,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct EbsOptimizedInfo {
        maximum_bandwidth_in_mbps: Option<u32>,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct Network {
        network_cards: Vec<Card>,
        default_network_card_index: u32,
        ipv4_addresses_per_interface: u32,
        maximum_network_interfaces: u32,
        efa_info: EfaInfo,
        ena_support: Option<String>,
        encryption_in_transit_supported: bool,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct Card {
        network_card_index: u32,
        maximum_network_interfaces: u32,
        baseline_bandwidth_in_gbps: Option<f64>,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct EfaInfo {
        maximum_efa_interfaces: u32,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct InstanceStorage {
        #[serde(rename = "TotalSizeInGB")]
        total_size_in_gb: u64,
        #[serde(rename = "NvmeSupport")]
        nvme_support: Option<String>,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct GpuInfo {
        gpus: Vec<super::Gpu>,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    pub(super) struct Gpu {
        name: String,
        manufacturer: String,
        count: u32,
        memory_info: MemoryInfo,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct AcceleratorInfo {
        accelerators: Vec<Accelerator>,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct NeuronInfo {
        neuron_devices: Vec<super::NeuronDevice>,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    pub(super) struct NeuronDevice {
        name: String,
        count: u32,
        core_info: CoreInfo,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct CoreInfo {
        count: u32,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct PlacementGroupInfo {
        supported_strategies: Vec<String>,
    }

    impl From<Gpu> for super::Gpu {
        fn from(gpu: Gpu) -> Self {
            Self {
                name: gpu.name,
                manufacturer: gpu.manufacturer,
                count: gpu.count,
                memory_mib: gpu.memory_info.size_in_mib,
            }
        }
    }

    impl From<NeuronDevice> for super::NeuronDevice {
        fn from(device: NeuronDevice) -> Self {
            Self {
                name: device.name,
                count: device.count,
                cores: device.core_info.count,
            }
        }
    }

    impl From<Network> for NetworkInfo {
        fn from(network: Network) -> Self {
            let mut cards: Vec<super::NetworkCard> = network
                .network_cards
                .iter()
                .map(|card| super::NetworkCard {
                    index: card.network_card_index,
                    max_interfaces: card.maximum_network_interfaces,
                    baseline_mbps: card
                        .baseline_bandwidth_in_gbps
                        .map(|gbps| (gbps * 1000.0).round() as u32),
                })
                .collect();
            // Old instance types have no list of cards.
            if cards.is_empty() && network.maximum_network_interfaces > 0 {
                cards.push(super::NetworkCard {
                    index: 0,
                    max_interfaces: network.maximum_network_interfaces,
                    baseline_mbps: None,
                });
            }
            Self {
                cards,
                default_card: network.default_network_card_index,
                ipv4_per_interface: network.ipv4_addresses_per_interface,
                max_efa: network.efa_info.maximum_efa_interfaces,
                ena: network.ena_support.as_deref() != Some("unsupported"),
                encryption_in_transit: network.encryption_in_transit_supported,
            }
        }
    }

    impl From<InstanceType> for InstanceTypeInfo {
        fn from(wire: InstanceType) -> Self {
            let supported =
                |support: &Option<String>| support.as_deref().is_some_and(|s| s != "unsupported");
            let ebs_by_default = wire.ebs_info.ebs_optimized_support.as_deref() == Some("default");
            Self {
                name: wire.instance_type,
                architectures: wire
                    .processor_info
                    .supported_architectures
                    .iter()
                    .filter_map(|name| Architecture::from_ec2(name))
                    .collect(),
                usage_classes: wire.supported_usage_classes,
                vcpus: wire.vcpu_info.default_vcpus,
                memory_mib: wire.memory_info.size_in_mib,
                hypervisor: wire.hypervisor,
                bare_metal: wire.bare_metal,
                cpu_manufacturer: wire.processor_info.manufacturer,
                clock_ghz: wire.processor_info.sustained_clock_speed_in_ghz,
                nested_virtualization: wire
                    .processor_info
                    .supported_features
                    .iter()
                    .any(|feature| feature == "nested-virtualization"),
                ebs_bandwidth_mbps: wire
                    .ebs_info
                    .ebs_optimized_info
                    .maximum_bandwidth_in_mbps
                    .filter(|_| ebs_by_default),
                network: wire.network_info.into(),
                local_storage: wire
                    .instance_storage_info
                    .map(|storage| super::LocalStorage {
                        total_gb: storage.total_size_in_gb,
                        nvme: supported(&storage.nvme_support),
                    }),
                gpus: wire.gpu_info.gpus,
                accelerators: wire.inference_accelerator_info.accelerators,
                neuron: wire.neuron_info.neuron_devices,
                nitro_enclaves: wire.nitro_enclaves_support.as_deref() == Some("supported"),
                placement_strategies: wire.placement_group_info.supported_strategies,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_type_of_ec2_is_parsed() {
        let text = include_str!("../../../tests/data/sample-instance-types.json");
        let sample: serde_json::Value = serde_json::from_str(text).unwrap();
        let types: Vec<InstanceTypeInfo> =
            serde_json::from_value(sample["instanceTypes"].clone()).unwrap();
        assert_eq!(types.len(), 17);
        let g4dn = types.iter().find(|t| t.name == "g4dn.8xlarge").unwrap();
        assert_eq!(g4dn.architectures, [Architecture::Amd64]);
        assert_eq!((g4dn.vcpus, g4dn.memory_mib), (32, 131_072));
        assert_eq!(g4dn.hypervisor.as_deref(), Some("nitro"));
        assert_eq!(g4dn.ebs_bandwidth_mbps, Some(9500));
        assert_eq!(
            g4dn.gpus,
            [Gpu {
                name: "T4".into(),
                manufacturer: "NVIDIA".into(),
                count: 1,
                memory_mib: 16_384
            }]
        );
        assert_eq!(
            g4dn.local_storage,
            Some(LocalStorage {
                total_gb: 900,
                nvme: true
            })
        );
        assert_eq!(g4dn.network.max_efa, 1);
        assert_eq!(g4dn.network.card(0).unwrap().max_interfaces, 4);
        assert_eq!(g4dn.network.ipv4_per_interface, 15);
    }
}
