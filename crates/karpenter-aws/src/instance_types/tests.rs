//! The instance types of classes, held against upstream's published catalogue and its scenarios.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    path::Path,
    sync::Arc,
};

use jiff::Timestamp;
use karpenter_core::{
    instance_type::InstanceType,
    offering::Offering,
    requirements::{AllowUndefined, Operator, Requirement, Requirements},
    resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    api::{
        Ami, CapacityReservation, EC2NodeClass, ReservationState, ReservationType, Subnet, labels,
    },
    pricing::Pricing,
    unavailable::{CapacityType, Pool, Unavailable},
};

const MIB: i64 = 1 << 20;

/// The sample of EC2's answers that upstream's tests use, and the zones its types are offered in.
fn samples() -> (Vec<InstanceTypeInfo>, BTreeMap<String, BTreeSet<String>>) {
    let text = include_str!("../../tests/data/sample-instance-types.json");
    let file: Value = serde_json::from_str(text).unwrap();
    let types = serde_json::from_value(file["instanceTypes"].clone()).unwrap();
    (
        types,
        serde_json::from_value(file["offerings"].clone()).unwrap(),
    )
}

pub(super) fn sample(name: &str) -> InstanceTypeInfo {
    samples()
        .0
        .into_iter()
        .find(|info| info.name == name)
        .unwrap()
}

fn unpacked(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text
}

/// EC2's answers for every type, as the stand-in for AWS has recorded them.
fn recorded() -> Vec<InstanceTypeInfo> {
    fn capitalised(value: Value) -> Value {
        match value {
            Value::Object(object) => object
                .into_iter()
                .map(|(key, value)| {
                    let key = key[..1].to_uppercase() + &key[1..];
                    (key, capitalised(value))
                })
                .collect(),
            Value::Array(values) => values.into_iter().map(capitalised).collect(),
            other => other,
        }
    }
    let records: Vec<Value> = serde_json::from_str(&unpacked(
        "../karpenter-aws-fake/data/instance-types.json.gz",
    ))
    .unwrap();
    records
        .into_iter()
        .map(|record| serde_json::from_value(capitalised(record)).unwrap())
        .collect()
}

struct World {
    resolver: Resolver,
    class: EC2NodeClass,
    pricing: Pricing,
    unavailable: Unavailable,
    discovered: DiscoveredMemory,
    shifted: BTreeSet<String>,
    counts: BTreeMap<String, u32>,
}

fn resolver(expressions: bool) -> Resolver {
    Resolver::new(ResolverSettings {
        region: "us-west-2".into(),
        size: SizeSettings {
            vm_memory_overhead_percent: 0.075,
            reserved_enis: 0,
        },
        expressions,
    })
}

fn subnet(id: &str, zone: &str) -> Subnet {
    Subnet {
        id: id.into(),
        zone: zone.into(),
        zone_id: Some(format!("{zone}-id")),
    }
}

fn reservation(id: &str, instance_type: &str) -> CapacityReservation {
    CapacityReservation {
        availability_zone: "test-zone-1a".into(),
        end_time: None,
        id: id.into(),
        instance_match_criteria: "targeted".into(),
        instance_type: instance_type.into(),
        owner_id: "012345678901".into(),
        reservation_type: ReservationType::Default,
        interruptible: false,
        state: ReservationState::Active,
    }
}

impl World {
    fn new() -> Self {
        let (types, offered) = samples();
        let mut resolver = resolver(true);
        assert!(resolver.update_types(types));
        assert!(resolver.update_offered_zones(offered));
        let mut class = EC2NodeClass::new("default", Default::default());
        class.spec.ami_family = Some("AL2023".into());
        class.status.subnets = vec![
            subnet("subnet-1", "test-zone-1a"),
            subnet("subnet-2", "test-zone-1b"),
            subnet("subnet-3", "test-zone-1c"),
        ];
        class.status.amis = vec![ami("ami-amd", "amd64"), ami("ami-arm", "arm64")];
        Self {
            resolver,
            class,
            pricing: Pricing::new("us-west-2"),
            unavailable: Unavailable::default(),
            discovered: DiscoveredMemory::default(),
            shifted: BTreeSet::new(),
            counts: BTreeMap::new(),
        }
    }

