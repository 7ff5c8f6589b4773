//! Capacity of an instance type, and the overhead that pods cannot use.
//!
//! UPSTREAM: pkg/providers/instancetype/types.go

use karpenter_core::instance_type::Overhead;
use karpenter_core::quantity::Quantity;
use karpenter_core::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources};

use super::{Architecture, InstanceTypeInfo, Shape, tables};
use crate::api::BlockDeviceMapping;
use crate::api::labels::resources;
use crate::kubelet::{Evaluator, ExpressionError, Reserved, Variables};

const KIB: i64 = 1 << 10;
const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
/// Maximum number of pods if neither the kubelet settings nor the network interfaces limit it.
const DEFAULT_PODS: i64 = 110;
/// Memory of arm64 instances that the operating system hides, in MiB.
const ARM64_HIDDEN_MIB: u64 = 64;

/// Operator options that determine capacity and overhead of instance types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeSettings {
    /// Share of memory that the hypervisor and the operating system use, an estimate until a node has registered.
    pub vm_memory_overhead_percent: f64,
    /// Number of network interfaces that are not for pods.
    pub reserved_enis: u32,
}

/// Capacity of an instance type, and the overhead that pods cannot use.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    pub capacity: Resources,
    /// Overhead that pods cannot use: kube-reserved, system-reserved, eviction threshold.
    pub overhead: Overhead,
    /// The kubelet's settings with expressions evaluated.
    pub kubelet: ResolvedKubelet,
}

/// Settings of the kubelet for one instance type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResolvedKubelet {
    /// Maximum number of pods.
    pub max_pods: i64,
    /// The user's kube-reserved entries.
    pub kube_reserved: Reserved,
    /// The user's system-reserved entries.
    pub system_reserved: Reserved,
}

/// Returns capacity and overhead of an instance type in a class. Reserved resources that cannot be evaluated are left
/// out and returned as errors.
///
/// # Errors
/// If the maximum number of pods cannot be evaluated.
pub fn size(
    info: &InstanceTypeInfo,
    shape: &Shape,
    kubelet: &Evaluator,
    settings: SizeSettings,
) -> Result<(Size, Vec<ExpressionError>), ExpressionError> {
    let default_pods = if shape.family.supports_eni_limited_pod_density() {
        eni_limited_pods(info, shape, settings.reserved_enis)
    } else {
        DEFAULT_PODS
    };
    let variables = |max_pods: i64| Variables {
        vcpus: i64::from(info.vcpus),
        memory_mib: i64::try_from(info.memory_mib).unwrap_or(i64::MAX),
        default_enis: i64::from(default_card_interfaces(info)),
        ips_per_eni: i64::from(info.network.ipv4_per_interface),
        max_pods,
        instance_type: info.name.clone(),
    };
    let mut pods = kubelet
        .max_pods(|| variables(default_pods))?
        .unwrap_or(default_pods);
    if let Some(per_core) = shape.kubelet.pods_per_core.filter(|per_core| *per_core > 0)
        && shape.family.supports_pods_per_core()
    {
        pods = pods.min(per_core.saturating_mul(i64::from(info.vcpus)));
    }
    let (kube_reserved, system_reserved, problems) = kubelet.reserved(|| variables(pods));

    let memory = memory(info, settings.vm_memory_overhead_percent);
    let storage = ephemeral_storage(info, shape);
    let capacity = capacity(info, shape, memory, storage, pods);
    let counted = if shape.family.uses_eni_limited_memory_overhead() {
        eni_limited_pods(info, shape, 0)
    } else {
        pods
    };
    let overhead = Overhead {
        kube_reserved: overridden(default_kube_reserved(info.vcpus, counted), &kube_reserved),
        system_reserved: overridden(Resources::new(), &system_reserved),
        eviction_threshold: eviction_threshold(shape, memory, storage),
    };
    let kubelet = ResolvedKubelet {
        max_pods: pods,
        kube_reserved,
        system_reserved,
    };
    Ok((
        Size {
            capacity,
            overhead,
            kubelet,
        },
        problems,
    ))
}

fn capacity(
    info: &InstanceTypeInfo,
    shape: &Shape,
    memory: i64,
    storage: i64,
    pods: i64,
) -> Resources {
    let mut capacity: Resources = [
        (CPU, i64::from(info.vcpus) * 1000),
        (MEMORY, memory),
        (EPHEMERAL_STORAGE, storage),
        (PODS, pods),
    ]
    .into_iter()
    .collect();
    let mut put = |name: &str, amount: u64| {
        if amount > 0 {
            capacity.set(name, i64::try_from(amount).unwrap_or(i64::MAX));
        }
    };
    let limits = tables::limits(&info.name);
    put(resources::AWS_POD_ENI, u64::from(limits.branch_interfaces));
    if shape.family.is_windows() {
        let addresses = u64::from(limits.ipv4_per_interface.saturating_sub(1));
        put(resources::PRIVATE_IPV4_ADDRESS, addresses);
    }
    for (name, manufacturer) in [
        (resources::NVIDIA_GPU, "NVIDIA"),
        (resources::AMD_GPU, "AMD"),
        (resources::HABANA_GAUDI, "Habana"),
    ] {
        let made_by = info
            .gpus
            .iter()
            .filter(|gpu| gpu.manufacturer == manufacturer);
        put(name, made_by.map(|gpu| u64::from(gpu.count)).sum());
    }
    let devices = info
        .neuron
        .iter()
        .map(|device| u64::from(device.count))
        .sum();
    put(resources::AWS_NEURON, devices);
    let cores = info.neuron.first().map_or(0, |device| {
        u64::from(device.count) * u64::from(device.cores)
    });
    put(resources::AWS_NEURON_CORE, cores);
    let efa = if shape.interfaces.is_empty() {
        info.network.max_efa
    } else {
        shape.efa_only()
    };
    put(resources::EFA, u64::from(efa));
    capacity
}

