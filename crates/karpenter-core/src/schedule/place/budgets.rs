//! What the NodePools can still launch: the remainders of their limits, and of capacity reservations.

use crate::limits::known_usage;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ReservationId, RowId, TemplateId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::request::ScheduleRequest;
use index_vec::{Idx, IndexVec};
use std::rc::Rc;

/// The remainders of limits and reservations in a pass.
pub(crate) struct PoolBudgets<'a> {
    solver: &'a Solver,
    /// The remaining limits of each template.
    pub(crate) limits: IndexVec<TemplateId, Vec<i64>>,
    /// Rows within the limits of each template; `None` is all.
    pub(crate) within_limits: IndexVec<TemplateId, Option<Rc<Bits<RowId>>>>,
    pub(crate) reservations_left: IndexVec<ReservationId, u32>,
}

impl<'a> PoolBudgets<'a> {
    /// Returns the budgets before the pass; the nodes that the request treats as deleted use nothing.
    pub(crate) fn new(solver: &'a Solver, request: &ScheduleRequest) -> Self {
        let node = |name: &String| solver.node_index.get(name).copied();
        let mut limits: IndexVec<TemplateId, Vec<i64>> = solver
            .templates
            .iter()
            .map(|template| template.limits_left.clone())
            .collect();
        for index in request.without.iter().filter_map(node) {
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
        };
        for template in solver.templates.indices() {
            budgets.refresh_limits(template);
        }
        budgets
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
}
