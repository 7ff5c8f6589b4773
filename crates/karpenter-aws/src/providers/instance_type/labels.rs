//! Requirements of an instance type: the labels that its nodes can have.
//!
//! UPSTREAM: pkg/providers/instancetype/types.go, computeRequirements

use std::collections::hash_map::Entry;
use std::sync::Arc;

use karpenter_api::labels as core;
use karpenter_core::requirements::{Operator, Requirement, Requirements};
use rustc_hash::FxHashMap;

use super::{Architecture, InstanceTypeInfo, PlacementGroup, tables};
use crate::api::{CapacityReservation, labels};

/// Interns requirements that many instance types have in common.
#[derive(Debug, Default)]
pub(super) struct Interner {
    known: FxHashMap<(&'static str, Vec<String>), Arc<Requirement>>,
}

impl Interner {
    /// Returns the requirement that the label has one of these values; an empty list requires its absence.
    fn one_of(&mut self, key: &'static str, values: Vec<String>) -> Arc<Requirement> {
        let known = self.known.entry((key, values));
        let make = |values: &[String]| {
            let operator = if values.is_empty() {
                Operator::DoesNotExist
            } else {
                Operator::In
            };
            Arc::new(Requirement::new(
                key,
                operator,
                values.iter().map(String::as_str),
            ))
        };
        match known {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(vacant) => {
                let made = make(&vacant.key().1);
                Arc::clone(vacant.insert(made))
            }
        }
    }
}

/// Labels that a class adds to all its instance types.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClassLabels {
    /// Build number of Windows; `None` for Linux families.
    pub(super) windows_build: Option<&'static str>,
    /// Zones of the class's subnets, with their IDs.
    pub(super) zones: Vec<(String, Option<String>)>,
    pub(super) placement_group: Option<PlacementGroup>,
}

