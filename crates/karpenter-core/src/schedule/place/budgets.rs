//! What the NodePools can still launch: the remainders of their limits, and of capacity reservations.

use std::collections::BTreeSet;
use std::rc::Rc;

use index_vec::IndexVec;
use karpenter_api::labels;

use crate::limits::known_usage;
use crate::requirements::{Operator, Requirement, Requirements};
use crate::schedule::compile::algebra::{Algebra, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{
    CatalogueId, NO_ROW, OfferingKindId, ReservationId, RowId, TemplateId,
};
use crate::schedule::compile::solver::Solver;
use crate::schedule::place::planned_node::PlannedNode;
use crate::schedule::place::refusal::Refusal;
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::request::{Query, ReservedMode};

/// The remainders of limits and reservations in a pass.
#[derive(Clone)]
pub(crate) struct PoolBudgets<'a> {
    solver: &'a Solver,
    /// The remaining limits of each template.
    limits: IndexVec<TemplateId, Vec<i64>>,
    /// Rows within the limits of each template; `None` is all.
    within_limits: IndexVec<TemplateId, Option<Rc<Bits<RowId>>>>,
    reservations_left: IndexVec<ReservationId, u32>,
    reserved_mode: ReservedMode,
}

impl<'a> PoolBudgets<'a> {
    /// Returns the budgets before the pass; the nodes that the request treats as deleted use nothing.
    pub(crate) fn new(solver: &'a Solver, query: &Query) -> Self {
        let node = |name: &String| solver.nodes.find(name);
        let mut limits: IndexVec<TemplateId, Vec<i64>> = solver
            .templates
            .iter()
            .map(|template| template.limits_left.clone())
            .collect();
        for index in query.without.iter().filter_map(node) {
            let state = &solver.nodes[index].state;
            let Some(template) = solver
                .templates
                .iter()
                .position(|template| Some(template.name.as_str()) == state.node_pool())
            else {
                continue;
            };
            let usage = known_usage(state);
            for (left, name) in limits[template]
                .iter_mut()
                .zip(&solver.templates[template].limit_names)
            {
                *left = left.saturating_add(usage.get(name));
            }
        }
        let mut budgets = Self {
            solver,
            within_limits: solver.templates.iter().map(|_| None).collect(),
            limits,
            reservations_left: solver.reservations.left.clone(),
            reserved_mode: solver.policy.reserved_mode,
        };
        for template in solver.templates.indices() {
            budgets.refresh_limits(template);
        }
        budgets
    }

    /// Recomputes the rows of a template whose capacity is within the remaining limits; `None` is all.
    fn refresh_limits(&mut self, template: TemplateId) {
        let compiled = &self.solver.templates[template];
        if compiled.limit_names.is_empty() {
            return;
        }
        let left = &self.limits[template];
        let within = |row: &RowId| {
            let costs = compiled.limit_costs(*row).iter();
            costs.zip(left).all(|(cost, left)| cost <= left)
        };
        self.within_limits[template] = Some(Rc::new(compiled.rows.iter().filter(within).collect()));
    }

    /// Reports whether the limits of a NodePool admit another node.
    pub(crate) fn admit(&self, template: TemplateId) -> Result<(), Refusal> {
        let compiled = &self.solver.templates[template];
        if let Some(place) = compiled.node_limit
            && self.limits[template][place] <= 0
        {
            return Err(Refusal::NodeLimit);
        }
        match &self.within_limits[template] {
            Some(within) if within.is_empty() => Err(Refusal::Limits),
            _ => Ok(()),
        }
    }

    /// Returns the remaining limits of a NodePool.
    pub(super) fn left(&self, template: TemplateId) -> &[i64] {
        &self.limits[template]
    }

    /// Returns the rows of a NodePool within its remaining limits; `None` is all.
    pub(super) fn within(&self, template: TemplateId) -> Option<&Rc<Bits<RowId>>> {
        self.within_limits[template].as_ref()
    }

    /// Charges a planned node to the limits of its NodePool, with the largest amount of any of its rows. Reports whether that
    /// releases some of the former charge.
    ///
    /// DIFFERS: `nodes` is charged too, and the charge is reduced when large rows drop out.
    pub(crate) fn charge(&mut self, node: &mut PlannedNode, rows: &mut RowCache<'_>) -> bool {
        let template = node.template;
        let compiled = &self.solver.templates[template];
        let count = compiled.limit_names.len();
        if count == 0 {
            return false;
        }
        let allowed = node.allowed.as_deref();
        let mask = rows.mask(template, node.set);
        let still = |row: &RowId| {
            mask.rows.contains(*row)
                && allowed.is_none_or(|allowed| allowed.contains(*row))
                && rows.has_room(template, *row, &node.used)
        };
        if !node.charged_for.is_empty() && node.charged_for.iter().all(still) {
            return false;
        }
        let fitting = rows.rows_with_room(template, node.set, &node.used, allowed);
        let mut most = vec![0; count];
        let mut charged_for = vec![NO_ROW; count];
        for row in fitting.iter() {
            for (place, cost) in compiled.limit_costs(row).iter().enumerate() {
                if charged_for[place] == NO_ROW || most[place] < *cost {
                    most[place] = (*cost).max(0);
                    charged_for[place] = row;
                }
            }
        }
        node.charged_for = charged_for;
        if node.charged == most {
            return false;
        }
        let mut released = false;
        let changes = most.iter().zip(&node.charged);
        for (left, (new, old)) in self.limits[template].iter_mut().zip(changes) {
            *left = left.saturating_sub(*new).saturating_add(*old);
            released |= new < old;
        }
        node.charged = most;
        self.refresh_limits(template);
        released
    }