    fn with(spec: Value) -> Self {
        let mut world = Self::new();
        let status = world.class.status.clone();
        let mut spec = spec;
        if spec["amiFamily"].is_null() {
            spec["amiFamily"] = "AL2023".into();
        }
        world.class = EC2NodeClass::new("default", serde_json::from_value(spec).unwrap());
        world.class.status = status;
        world
    }

    fn try_resolve(&mut self) -> Result<Resolved, ResolveError> {
        let shape = Shape::of(&self.class, None).unwrap();
        self.resolve_shape("uid", &shape)
    }

    fn resolve_shape(&mut self, uid: &str, shape: &Shape) -> Result<Resolved, ResolveError> {
        let counts = |id: &str| self.counts.get(id).copied().unwrap_or(0);
        let market = Market {
            pricing: &self.pricing,
            unavailable: &self.unavailable,
            shifted_zones: &self.shifted,
            reservation_counts: &counts,
        };
        self.resolver.resolve(uid, shape, &self.discovered, &market)
    }

    fn resolve(&mut self) -> Resolved {
        self.try_resolve().unwrap()
    }

    fn find(&mut self, name: &str) -> InstanceType {
        self.resolve().get(name).unwrap().0.clone()
    }

    /// Zones and capacity types in which a type can be had.
    fn available(&mut self, name: &str) -> Vec<String> {
        describe(&self.find(name))
    }
}

fn describe(found: &InstanceType) -> Vec<String> {
    let mut all: Vec<String> = found
        .offerings
        .iter()
        .filter(|offering| offering.available)
        .map(|offering| {
            let zone = offering.zone().unwrap().trim_start_matches("test-zone-1");
            format!("{zone}/{}", offering.capacity_type().unwrap())
        })
        .collect();
    all.sort();
    all
}

fn ami(id: &str, arch: &str) -> Ami {
    serde_json::from_value(json!({
        "id": id, "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": [arch] }],
    }))
    .unwrap()
}

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

/// What the catalogue was made from at another time than the recorded answers of EC2 and our tables: column, and how the names
/// of the types begin.
const DIFFERING: [(&str, &[&str]); 7] = [
    // No longer sold when EC2's answers were recorded.
    ("missing", &["g4ad."]),
    // The default network card took more interfaces.
    (
        "alloc:pods",
        &[
            "i7ie.48xlarge",
            "i7ie.metal-48xl",
            "i8ge.48xlarge",
            "i8ge.metal-48xl",
        ],
    ),
    (
        "alloc:memory",
        &[
            "i7ie.48xlarge",
            "i7ie.metal-48xl",
            "i8ge.48xlarge",
            "i8ge.metal-48xl",
        ],
    ),
    (
        "alloc:vpc.amazonaws.com/pod-eni",
        &[
            "c8gb.metal",
            "c8gn.metal",
            "c8ib.metal",
            "c9g.",
            "c9gd.",
            "hpc7g.",
            "i4i.large",
            "m8gb.metal",
            "m8gn.metal",
            "m8ib.metal",
            "m8idb.metal",
            "m8idn.metal",
            "m8in.metal",
            "r8gb.metal",
            "r8gn.metal",
            "r8ib.metal",
            "r8idb.metal",
            "r8idn.metal",
            "r8in.metal",
        ],
    ),
    ("instance-network-bandwidth", &["g7."]),
    // EC2 has since corrected the clocks of new types, and says none of the oldest.
    (
        "instance-cpu-sustained-clock-speed-mhz",
        &["c9g.", "c9gd.", "i7i.", "i7ie.", "m9g.", "m9gd."],
    ),
    (
        "instance-cpu-sustained-clock-speed-mhz",
        &["c1.", "m1.", "m2.", "t1."],
    ),
];

