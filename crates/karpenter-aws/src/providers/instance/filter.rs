//! Selection of the instance types and offerings in a NodeClaim's fleet request.
//!
//! Seven filters run in order; each gets the result of the one before, and a launch fails if one of them leaves
//! nothing.
//!
//! UPSTREAM: pkg/providers/instance/filter/filter.go, pkg/providers/instance/instance.go

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::labels as core;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::requirements::Requirements;
use karpenter_core::resources::Resources;

use crate::api::{ReservationType, labels};
use crate::providers::instance_type::unavailable::CapacityType;

/// Maximum number of instance types in a fleet request.
pub const MAX_INSTANCE_TYPES: usize = 60;

/// The demands of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Requirements on the labels of the node.
    pub requirements: &'a Requirements,
    /// Resources that must fit on the node.
    pub resources: &'a Resources,
    /// Whether minValues must hold for the truncated list (policy Strict).
    pub strict_min_values: bool,
}

/// No instance type is left to launch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NothingLeft {
    /// A filter rejected every instance type.
    #[error("no instance type is left after the filter `{filter}`")]
    Filtered {
        /// Name of the filter.
        filter: &'static str,
    },
    /// The cheapest instance types do not satisfy minValues.
    #[error("the {count} cheapest instance types do not satisfy minValues of `{key}`")]
    MinValues {
        /// Key of the requirement.
        key: String,
        /// Number of instance types that were left.
        count: usize,
    },
}

/// Returns the instance types of the fleet request, with the offerings to launch them through, cheapest first.
///
/// # Errors
/// If no instance type is left.
pub fn filter(
    types: &[InstanceType],
    request: Request<'_>,
) -> Result<Vec<InstanceType>, NothingLeft> {
    type Filter = fn(Vec<InstanceType>, Request<'_>) -> Vec<InstanceType>;
    const FILTERS: [(&str, Filter); 5] = [
        ("capacity-reservation-type", capacity_reservation_type),
        ("capacity-block", capacity_block),
        ("reserved-offering", reserved_offering),
        ("exotic", exotic),
        ("spot-offering", spot_offering),
    ];
    let left = |filter: &'static str, types: Vec<InstanceType>| {
        if types.is_empty() {
            Err(NothingLeft::Filtered { filter })
        } else {
            Ok(types)
        }
    };
    let mut types = left("compatible-available", compatible_available(types, request))?;
    for (name, apply) in FILTERS {
        types = left(name, apply(types, request))?;
    }
    truncate(types, request)
}

/// Returns the capacity type to launch with: reserved, then spot, if the NodeClaim allows it and an offering is
/// available; else on-demand.
pub fn capacity_type(types: &[InstanceType], requirements: &Requirements) -> CapacityType {
    let can_be_had = |capacity_type: CapacityType| {
        admits(requirements, core::CAPACITY_TYPE, capacity_type.as_str())
            && types.iter().any(|found| {
                let mut ways = usable(found, requirements);
                ways.any(|offering| offering.capacity_type() == Some(capacity_type.as_str()))
            })
    };
    [CapacityType::Reserved, CapacityType::Spot]
        .into_iter()
        .find(|capacity_type| can_be_had(*capacity_type))
        .unwrap_or(CapacityType::OnDemand)
}

/// Returns the tenancy to launch with: dedicated only if nothing else is allowed.
pub fn tenancy(requirements: &Requirements) -> &'static str {
    let admits = |tenancy| admits(requirements, labels::INSTANCE_TENANCY, tenancy);
    if !admits(labels::TENANCY_DEFAULT) && admits(labels::TENANCY_DEDICATED) {
        labels::TENANCY_DEDICATED
    } else {
        labels::TENANCY_DEFAULT
    }
}

fn admits(requirements: &Requirements, key: &str, value: &str) -> bool {
    requirements
        .get(key)
        .is_none_or(|requirement| requirement.has(value))
}

/// Iterates over the available offerings that satisfy the requirements.
pub fn usable<'a>(
    found: &'a InstanceType,
    requirements: &'a Requirements,
) -> impl Iterator<Item = &'a Offering> {
    found.offerings.iter().filter(|offering| {
        offering.available && requirements.intersects(&offering.requirements).is_ok()
    })
}

fn is(offering: &Offering, capacity_type: CapacityType) -> bool {
    offering.capacity_type() == Some(capacity_type.as_str())
}

