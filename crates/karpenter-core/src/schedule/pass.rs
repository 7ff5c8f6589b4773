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
//! What a pass knows has owners: [`PodQueue`] the pods and their classes, [`RowCache`] the requirements and the instance types that
//! meet them, [`Topology`] the constraints and counts, [`ExistingNodes`] and [`PlannedNodes`] the nodes, [`PoolBudgets`] limits and
//! reservations, [`Devices`] the allocations. The pass creates them and hands each step those that it needs: [`Placement`] changes
//! them, the [`Repacker`] replaces planned nodes, the [`Report`] reads.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go

use std::collections::BTreeMap;

use index_vec::IndexVec;

use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::ids::{ClassId, Target};
use crate::schedule::compile::solver::Solver;
use crate::schedule::place::budgets::PoolBudgets;
use crate::schedule::place::devices::Devices;
use crate::schedule::place::existing_nodes::ExistingNodes;
use crate::schedule::place::placement::Placement;
use crate::schedule::place::placer::Placer;
use crate::schedule::place::planned_node::PlannedNodes;
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::place::variant::Variant;
use crate::schedule::pods::class::{Class, PodState};
use crate::schedule::pods::queue::{Outcome, PodQueue};
use crate::schedule::repack::dissolve::Repacker;
use crate::schedule::report::Report;
use crate::schedule::report::plan::{EffectiveZone, Plan};
use crate::schedule::report::reasons::{PoolOutcome, Unschedulable};
use crate::schedule::report::zones::pending_by_zone;
use crate::schedule::request::{Packing, PodSet, Query};
use crate::schedule::strategy::{MOST_PODS, Strategy};
use crate::schedule::topology::domains::Topology;

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
    /// Number of classes whose order can be changed: 0 if devices are allocated for some pod.
    pub(crate) classes: usize,
    /// Number of shapes: fewer if pods of a shape have classes of their own.
    pub(crate) shapes: usize,
}

/// What a pass knows once its pods are placed.
pub(crate) struct Placed<'a> {
    rows: RowCache<'a>,
    queue: PodQueue,
    topology: Topology<'a>,
    planned: PlannedNodes,
    budgets: PoolBudgets<'a>,
    /// The variant of each class that was refused last.
    refused: IndexVec<ClassId, Option<Box<Variant>>>,
    /// Why no NodePool can be used, if none can.
    no_usable_pool: Option<Unschedulable>,
    pending_by_zone: BTreeMap<EffectiveZone, usize>,
    /// Number of classes whose order can be changed: 0 if devices are allocated for some pod.
    classes: usize,
}

/// Runs a pass. Returns `None` if the solver was not compiled for a resource that a pod of the query requests.
pub(crate) fn run(solver: &Solver, query: &Query, strategy: Strategy) -> Option<Attempt> {
    let mut placed = Placed::new(solver, query, strategy)?;
    let hasty = !query.is_cancelled() && placed.repack(strategy);
    let queue = &placed.queue;
    let report = Report {
        solver,
        rows: &mut placed.rows,
        queue,
        planned: &placed.planned,
        topology: &placed.topology,
        budgets: &placed.budgets,
        refused: &placed.refused,
        no_usable_pool: placed.no_usable_pool.as_ref(),
    };
    Some(Attempt {
        plan: Plan {
            pending_by_zone: placed.pending_by_zone,
            ..report.into_plan()
        },
        strategy,
        pods: queue.outcome(false),
        buffers: queue.outcome(true),
        hasty,
        classes: placed.classes,
        shapes: queue.shapes(),
    })
}