#[test]
fn the_published_catalogue_is_reproduced() {
    let infos = recorded();
    let mut class = EC2NodeClass::new("default", Default::default());
    class.spec.ami_family = Some("AL2023".into());
    class.status.subnets = vec![subnet("subnet-1", "us-west-2a")];
    let offered = infos
        .iter()
        .map(|info| (info.name.clone(), BTreeSet::from(["us-west-2a".to_owned()])));
    let offered: Vec<_> = offered.collect();
    let mut resolver = resolver(false);
    resolver.update_types(infos);
    resolver.update_offered_zones(offered);
    let market = Market {
        pricing: &Pricing::new("us-west-2"),
        unavailable: &Unavailable::default(),
        shifted_zones: &BTreeSet::new(),
        reservation_counts: &|_| 0,
    };
    let shape = Shape::of(&class, None).unwrap();
    let resolved = resolver
        .resolve("uid", &shape, &DiscoveredMemory::default(), &market)
        .unwrap();

    let text = unpacked("tests/data/instance-catalog.csv.gz");
    let mut rows = text.lines().filter(|row| !row.starts_with('#'));
    let header: Vec<&str> = rows.next().unwrap().split(',').collect();
    let mut compared = 0;
    let mut differing = Vec::new();
    for row in rows {
        let row: BTreeMap<&str, &str> = header.iter().copied().zip(row.split(',')).collect();
        let name = row["instance_type"];
        let Some((found, _)) = resolved.get(name) else {
            differing.push((name.to_owned(), "missing".to_owned(), String::new()));
            continue;
        };
        compared += 1;
        let allocatable = found.allocatable();
        let quantity = |name: &str, unit: i64, suffix: &str| {
            let amount = allocatable.get(name);
            if amount == 0 {
                String::new()
            } else {
                format!("{}{suffix}", amount / unit)
            }
        };
        for (column, value) in &row {
            let ours = match *column {
                "instance_type" => continue,
                "arch" => found
                    .requirements
                    .get("kubernetes.io/arch")
                    .and_then(|r| r.single())
                    .unwrap_or("")
                    .to_owned(),
                "alloc:cpu" => quantity(CPU, 1, "m"),
                "alloc:memory" => quantity(MEMORY, MIB, "Mi"),
                "alloc:ephemeral-storage" => quantity(EPHEMERAL_STORAGE, MIB << 10, "Gi"),
                "alloc:pods" => quantity(PODS, 1, ""),
                other => match other.strip_prefix("alloc:") {
                    Some(resource) => quantity(resource, 1, ""),
                    None => found
                        .requirements
                        .get(&format!("karpenter.k8s.aws/{other}"))
                        .and_then(|requirement| requirement.single())
                        .unwrap_or("")
                        .to_owned(),
                },
            };
            if ours != *value {
                let difference = format!("{ours} instead of {value}");
                differing.push((name.to_owned(), (*column).to_owned(), difference));
            }
        }
    }
    let mut seen = BTreeSet::new();
    differing.retain(|(name, column, _)| {
        let mut listed = DIFFERING.iter().filter(|(known, _)| known == column);
        let prefix =
            listed.find_map(|(_, names)| names.iter().find(|prefix| name.starts_with(**prefix)));
        seen.extend(prefix.map(|prefix| (column.clone(), *prefix)));
        prefix.is_none()
    });
    assert_eq!(differing, []);
    let listed: usize = DIFFERING.iter().map(|(_, names)| names.len()).sum();
    assert_eq!(seen.len(), listed, "a listed difference is gone");
    assert!(compared > 1300, "{compared}");
}