/// Returns the type with those of its offerings that `keep` accepts; `None` if there are none.
fn keeping(found: &InstanceType, keep: impl Fn(&Offering) -> bool) -> Option<InstanceType> {
    let kept = found.offerings.iter().filter(|offering| keep(offering));
    let offerings: Vec<&Offering> = kept.collect();
    if offerings.len() == found.offerings.len() {
        return (!offerings.is_empty()).then(|| found.clone());
    }
    (!offerings.is_empty()).then(|| InstanceType {
        offerings: offerings.into_iter().cloned().collect(),
        ..found.clone()
    })
}

/// 1. Instance types that satisfy the requirements, fit the pods, and have an available offering.
fn compatible_available(types: &[InstanceType], request: Request<'_>) -> Vec<InstanceType> {
    let suits = |found: &&InstanceType| {
        request.requirements.intersects(&found.requirements).is_ok()
            && usable(found, request.requirements)
                .any(|offering| Resources::fits(request.resources, &found.allocatable_of(offering)))
    };
    types.iter().filter(suits).cloned().collect()
}

/// Properties that all reservations of one fleet request must share: type and interruptibility.
type Kind = (ReservationType, bool);

fn kind(offering: &Offering) -> Kind {
    let block = ReservationType::CapacityBlock;
    let is_block = offering.single(labels::CAPACITY_RESERVATION_TYPE) == Some(block.as_str());
    let interruptible = offering.single(labels::CAPACITY_RESERVATION_INTERRUPTIBLE) == Some("true");
    (
        if is_block {
            block
        } else {
            ReservationType::Default
        },
        interruptible,
    )
}

/// 2. A fleet request can use one kind of reservations: the one with the cheapest offering; among equals first neither
///    blocks
///    nor interruptible ones, then blocks.
fn capacity_reservation_type(types: Vec<InstanceType>, request: Request<'_>) -> Vec<InstanceType> {
    if !admits(
        request.requirements,
        core::CAPACITY_TYPE,
        core::CAPACITY_TYPE_RESERVED,
    ) {
        return types;
    }
    let rank = |(kind, interruptible): Kind| match (interruptible, kind) {
        (true, _) => 2,
        (false, ReservationType::CapacityBlock) => 1,
        (false, ReservationType::Default) => 0,
    };
    let reserved = types.iter().flat_map(|found| {
        usable(found, request.requirements).filter(|offering| is(offering, CapacityType::Reserved))
    });
    let cheapest = reserved
        .map(|offering| (offering.price, kind(offering)))
        .min_by(|a, b| a.0.total_cmp(&b.0).then(rank(a.1).cmp(&rank(b.1))));
    let Some((_, chosen)) = cheapest else {
        return types;
    };
    let belongs = |offering: &Offering| {
        offering.available
            && is(offering, CapacityType::Reserved)
            && kind(offering) == chosen
            && request
                .requirements
                .intersects(&offering.requirements)
                .is_ok()
    };
    types
        .iter()
        .filter_map(|found| keeping(found, belongs))
        .collect()
}

/// 3. Of the capacity blocks only the cheapest.
fn capacity_block(types: Vec<InstanceType>, request: Request<'_>) -> Vec<InstanceType> {
    if !admits(
        request.requirements,
        core::CAPACITY_TYPE,
        core::CAPACITY_TYPE_RESERVED,
    ) {
        return types;
    }
    let is_block = |offering: &&Offering| {
        is(offering, CapacityType::Reserved) && kind(offering).0 == ReservationType::CapacityBlock
    };
    let blocks = types.iter().flat_map(|found| {
        let blocks = usable(found, request.requirements).filter(is_block);
        blocks.map(move |offering| (found, offering))
    });
    let cheapest = blocks.min_by(|a, b| a.1.price.total_cmp(&b.1.price));
    match cheapest {
        Some((found, offering)) => vec![InstanceType {
            offerings: vec![offering.clone()].into(),
            ..found.clone()
        }],
        None => types,
    }
}

/// 4. One reservation per zone, the one with the most instances left; types without reservation are dropped unless no
///    type has one.
fn reserved_offering(types: Vec<InstanceType>, request: Request<'_>) -> Vec<InstanceType> {
    if !admits(
        request.requirements,
        core::CAPACITY_TYPE,
        core::CAPACITY_TYPE_RESERVED,
    ) {
        return types;
    }
    let reserved: Vec<InstanceType> = types
        .iter()
        .filter_map(|found| {
            let mut largest: BTreeMap<&str, &Offering> = BTreeMap::new();
            let ways = usable(found, request.requirements);
            for offering in ways.filter(|offering| is(offering, CapacityType::Reserved)) {
                let zone = offering.zone().unwrap_or_default();
                let known = largest.entry(zone).or_insert(offering);
                if offering.reservation_capacity > known.reservation_capacity {
                    *known = offering;
                }
            }
            let offerings: Vec<Offering> = largest.into_values().cloned().collect();
            (!offerings.is_empty()).then(|| InstanceType {
                offerings: offerings.into(),
                ..found.clone()
            })
        })
        .collect();
    if reserved.is_empty() { types } else { reserved }
}

