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
use crate::schedule::compile::ids::{ClassId, GroupId, PodIdx, Target};
use crate::schedule::compile::solver::Solver;
use crate::schedule::objective::{Cost, Outcome};
use crate::schedule::place::budgets::PoolBudgets;
use crate::schedule::place::devices::Devices;
use crate::schedule::place::existing_nodes::ExistingNodes;
use crate::schedule::place::placement::{Manner, Placement};
use crate::schedule::place::placer::Placer;
use crate::schedule::place::planned_node::PlannedNodes;
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::place::variant::{FreshVariants, Variant};
use crate::schedule::pods::class::{Class, PodState};
use crate::schedule::pods::queue::{PodQueue, QueuedPod};
use crate::schedule::reasons::{PoolOutcome, Unschedulable};
use crate::schedule::repack::dissolve::Repacker;
use crate::schedule::report::Report;
use crate::schedule::report::plan::{EffectiveZone, Objective, Plan};
use crate::schedule::report::zones::pending_by_zone;
use crate::schedule::request::{Packing, PodSet, Query};
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::group::Group;

/// One scheduling pass: the pods of a query, and where they are placed.
pub(crate) struct Pass<'a> {
    pub(crate) solver: &'a Solver,
    pub(crate) query: &'a Query,
    pub(crate) rows: RowCache<'a>,
    pub(crate) queue: PodQueue,
    pub(crate) state: State<'a>,
    devices: Option<Box<Devices<'a>>>,
    /// Why no NodePool can be used, if none can.
    no_usable_pool: Option<Unschedulable>,
    pending_by_zone: BTreeMap<EffectiveZone, usize>,
    again: Option<Box<Again<'a>>>,
}

/// What placements change, beside the states of the pods.
pub(crate) struct State<'a> {
    pub(crate) topology: Topology<'a>,
    pub(crate) planned: PlannedNodes,
    pub(crate) budgets: PoolBudgets<'a>,
    existing: ExistingNodes<'a>,
    /// The variant of each class that was refused last.
    refused: IndexVec<ClassId, Option<Box<Variant>>>,
}

/// What it takes to place the pods of a pass again.
struct Again<'a> {
    /// The counters and budgets before any pod is placed.
    counted: IndexVec<GroupId, Group>,
    budgets: PoolBudgets<'a>,
    /// The variants of each class before any pod is placed.
    variants: FreshVariants,
    /// The plan before the pods were placed again.
    before: (IndexVec<PodIdx, QueuedPod>, State<'a>),
}

impl<'a> Pass<'a> {
    /// Collects the pods, and counts those of the cluster. Returns `None` if the solver was not compiled for a resource that a pod of
    /// the query requests.
    pub(crate) fn new(solver: &'a Solver, query: &'a Query) -> Option<Self> {
        let existing = ExistingNodes::new(solver, query);
        let mut rows = RowCache::new(solver);
        let algebra = &mut rows.algebra;
        let mut topology = Topology::new(solver, existing.present().clone());
        let link = |algebra: &mut Algebra, class: &mut Class| topology.constrain(algebra, class);
        let mut queue = PodQueue::collect(solver, query, algebra, link)?;
        let devices = Devices::new(solver, &queue, existing.present());
        topology.count_existing_pods(algebra, &queue, existing.deleted());
        topology.link(&mut queue.classes);
        let pending_by_zone = match query.pods {
            PodSet::Waiting => pending_by_zone(solver, &queue, &mut topology, algebra),
            _ => BTreeMap::new(),
        };
        Some(Self {
            solver,
            query,
            rows,
            state: State {
                topology,
                planned: PlannedNodes::new(queue.least_requests(solver.width())),
                budgets: PoolBudgets::new(solver, query),
                existing,
                refused: IndexVec::new(),
            },
            queue,
            devices,
            no_usable_pool: no_usable_pool(solver),
            pending_by_zone,
            again: None,
        })
    }

    /// Places the pods first fit, by size. If they `may_be_placed_again`, keeps what that takes.
    pub(crate) fn place_first(&mut self, may_be_placed_again: bool) {
        let state = &self.state;
        let kept =
            may_be_placed_again.then(|| (state.topology.groups.clone(), state.budgets.clone()));
        let mut fresh = may_be_placed_again.then(FreshVariants::default);
        let order = self.queue.pods.indices().collect();
        self.place(order, Manner::FirstFit, &mut fresh, true);
        let (Some((counted, budgets)), Some(variants)) = (kept, fresh) else {
            return;
        };
        let before = (
            self.queue.pods.clone(),
            State {
                topology: self.state.topology.clone(),
                planned: self.state.planned.cleared(),
                budgets: budgets.clone(),
                existing: self.state.existing.clone(),
                refused: IndexVec::new(),
            },
        );
        self.again = Some(Box::new(Again {
            counted,
            budgets,
            variants,
            before,
        }));
    }