/// Conformance: AWS-types-03
#[test]
fn flex_types_are_told_by_a_label() {
    let mut world = World::new();
    let key = labels::INSTANCE_CAPABILITY_FLEX;
    for (name, flex) in [("m7i-flex.large", "true"), ("m5.large", "false")] {
        assert_eq!(
            world.find(name).requirements.get(key).unwrap().single(),
            Some(flex)
        );
    }
    let not_flex: Requirements = [Requirement::new(key, Operator::NotIn, ["true"])]
        .into_iter()
        .collect();
    let allows = |found: InstanceType| {
        found
            .requirements
            .is_compatible(&not_flex, AllowUndefined::Nothing)
    };
    assert!(!allows(world.find("m7i-flex.large")));
    assert!(allows(world.find("m5.large")));
}

/// Conformance: AWS-types-04
#[test]
fn further_offerings_come_after_ec2_s() {
    struct Spare;
    impl ExtraOfferings for Spare {
        fn offerings(&self, info: &InstanceTypeInfo, _: &Shape) -> Vec<Offering> {
            let requirement = Requirement::equal("topology.kubernetes.io/zone", "outpost");
            let offering = Offering::new([requirement].into_iter().collect(), 0.1);
            if info.name == "m5.large" {
                vec![offering]
            } else {
                Vec::new()
            }
        }
    }
    let mut world = World::new();
    let before = world.find("m5.large").offerings.len();
    world.resolver.add_offerings(Box::new(Spare));
    let offerings = world.find("m5.large").offerings;
    assert_eq!(offerings.len(), before + 1);
    assert_eq!(offerings.last().unwrap().zone(), Some("outpost"));
    assert!(
        world
            .find("m5.xlarge")
            .offerings
            .iter()
            .all(|o| o.zone() != Some("outpost"))
    );
}

/// Conformance: AWS-types-05
#[test]
fn a_class_that_changes_gets_another_list() {
    let mut world = World::new();
    let mut last = world.resolve().types;
    let mut changed = |world: &mut World, what: &str| {
        let next = world.resolve().types;
        assert!(!Arc::ptr_eq(&last, &next), "{what}");
        last = next;
    };
    world.class.spec.kubelet = json!({ "maxPods": 5 }).as_object().cloned();
    changed(&mut world, "kubelet");
    world.class.spec.block_device_mappings =
        serde_json::from_value(json!([{ "rootVolume": true, "ebs": { "volumeSize": "7Gi" } }]))
            .unwrap();
    changed(&mut world, "devices");
    world.class.status.subnets.pop();
    changed(&mut world, "zones");
    world.class.status.capacity_reservations = vec![reservation("cr-1", "m5.large")];
    changed(&mut world, "reservations");
    world.discovered.observe(
        &[ami("ami-new", "amd64")],
        "m5.large",
        &Requirements::new().clone(),
        "none",
        1,
        now(),
    );
    let requirements = world.find("m5.large").requirements;
    let learnt = world.discovered.observe(
        &[ami("ami-new", "amd64")],
        "m5.large",
        &requirements,
        "ami-new",
        123 * MIB,
        now(),
    );
    assert!(learnt);
    world.class.status.amis = vec![ami("ami-new", "amd64")];
    changed(&mut world, "AMIs");
}

#[test]
fn the_same_list_is_returned_while_nothing_changes() {
    let mut world = World::new();
    let first = world.resolve();
    assert_eq!(first.refreshed, first.types.len());
    let second = world.resolve();
    assert_eq!(second.refreshed, 0);
    assert!(Arc::ptr_eq(&first.types, &second.types));
    // The order of subnets follows their free addresses, and says nothing about instance types.
    world.class.status.subnets.reverse();
    assert!(Arc::ptr_eq(&first.types, &world.resolve().types));
    world.class.status.amis.push(ami("ami-older", "amd64"));
    assert!(Arc::ptr_eq(&first.types, &world.resolve().types));
}

