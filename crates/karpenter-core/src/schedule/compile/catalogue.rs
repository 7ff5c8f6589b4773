//! A provider's instance types, compiled.
//!
//! A row is an instance type together with one pair of capacity and overhead overrides: the base pair first, then each pair of
//! an available offering. The rows that meet a requirement are a bitset, computed once per requirement; those that meet a set
//! of requirements are an intersection of bitsets. Offerings with the same requirements (zone, capacity type, reservation)
//! are one kind, with the bitset of the rows that have such an available offering.

use std::sync::Arc;

use index_vec::{Idx, IndexVec};
use karpenter_api::labels::CAPACITY_TYPE_RESERVED;
use rustc_hash::FxHashMap;

use crate::instance_type::InstanceType;
use crate::offering::Offering;
use crate::resources::Resources;
use crate::schedule::compile::algebra::{Algebra, KeyId, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{OfferingKindId, ReservationId, RowId};
use crate::schedule::compile::vectors::Dimensions;

/// Offerings with the same requirements.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) set: SetId,
    pub(crate) rows: Bits<RowId>,
    /// Index of the reservation, for reserved capacity.
    pub(crate) reservation: Option<ReservationId>,
}

/// The price of a row for one kind of offering.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) kind: OfferingKindId,
    pub(crate) price: f64,
    pub(crate) overlay: bool,
}

/// The instance types of a provider, compiled; see the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Catalogue {
    pub(crate) types: Arc<[InstanceType]>,
    /// The type of each row.
    pub(crate) row_type: IndexVec<RowId, u32>,
    /// Allocatable resources, row by row.
    pub(crate) room: Vec<i64>,
    /// Rows with a negative resource: no pod fits.
    pub(crate) broken: Bits<RowId>,
    pub(crate) kinds: IndexVec<OfferingKindId, Kind>,
    /// The requirements of all offerings, available or not, and the rows of the types that have them.
    pub(crate) offered: Vec<(SetId, Bits<RowId>)>,
    offers: Vec<Offer>,
    offers_from: Vec<u32>,
    by_key: FxHashMap<KeyId, Vec<Option<ReqId>>>,
    pub(crate) has_reservations: bool,
}

/// Reservations by id, with the number of instances left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations {
    pub(crate) ids: IndexVec<ReservationId, String>,
    pub(crate) left: IndexVec<ReservationId, u32>,
    by_id: FxHashMap<String, ReservationId>,
}

impl Reservations {
    fn register(&mut self, id: &str, left: u32) -> ReservationId {
        match self.by_id.get(id) {
            Some(index) => {
                self.left[*index] = self.left[*index].min(left);
                *index
            }
            None => {
                let index = self.ids.push(id.to_owned());
                self.left.push(left);
                self.by_id.insert(id.to_owned(), index);
                index
            }
        }
    }

    /// Deducts one instance, for a NodeClaim that will launch it from this reservation.
    pub(crate) fn promise(&mut self, id: &str) {
        if let Some(index) = self.by_id.get(id) {
            self.left[*index] = self.left[*index].saturating_sub(1);
        }
    }
}

/// The context that compiling a catalogue needs.
pub(crate) struct Compiler<'a> {
    pub(crate) algebra: &'a mut Algebra,
    pub(crate) dimensions: &'a Dimensions,
    pub(crate) reservations: &'a mut Reservations,
    pub(crate) reservation_label: &'a str,
    pub(crate) is_known: &'a dyn Fn(&str) -> bool,
}