/// 5. Bare metal and accelerated types are dropped unless nothing else remains.
fn exotic(types: Vec<InstanceType>, request: Request<'_>) -> Vec<InstanceType> {
    if request.requirements.has_min_values() {
        return types;
    }
    let is_exotic = |found: &InstanceType| {
        let size = found.requirements.get(labels::INSTANCE_SIZE);
        let is_metal = size.is_some_and(|size| size.values().any(|size| size.contains("metal")));
        let accelerators = [
            labels::resources::NVIDIA_GPU,
            labels::resources::AMD_GPU,
            labels::resources::AWS_NEURON,
            labels::resources::AWS_NEURON_CORE,
            labels::resources::HABANA_GAUDI,
        ];
        is_metal || accelerators.iter().any(|name| found.capacity.get(name) > 0)
    };
    let plain: Vec<InstanceType> = types
        .iter()
        .filter(|found| !is_exotic(found))
        .cloned()
        .collect();
    if plain.is_empty() { types } else { plain }
}

/// 6. Spot offerings that cost more than the cheapest on-demand offering are dropped.
fn spot_offering(types: Vec<InstanceType>, request: Request<'_>) -> Vec<InstanceType> {
    let admits = |value| admits(request.requirements, core::CAPACITY_TYPE, value);
    if request.requirements.has_min_values()
        || !admits(core::CAPACITY_TYPE_SPOT)
        || !admits(core::CAPACITY_TYPE_ON_DEMAND)
    {
        return types;
    }
    let cheapest = |capacity_type| {
        let all = types
            .iter()
            .flat_map(|found| usable(found, request.requirements));
        all.filter(|offering| is(offering, capacity_type))
            .map(|offering| offering.price)
            .min_by(f64::total_cmp)
    };
    let (Some(_), Some(limit)) = (
        cheapest(CapacityType::Spot),
        cheapest(CapacityType::OnDemand),
    ) else {
        return types;
    };
    let worthwhile =
        |offering: &Offering| !is(offering, CapacityType::Spot) || offering.price <= limit;
    types
        .iter()
        .filter_map(|found| keeping(found, worthwhile))
        .filter(|found| usable(found, request.requirements).next().is_some())
        .collect()
}

/// 7. The cheapest sixty types.
fn truncate(
    mut types: Vec<InstanceType>,
    request: Request<'_>,
) -> Result<Vec<InstanceType>, NothingLeft> {
    let price = |found: &InstanceType| {
        let prices = usable(found, request.requirements).map(|offering| offering.price);
        prices.min_by(f64::total_cmp).unwrap_or(f64::INFINITY)
    };
    types.sort_by_cached_key(|found| (OrderedPrice(price(found)), found.name.clone()));
    types.truncate(MAX_INSTANCE_TYPES);
    // Also for shorter lists: since the plan was made, some types may have run out of capacity.
    if request.strict_min_values {
        for requirement in request.requirements.iter() {
            let Some(least) = requirement.min_values() else {
                continue;
            };
            let values: BTreeSet<&str> = types
                .iter()
                .filter_map(|found| found.requirements.get(requirement.key()))
                .flat_map(|known| known.values().filter(move |value| requirement.has(value)))
                .collect();
            if values.len() < least as usize {
                return Err(NothingLeft::MinValues {
                    key: requirement.key().to_owned(),
                    count: types.len(),
                });
            }
        }
    }
    Ok(types)
}

/// A price with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OrderedPrice(f64);

impl Eq for OrderedPrice {}

impl PartialOrd for OrderedPrice {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedPrice {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_core::requirements::{Operator, Requirement};
    use karpenter_core::resources::{CPU, PODS};

    use super::*;

    fn offering(capacity_type: &str, zone: &str, price: f64) -> Offering {
        let requirements = [
            Requirement::equal(core::CAPACITY_TYPE, capacity_type),
            Requirement::equal(core::ZONE, zone),
        ];
        Offering::new(requirements.into_iter().collect(), price)
    }