/// Conformance: AWS-types-06
#[test]
fn new_answers_of_ec2_replace_every_list() {
    let mut world = World::new();
    let first = world.resolve().types;
    let (mut infos, _) = samples();
    assert!(!world.resolver.update_types(infos.clone()));
    assert!(Arc::ptr_eq(&first, &world.resolve().types));
    infos
        .iter_mut()
        .find(|info| info.name == "m5.large")
        .unwrap()
        .vcpus = 3;
    assert!(world.resolver.update_types(infos));
    assert_eq!(world.find("m5.large").capacity.get(CPU), 3000);
}

/// Conformance: AWS-types-07
#[test]
fn settings_that_cannot_be_read_fail_until_they_are_fixed() {
    let mut world = World::new();
    world.class.spec.kubelet = json!({ "podsPerCore": "many" }).as_object().cloned();
    assert!(Shape::of(&world.class, None).is_err());
    world.class.spec.kubelet = json!({ "podsPerCore": 2 }).as_object().cloned();
    assert_eq!(world.find("m5.large").capacity.get(PODS), 4);
}

/// Conformance: AWS-types-11
#[test]
fn a_type_without_a_price_may_get_one_from_an_overlay() {
    let mut world = World::new();
    let (mut infos, mut offered) = samples();
    let mut new = sample("m5.large");
    new.name = "z1.large".into();
    infos.push(new);
    offered.insert("z1.large".into(), BTreeSet::from(["test-zone-1a".into()]));
    world.resolver.update_types(infos);
    world.resolver.update_offered_zones(offered);
    assert_eq!(world.available("z1.large"), [""; 0]);
    world
        .pricing
        .update_overlays(BTreeMap::from([("z1.large".to_owned(), 1.5)]));
    assert_eq!(world.available("z1.large"), ["a/on-demand", "a/spot"]);
    assert!(
        world
            .find("z1.large")
            .offerings
            .iter()
            .all(|o| o.price == 1.5)
    );
    world.pricing.update_overlays(BTreeMap::new());
    assert_eq!(world.available("z1.large"), [""; 0]);
}

/// Conformance: AWS-types-12
#[test]
fn a_zone_shifted_away_is_not_offered() {
    let mut world = World::new();
    let before = world.available("m5.xlarge");
    assert_eq!(before, ["a/on-demand", "a/spot", "b/on-demand", "b/spot"]);
    world.shifted.insert("test-zone-1a-id".into());
    assert_eq!(world.available("m5.xlarge"), ["b/on-demand", "b/spot"]);
    world.shifted.clear();
    assert_eq!(world.available("m5.xlarge"), before);
}

/// Conformance: AWS-types-13
#[test]
fn an_expiring_capacity_block_keeps_its_count_and_is_not_available() {
    let mut world = World::new();
    world.class.status.capacity_reservations = vec![CapacityReservation {
        reservation_type: ReservationType::CapacityBlock,
        ..reservation("cr-1", "m5.large")
    }];
    world.counts.insert("cr-1".into(), 7);
    let reserved = |world: &mut World| {
        let found = world.find("m5.large");
        let offering = found
            .offerings
            .iter()
            .find(|o| o.capacity_type() == Some("reserved"));
        let offering = offering.unwrap().clone();
        (offering.available, offering.reservation_capacity)
    };
    assert_eq!(reserved(&mut world), (true, 7));
    world.class.status.capacity_reservations[0].state = ReservationState::Expiring;
    assert_eq!(reserved(&mut world), (false, 7));
}

