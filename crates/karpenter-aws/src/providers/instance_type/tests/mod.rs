//! The instance types of classes in upstream's scenarios.

#[cfg(feature = "sdk")]
mod catalogue;
mod offerings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::requirements::{AllowUndefined, Operator, Requirement, Requirements};
use karpenter_core::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS};
use serde_json::{Value, json};

use super::*;
use crate::api::{
    Ami, CapacityReservation, EC2NodeClass, ReservationState, ReservationType, Subnet, labels,
};
use crate::providers::instance_type::unavailable::{CapacityType, Pool, Unavailable};
use crate::providers::pricing::Pricing;

const MIB: i64 = 1 << 20;

/// Returns the sample of instance types that upstream's tests use, and the zones they are offered in.
fn samples() -> (Vec<InstanceTypeInfo>, BTreeMap<String, BTreeSet<String>>) {
    let text = include_str!("../../../../tests/data/sample-instance-types.json");
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
        let state = OfferingState {
            pricing: &self.pricing,
            unavailable: &self.unavailable,
            shifted_zones: &self.shifted,
            reservation_counts: &counts,
        };
        self.resolver.resolve(uid, shape, &self.discovered, &state)
    }

    fn resolve(&mut self) -> Resolved {
        self.try_resolve().unwrap()
    }

    fn find(&mut self, name: &str) -> InstanceType {
        self.resolve().get(name).unwrap().0.clone()
    }

    /// Returns the zones and capacity types in which a type is available.
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

/// Conformance: AWS-types-03
#[test]
fn flex_types_have_a_label() {
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
    let is_new = world.discovered.observe(
        &[ami("ami-new", "amd64")],
        "m5.large",
        &requirements,
        "ami-new",
        123 * MIB,
        now(),
    );
    assert!(is_new);
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
    // The order of subnets follows their free addresses, and does not concern instance types.
    world.class.status.subnets.reverse();
    assert!(Arc::ptr_eq(&first.types, &world.resolve().types));
    world.class.status.amis.push(ami("ami-older", "amd64"));
    assert!(Arc::ptr_eq(&first.types, &world.resolve().types));
}

/// Conformance: AWS-types-06
#[test]
fn new_responses_of_ec2_replace_every_list() {
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

/// Conformance: AWS-capacity-14
#[test]
fn the_smallest_memory_reported_is_used() {
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
        "more than reported before"
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
fn memory_is_recorded_for_the_image_a_type_boots() {
    let mut world = World::new();
    let requirements = world.find("c6g.large").requirements;
    let formula = world.find("c6g.large").capacity.get(MEMORY);
    let amis = world.class.status.amis.clone();
    let changed = |world: &mut World, image| {
        world.discovered.observe(
            &amis,
            "c6g.large",
            &requirements,
            image,
            formula - MIB,
            now(),
        )
    };
    assert!(
        !changed(&mut world, "ami-amd"),
        "not the image of this type"
    );
    assert!(
        changed(&mut world, "ami-arm"),
        "not the first listed, but the one for its type"
    );
    assert_eq!(world.find("c6g.large").capacity.get(MEMORY), formula - MIB);
    world.class.status.amis = vec![ami("ami-arm-2", "arm64"), ami("ami-arm", "arm64")];
    assert_eq!(world.find("c6g.large").capacity.get(MEMORY), formula);
}

#[test]
fn a_type_whose_number_of_pods_is_unknown_is_left_out_and_reported() {
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

/// Conformance: AWS-offering-05
#[test]
fn unknown_instance_types_and_offerings_are_errors() {
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

/// Conformance: AWS-labels-03, AWS-labels-09
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