    /// Charges planned nodes instead of those that are `freed`, if they are within the limits of the NodePool.
    pub(crate) fn charge_instead<'n>(
        &mut self,
        template: TemplateId,
        freed: impl Iterator<Item = &'n PlannedNode>,
        nodes: &mut [PlannedNode],
        rows: &mut RowCache<'_>,
    ) -> bool {
        let compiled = &self.solver.templates[template];
        if compiled.limit_names.is_empty() {
            return true;
        }
        let mut available = self.limits[template].clone();
        for node in freed {
            for (available, charged) in available.iter_mut().zip(&node.charged) {
                *available = available.saturating_add(*charged);
            }
        }
        let number = nodes.len() as i64;
        let mut left = available.clone();
        for node in nodes.iter_mut() {
            // Each gets an even share, or what its instance type uses: larger instance types are excluded.
            let own = compiled.limit_costs(node.witness);
            let within = |row: &RowId| {
                (compiled.limit_costs(*row).iter().zip(own).zip(&available))
                    .all(|((cost, own), available)| cost <= own || *cost <= available / number)
            };
            let allowed: Bits<RowId> = compiled.rows.iter().filter(within).collect();
            let fitting = rows.rows_with_room(template, node.set, &node.used, Some(&allowed));
            for row in fitting.iter() {
                for (charged, cost) in node.charged.iter_mut().zip(compiled.limit_costs(row)) {
                    *charged = (*charged).max(*cost);
                }
            }
            for (left, charged) in left.iter_mut().zip(&node.charged) {
                *left = left.saturating_sub(*charged);
            }
            node.allowed = Some(Rc::new(allowed));
        }
        if left.iter().any(|left| *left < 0) {
            return false;
        }
        self.limits[template] = left;
        self.refresh_limits(template);
        true
    }

    /// Reports whether reservations decide which instance types of a catalogue can be launched.
    pub(crate) fn tracks_reservations(&self, catalogue: CatalogueId) -> bool {
        self.reserved_mode != ReservedMode::Off
            && self.solver.catalogues[catalogue].has_reservations
    }

    /// Returns the requirements with which a planned node is launched, if reservations decide them.
    pub(crate) fn launch_requirements(
        &self,
        node: &PlannedNode,
        algebra: &Algebra,
    ) -> Option<Requirements> {
        let catalogue = self.solver.templates[node.template].catalogue;
        let tracked = self.tracks_reservations(catalogue);
        if node.reservations.is_empty() && !tracked {
            return None;
        }
        let mut requirements = algebra.requirements(node.set);
        if node.reservations.is_empty() {
            // DIFFERS: a NodeClaim without a reservation excludes reserved capacity.
            requirements.add(Requirement::new(
                labels::CAPACITY_TYPE,
                Operator::NotIn,
                [labels::CAPACITY_TYPE_RESERVED],
            ));
            return Some(requirements);
        }
        let reserved = [labels::CAPACITY_TYPE_RESERVED];
        let reserved = Requirement::new(labels::CAPACITY_TYPE, Operator::In, reserved);
        let ids = &self.solver.reservations.ids;
        let ids = node.reservations.iter().map(|id| ids[*id].as_str());
        let label = &self.solver.snapshot.config().reservation_id_label;
        requirements.replace(reserved);
        requirements.replace(Requirement::new(label, Operator::In, ids));
        Some(requirements)
    }

    /// Replaces the reservations that a planned node holds. Reports whether any is released.
    pub(crate) fn hold(
        &mut self,
        node: &mut PlannedNode,
        reservations: BTreeSet<ReservationId>,
    ) -> bool {
        let held = std::mem::replace(&mut node.reservations, Rc::new(reservations));
        for id in node.reservations.difference(&held) {
            self.reservations_left[*id] = self.reservations_left[*id].saturating_sub(1);
        }
        let mut released = false;
        for id in held.difference(&node.reservations) {
            self.reservations_left[*id] += 1;
            released = true;
        }
        released
    }

    /// Returns the reservations that a planned node would hold with these requirements and the rows `fitting`.
    pub(crate) fn reservations_of(
        &self,
        node: &PlannedNode,
        set: SetId,
        fitting: &Bits<RowId>,
        rows: &mut RowCache<'_>,
    ) -> Result<BTreeSet<ReservationId>, Refusal> {
        let held = &node.reservations;
        let catalogue_index = self.solver.templates[node.template].catalogue;
        let kinds = rows.kinds(catalogue_index, set);
        let catalogue = &self.solver.catalogues[catalogue_index];
        let is_offered = |kind: OfferingKindId| {
            let kind = &catalogue.kinds[kind];
            fitting.iter().any(|row| kind.rows.contains(row))
        };
        let reservation = |kind: OfferingKindId| catalogue.kinds[kind].reservation;
        let compatible: BTreeSet<ReservationId> = kinds
            .iter()
            .filter_map(|kind| reservation(kind).filter(|_| is_offered(kind)))
            .collect();
        let holds: BTreeSet<ReservationId> = compatible
            .iter()
            .copied()
            .filter(|id| held.contains(id) || self.reservations_left[*id] > 0)
            .collect();
        let strict = self.reserved_mode == ReservedMode::Strict;
        if strict && holds.is_empty() && (!compatible.is_empty() || !held.is_empty()) {
            return Err(Refusal::Reserved);
        }
        // A planned node without a reservation must have an offering that is not reserved.
        let mut plain = kinds.iter().filter(|kind| reservation(*kind).is_none());
        if holds.is_empty() && !compatible.is_empty() && !plain.any(is_offered) {
            return Err(Refusal::InstanceTypes(set));
        }
        Ok(holds)
    }
}