#[test]
fn reservations_become_offerings_at_next_to_no_price() {
    let mut world = World::new();
    world.class.status.capacity_reservations = vec![reservation("cr-1", "m5.large")];
    world.counts.insert("cr-1".into(), 2);
    let found = world.find("m5.large");
    let offering = found.offerings.last().unwrap();
    assert_eq!(
        offering.single(labels::CAPACITY_RESERVATION_ID),
        Some("cr-1")
    );
    assert_eq!(
        offering.price,
        world.pricing.on_demand("m5.large").unwrap() / 10_000_000.0
    );
    let requires = |key: &str| found.requirements.get(key).unwrap().clone();
    assert!(requires("karpenter.sh/capacity-type").has("reserved"));
    assert!(requires(labels::CAPACITY_RESERVATION_ID).has("cr-1"));
    assert!(
        !world
            .find("m5.xlarge")
            .requirements
            .get("karpenter.sh/capacity-type")
            .unwrap()
            .has("reserved")
    );
    // A count that falls to zero is noticed, and nothing else is looked at.
    world.counts.insert("cr-1".into(), 0);
    let resolved = world.resolve();
    assert_eq!(resolved.refreshed, 1);
    assert!(
        !resolved
            .get("m5.large")
            .unwrap()
            .0
            .offerings
            .last()
            .unwrap()
            .available
    );
    assert_eq!(world.resolve().refreshed, 0);
}

#[test]
fn partitions_multiply_offerings() {
    let mut world = World::new();
    let group = PlacementGroup {
        id: "pg-1".into(),
        name: "group".into(),
        strategy: "partition".into(),
        partitions: 3,
    };
    let plain = world.find("m5.large").offerings.len();
    let shape = Shape::of(&world.class, Some(group)).unwrap();
    let resolved = world.resolve_shape("uid", &shape).unwrap();
    let (found, _) = resolved.get("m5.large").unwrap();
    assert_eq!(found.offerings.len(), plain * 3);
    assert_eq!(
        found
            .requirements
            .get(labels::PLACEMENT_GROUP_ID)
            .unwrap()
            .single(),
        Some("pg-1")
    );
    let partitions: BTreeSet<_> = found
        .offerings
        .iter()
        .filter_map(|o| o.single(labels::PLACEMENT_GROUP_PARTITION))
        .collect();
    assert_eq!(partitions, BTreeSet::from(["1", "2", "3"]));

    // A mark of one partition leaves the others.
    let pool = Pool {
        capacity_type: CapacityType::Spot,
        instance_type: "m5.large".into(),
        zone: "test-zone-1a".into(),
        placement: Some(crate::unavailable::Placement {
            group: "pg-1".into(),
            partition: Some(2),
        }),
    };
    world.unavailable.mark(pool, now());
    let resolved = world.resolve_shape("uid", &shape).unwrap();
    assert_eq!(resolved.refreshed, 1);
    let (found, _) = resolved.get("m5.large").unwrap();
    let gone: Vec<_> = found
        .offerings
        .iter()
        .filter(|o| !o.available && o.zone() == Some("test-zone-1a"))
        .map(|o| o.single(labels::PLACEMENT_GROUP_PARTITION))
        .collect();
    assert_eq!(gone, [Some("2")]);
}

/// Conformance: AWS-ice-06
#[test]
fn a_zone_is_gone_when_all_its_subnets_are_out_of_addresses() {
    let mut world = World::new();
    world
        .class
        .status
        .subnets
        .push(subnet("subnet-4", "test-zone-1a"));
    world
        .class
        .status
        .subnets
        .push(subnet("subnet-5", "test-zone-1a"));
    let before = world.available("m5.xlarge");
    for id in ["subnet-1", "subnet-4"] {
        world.unavailable.mark_subnet(id, now());
        assert_eq!(world.available("m5.xlarge"), before);
    }
    world.unavailable.mark_subnet("subnet-5", now());
    assert_eq!(world.available("m5.xlarge"), ["b/on-demand", "b/spot"]);
}

