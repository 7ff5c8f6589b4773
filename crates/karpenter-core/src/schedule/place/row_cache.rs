//! The rows and domains that a set of requirements admits, as bitsets computed once per set.

use crate::schedule::compile::ids::{
    AxisId, CatalogueId, DomainId, OfferingKindId, RowId, TemplateId,
};
use index_vec::Idx;
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::requirements::{Operator, Requirement};
use crate::schedule::compile::algebra::{ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::vectors::fits;
use crate::schedule::pass::SchedulingPass;

/// Rows that meet a set, with the largest amount of each resource among them.
#[derive(Debug)]
pub(crate) struct RowMask {
    pub(crate) rows: Bits<RowId>,
    pub(crate) peak: Box<[i64]>,
    /// The same rows with their prices, cheapest first; computed on first use.
    pub(crate) by_price: OnceCell<Vec<(f64, RowId)>>,
}

impl SchedulingPass<'_> {
    /// Returns the rows of a template that meet a set.
    pub(crate) fn mask(&mut self, template: TemplateId, set: SetId) -> Rc<RowMask> {
        if let Some(mask) = self.masks.borrow().get(&(template, set)) {
            return mask.clone();
        }
        let compiled = &self.solver.templates[template];
        let catalogue_index = compiled.catalogue;
        let catalogue = &self.solver.catalogues[catalogue_index];
        let mut rows = Bits::default();
        for kind in self.kinds(catalogue_index, set).iter() {
            rows.unite(&catalogue.kinds[kind].rows);
        }
        rows.intersect(&compiled.rows);
        for (_, req) in self.algebra.members(set).to_vec() {
            let algebra = &mut self.algebra;
            let meeting = self
                .rows_meeting
                .entry((catalogue_index, req))
                .or_insert_with(|| Rc::new(catalogue.rows_meeting(algebra, req)));
            rows.intersect(meeting);
        }
        let mut peak = vec![i64::MIN; self.width].into_boxed_slice();
        for row in rows.iter() {
            for (peak, room) in peak.iter_mut().zip(compiled.row_room(row, self.width)) {
                *peak = (*peak).max(*room);
            }
        }
        let mask = Rc::new(RowMask {
            rows,
            peak,
            by_price: OnceCell::new(),
        });
        self.masks
            .borrow_mut()
            .insert((template, set), mask.clone());
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

    /// Returns the kinds of offerings that a set admits.
    pub(crate) fn kinds(&mut self, catalogue: CatalogueId, set: SetId) -> Rc<Bits<OfferingKindId>> {
        if let Some(kinds) = self.kinds.get(&(catalogue, set)) {
            return kinds.clone();
        }
        let kinds = Rc::new(self.solver.catalogues[catalogue].kinds_in(&mut self.algebra, set));
        self.kinds.insert((catalogue, set), kinds.clone());
        kinds
    }

    /// Returns the domains of an axis that a set admits; `None` is all.
    pub(crate) fn domains_of(&mut self, axis: AxisId, set: SetId) -> Option<Arc<Bits<DomainId>>> {
        let key = self.axes[axis].key;
        let Some(req) = self.algebra.get(set, key) else {
            return if self.algebra.is_known(key) {
                None
            } else {
                Some(Arc::default())
            };
        };
        Some(self.admitted(axis, req))
    }

    pub(crate) fn admitted(&mut self, axis: AxisId, req: ReqId) -> Arc<Bits<DomainId>> {
        let axis = &mut self.axes[axis];
        if let Some(domains) = axis.admitted.get(&req) {
            return domains.clone();
        }
        let requirement = self.algebra.requirement(req);
        let admitted = axis
            .domains
            .iter_enumerated()
            .filter(|(_, name)| requirement.has(name))
            .map(|(index, _)| index);
        let domains: Arc<Bits<DomainId>> = Arc::new(admitted.collect());
        axis.admitted.insert(req, domains.clone());
        domains
    }

    /// Reports whether a set lists exactly `number` values of the axis's label, whether or not they are domains.
    pub(crate) fn lists(&self, axis: AxisId, set: SetId, number: usize) -> bool {
        let req = self.algebra.get(set, self.axes[axis].key);
        req.map(|req| self.algebra.requirement(req))
            .is_some_and(|req| !req.is_complement() && req.values().count() == number)
    }

    /// Returns the requirement that admits exactly these domains.
    pub(crate) fn requirement_for(&mut self, axis: AxisId, domains: &Bits<DomainId>) -> ReqId {
        if let Some(req) = self.axes[axis].requirements.get(domains) {
            return *req;
        }
        let names: Vec<Arc<str>> = domains
            .iter()
            .map(|domain| self.axes[axis].domains[domain].clone())
            .collect();
        let well_known = &self.solver.snapshot.config().well_known;
        let requirement = Requirement::new(&self.axes[axis].name, Operator::In, names);
        let req = self
            .algebra
            .req(&requirement, || well_known.contains(requirement.key()));
        self.axes[axis].requirements.insert(domains.clone(), req);
        req
    }

    /// Recomputes the rows of a template whose capacity is within the remaining limits; `None` is all.
    pub(crate) fn refresh_limits(&mut self, template: TemplateId) {
        let compiled = &self.solver.templates[template];
        if compiled.limit_names.is_empty() {
            return;
        }
        let left = &self.limits[template];
        let count = left.len();
        let within = |row: &RowId| {
            compiled.limit_costs[row.index() * count..(row.index() + 1) * count]
                .iter()
                .zip(left)
                .all(|(cost, left)| cost <= left)
        };
        self.within_limits[template] = Some(Rc::new(compiled.rows.iter().filter(within).collect()));
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
        fits(
            used,
            need,
            self.solver.templates[template].row_room(row, self.width),
        )
    }
}