fn memory(info: &InstanceTypeInfo, overhead_percent: f64) -> i64 {
    let hidden = match info.architectures.first() {
        Some(Architecture::Arm64) => ARM64_HIDDEN_MIB,
        _ => 0,
    };
    let visible = i64::try_from(info.memory_mib.saturating_sub(hidden)).unwrap_or(i64::MAX / MIB);
    let bytes = visible.saturating_mul(MIB);
    let kept = (bytes as f64 * overhead_percent / KIB as f64 / KIB as f64).ceil() as i64;
    visible.saturating_sub(kept).saturating_mul(MIB)
}

fn default_card_interfaces(info: &InstanceTypeInfo) -> u32 {
    let card = info.network.card(info.network.default_card);
    card.map_or(0, |card| card.max_interfaces)
}

/// Returns the number of pods that the IP addresses of the network interfaces allow. Prefix delegation is not modeled.
fn eni_limited_pods(info: &InstanceTypeInfo, shape: &Shape, reserved_enis: u32) -> i64 {
    let usable = default_card_interfaces(info)
        .saturating_sub(reserved_enis)
        .saturating_sub(shape.efa_only_on(info.network.default_card));
    if usable == 0 {
        return 0;
    }
    i64::from(usable) * (i64::from(info.network.ipv4_per_interface) - 1) + 2
}

fn ephemeral_storage(info: &InstanceTypeInfo, shape: &Shape) -> i64 {
    const DEFAULT: i64 = 20 * GIB;
    if let Some(local) = info
        .local_storage
        .filter(|local| shape.raid0 && local.total_gb > 0)
    {
        return i64::try_from(local.total_gb)
            .unwrap_or(i64::MAX)
            .saturating_mul(1_000_000_000);
    }
    let size = |device: &BlockDeviceMapping| {
        let size = device.ebs.as_ref().and_then(|volume| volume.size());
        size.map(|size| size.units_floor())
    };
    let root = shape.devices.iter().find(|device| device.root_volume);
    if let Some(size) = root.and_then(size) {
        return size;
    }
    // A mapping without size takes the size from the AMI's snapshot, so it is treated like no mapping.
    let family = shape.family.default_ephemeral_gib() * GIB;
    match (shape.family.ephemeral_device(), shape.devices.last()) {
        (None, Some(last)) => size(last).unwrap_or(DEFAULT),
        (None, None) => family,
        (Some(name), _) => {
            let mut devices = shape.devices.iter();
            let found = devices.find(|device| device.device_name.as_deref() == Some(name));
            found.and_then(size).unwrap_or(family)
        }
    }
}

/// Returns the default kube-reserved: a share of the cores that shrinks with their number, and memory by the number of
/// pods.
fn default_kube_reserved(vcpus: u32, pods: i64) -> Resources {
    // Thousandths of a core below which a band applies, and the share of the band in hundredths of a percent.
    const BANDS: [(i64, i64); 4] = [(1000, 600), (2000, 100), (4000, 50), (i64::MAX, 25)];
    let total = i64::from(vcpus) * 1000;
    let mut start = 0;
    let mut cpu = 0;
    for (end, share) in BANDS {
        if total > start {
            cpu += (total.min(end) - start) * share / 10_000;
        }
        start = end;
    }
    [
        (CPU, cpu),
        (
            MEMORY,
            (pods.saturating_mul(11).saturating_add(255)).saturating_mul(MIB),
        ),
        (EPHEMERAL_STORAGE, GIB),
    ]
    .into_iter()
    .collect()
}

/// Replaces defaults by the user's entries. Process IDs are not a resource of pods.
fn overridden(mut reserved: Resources, by: &Reserved) -> Resources {
    for (name, text) in by {
        let Ok(quantity) = text.parse::<Quantity>() else {
            continue;
        };
        if name == CPU {
            reserved.set(name, quantity.millis_ceil());
        } else if name != "pid" {
            reserved.set(name, quantity.units_ceil());
        }
    }
    reserved
}

/// Returns the threshold of hard eviction. Soft eviction thresholds have a grace period and are not counted.
fn eviction_threshold(shape: &Shape, memory: i64, storage: i64) -> Resources {
    let hard = &shape.kubelet.eviction_hard;
    let of = |signal: &str, capacity: i64, default: i64| {
        hard.get(signal)
            .and_then(|text| threshold(text, capacity))
            .unwrap_or(default)
    };
    let tenth = storage / 10 + i64::from(storage % 10 != 0);
    [
        (MEMORY, of("memory.available", memory, 100 * MIB)),
        (EPHEMERAL_STORAGE, of("nodefs.available", storage, tenth)),
    ]
    .into_iter()
    .collect()
}

/// Returns a threshold in bytes; 100 % means no threshold.
fn threshold(text: &str, capacity: i64) -> Option<i64> {
    let Some(percent) = text.strip_suffix('%') else {
        return text
            .parse::<Quantity>()
            .ok()
            .map(|quantity| quantity.units_ceil());
    };
    let percent: f64 = percent.parse().ok()?;
    if percent >= 100.0 {
        return Some(0);
    }
    Some((capacity as f64 / 100.0 * percent).ceil() as i64)
}

#[cfg(test)]
mod tests;