/// Conformance: AWS-ice-09
#[test]
fn a_mark_concerns_its_type_and_a_capacity_type_concerns_all() {
    let mut world = World::new();
    let before = world.resolve();
    let pool = Pool {
        capacity_type: CapacityType::Spot,
        instance_type: "m5.large".into(),
        zone: "test-zone-1a".into(),
        placement: None,
    };
    world.unavailable.mark(pool, now());
    let after = world.resolve();
    assert_eq!(after.refreshed, 1);
    assert_eq!(
        world.available("m5.large"),
        [
            "a/on-demand",
            "b/on-demand",
            "b/spot",
            "c/on-demand",
            "c/spot"
        ]
    );
    for (old, new) in before.types.iter().zip(after.types.iter()) {
        assert_eq!(old == new, old.name != "m5.large", "{}", old.name);
    }
    world
        .unavailable
        .mark_capacity_type(CapacityType::Spot, now());
    let all = world.resolve();
    let spot_types = before
        .types
        .iter()
        .filter(|found| describe(found).iter().any(|way| way.ends_with("spot")));
    assert_eq!(all.refreshed, spot_types.count());
    assert_eq!(world.available("m5.xlarge"), ["a/on-demand", "b/on-demand"]);
    world
        .unavailable
        .expire("1970-01-01T00:10:00Z".parse().unwrap());
    assert_eq!(world.resolve().types, before.types);
}

#[test]
fn another_class_sees_a_mark_at_once() {
    let mut world = World::new();
    let one = Shape::of(&world.class, None).unwrap();
    world.class.status.subnets.remove(1);
    let two = Shape::of(&world.class, None).unwrap();
    for (uid, shape) in [("1", &one), ("2", &two)] {
        world.resolve_shape(uid, shape).unwrap();
    }
    world
        .unavailable
        .mark_capacity_type(CapacityType::OnDemand, now());
    for (uid, shape) in [("1", &one), ("2", &two)] {
        let resolved = world.resolve_shape(uid, shape).unwrap();
        let ways = describe(resolved.get("m5.large").unwrap().0);
        assert!(ways.iter().all(|way| way.ends_with("/spot")), "{ways:?}");
    }
}

#[test]
fn only_the_types_whose_price_moved_are_looked_at() {
    let mut world = World::new();
    world.resolve();
    let prices = |m5: f64| {
        [("m5.large", m5), ("m5.xlarge", 0.2)]
            .map(|(name, price)| (name.to_owned(), "test-zone-1a".to_owned(), price))
    };
    world.pricing.update_spot(prices(0.1));
    world.resolve();
    world.pricing.update_spot(prices(0.05));
    let resolved = world.resolve();
    assert_eq!(resolved.refreshed, 1);
    let found = resolved.get("m5.large").unwrap().0.clone();
    let spot = found
        .offerings
        .iter()
        .find(|o| o.capacity_type() == Some("spot") && o.zone() == Some("test-zone-1a"));
    assert_eq!(spot.unwrap().price, 0.05);
    assert_eq!(
        world.available("m5.large"),
        ["a/on-demand", "a/spot", "b/on-demand", "c/on-demand"],
        "no spot price in the other zones"
    );
}

/// Conformance: AWS-capacity-14
#[test]
fn the_least_memory_seen_counts() {
    let mut world = World::new();
    let requirements = world.find("m5.large").requirements;
    let formula = world.find("m5.large").capacity.get(MEMORY);
    let amis = world.class.status.amis.clone();
    let observe = |world: &mut World, bytes| {
        world
            .discovered
            .observe(&amis, "m5.large", &requirements, "ami-amd", bytes, now())
    };
    assert!(observe(&mut world, formula - 10 * MIB));
    let overhead = world.find("m5.large").overhead;
    assert_eq!(
        world.find("m5.large").capacity.get(MEMORY),
        formula - 10 * MIB
    );
    assert!(
        !observe(&mut world, formula - 5 * MIB),
        "more than was seen before"
    );
    assert_eq!(
        world.find("m5.large").capacity.get(MEMORY),
        formula - 10 * MIB
    );
    assert!(observe(&mut world, formula - 20 * MIB));
    let lowered = world.find("m5.large");
    assert_eq!(lowered.capacity.get(MEMORY), formula - 20 * MIB);
    assert_eq!(lowered.overhead, overhead);
    world
        .discovered
        .expire("1970-03-05T00:00:00Z".parse().unwrap());
    assert_eq!(world.find("m5.large").capacity.get(MEMORY), formula);
}

