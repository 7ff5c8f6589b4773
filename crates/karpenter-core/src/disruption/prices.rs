//! What instance types cost, arranged for asking about hundreds of them at once.
//!
//! The offerings of a catalogue require few different things (zone, capacity type, reservation): whether a machine admits them
//! is found out once for each, and prices are then plain numbers.

use std::{collections::BTreeMap, sync::Arc};

use karpenter_api::labels;
use rustc_hash::FxHashMap;

use crate::{
    cluster::Snapshot, instance_type::InstanceType, offering::Offering, overlay,
    requirements::Requirements,
};

/// What offerings may require together.
#[derive(Clone, Debug)]
struct Kind {
    requirements: Requirements,
    /// Which capacity types are tried before this one; `None` for one that is never tried.
    turn: Option<u8>,
}

/// An offering that can be bought.
#[derive(Clone, Copy, Debug)]
struct Offer {
    kind: u32,
    price: f64,
}

/// The instance types of a NodePool with what they cost.
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
    /// Arranges a catalogue.
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
                let for_sale = instance_type
                    .offerings
                    .iter()
                    .filter(|offering| offering.available && offering.price.is_finite());
                for_sale
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

    /// The catalogue.
    pub fn instance_types(&self) -> &Arc<[InstanceType]> {
        &self.types
    }

    /// Whether there is no instance type.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// The instance type at a place.
    pub fn instance_type(&self, place: usize) -> &InstanceType {
        &self.types[place]
    }

    /// The place of a type.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The kinds of offerings that can be bought under the requirements.
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

    /// Dollars an hour of the cheapest offering that can be bought.
    pub fn cheapest(&self, place: usize, admitted: &Admitted) -> Option<f64> {
        self.of(place, admitted)
            .map(|offer| offer.price)
            .min_by(f64::total_cmp)
    }

    /// Dollars an hour in the worst case: the dearest offering of the capacity type that will be tried first.
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

/// Reserved capacity is tried first, then spot, then on-demand.
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

/// The price lists of all NodePools; pools with the same catalogue share one.
#[derive(Clone, Debug, Default)]
pub struct PriceLists {
    by_pool: BTreeMap<String, Arc<PriceList>>,
}

impl PriceLists {
    /// The price lists of a snapshot, NodeOverlays applied.
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

    /// A pool's list.
    pub fn of(&self, pool: &str) -> Option<&Arc<PriceList>> {
        self.by_pool.get(pool)
    }
}