    fn reserved(zone: &str, id: &str, left: u32, kind: &str, interruptible: bool) -> Offering {
        let mut offering = offering("reserved", zone, 0.000_001);
        for (key, value) in [
            (labels::CAPACITY_RESERVATION_ID, id),
            (labels::CAPACITY_RESERVATION_TYPE, kind),
            (
                labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
                if interruptible { "true" } else { "false" },
            ),
        ] {
            offering
                .requirements
                .replace(Requirement::equal(key, value));
        }
        offering.reservation_capacity = left;
        offering
    }

    fn instance(name: &str, offerings: Vec<Offering>) -> InstanceType {
        let size = name.split_once('.').unwrap().1;
        let requirements = [
            Requirement::equal(core::INSTANCE_TYPE, name),
            Requirement::equal(labels::INSTANCE_SIZE, size),
        ];
        let capacity = Resources::new().with(CPU, 4000).with(PODS, 10);
        InstanceType {
            offerings: offerings.into(),
            ..InstanceType::new(name, requirements.into_iter().collect(), capacity)
        }
    }

    fn claim(requirements: &[Requirement]) -> Requirements {
        requirements.iter().cloned().collect()
    }

    fn capacity_types(values: &[&str]) -> Requirement {
        Requirement::new(core::CAPACITY_TYPE, Operator::In, values.iter().copied())
    }

    fn run(
        types: &[InstanceType],
        requirements: &Requirements,
    ) -> Result<Vec<InstanceType>, NothingLeft> {
        let resources = Resources::new().with(CPU, 1000);
        filter(
            types,
            Request {
                requirements,
                resources: &resources,
                strict_min_values: true,
            },
        )
    }

    fn names(types: &[InstanceType]) -> Vec<&str> {
        types.iter().map(|found| found.name.as_str()).collect()
    }

    fn kept(types: &[InstanceType], requirements: &[Requirement]) -> Vec<String> {
        let left = run(types, &claim(requirements)).unwrap();
        names(&left).into_iter().map(str::to_owned).collect()
    }

    fn ids(types: &[InstanceType]) -> Vec<&str> {
        let all = types.iter().flat_map(|found| &found.offerings);
        all.filter_map(|offering| offering.single(labels::CAPACITY_RESERVATION_ID))
            .collect()
    }

    /// Conformance: AWS-filter-01
    #[test]
    fn an_offering_with_more_capacity_left_keeps_its_type() {
        let small = |overridden: bool| {
            let mut found = instance("m5.small", vec![offering("on-demand", "a", 1.0)]);
            found.capacity.set(CPU, 500);
            if overridden {
                let mut large = offering("on-demand", "b", 1.0);
                large.capacity_override = Some(Resources::new().with(CPU, 4000));
                found.offerings.push(large);
            }
            found
        };
        assert_eq!(kept(&[small(true)], &[]), ["m5.small"]);
        let error = run(&[small(false)], &claim(&[])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no instance type is left after the filter `compatible-available`"
        );
    }

    /// Conformance: AWS-launch-18
    #[test]
    fn unavailable_and_incompatible_offerings_are_dropped() {
        let mut gone = instance("c5.large", vec![offering("on-demand", "a", 1.0)]);
        gone.offerings[0].available = false;
        let types = [
            instance("m5.large", vec![offering("on-demand", "a", 1.0)]),
            gone,
        ];
        assert_eq!(kept(&types, &[]), ["m5.large"]);
        assert!(run(&types, &claim(&[Requirement::equal(core::ZONE, "b")])).is_err());
        assert!(
            run(
                &types,
                &claim(&[Requirement::equal(core::INSTANCE_TYPE, "x1.large")])
            )
            .is_err()
        );
    }

    /// Conformance: AWS-filter-02
    #[test]
    fn plain_reservations_go_before_blocks_and_blocks_before_interruptible_ones() {
        let types = |kinds: &[(&str, &str, bool)]| {
            let ways = kinds
                .iter()
                .map(|(id, kind, interruptible)| reserved("a", id, 1, kind, *interruptible));
            vec![instance(
                "m5.large",
                ways.chain([offering("on-demand", "a", 1.0)]).collect(),
            )]
        };
        let plain = ("cr-plain", "default", false);
        let block = ("cr-block", "capacity-block", false);
        let interruptible = ("cr-interruptible", "default", true);
        assert_eq!(
            ids(&run(&types(&[interruptible, block, plain]), &claim(&[])).unwrap()),
            ["cr-plain"]
        );
        assert_eq!(
            ids(&run(&types(&[interruptible, block]), &claim(&[])).unwrap()),
            ["cr-block"]
        );
        assert_eq!(
            ids(&run(&types(&[interruptible]), &claim(&[])).unwrap()),
            ["cr-interruptible"]
        );
        let mut cheaper = types(&[interruptible, plain]);
        cheaper[0].offerings[0].price /= 2.0;
        assert_eq!(
            ids(&run(&cheaper, &claim(&[])).unwrap()),
            ["cr-interruptible"]
        );
    }