/// Conformance: AWS-capacity-15, AWS-capacity-16
#[test]
fn memory_is_learnt_for_the_image_a_type_boots() {
    let mut world = World::new();
    let requirements = world.find("c6g.large").requirements;
    let formula = world.find("c6g.large").capacity.get(MEMORY);
    let amis = world.class.status.amis.clone();
    let learnt = |world: &mut World, image| {
        world.discovered.observe(
            &amis,
            "c6g.large",
            &requirements,
            image,
            formula - MIB,
            now(),
        )
    };
    assert!(!learnt(&mut world, "ami-amd"), "not the image of this type");
    assert!(
        learnt(&mut world, "ami-arm"),
        "not the first listed, but the one for its type"
    );
    assert_eq!(world.find("c6g.large").capacity.get(MEMORY), formula - MIB);
    world.class.status.amis = vec![ami("ami-arm-2", "arm64"), ami("ami-arm", "arm64")];
    assert_eq!(world.find("c6g.large").capacity.get(MEMORY), formula);
}

#[test]
fn a_type_whose_pods_cannot_be_told_is_left_out_and_reported() {
    let mut world = World::with(json!({ "kubelet": { "maxPods": "100 / (vcpus - 4)" } }));
    let resolved = world.resolve();
    assert!(resolved.get("m5.xlarge").is_none(), "4 vCPUs");
    assert_eq!(resolved.get("m5.metal").unwrap().0.capacity.get(PODS), 1);
    assert!(
        resolved
            .problems
            .iter()
            .any(|problem| problem.to_string().contains("m5.xlarge"))
    );
    let mut hopeless = World::with(json!({ "kubelet": { "maxPods": "1 / 0" } }));
    assert!(matches!(
        hopeless.try_resolve(),
        Err(ResolveError::Expressions(_))
    ));
    let mut broken = World::with(json!({ "kubelet": { "maxPods": "1 +" } }));
    assert!(matches!(
        broken.try_resolve(),
        Err(ResolveError::Expressions(_))
    ));
}

#[test]
fn what_is_not_known_yet_is_said() {
    let mut world = World::new();
    let subnets = std::mem::take(&mut world.class.status.subnets);
    assert_eq!(world.try_resolve().unwrap_err(), ResolveError::NoSubnets);
    world.class.status.subnets = subnets;
    world.resolver.update_offered_zones([]);
    assert_eq!(world.try_resolve().unwrap_err(), ResolveError::NoOfferings);
    world.resolver.update_types(Vec::new());
    assert_eq!(
        world.try_resolve().unwrap_err(),
        ResolveError::NoInstanceTypes
    );
}

#[test]
fn every_well_known_label_is_defined() {
    let mut world = World::new();
    let found = world.find("m5.large");
    for key in labels::WELL_KNOWN {
        assert!(found.requirements.contains(key), "{key}");
    }
    let zone_ids = found.requirements.get(labels::ZONE_ID).unwrap();
    assert!(zone_ids.has("test-zone-1c-id") && !zone_ids.has("test-zone-1a-local-id"));
    let windows = World::with(json!({ "amiFamily": "Windows2022" })).find("m5.large");
    let label = |key: &str| {
        windows
            .requirements
            .get(key)
            .unwrap()
            .single()
            .map(str::to_owned)
    };
    assert_eq!(label("kubernetes.io/os").as_deref(), Some("windows"));
    assert_eq!(
        label("node.kubernetes.io/windows-build").as_deref(),
        Some("10.0.20348")
    );
    let arm = World::with(json!({ "amiFamily": "Windows2022" })).find("c6g.large");
    assert!(arm.requirements.get("kubernetes.io/os").unwrap().is_never());
}
