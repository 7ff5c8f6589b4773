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
use karpenter_kube::logging::shortened;

use crate::api::{ReservationType, labels};
use crate::providers::instance_type::unavailable::CapacityType;

/// Number of instance types that a log line names.
const NAMED: usize = 5;

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
    Filtered { filter: &'static str },
    /// The cheapest instance types do not satisfy minValues.
    #[error("the {count} cheapest instance types do not satisfy minValues of `{key}`")]
    MinValues {
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
        (
            "capacity-reservation-type-filter",
            capacity_reservation_type,
        ),
        ("capacity-block-filter", capacity_block),
        ("reserved-offering-filter", reserved_offering),
        ("exotic-instance-filter", exotic),
        ("spot-instance-filter", spot_offering),
    ];
    let left = |filter: &'static str, types: Vec<InstanceType>| {
        if types.is_empty() {
            Err(NothingLeft::Filtered { filter })
        } else {
            Ok(types)
        }
    };
    let compatible = compatible_available(types, request);
    let mut types = left("compatible-available-filter", compatible)?;
    for (name, apply) in FILTERS {
        let before: Vec<String> = types.iter().map(|found| found.name.clone()).collect();
        types = left(name, apply(types, request))?;
        log_rejected(name, before, &types);
    }
    truncate(types, request)
}

/// Logs the instance types that a filter rejected, if there are any.
fn log_rejected(filter: &str, before: Vec<String>, left: &[InstanceType]) {
    let left: BTreeSet<&str> = left.iter().map(|found| found.name.as_str()).collect();
    let mut rejected = before;
    rejected.retain(|name| !left.contains(name.as_str()));
    if !rejected.is_empty() {
        tracing::debug!(
            logger = "instance",
            filter,
            "instance-types" = shortened(&rejected, NAMED),
            "filtered out instance types from launch"
        );
    }
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
mod tests;
