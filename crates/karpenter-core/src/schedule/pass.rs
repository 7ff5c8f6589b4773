//! One scheduling pass.
//!
//! 1. Pods are sorted: cpu descending, memory descending, creation, uid. Buffers' pods come last.
//! 2. Each pod is tried on existing nodes, then on planned nodes of this pass, then on a new planned node of each NodePool; if
//!    it fits on none, its constraints are relaxed by a step and all are tried again.
//! 3. Pods that failed are tried again as long as another placement since may have made room for them.
//!
//! Ties: existing nodes are ordered by name (initialized first), planned nodes by number of pods and then by age, NodePools by
//! weight and then by name descending, domains by count, then by price for a new planned node, then by name.
//!
//! The state has owners, which do what needs no other: [`RowCache`] the requirements and the instance types that meet them,
//! [`PodQueue`] the pods and their classes, [`Topology`] the constraints and counts, [`ExistingNodes`] and [`PlannedNodes`] the
//! nodes, [`PoolBudgets`] limits and reservations, [`Devices`] the allocations. The pass calls them in order.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go

use std::collections::BTreeMap;

use crate::schedule::compile::solver::Solver;
use crate::schedule::place::budgets::PoolBudgets;
use crate::schedule::place::devices::Devices;
use crate::schedule::place::existing_nodes::ExistingNodes;
use crate::schedule::place::planned_node::PlannedNodes;
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::pods::queue::{Outcome, PodQueue};
use crate::schedule::report::plan::Plan;
use crate::schedule::report::reasons::{PoolOutcome, Unschedulable};
use crate::schedule::request::{PodSet, Query};
use crate::schedule::strategy::{MOST_PODS, Strategy};
use crate::schedule::topology::domains::Topology;
use crate::schedule::trace::TracedPod;

/// The state of a scheduling pass; see the module documentation.
pub(crate) struct SchedulingPass<'a> {
    pub(crate) solver: &'a Solver,
    pub(crate) query: &'a Query,
    pub(crate) strategy: Strategy,
    pub(crate) rows: RowCache<'a>,
    pub(crate) queue: PodQueue,
    pub(crate) topology: Topology<'a>,
    pub(crate) nodes: ExistingNodes<'a>,
    pub(crate) planned: PlannedNodes,
    pub(crate) budgets: PoolBudgets<'a>,
    /// Incremented by each change that can make a refused pod placeable.
    pub(crate) epoch: u64,
    /// Set if no NodePool can be used.
    pub(crate) no_usable_pool: Option<Unschedulable>,
    /// A pod requests a resource that the solver was not compiled for, so that no node was checked for it.
    pub(crate) unknown_resources: bool,
    /// Allocates devices for resource claims, if some pod has any.
    pub(crate) devices: Option<Box<Devices<'a>>>,
    /// Whether the result has a trace.
    pub(crate) traced: bool,
}

/// A plan, and the numbers that rank it beside its price.
#[derive(Default)]
pub(crate) struct Attempt {
    pub(crate) plan: Plan,
    pub(crate) strategy: Strategy,
    /// What became of the pods, those of capacity buffers apart.
    pub(crate) pods: Outcome,
    /// What became of the pods of capacity buffers.
    pub(crate) buffers: Outcome,
    /// Whether wasteful nodes were repacked, but not thoroughly.
    pub(crate) hasty: bool,
    /// Where the pass looked for places on existing nodes, if that was asked for.
    pub(crate) trace: Option<Vec<TracedPod>>,
    /// Number of classes whose order can be changed: 0 if devices are allocated for some pod.
    pub(crate) classes: usize,
    /// Number of shapes: fewer if pods of a shape have classes of their own.
    pub(crate) shapes: usize,
    /// The pass was not run: the solver was not compiled for a resource that a pod of the query requests.
    pub(crate) unknown_resources: bool,
}

impl<'a> SchedulingPass<'a> {
    pub(crate) fn new(solver: &'a Solver, query: &'a Query, strategy: Strategy) -> Self {
        Self {
            solver,
            query,
            strategy,
            rows: RowCache::new(solver),
            queue: PodQueue::default(),
            topology: Topology::new(solver),
            nodes: ExistingNodes::new(solver, query),
            planned: PlannedNodes::default(),
            budgets: PoolBudgets::new(solver, query),
            epoch: 1,
            no_usable_pool: None,
            unknown_resources: false,
            devices: None,
            traced: false,
        }
    }

    /// Returns why no NodePool has instance types.
    fn no_instance_types(&self) -> Unschedulable {
        let mut misspelt = self.solver.pools.iter().filter_map(|pool| {
            let PoolOutcome::NotFound { similar } = &pool.outcome else {
                return None;
            };
            Some(Unschedulable::UnknownNodePool {
                name: pool.node_pool.clone(),
                similar: similar.clone(),
            })
        });
        let has_types = self
            .solver
            .pools
            .iter()
            .any(|pool| matches!(pool.outcome, PoolOutcome::NoCompatibleInstanceTypes { .. }));
        let misspelt = if has_types { None } else { misspelt.next() };
        misspelt.unwrap_or(Unschedulable::NoInstanceTypes)
    }

    /// Runs the steps of the pass: collects the pods and counts those of the cluster, places, repacks, reports.
    pub(crate) fn solve(mut self) -> Attempt {
        self.collect();
        if self.unknown_resources {
            return Attempt {
                unknown_resources: true,
                ..Attempt::default()
            };
        }
        let any_dynamic = self.solver.pools.iter().any(|pool| {
            matches!(
                pool.outcome,
                PoolOutcome::Used
                    | PoolOutcome::NoCompatibleInstanceTypes { .. }
                    | PoolOutcome::Unknown(_)
                    | PoolOutcome::Unevaluated
            )
        });
        if !any_dynamic {
            self.no_usable_pool = Some(Unschedulable::NoNodePools);
        } else if self.solver.templates.is_empty() {
            self.no_usable_pool = Some(self.no_instance_types());
        }
        let pending_by_zone = if matches!(self.query.pods, PodSet::Waiting) {
            self.pending_by_zone()
        } else {
            BTreeMap::new()
        };
        self.place_all();
        if self.queue.pods.len() <= MOST_PODS {
            self.count_unmet();
        }
        let hasty = self.repack();
        let strategy = self.strategy;
        let (pods, buffers) = (self.queue.outcome(false), self.queue.outcome(true));
        let trace = self.traced.then(|| self.trace());
        let classes = match self.devices {
            Some(_) => 0,
            None => self.queue.classes.len(),
        };
        let shapes = self.queue.shapes();
        let plan = Plan {
            pending_by_zone,
            ..self.into_plan()
        };
        Attempt {
            plan,
            strategy,
            pods,
            buffers,
            hasty,
            trace,
            classes,
            shapes,
            unknown_resources: false,
        }
    }
}

#[cfg(test)]
mod tests;