/// Returns the requirements of an instance type. `zones` are the zones it is offered in, `reservations` the capacity
/// reservations of the class for it.
pub(super) fn requirements(
    info: &InstanceTypeInfo,
    region: &str,
    class: &ClassLabels,
    zones: &[String],
    reservations: &[&CapacityReservation],
    interner: &mut Interner,
) -> Requirements {
    let mut all = Requirements::new();
    let mut put = |key: &'static str, values: Vec<String>| {
        all.replace_shared(interner.one_of(key, values));
    };
    let one = |value: &str| vec![value.to_owned()];
    let some = |value: Option<String>| value.into_iter().collect::<Vec<_>>();
    let flag = |value: bool| one(if value { "true" } else { "false" });

    put(core::INSTANCE_TYPE, one(&info.name));
    put(core::REGION, one(region));
    let architectures = info.architectures.iter();
    put(
        core::ARCH,
        architectures.map(|arch| arch.as_str().to_owned()).collect(),
    );
    let offered: Vec<&(String, Option<String>)> = class
        .zones
        .iter()
        .filter(|(zone, _)| zones.contains(zone))
        .collect();
    put(
        core::ZONE,
        offered.iter().map(|(zone, _)| zone.clone()).collect(),
    );
    put(
        labels::ZONE_ID,
        offered.iter().filter_map(|(_, id)| id.clone()).collect(),
    );
    put(
        core::WINDOWS_BUILD,
        some(class.windows_build.map(str::to_owned)),
    );
    put(
        core::CAPACITY_TYPE,
        capacity_types(info, !reservations.is_empty()),
    );

    let (category, generation) = category_and_generation(&info.name).unzip();
    put(labels::INSTANCE_CATEGORY, some(category));
    put(labels::INSTANCE_GENERATION, some(generation));
    let (family, size) = info.name.split_once('.').unzip();
    put(labels::INSTANCE_FAMILY, some(family.map(str::to_owned)));
    put(labels::INSTANCE_SIZE, some(size.map(str::to_owned)));
    let is_flex = family.is_some_and(|family| family.contains("-flex"));
    put(labels::INSTANCE_CAPABILITY_FLEX, flag(is_flex));
    put(labels::INSTANCE_CPU, one(&info.vcpus.to_string()));
    put(labels::INSTANCE_MEMORY, one(&info.memory_mib.to_string()));
    let manufacturer = info.cpu_manufacturer.as_deref().map(kebab);
    put(labels::INSTANCE_CPU_MANUFACTURER, some(manufacturer));
    let clock = info
        .clock_ghz
        .map(|ghz| ((ghz * 1000.0).round() as u64).to_string());
    put(labels::INSTANCE_CPU_SUSTAINED_CLOCK_SPEED_MHZ, some(clock));
    let ebs = info.ebs_bandwidth_mbps.map(|mbps| mbps.to_string());
    put(labels::INSTANCE_EBS_BANDWIDTH, some(ebs));
    put(
        labels::INSTANCE_NETWORK_BANDWIDTH,
        some(network_bandwidth(info).map(|mbps| mbps.to_string())),
    );
    put(
        labels::INSTANCE_HYPERVISOR,
        one(info.hypervisor.as_deref().unwrap_or_default()),
    );
    put(
        labels::INSTANCE_ENCRYPTION_IN_TRANSIT_SUPPORTED,
        flag(info.network.encryption_in_transit),
    );
    put(labels::NITRO_SANDBOX, flag(info.nitro_enclaves));
    let local = info.local_storage.filter(|storage| storage.nvme);
    put(
        labels::INSTANCE_LOCAL_NVME,
        some(local.map(|storage| storage.total_gb.to_string())),
    );

    let gpu = match info.gpus.as_slice() {
        [gpu] => Some(gpu),
        _ => None,
    };
    put(
        labels::INSTANCE_GPU_NAME,
        some(gpu.map(|gpu| kebab(&gpu.name))),
    );
    put(
        labels::INSTANCE_GPU_MANUFACTURER,
        some(gpu.map(|gpu| kebab(&gpu.manufacturer))),
    );
    put(
        labels::INSTANCE_GPU_COUNT,
        some(gpu.map(|gpu| gpu.count.to_string())),
    );
    put(
        labels::INSTANCE_GPU_MEMORY,
        some(gpu.map(|gpu| gpu.memory_mib.to_string())),
    );
    let accelerator = match (info.accelerators.as_slice(), info.neuron.as_slice()) {
        ([one], []) => Some((kebab(&one.name), kebab(&one.manufacturer), one.count)),
        (_, [one]) => Some((kebab(&one.name), "aws".to_owned(), one.count)),
        _ => None,
    };
    let (name, manufacturer, count) = match accelerator {
        Some((name, manufacturer, count)) => {
            (vec![name], vec![manufacturer], vec![count.to_string()])
        }
        None => (Vec::new(), Vec::new(), Vec::new()),
    };
    put(labels::INSTANCE_ACCELERATOR_NAME, name);
    put(labels::INSTANCE_ACCELERATOR_MANUFACTURER, manufacturer);
    put(labels::INSTANCE_ACCELERATOR_COUNT, count);

    let tenancies = [labels::TENANCY_DEDICATED, labels::TENANCY_DEFAULT];
    put(
        labels::INSTANCE_TENANCY,
        tenancies.map(str::to_owned).to_vec(),
    );
    let distinct = |value: &dyn Fn(&CapacityReservation) -> String| {
        let mut values: Vec<String> = reservations.iter().map(|one| value(one)).collect();
        values.sort();
        values.dedup();
        values
    };
    put(
        labels::CAPACITY_RESERVATION_ID,
        distinct(&|one| one.id.clone()),
    );
    put(
        labels::CAPACITY_RESERVATION_TYPE,
        distinct(&|one| one.reservation_type.as_str().to_owned()),
    );
    put(
        labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
        distinct(&|one| one.interruptible.to_string()),
    );
    let group = class.placement_group.as_ref();
    put(
        labels::PLACEMENT_GROUP_ID,
        some(group.map(|group| group.id.clone())),
    );
    let partitions = 1..=group.map_or(0, |group| group.partitions);
    put(
        labels::PLACEMENT_GROUP_PARTITION,
        partitions.map(|n| n.to_string()).collect(),
    );

    // Windows runs on amd64 only.
    let is_amd64 = info.architectures.contains(&Architecture::Amd64);
    match class.windows_build {
        None => put(core::OS, one("linux")),
        Some(_) if is_amd64 => put(core::OS, one("windows")),
        Some(_) => all.replace(Requirement::new(core::OS, Operator::In, [""; 0])),
    }
    all
}

fn capacity_types(info: &InstanceTypeInfo, reserved: bool) -> Vec<String> {
    let mut types: Vec<String> = [core::CAPACITY_TYPE_ON_DEMAND, core::CAPACITY_TYPE_SPOT]
        .into_iter()
        .filter(|capacity_type| {
            info.usage_classes
                .iter()
                .any(|class| class == capacity_type)
        })
        .map(str::to_owned)
        .collect();
    if reserved {
        types.push(core::CAPACITY_TYPE_RESERVED.to_owned());
    }
    types
}

/// Returns the baseline bandwidth in megabits per second.
// DIFFERS: upstream knows only the instance types of its table; for newer ones the figures of EC2's API are added up.
fn network_bandwidth(info: &InstanceTypeInfo) -> Option<u32> {
    match tables::limits(&info.name).bandwidth {
        tables::Bandwidth::Mbps(mbps) => Some(mbps),
        tables::Bandwidth::Vague => None,
        tables::Bandwidth::Unlisted => {
            let cards = info.network.cards.iter();
            cards
                .map(|card| card.baseline_mbps)
                .sum::<Option<u32>>()
                .filter(|mbps| *mbps > 0)
        }
    }
}