impl<'a> Placed<'a> {
    /// Collects the pods, counts those of the cluster, and places.
    pub(crate) fn new(solver: &'a Solver, query: &Query, strategy: Strategy) -> Option<Self> {
        let existing = ExistingNodes::new(solver, query);
        let mut rows = RowCache::new(solver);
        let algebra = &mut rows.algebra;
        let mut topology = Topology::new(solver, strategy, existing.present().clone());
        let link = |algebra: &mut Algebra, class: &mut Class| topology.constrain(algebra, class);
        let mut queue = PodQueue::collect(solver, query, algebra, link)?;
        let devices = Devices::new(solver, &queue, existing.present());
        topology.count_existing_pods(algebra, &queue, existing.deleted());
        topology.link(&mut queue.classes);
        let pending_by_zone = match query.pods {
            PodSet::Waiting => pending_by_zone(solver, &queue, &mut topology, algebra),
            _ => BTreeMap::new(),
        };
        let no_usable_pool = no_usable_pool(solver);
        let classes = match devices {
            Some(_) => 0,
            None => queue.classes.len(),
        };
        let mut planned = PlannedNodes::new(queue.least_requests(solver.width()));
        let mut budgets = PoolBudgets::new(solver, query);
        let placement = Placement::new(
            strategy,
            &mut rows,
            &mut topology,
            &mut planned,
            &mut budgets,
            existing,
            devices,
        );
        let order = queue.order(strategy.order);
        let mut placer = Placer::new(placement, &mut queue, query, no_usable_pool.is_none());
        placer.place_all(order);
        let refused = placer.finish();
        Some(Self {
            rows,
            queue,
            topology,
            planned,
            budgets,
            refused,
            no_usable_pool,
            pending_by_zone,
            classes,
        })
    }

    /// Repacks wasteful planned nodes. Returns whether pods were repacked, but not thoroughly.
    fn repack(&mut self, strategy: Strategy) -> bool {
        let Packing::LowestCost { from_pods } = self.rows.solver().policy.packing else {
            return false;
        };
        // Plans for many pods are made once, so thoroughly; of several plans, only the best is repacked thoroughly.
        let thorough = strategy.thorough || self.queue.pods.len() > MOST_PODS;
        let repacked = self.repacker(thorough).repack(from_pods);
        if !repacked.added.is_empty() {
            self.planned.replace(&repacked.replaced, repacked.added);
            for (index, node) in self.planned.all().iter_enumerated() {
                for pod in &node.pods {
                    self.queue.pods[*pod].state = PodState::Placed(Target::Planned(index));
                }
            }
        }
        repacked.hasty
    }

    pub(crate) fn repacker(&mut self, thorough: bool) -> Repacker<'_, 'a> {
        Repacker::new(
            thorough,
            &self.queue,
            &self.topology,
            &mut self.rows,
            &self.planned,
            &mut self.budgets,
        )
    }
}

/// Returns why no NodePool can be used, if none can.
fn no_usable_pool(solver: &Solver) -> Option<Unschedulable> {
    let any = |test: fn(&PoolOutcome) -> bool| solver.pools.iter().any(|pool| test(&pool.outcome));
    let any_dynamic = any(|outcome| {
        matches!(
            outcome,
            PoolOutcome::Used
                | PoolOutcome::NoCompatibleInstanceTypes { .. }
                | PoolOutcome::Unknown(_)
                | PoolOutcome::Unevaluated
        )
    });
    if !any_dynamic {
        return Some(Unschedulable::NoNodePools);
    }
    if !solver.templates.is_empty() {
        return None;
    }
    if any(|outcome| matches!(outcome, PoolOutcome::NoCompatibleInstanceTypes { .. })) {
        return Some(Unschedulable::NoInstanceTypes);
    }
    let mut misspelt = solver.pools.iter().filter_map(|pool| match &pool.outcome {
        PoolOutcome::NotFound { similar } => Some(Unschedulable::UnknownNodePool {
            name: pool.node_pool.clone(),
            similar: similar.clone(),
        }),
        _ => None,
    });
    Some(misspelt.next().unwrap_or(Unschedulable::NoInstanceTypes))
}

#[cfg(test)]
mod tests;