    /// Reports whether the order of pods decides nothing but their places. It also decides which devices they get, and which of them a
    /// pod prefers is not among the rules by which plans are compared.
    pub(crate) fn may_be_reordered(&self) -> bool {
        self.devices.is_none()
    }

    /// Places all pods again in another order. [`Self::take_back`] restores the plan before.
    pub(crate) fn place_again(&mut self, order: Vec<PodIdx>, manner: Manner) {
        let Some(mut again) = self.again.take() else {
            return;
        };
        std::mem::swap(&mut self.queue.pods, &mut again.before.0);
        std::mem::swap(&mut self.state, &mut again.before.1);
        self.queue.pods.iter_mut().for_each(QueuedPod::reset);
        let state = &mut self.state;
        state
            .topology
            .reset(&again.counted, manner == Manner::Upstream);
        state.planned = state.planned.cleared();
        state.budgets.clone_from(&again.budgets);
        state.existing.reset();
        let mut fresh = Some(std::mem::take(&mut again.variants));
        // The query must not see the pass start again.
        self.place(order, manner, &mut fresh, false);
        again.variants = fresh.unwrap_or_default();
        self.again = Some(again);
    }

    /// Restores the plan before the pods were placed again.
    pub(crate) fn take_back(&mut self) {
        if let Some(again) = &mut self.again {
            std::mem::swap(&mut self.queue.pods, &mut again.before.0);
            std::mem::swap(&mut self.state, &mut again.before.1);
        }
    }

    fn place(
        &mut self,
        order: Vec<PodIdx>,
        manner: Manner,
        fresh: &mut Option<FreshVariants>,
        reports: bool,
    ) {
        let state = &mut self.state;
        let placement = Placement::new(
            manner,
            &mut self.rows,
            &mut state.topology,
            &mut state.planned,
            &mut state.budgets,
            &mut state.existing,
            self.devices.as_deref_mut(),
        );
        let may_open = self.no_usable_pool.is_none();
        let (queue, query) = (&mut self.queue, self.query);
        let mut placer = Placer::new(placement, queue, query, may_open, fresh, reports);
        placer.place_all(order);
        state.refused = placer.finish();
    }

    /// Repacks wasteful planned nodes, and `searches` for a better packing.
    pub(crate) fn repack(&mut self, searches: bool) {
        let Packing::LowestCost { from_pods } = self.query.packing(&self.solver.policy) else {
            return;
        };
        let (replaced, added) = self.repacker(searches).repack(from_pods);
        if !added.is_empty() {
            let planned = &mut self.state.planned;
            planned.replace(&replaced, added);
            for (index, node) in planned.all().iter_enumerated() {
                for pod in &node.pods {
                    self.queue.pods[*pod].state = PodState::Placed(Target::Planned(index));
                }
            }
        }
    }

    pub(crate) fn repacker(&mut self, searches: bool) -> Repacker<'_, 'a> {
        let state = &mut self.state;
        Repacker::new(
            searches,
            &self.queue,
            &state.topology,
            &mut self.rows,
            &state.planned,
            &mut state.budgets,
        )
    }

    /// Reports whether each pod is on a planned node.
    pub(crate) fn are_all_on_planned_nodes(&self) -> bool {
        let mut states = self.queue.pods.iter().map(|queued| queued.state);
        states.all(|state| matches!(state, PodState::Placed(Target::Planned(_))))
    }

    /// Returns what the plan costs.
    pub(crate) fn cost(&mut self) -> Cost {
        let nodes = self.state.planned.all();
        let mut instances = 0.0;
        for node in nodes {
            instances += node.launch_price(&mut self.rows, &self.state.budgets);
        }
        Cost {
            pods: Outcome::of(&self.queue.pods, false),
            buffers: Outcome::of(&self.queue.pods, true),
            instances,
            price: instances + self.solver.policy.node_overhead_price * nodes.len() as f64,
            nodes: nodes.len(),
        }
    }

    /// Returns the plan.
    pub(crate) fn into_plan(mut self) -> Plan {
        let objective = self.query.bounds_price.then(|| Objective {
            price: self.cost().price,
            lowest: self.lowest_price(),
        });
        let state = &self.state;
        let report = Report {
            solver: self.solver,
            rows: &mut self.rows,
            queue: &self.queue,
            planned: &state.planned,
            topology: &state.topology,
            budgets: &state.budgets,
            refused: &state.refused,
            no_usable_pool: self.no_usable_pool.as_ref(),
        };
        Plan {
            objective,
            pending_by_zone: self.pending_by_zone,
            ..report.into_plan()
        }
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
