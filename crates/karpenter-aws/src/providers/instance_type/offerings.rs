//! Offerings of an instance type: zone, capacity type, capacity reservation, partition of a placement group, price.
//!
//! UPSTREAM: pkg/providers/instancetype/offering/provider.go

use std::collections::BTreeSet;

use karpenter_api::labels as core;
use karpenter_core::offering::Offering;
use karpenter_core::requirements::{Operator, Requirement, Requirements};

use super::{InstanceTypeInfo, Shape};
use crate::api::{CapacityReservation, ReservationState, labels};
use crate::providers::instance_type::unavailable::{CapacityType, Unavailable};
use crate::providers::pricing::Pricing;

/// Divisor of the on-demand price that gives the price of a reserved offering: close to zero, in the same order.
const RESERVED_PRICE_DIVISOR: f64 = 10_000_000.0;

/// The state that offerings depend on and that changes while the class stays the same.
pub struct OfferingState<'a> {
    /// Prices by instance type and zone.
    pub pricing: &'a Pricing,
    /// Capacity pools, capacity types and subnets that are marked as unavailable.
    pub unavailable: &'a Unavailable,
    /// IDs of zones with an active zonal shift.
    pub shifted_zones: &'a BTreeSet<String>,
    /// Returns the number of instances left in a capacity reservation, by its ID.
    pub reservation_counts: &'a dyn Fn(&str) -> u32,
}

/// Zones and capacity types of a class, with the interned requirements of their offerings.
#[derive(Debug)]
pub(super) struct Grid {
    zones: Vec<Zone>,
}

#[derive(Debug)]
struct Zone {
    name: String,
    id: Option<String>,
    /// One entry per partition; a single one without partitions.
    on_demand: Vec<Requirements>,
    spot: Vec<Requirements>,
}

impl Grid {
    /// Creates the grid of a class in a region with these zones.
    pub(super) fn new(region_zones: &BTreeSet<String>, shape: &Shape) -> Self {
        let ids = shape.zones();
        let all: BTreeSet<&str> = region_zones
            .iter()
            .map(String::as_str)
            .chain(ids.keys().copied())
            .collect();
        let zone = |name: &str| {
            let id = ids.get(name).copied().flatten();
            let cells = |capacity_type| {
                partitions(shape)
                    .map(|partition| cell(capacity_type, name, id, partition))
                    .collect()
            };
            Zone {
                name: name.to_owned(),
                id: id.map(str::to_owned),
                on_demand: cells(CapacityType::OnDemand),
                spot: cells(CapacityType::Spot),
            }
        };
        Self {
            zones: all.into_iter().map(zone).collect(),
        }
    }
}

/// Iterates over the partitions of the class's placement group; `None` once if there are none.
fn partitions(shape: &Shape) -> impl Iterator<Item = Option<u32>> {
    let count = shape
        .placement_group
        .as_ref()
        .map_or(0, |group| group.partitions);
    let none = (count == 0).then_some(None);
    none.into_iter().chain((1..=count).map(Some))
}

fn cell(
    capacity_type: CapacityType,
    zone: &str,
    zone_id: Option<&str>,
    partition: Option<u32>,
) -> Requirements {
    let absent = |key| Requirement::new(key, Operator::DoesNotExist, [""; 0]);
    let mut all: Requirements = [
        Requirement::equal(core::CAPACITY_TYPE, capacity_type.as_str()),
        Requirement::equal(core::ZONE, zone),
    ]
    .into_iter()
    .collect();
    if let Some(id) = zone_id {
        all.replace(Requirement::equal(labels::ZONE_ID, id));
    }
    if let Some(partition) = partition {
        all.replace(Requirement::equal(
            labels::PLACEMENT_GROUP_PARTITION,
            &partition.to_string(),
        ));
    }
    if capacity_type != CapacityType::Reserved {
        for key in [
            labels::CAPACITY_RESERVATION_ID,
            labels::CAPACITY_RESERVATION_TYPE,
            labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
        ] {
            all.replace(absent(key));
        }
    }
    all
}

