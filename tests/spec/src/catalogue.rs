//! EC2 instance types with their prices, for benchmarks and examples.

use karpenter_api::labels;
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::Offering;
use karpenter_core::requirements::{Operator, Requirement};
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};

/// The name of the resource that NVIDIA's device plugin reports.
pub const GPU: &str = "nvidia.com/gpu";
/// The zones of the offerings.
pub const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];
const MIB: i64 = 1 << 20;

/// Returns the EC2 instance types whose name `choose` accepts, offered on demand and as spot in three zones.
///
/// On-demand prices are those of us-east-1. Spot prices are synthetic: 28 to 55 % of them, depending on instance type and zone.
pub fn instance_types(choose: impl Fn(&str) -> bool) -> Vec<InstanceType> {
    let rows = include_str!("../data/instance-types.csv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .skip(1);
    rows.filter_map(|row| instance_type(row, &choose)).collect()
}

fn instance_type(row: &str, choose: impl Fn(&str) -> bool) -> Option<InstanceType> {
    let fields: Vec<&str> = row.split(',').collect();
    let &[
        name,
        arm,
        cpu,
        memory,
        usable_cpu,
        usable_memory,
        pods,
        gpus,
        price,
    ] = fields.as_slice()
    else {
        return None;
    };
    if !choose(name) {
        return None;
    }
    let number = |text: &str| text.parse::<i64>().ok();
    let (cpu, memory) = (number(cpu)? * 1000, number(memory)? * MIB);
    let mut capacity = Resources::new()
        .with(CPU, cpu)
        .with(MEMORY, memory)
        .with(PODS, number(pods)?);
    if number(gpus)? > 0 {
        capacity.set(GPU, number(gpus)?);
    }
    let arch = if arm == "1" {
        labels::ARCH_ARM64
    } else {
        labels::ARCH_AMD64
    };
    let requirements = [
        Requirement::equal(labels::INSTANCE_TYPE, name),
        Requirement::equal(labels::ARCH, arch),
        Requirement::equal(labels::OS, "linux"),
        Requirement::new(labels::ZONE, Operator::In, ZONES),
        Requirement::new(
            labels::CAPACITY_TYPE,
            Operator::In,
            [labels::CAPACITY_TYPE_ON_DEMAND, labels::CAPACITY_TYPE_SPOT],
        ),
    ];
    let mut instance_type = InstanceType::new(name, requirements.into_iter().collect(), capacity);
    let reserved = Resources::new()
        .with(CPU, cpu - number(usable_cpu)?)
        .with(MEMORY, memory - number(usable_memory)? * MIB);
    instance_type.overhead = Overhead {
        kube_reserved: reserved,
        ..Overhead::default()
    };
    let price: f64 = price.parse().ok()?;
    for zone in ZONES {
        for (capacity_type, share) in [
            (labels::CAPACITY_TYPE_ON_DEMAND, 1.0),
            (labels::CAPACITY_TYPE_SPOT, spot_share(name, zone)),
        ] {
            let requirements = [
                Requirement::equal(labels::ZONE, zone),
                Requirement::equal(labels::CAPACITY_TYPE, capacity_type),
            ];
            instance_type.offerings.push(Offering::new(
                requirements.into_iter().collect(),
                price * share,
            ));
        }
    }
    Some(instance_type)
}

/// Returns a share between 0.28 and 0.55, distributed evenly and the same in every run (FNV-1a).
fn spot_share(name: &str, zone: &str) -> f64 {
    let hash = name
        .bytes()
        .chain(zone.bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    0.28 + (hash >> 32) as f64 / f64::from(u32::MAX) * 0.27
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_instance_types() {
        let all = instance_types(|_| true);
        assert!(all.len() > 1300);
        for instance_type in &all {
            let usable = instance_type.allocatable();
            assert!(
                usable.get(CPU) > 0 && usable.get(MEMORY) > 0 && usable.get(PODS) > 0,
                "{}",
                instance_type.name
            );
            assert!(
                instance_type
                    .offerings
                    .iter()
                    .all(|offering| offering.price > 0.0)
            );
        }
        assert!(
            all.iter()
                .any(|instance_type| instance_type.capacity.get(GPU) >= 8)
        );
    }

    #[test]
    fn a_row_is_read_with_its_resources_and_price() {
        let [instance_type] = instance_types(|name| name == "m5.large")
            .try_into()
            .unwrap();
        assert_eq!(
            (
                instance_type.capacity.get(CPU),
                instance_type.capacity.get(MEMORY),
                instance_type.capacity.get(PODS)
            ),
            (2000, 8192 * MIB, 29)
        );
        assert_eq!(instance_type.offerings[0].price, 0.096);
    }
}