fn kebab(text: &str) -> String {
    text.to_lowercase().replace(' ', "-")
}

/// Returns `c` and `6` for `c6gn.2xlarge`, `u` and `1` for `u-6tb1.metal`.
fn category_and_generation(name: &str) -> Option<(String, String)> {
    let (family, _) = name.split_once('.')?;
    let letters = family.len()
        - family
            .trim_start_matches(|c: char| c.is_ascii_lowercase())
            .len();
    let (category, rest) = family.split_at(letters);
    let digits = |text: &str| -> String { text.chars().take_while(char::is_ascii_digit).collect() };
    let terabytes = rest.strip_prefix('-').and_then(|rest| {
        rest.trim_start_matches(|c: char| c.is_ascii_digit())
            .strip_prefix("tb")
    });
    let generation = digits(terabytes.unwrap_or(rest));
    (!category.is_empty() && !generation.is_empty()).then(|| (category.to_owned(), generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: AWS-labels-02
    #[test]
    fn names_are_split_into_category_and_generation() {
        for (name, expected) in [
            ("c6gn.2xlarge", Some(("c", "6"))),
            ("u-6tb1.metal", Some(("u", "1"))),
            ("u7i-12tb.224xlarge", Some(("u", "7"))),
            ("hpc7g.16xlarge", Some(("hpc", "7"))),
            ("inf2.xlarge", Some(("inf", "2"))),
            ("weird", None),
        ] {
            let found = category_and_generation(name);
            let found = found.as_ref().map(|(a, b)| (a.as_str(), b.as_str()));
            assert_eq!(found, expected, "{name}");
        }
    }

    /// Conformance: AWS-labels-04
    #[test]
    fn only_one_kind_of_gpu_or_accelerator_is_a_label() {
        use crate::providers::instance_type::Accelerator;
        use crate::providers::instance_type::tests::sample;
        let keys = [
            labels::INSTANCE_GPU_NAME,
            labels::INSTANCE_GPU_MANUFACTURER,
            labels::INSTANCE_GPU_COUNT,
            labels::INSTANCE_GPU_MEMORY,
            labels::INSTANCE_ACCELERATOR_NAME,
            labels::INSTANCE_ACCELERATOR_MANUFACTURER,
            labels::INSTANCE_ACCELERATOR_COUNT,
        ];
        let class = ClassLabels {
            windows_build: None,
            zones: Vec::new(),
            placement_group: None,
        };
        let of = |info: &InstanceTypeInfo| {
            let all = requirements(info, "r", &class, &[], &[], &mut Interner::default());
            keys.map(|key| {
                let requirement = all.get(key).unwrap();
                let value = requirement.single().map(str::to_owned);
                assert_eq!(
                    value.is_none(),
                    requirement.operator() == Operator::DoesNotExist
                );
                value.unwrap_or_default()
            })
        };
        for (name, expected) in [
            ("m5.large", ["", "", "", "", "", "", ""]),
            (
                "g4ad.16xlarge",
                ["radeon-pro-v520", "amd", "4", "8192", "", "", ""],
            ),
            ("p5.48xlarge", ["h100", "nvidia", "8", "81920", "", "", ""]),
            ("inf2.24xlarge", ["", "", "", "", "inferentia2", "aws", "6"]),
        ] {
            assert_eq!(of(&sample(name)), expected, "{name}");
        }
        let mut two = sample("p5.48xlarge");
        two.gpus.push(two.gpus[0].clone());
        assert_eq!(of(&two), [""; 7], "two kinds of GPUs");
        let inferentia = Accelerator {
            name: "Inferentia".into(),
            manufacturer: "AWS".into(),
            count: 4,
        };
        let mut inf1 = sample("m5.large");
        inf1.accelerators = vec![inferentia.clone()];
        assert_eq!(of(&inf1)[4..], ["inferentia", "aws", "4"]);
        inf1.neuron = sample("trn1.2xlarge").neuron;
        assert_eq!(
            of(&inf1)[4..],
            ["trainium", "aws", "1"],
            "what Neuron says wins"
        );
        inf1.neuron.clear();
        inf1.accelerators.push(inferentia);
        assert_eq!(of(&inf1)[4..], [""; 3]);
    }

    #[test]
    fn equal_requirements_are_interned() {
        let mut interner = Interner::default();
        let first = interner.one_of(core::OS, vec!["linux".into()]);
        let second = interner.one_of(core::OS, vec!["linux".into()]);
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(*first, Requirement::equal(core::OS, "linux"));
        let none = interner.one_of(core::WINDOWS_BUILD, Vec::new());
        assert_eq!(none.operator(), Operator::DoesNotExist);
    }
}