/// Returns the offerings of a type: on-demand and spot in every zone of the region, then one per capacity reservation;
/// each of them once per partition. `offered` are the zones the type is offered in, `compatible` is whether it is
/// compatible with the class.
pub(super) fn offerings(
    info: &InstanceTypeInfo,
    shape: &Shape,
    grid: &Grid,
    offered: &BTreeSet<String>,
    compatible: bool,
    state: &OfferingState<'_>,
) -> Vec<Offering> {
    let supports = |capacity_type: CapacityType| {
        info.usage_classes
            .iter()
            .any(|class| class == capacity_type.as_str())
    };
    let kinds: Vec<CapacityType> = [CapacityType::OnDemand, CapacityType::Spot]
        .into_iter()
        .filter(|kind| supports(*kind))
        .collect();
    let group = shape
        .placement_group
        .as_ref()
        .map(|group| group.id.as_str());
    let mut all = Vec::with_capacity(grid.zones.len() * kinds.len());
    for zone in &grid.zones {
        let open = compatible && is_launchable(zone, shape, offered, state);
        for kind in &kinds {
            let (price, cells) = match kind {
                CapacityType::Spot => (state.pricing.spot(&info.name, &zone.name), &zone.spot),
                _ => (state.pricing.on_demand(&info.name), &zone.on_demand),
            };
            let price = price.or_else(|| state.pricing.overlay(&info.name));
            for (requirements, partition) in cells.iter().zip(partitions(shape)) {
                let placement = group.map(|group| (group, partition));
                let unavailable = &state.unavailable;
                let marked = unavailable.marked_until(*kind, &info.name, &zone.name, placement);
                let offered = open && price.is_some();
                all.push(Offering {
                    available: offered && marked.is_none(),
                    unavailable_until: marked.filter(|_| offered),
                    ..Offering::new(requirements.clone(), price.unwrap_or(0.0))
                });
            }
        }
    }
    for reservation in &shape.reservations {
        if reservation.instance_type == info.name {
            all.extend(reserved(
                reservation,
                info,
                shape,
                grid,
                offered,
                compatible,
                state,
            ));
        }
    }
    all
}

/// Returns whether instances may be launched in the zone: the type is offered there, the class has a subnet with free
/// addresses, and there is no zonal shift.
fn is_launchable(
    zone: &Zone,
    shape: &Shape,
    offered: &BTreeSet<String>,
    state: &OfferingState<'_>,
) -> bool {
    let shifted = state
        .shifted_zones
        .contains(zone.id.as_deref().unwrap_or(&zone.name));
    !shifted
        && offered.contains(&zone.name)
        && shape
            .subnets_of(&zone.name)
            .any(|subnet| !state.unavailable.is_subnet_marked(subnet))
}

fn reserved<'a>(
    reservation: &'a CapacityReservation,
    info: &'a InstanceTypeInfo,
    shape: &'a Shape,
    grid: &'a Grid,
    offered: &'a BTreeSet<String>,
    compatible: bool,
    state: &'a OfferingState<'_>,
) -> impl Iterator<Item = Offering> + 'a {
    let zone = grid
        .zones
        .iter()
        .find(|zone| zone.name == reservation.availability_zone);
    let left = (state.reservation_counts)(&reservation.id);
    let open = zone.is_some_and(|zone| is_launchable(zone, shape, offered, state));
    let available = compatible && open && left > 0 && reservation.state == ReservationState::Active;
    let price = state.pricing.on_demand(&info.name).unwrap_or(0.0) / RESERVED_PRICE_DIVISOR;
    let zone_id = zone.and_then(|zone| zone.id.as_deref());
    partitions(shape).map(move |partition| {
        let mut requirements = cell(
            CapacityType::Reserved,
            &reservation.availability_zone,
            zone_id,
            partition,
        );
        for (key, value) in [
            (labels::CAPACITY_RESERVATION_ID, reservation.id.as_str()),
            (
                labels::CAPACITY_RESERVATION_TYPE,
                reservation.reservation_type.as_str(),
            ),
            (
                labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
                if reservation.interruptible {
                    "true"
                } else {
                    "false"
                },
            ),
        ] {
            requirements.replace(Requirement::equal(key, value));
        }
        Offering {
            available,
            reservation_capacity: left,
            ..Offering::new(requirements, price)
        }
    })
}