impl Catalogue {
    pub(crate) fn compile(types: Arc<[InstanceType]>, compiler: &mut Compiler<'_>) -> Self {
        let mut catalogue = Self {
            types: types.clone(),
            row_type: IndexVec::new(),
            room: Vec::new(),
            broken: Bits::default(),
            kinds: IndexVec::new(),
            offered: Vec::new(),
            offers: Vec::new(),
            offers_from: vec![0],
            by_key: FxHashMap::default(),
            has_reservations: false,
        };
        let mut kind_ids: FxHashMap<SetId, OfferingKindId> = FxHashMap::default();
        let mut offered_ids: FxHashMap<SetId, usize> = FxHashMap::default();
        // By name, so that ties do not depend on the order in which the provider lists its types.
        let mut by_name: Vec<usize> = (0..types.len()).collect();
        by_name.sort_by(|a, b| types[*a].name.cmp(&types[*b].name));
        for index in by_name {
            let instance_type = &types[index];
            let first_row = catalogue.row_type.next_idx();
            let offerings = instance_type.offerings.iter();
            let set = |offering: &Offering| {
                let (algebra, is_known) = (&mut *compiler.algebra, compiler.is_known);
                algebra.set(&offering.requirements, is_known)
            };
            let sets: Vec<SetId> = offerings.clone().map(set).collect();
            let launchable = offerings.zip(sets.iter().copied());
            let launchable = launchable.filter(|(offering, _)| offering.is_launchable());
            let mut all_overrides = vec![(None, None)];
            for overrides in launchable
                .clone()
                .map(|(offering, _)| overrides_of(offering))
            {
                if !all_overrides.contains(&overrides) {
                    all_overrides.push(overrides);
                }
            }
            for overrides in all_overrides {
                let row = catalogue.row_type.next_idx();
                let mut room = None;
                let of_row = launchable.clone();
                for (offering, set) in
                    of_row.filter(|(offering, _)| overrides_of(offering) == overrides)
                {
                    room.get_or_insert_with(|| instance_type.allocatable_of(offering));
                    let kind = *kind_ids.entry(set).or_insert_with(|| {
                        let reserved = offering.capacity_type() == Some(CAPACITY_TYPE_RESERVED);
                        let id = offering.single(compiler.reservation_label);
                        let reservation = id.filter(|_| reserved).map(|id| {
                            let reservations = &mut *compiler.reservations;
                            reservations.register(id, offering.reservation_capacity)
                        });
                        catalogue.has_reservations |= reservation.is_some();
                        catalogue.kinds.push(Kind {
                            set,
                            rows: Bits::default(),
                            reservation,
                        })
                    });
                    if let Some(reservation) = catalogue.kinds[kind].reservation {
                        let left = &mut compiler.reservations.left[reservation];
                        *left = (*left).min(offering.reservation_capacity);
                    }
                    catalogue.kinds[kind].rows.insert(row);
                    catalogue.offers.push(Offer {
                        kind,
                        price: offering.price,
                        overlay: offering.price_overlay,
                    });
                }
                let room = room.unwrap_or_else(|| instance_type.allocatable());
                if room.iter().any(|(_, value)| value < 0) {
                    catalogue.broken.insert(row);
                }
                let room = compiler.dimensions.vector(&room);
                catalogue.room.extend_from_slice(&room);
                catalogue.row_type.push(index as u32);
                catalogue.offers_from.push(catalogue.offers.len() as u32);
            }
            for set in sets {
                let offered = *offered_ids.entry(set).or_insert_with(|| {
                    catalogue.offered.push((set, Bits::default()));
                    catalogue.offered.len() - 1
                });
                for row in first_row.0..catalogue.row_type.len() as u32 {
                    catalogue.offered[offered].1.insert(RowId(row));
                }
            }
            for requirement in instance_type.requirements.iter() {
                let req = compiler
                    .algebra
                    .req(requirement, || (compiler.is_known)(requirement.key()));
                let column = catalogue
                    .by_key
                    .entry(compiler.algebra.key_of(req))
                    .or_insert_with(|| vec![None; types.len()]);
                column[index] = Some(req);
            }
        }
        catalogue
    }

    pub(crate) fn rows(&self) -> usize {
        self.row_type.len()
    }

    pub(crate) fn type_of(&self, row: RowId) -> &InstanceType {
        &self.types[self.row_type[row] as usize]
    }

    pub(crate) fn offers(&self, row: RowId) -> &[Offer] {
        &self.offers
            [self.offers_from[row.index()] as usize..self.offers_from[row.index() + 1] as usize]
    }

    /// Returns the requirement that the row's instance type has on a key.
    pub(crate) fn requirement(&self, row: RowId, key: KeyId) -> Option<ReqId> {
        self.by_key
            .get(&key)
            .and_then(|column| column[self.row_type[row] as usize])
    }

    /// Returns the rows whose instance type can meet `req`; an instance type without a requirement on the key can.
    pub(crate) fn rows_meeting(&self, algebra: &mut Algebra, req: ReqId) -> Bits<RowId> {
        let Some(column) = self.by_key.get(&algebra.key_of(req)) else {
            return Bits::full(self.rows());
        };
        let of_type: Vec<bool> = column
            .iter()
            .map(|present| present.is_none_or(|present| algebra.overlap(present, req)))
            .collect();
        self.row_type
            .iter_enumerated()
            .filter(|(_, index)| of_type[**index as usize])
            .map(|(row, _)| row)
            .collect()
    }

    /// Returns the rows whose instance types can meet all requirements of a set, whatever they are offered as.
    pub(crate) fn rows_meeting_all(&self, algebra: &mut Algebra, set: SetId) -> Bits<RowId> {
        let mut rows = Bits::full(self.rows());
        for (_, req) in algebra.members(set).clone().iter() {
            rows.intersect(&self.rows_meeting(algebra, *req));
        }
        rows
    }

    /// Returns the rows with an offering of one of these kinds.
    pub(crate) fn rows_of(&self, kinds: &Bits<OfferingKindId>) -> Bits<RowId> {
        let mut rows = Bits::default();
        kinds
            .iter()
            .for_each(|kind| rows.unite(&self.kinds[kind].rows));
        rows
    }

    /// Returns the kinds of offerings that `set` admits.
    pub(crate) fn kinds_in(&self, algebra: &mut Algebra, set: SetId) -> Bits<OfferingKindId> {
        self.kinds
            .indices()
            .filter(|kind| algebra.join(set, self.kinds[*kind].set).is_some())
            .collect()
    }

    /// Returns the lowest price of a row among `kinds`.
    pub(crate) fn price(&self, row: RowId, kinds: &Bits<OfferingKindId>) -> Option<f64> {
        let offers = self
            .offers(row)
            .iter()
            .filter(|offer| kinds.contains(offer.kind));
        offers.map(|offer| offer.price).min_by(f64::total_cmp)
    }
}

/// Returns what an offering replaces of the capacity and overhead of its instance type.
fn overrides_of(offering: &Offering) -> (Option<&Resources>, Option<&Resources>) {
    let Offering {
        capacity_override,
        overhead_override,
        ..
    } = offering;
    (capacity_override.as_ref(), overhead_override.as_ref())
}