    /// Conformance: AWS-launch-16
    #[test]
    fn only_the_cheapest_capacity_block_is_kept() {
        let mut types = vec![
            instance(
                "p4.large",
                vec![
                    reserved("a", "cr-1", 1, "capacity-block", false),
                    reserved("b", "cr-2", 9, "capacity-block", false),
                ],
            ),
            instance(
                "p5.large",
                vec![reserved("a", "cr-3", 1, "capacity-block", false)],
            ),
        ];
        types[0].offerings[1].price = 0.000_000_5;
        let left = run(&types, &claim(&[])).unwrap();
        assert_eq!((names(&left), ids(&left)), (vec!["p4.large"], vec!["cr-2"]));
    }

    /// Conformance: AWS-filter-03
    #[test]
    fn the_largest_reservation_of_a_zone_is_kept() {
        let ways = vec![
            reserved("a", "cr-1", 1, "default", false),
            reserved("a", "cr-9", 9, "default", false),
            reserved("a", "cr-3", 3, "default", false),
            reserved("b", "cr-2", 2, "default", false),
        ];
        let types = [
            instance("m5.large", ways),
            instance("c5.large", vec![offering("on-demand", "a", 1.0)]),
        ];
        let left = run(&types, &claim(&[])).unwrap();
        assert_eq!(
            (names(&left), ids(&left)),
            (vec!["m5.large"], vec!["cr-9", "cr-2"])
        );
    }

    /// Conformance: AWS-filter-04
    #[test]
    fn a_claim_without_reserved_capacity_keeps_its_offerings() {
        let ways = vec![
            reserved("a", "cr-1", 1, "default", false),
            reserved("a", "cr-2", 2, "capacity-block", false),
            offering("on-demand", "a", 1.0),
        ];
        let types = [
            instance("m5.large", ways),
            instance("c5.large", vec![offering("on-demand", "a", 2.0)]),
        ];
        let left = run(&types, &claim(&[capacity_types(&["on-demand"])])).unwrap();
        assert_eq!(left, types);
    }

    /// Conformance: AWS-filter-05
    #[test]
    fn metal_and_accelerators_are_kept_only_if_nothing_else_is_left() {
        let mut gpu = instance("g5.large", vec![offering("on-demand", "a", 1.0)]);
        gpu.capacity.set(labels::resources::NVIDIA_GPU, 1);
        let mut neuron = instance("inf2.large", vec![offering("on-demand", "a", 1.5)]);
        neuron.capacity.set(labels::resources::AWS_NEURON, 1);
        let metal = instance("m5.metal", vec![offering("on-demand", "a", 2.0)]);
        let plain = instance("m5.large", vec![offering("on-demand", "a", 3.0)]);
        let all = [gpu.clone(), neuron.clone(), metal.clone(), plain];
        assert_eq!(kept(&all, &[]), ["m5.large"]);
        assert_eq!(
            kept(&[gpu, neuron, metal], &[]),
            ["g5.large", "inf2.large", "m5.metal"]
        );
        let least = Requirement::exists(core::INSTANCE_TYPE).with_min_values(Some(2));
        assert_eq!(kept(&all, &[least]).len(), 4);
    }

    /// Conformance: AWS-filter-06
    #[test]
    fn spot_that_costs_more_than_on_demand_is_dropped() {
        let types = [
            instance(
                "m5.large",
                vec![
                    offering("on-demand", "a", 1.0),
                    offering("spot", "a", 0.4),
                    offering("spot", "b", 1.2),
                ],
            ),
            instance("m5.xlarge", vec![offering("spot", "a", 1.1)]),
        ];
        let left = run(&types, &claim(&[])).unwrap();
        assert_eq!(names(&left), ["m5.large"]);
        assert_eq!(left[0].offerings.len(), 2);
        for requirements in [
            vec![capacity_types(&["spot"])],
            vec![Requirement::exists(core::INSTANCE_TYPE).with_min_values(Some(1))],
        ] {
            assert_eq!(kept(&types, &requirements), ["m5.large", "m5.xlarge"]);
        }
        let mut without = types.clone();
        without[0].offerings[0].available = false;
        assert_eq!(kept(&without, &[]), ["m5.large", "m5.xlarge"]);
    }

