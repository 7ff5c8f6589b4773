//! The rows that a set of requirements admits, as bitsets computed once per set.

use std::cell::OnceCell;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::schedule::compile::algebra::{Algebra, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{CatalogueId, OfferingKindId, RowId, TemplateId};
use crate::schedule::compile::pools::template::{UnmetMinValues, unmet_min_values};
use crate::schedule::compile::solver::Solver;
use crate::schedule::compile::vectors::fits;

/// Rows that meet a set, with the largest amount of each resource among them.
#[derive(Debug)]
pub(crate) struct RowMask {
    pub(crate) rows: Bits<RowId>,
    pub(crate) peak: Box<[i64]>,
    /// The same rows with their prices, cheapest first; computed on first use.
    pub(crate) by_price: OnceCell<Vec<(f64, RowId)>>,
}

/// The requirements of a pass, and the rows that meet them.
pub(crate) struct RowCache<'a> {
    solver: &'a Solver,
    pub(crate) algebra: Algebra,
    masks: FxHashMap<(TemplateId, SetId), Rc<RowMask>>,
    meeting: FxHashMap<(CatalogueId, ReqId), Rc<Bits<RowId>>>,
    kinds: FxHashMap<(CatalogueId, SetId), Rc<Bits<OfferingKindId>>>,
    offers: FxHashMap<(TemplateId, SetId), Offers>,
}

/// Prices and rows, cheapest first.
pub(crate) type Offers = Rc<[(f64, RowId)]>;

impl<'a> RowCache<'a> {
    pub(crate) fn new(solver: &'a Solver) -> Self {
        Self {
            solver,
            algebra: solver.algebra.layer(),
            masks: FxHashMap::default(),
            meeting: FxHashMap::default(),
            kinds: FxHashMap::default(),
            offers: FxHashMap::default(),
        }
    }

    pub(crate) fn solver(&self) -> &'a Solver {
        self.solver
    }

    /// Returns the rows of a template that meet a set.
    pub(crate) fn mask(&mut self, template: TemplateId, set: SetId) -> Rc<RowMask> {
        if let Some(mask) = self.masks.get(&(template, set)) {
            return mask.clone();
        }
        let compiled = &self.solver.templates[template];
        let catalogue_index = compiled.catalogue;
        let catalogue = &self.solver.catalogues[catalogue_index];
        let kinds = self.kinds(catalogue_index, set);
        let mut rows = catalogue.rows_of(&kinds);
        rows.intersect(&compiled.rows);
        for (_, req) in self.algebra.members(set).to_vec() {
            let algebra = &mut self.algebra;
            let meeting = self
                .meeting
                .entry((catalogue_index, req))
                .or_insert_with(|| Rc::new(catalogue.rows_meeting(algebra, req)));
            rows.intersect(meeting);
        }
        let mut peak = vec![i64::MIN; self.solver.width()].into_boxed_slice();
        for row in rows.iter() {
            for (peak, room) in peak.iter_mut().zip(compiled.row_room(row)) {
                *peak = (*peak).max(*room);
            }
        }
        let mask = Rc::new(RowMask {
            rows,
            peak,
            by_price: OnceCell::new(),
        });
        self.masks.insert((template, set), mask.clone());
        mask
    }

    /// Returns the rows of a mask with their prices, cheapest first.
    pub(crate) fn by_price<'m>(
        &self,
        template: TemplateId,
        set: SetId,
        mask: &'m RowMask,
    ) -> &'m [(f64, RowId)] {
        mask.by_price.get_or_init(|| {
            let catalogue = self.solver.templates[template].catalogue;
            let kinds = self
                .kinds
                .get(&(catalogue, set))
                .map_or_else(Bits::default, |kinds| kinds.as_ref().clone());
            let catalogue = &self.solver.catalogues[catalogue];
            let mut priced: Vec<(f64, RowId)> = mask
                .rows
                .iter()
                .filter_map(|row| Some((catalogue.price(row, &kinds)?, row)))
                .collect();
            priced.sort_by(|a, b| a.0.total_cmp(&b.0));
            priced
        })
    }

    /// Returns the rows that meet a set with their prices, without those that a cheaper one exceeds in all resources.
    pub(crate) fn offers(&mut self, template: TemplateId, set: SetId) -> Offers {
        if let Some(offers) = self.offers.get(&(template, set)) {
            return offers.clone();
        }
        let mask = self.mask(template, set);
        let compiled = &self.solver.templates[template];
        let mut kept: Vec<(f64, RowId)> = Vec::new();
        for (price, row) in self.by_price(template, set, &mask) {
            let room = compiled.row_room(*row);
            let beaten = |(_, other): &(f64, RowId)| {
                let more = compiled.row_room(*other);
                room.iter().zip(more).all(|(own, more)| own <= more)
            };
            if !kept.iter().rev().any(beaten) {
                kept.push((*price, *row));
            }
        }
        let offers: Offers = kept.into();
        self.offers.insert((template, set), offers.clone());
        offers
    }

    /// Returns the kinds of offerings that a set admits.
    pub(crate) fn kinds(&mut self, catalogue: CatalogueId, set: SetId) -> Rc<Bits<OfferingKindId>> {
        if let Some(kinds) = self.kinds.get(&(catalogue, set)) {
            return kinds.clone();
        }
        let kinds = Rc::new(self.solver.catalogues[catalogue].kinds_in(&mut self.algebra, set));
        self.kinds.insert((catalogue, set), kinds.clone());
        kinds
    }

    /// Reports whether a row has room for `used`.
    #[inline]
    pub(crate) fn has_room(&self, template: TemplateId, row: RowId, used: &[i64]) -> bool {
        let room = self.solver.templates[template].row_room(row);
        used.iter().zip(room).all(|(used, room)| used <= room)
    }

    /// Reports whether a row has room for `need` in addition to `used`.
    #[inline]
    pub(crate) fn row_fits(
        &self,
        template: TemplateId,
        row: RowId,
        used: &[i64],
        need: &[i64],
    ) -> bool {
        fits(used, need, self.solver.templates[template].row_room(row))
    }

    /// Returns the rows that meet a set and have room for `used`.
    pub(crate) fn rows_with_room(
        &mut self,
        template: TemplateId,
        set: SetId,
        used: &[i64],
        allowed: Option<&Bits<RowId>>,
    ) -> Bits<RowId> {
        let mask = self.mask(template, set);
        let mut rows = self.solver.templates[template].rows_for(used);
        rows.intersect(&mask.rows);
        if let Some(allowed) = allowed {
            rows.intersect(allowed);
        }
        rows
    }

    /// Returns a minValues of a set that the rows do not meet.
    pub(crate) fn unmet_min_values(
        &self,
        template: TemplateId,
        set: SetId,
        rows: &Bits<RowId>,
    ) -> Option<UnmetMinValues> {
        let catalogue = &self.solver.catalogues[self.solver.templates[template].catalogue];
        unmet_min_values(catalogue, &self.algebra, set, rows)
    }

    /// Returns the price of the cheapest row that meets a set and has room.
    pub(crate) fn lowest_price(
        &mut self,
        template: TemplateId,
        set: SetId,
        used: &[i64],
        allowed: Option<&Bits<RowId>>,
    ) -> f64 {
        let mask = self.mask(template, set);
        let fits = |row: RowId| {
            allowed.is_none_or(|allowed| allowed.contains(row))
                && self.has_room(template, row, used)
        };
        self.by_price(template, set, &mask)
            .iter()
            .find(|(_, row)| fits(*row))
            .map_or(f64::MAX, |(price, _)| *price)
    }
}
