//! Prices of instance types, indexed for evaluating hundreds of instance types at once.
//!
//! The offerings of a catalogue have few different requirements (zone, capacity type, reservation): whether they are admitted is
//! computed once for each, and prices are then plain numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::labels;
use rustc_hash::FxHashMap;

use crate::cluster::Snapshot;
use crate::instance_type::InstanceType;
use crate::offering::Offering;
use crate::overlay;
use crate::requirements::Requirements;

/// Requirements shared by several offerings.
#[derive(Clone, Debug)]
struct Kind {
    requirements: Requirements,
    /// The position of the capacity type in the launch order; `None` if it is never launched.
    turn: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Offer {
    kind: u32,
    price: f64,
}

/// The instance types of a NodePool with their prices.
#[derive(Clone, Debug)]
pub struct PriceList {
    types: Arc<[InstanceType]>,
    kinds: Vec<Kind>,
    offers: Vec<Box<[Offer]>>,
    places: FxHashMap<String, usize>,
}

/// The kinds of offerings that some requirements admit.
#[derive(Clone, Debug)]
pub struct Admitted(Vec<bool>);

impl PriceList {
    /// Builds the index of a catalogue.
    pub fn new(types: Arc<[InstanceType]>) -> Self {
        let mut kinds: Vec<Kind> = Vec::new();
        let mut kind_of = |offering: &Offering| {
            let known = kinds
                .iter()
                .position(|kind| kind.requirements == offering.requirements);
            known.unwrap_or_else(|| {
                kinds.push(Kind {
                    requirements: offering.requirements.clone(),
                    turn: turn(offering),
                });
                kinds.len() - 1
            }) as u32
        };
        let offers = types
            .iter()
            .map(|instance_type| {
                let available = instance_type
                    .offerings
                    .iter()
                    .filter(|offering| offering.available && offering.price.is_finite());
                available
                    .map(|offering| Offer {
                        kind: kind_of(offering),
                        price: offering.price,
                    })
                    .collect()
            })
            .collect();
        let places = types
            .iter()
            .enumerate()
            .map(|(place, instance_type)| (instance_type.name.clone(), place))
            .collect();
        Self {
            types,
            kinds,
            offers,
            places,
        }
    }

    /// Returns the instance types.
    pub fn instance_types(&self) -> &Arc<[InstanceType]> {
        &self.types
    }

    /// Reports whether there are no instance types.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// Returns the instance type at an index.
    pub fn instance_type(&self, place: usize) -> &InstanceType {
        &self.types[place]
    }

    /// Returns the index of an instance type.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// Returns the kinds of offerings that the requirements admit.
    pub fn admitted(&self, requirements: &Requirements) -> Admitted {
        let admits = |kind: &Kind| {
            kind.requirements.iter().all(|required| {
                requirements
                    .get(required.key())
                    .is_none_or(|present| required.has_intersection(present))
            })
        };
        Admitted(self.kinds.iter().map(admits).collect())
    }

    fn of<'a>(&'a self, place: usize, admitted: &'a Admitted) -> impl Iterator<Item = &'a Offer> {
        self.offers[place]
            .iter()
            .filter(|offer| admitted.0[offer.kind as usize])
    }

    /// Returns the price of the cheapest available offering in dollars per hour.
    pub fn cheapest(&self, place: usize, admitted: &Admitted) -> Option<f64> {
        self.of(place, admitted)
            .map(|offer| offer.price)
            .min_by(f64::total_cmp)
    }

    /// Returns the worst-case price in dollars per hour: the most expensive offering of the capacity type that is launched first.
    pub fn worst_launch(&self, place: usize, admitted: &Admitted) -> f64 {
        let tried = self
            .of(place, admitted)
            .filter_map(|offer| Some((self.kinds[offer.kind as usize].turn?, offer.price)));
        let worst = tried.reduce(|a, b| match a.0.cmp(&b.0) {
            std::cmp::Ordering::Less => a,
            std::cmp::Ordering::Greater => b,
            std::cmp::Ordering::Equal if b.1 > a.1 => b,
            std::cmp::Ordering::Equal => a,
        });
        worst.map_or(f64::MAX, |(_, price)| price)
    }
}

/// Returns the position of an offering in the launch order: reserved capacity, then spot, then on-demand.
fn turn(offering: &Offering) -> Option<u8> {
    let order = [
        labels::CAPACITY_TYPE_RESERVED,
        labels::CAPACITY_TYPE_SPOT,
        labels::CAPACITY_TYPE_ON_DEMAND,
    ];
    let capacity_type = offering.capacity_type()?;
    order
        .iter()
        .position(|other| *other == capacity_type)
        .map(|turn| turn as u8)
}

/// The price lists of all NodePools; NodePools with the same catalogue share one.
#[derive(Clone, Debug, Default)]
pub struct PriceLists {
    by_pool: BTreeMap<String, Arc<PriceList>>,
}

impl PriceLists {
    /// Builds the price lists of a snapshot, with NodeOverlays applied.
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut lists: Vec<(Arc<[InstanceType]>, Arc<PriceList>)> = Vec::new();
        let mut by_pool = BTreeMap::new();
        for pool in snapshot.node_pools() {
            let Some(types) = overlay::offered(snapshot, pool) else {
                continue;
            };
            let known = lists.iter().find(|(other, _)| Arc::ptr_eq(other, &types));
            let list = known.map(|(_, list)| list.clone()).unwrap_or_else(|| {
                let list = Arc::new(PriceList::new(types.clone()));
                lists.push((types, list.clone()));
                list
            });
            by_pool.insert(pool.metadata.name.clone().unwrap_or_default(), list);
        }
        Self { by_pool }
    }

    /// Returns the price list of a NodePool.
    pub fn of(&self, pool: &str) -> Option<&Arc<PriceList>> {
        self.by_pool.get(pool)
    }
}