    /// Conformance: AWS-filter-07
    #[test]
    fn the_sixty_cheapest_types_are_requested() {
        let types: Vec<InstanceType> = (0..200)
            .map(|n| {
                instance(
                    &format!("m5.x{n:03}"),
                    vec![offering("on-demand", "a", f64::from(200 - n))],
                )
            })
            .collect();
        let left = run(&types, &claim(&[])).unwrap();
        assert_eq!(left.len(), MAX_INSTANCE_TYPES);
        assert_eq!((names(&left)[0], names(&left)[59]), ("m5.x199", "m5.x140"));
    }

    /// Conformance: AWS-launch-15
    #[test]
    fn min_values_must_hold_after_truncation() {
        let types: Vec<InstanceType> = (0..100)
            .map(|n| {
                let mut found = instance(
                    &format!("m5.x{n:03}"),
                    vec![offering("on-demand", "a", f64::from(n))],
                );
                let family = if n < 60 { "m5" } else { "c5" };
                found
                    .requirements
                    .replace(Requirement::equal(labels::INSTANCE_FAMILY, family));
                found
            })
            .collect();
        let least = claim(&[Requirement::exists(labels::INSTANCE_FAMILY).with_min_values(Some(2))]);
        let error = run(&types, &least).unwrap_err();
        assert!(
            matches!(&error, NothingLeft::MinValues { key, .. } if key == labels::INSTANCE_FAMILY),
            "{error}"
        );
        let lenient = Request {
            requirements: &least,
            resources: &Resources::new(),
            strict_min_values: false,
        };
        assert_eq!(filter(&types, lenient).unwrap().len(), 60);
    }

    /// Conformance: AWS-launch-15
    #[test]
    fn min_values_must_hold_for_few_instance_types_too() {
        let types = ["m5.large", "m5.xlarge", "m5.2xlarge"]
            .map(|name| instance(name, vec![offering("on-demand", "a", 1.0)]));
        let least = |n| claim(&[Requirement::exists(core::INSTANCE_TYPE).with_min_values(Some(n))]);
        assert_eq!(run(&types, &least(3)).unwrap().len(), 3);
        let error = run(&types[..2], &least(3)).unwrap_err();
        assert!(
            matches!(&error, NothingLeft::MinValues { count: 2, .. }),
            "{error}"
        );
        let best_effort = Request {
            requirements: &least(3),
            resources: &Resources::new(),
            strict_min_values: false,
        };
        assert_eq!(filter(&types[..2], best_effort).unwrap().len(), 2);
    }

    /// Conformance: AWS-launch-17
    #[test]
    fn reserved_goes_before_spot_and_spot_before_on_demand() {
        let ways = |ways: &[&str]| {
            vec![instance(
                "m5.large",
                ways.iter().map(|way| offering(way, "a", 1.0)).collect(),
            )]
        };
        let all = claim(&[]);
        assert_eq!(
            capacity_type(&ways(&["on-demand", "spot", "reserved"]), &all),
            CapacityType::Reserved
        );
        assert_eq!(
            capacity_type(&ways(&["on-demand", "spot"]), &all),
            CapacityType::Spot
        );
        assert_eq!(
            capacity_type(&ways(&["on-demand"]), &all),
            CapacityType::OnDemand
        );
        let mut gone = ways(&["on-demand", "spot"]);
        gone[0].offerings[1].available = false;
        assert_eq!(capacity_type(&gone, &all), CapacityType::OnDemand);
        let on_demand = claim(&[capacity_types(&["on-demand"])]);
        assert_eq!(
            capacity_type(&ways(&["on-demand", "spot"]), &on_demand),
            CapacityType::OnDemand
        );
    }

    #[test]
    fn dedicated_tenancy_is_used_only_if_nothing_else_is_allowed() {
        let with = |values: &[&str]| {
            claim(&[Requirement::new(
                labels::INSTANCE_TENANCY,
                Operator::In,
                values.iter().copied(),
            )])
        };
        assert_eq!(tenancy(&claim(&[])), "default");
        assert_eq!(tenancy(&with(&["default", "dedicated"])), "default");
        assert_eq!(tenancy(&with(&["dedicated"])), "dedicated");
    }
}
