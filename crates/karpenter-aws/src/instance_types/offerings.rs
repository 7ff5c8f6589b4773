//! How an instance type can be bought: zone, capacity type, reservation, partition of a placement group, price.
//!
//! UPSTREAM: pkg/providers/instancetype/offering/provider.go

use std::collections::BTreeSet;

use karpenter_api::labels as core;
use karpenter_core::{
    offering::Offering,
    requirements::{Operator, Requirement, Requirements},
};

use super::{InstanceTypeInfo, Shape};
use crate::{
    api::{CapacityReservation, ReservationState, labels},
    pricing::Pricing,
    unavailable::{CapacityType, Unavailable},
};

/// What a reserved instance costs, as a share of its on-demand price: as good as nothing, but in order.
const RESERVED_PRICE_DIVISOR: f64 = 10_000_000.0;

/// What changes between two looks at the same class.
pub struct Market<'a> {
    /// Prices.
    pub pricing: &'a Pricing,
    /// What EC2 cannot give.
    pub unavailable: &'a Unavailable,
    /// Ids of zones that traffic is shifted away from.
    pub shifted_zones: &'a BTreeSet<String>,
    /// Instances left in a capacity reservation, by id.
    pub reservation_counts: &'a dyn Fn(&str) -> u32,
}

/// The zones and capacity types of a class, with the requirements of their offerings made once.
#[derive(Debug)]
pub(super) struct Grid {
    zones: Vec<Zone>,
}

#[derive(Debug)]
struct Zone {
    name: String,
    id: Option<String>,
    /// One entry a partition; a single one without partitions.
    on_demand: Vec<Requirements>,
    spot: Vec<Requirements>,
}

impl Grid {
    /// The grid of a class in a region with these zones.
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

/// The partitions of the class' placement group, or once none.
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

/// The offerings of a type: on demand and spot in every zone of the region, then one a capacity reservation; each once a
/// partition. `offered` are the type's zones, `compatible` whether it can be what the class asks for.
pub(super) fn offerings(
    info: &InstanceTypeInfo,
    shape: &Shape,
    grid: &Grid,
    offered: &BTreeSet<String>,
    compatible: bool,
    market: &Market<'_>,
) -> Vec<Offering> {
    let sells = |capacity_type: CapacityType| {
        info.usage_classes
            .iter()
            .any(|class| class == capacity_type.as_str())
    };
    let kinds: Vec<CapacityType> = [CapacityType::OnDemand, CapacityType::Spot]
        .into_iter()
        .filter(|kind| sells(*kind))
        .collect();
    let group = shape
        .placement_group
        .as_ref()
        .map(|group| group.id.as_str());
    let mut all = Vec::with_capacity(grid.zones.len() * kinds.len());
    for zone in &grid.zones {
        let open = compatible && is_open(zone, shape, offered, market);
        for kind in &kinds {
            let (price, cells) = match kind {
                CapacityType::Spot => (market.pricing.spot(&info.name, &zone.name), &zone.spot),
                _ => (market.pricing.on_demand(&info.name), &zone.on_demand),
            };
            let price = price.or_else(|| market.pricing.overlay(&info.name));
            for (requirements, partition) in cells.iter().zip(partitions(shape)) {
                let placement = group.map(|group| (group, partition));
                let marked = || {
                    market
                        .unavailable
                        .is_marked(*kind, &info.name, &zone.name, placement)
                };
                all.push(Offering {
                    available: open && price.is_some() && !marked(),
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
                market,
            ));
        }
    }
    all
}

/// Whether instances may be launched in the zone: the type is offered there, the class has a subnet with addresses, and
/// traffic is not shifted away.
fn is_open(zone: &Zone, shape: &Shape, offered: &BTreeSet<String>, market: &Market<'_>) -> bool {
    let shifted = market
        .shifted_zones
        .contains(zone.id.as_deref().unwrap_or(&zone.name));
    !shifted
        && offered.contains(&zone.name)
        && shape
            .subnets_of(&zone.name)
            .any(|subnet| !market.unavailable.is_subnet_marked(subnet))
}

fn reserved<'a>(
    reservation: &'a CapacityReservation,
    info: &'a InstanceTypeInfo,
    shape: &'a Shape,
    grid: &'a Grid,
    offered: &'a BTreeSet<String>,
    compatible: bool,
    market: &'a Market<'_>,
) -> impl Iterator<Item = Offering> + 'a {
    let zone = grid
        .zones
        .iter()
        .find(|zone| zone.name == reservation.availability_zone);
    let left = (market.reservation_counts)(&reservation.id);
    let open = zone.is_some_and(|zone| is_open(zone, shape, offered, market));
    let available = compatible && open && left > 0 && reservation.state == ReservationState::Active;
    let price = market.pricing.on_demand(&info.name).unwrap_or(0.0) / RESERVED_PRICE_DIVISOR;
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
