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
//! UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go

use crate::schedule::compile::ids::{
    AxisId, CatalogueId, ClassId, GroupId, NodeIdx, OfferingKindId, PlannedId, PodIdx,
    ReservationId, RowId, TemplateId,
};
use index_vec::IndexVec;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::limits::known_usage;
use crate::pod::{HostPort, Pod};
use crate::schedule::compile::algebra::{Algebra, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::solver::Solver;
use crate::schedule::place::devices::Devices;
use crate::schedule::place::planned_node::PlannedNode;
use crate::schedule::place::row_cache::RowMask;
use crate::schedule::pods::class::Class;
use crate::schedule::portfolio::{Attempt, Strategy};
use crate::schedule::report::plan::Plan;
use crate::schedule::report::planned_node_claim::DraftShape;
use crate::schedule::report::reasons::{PoolOutcome, Unschedulable};
use crate::schedule::request::{PodSet, ScheduleRequest};
use crate::schedule::topology::group::{Axis, Group, GroupIdentity, Target};

/// The state of a pod in the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    Waiting,
    Placed(Target),
    Refused,
    /// Only reserved capacity is compatible, and it is used up.
    Deferred,
}

/// A pod of the pass.
#[derive(Debug)]
pub(crate) struct QueuedPod {
    pub(crate) pod: Arc<Pod>,
    pub(crate) class: ClassId,
    pub(crate) buffer: bool,
    /// It is pending or leaves a deleting node.
    pub(crate) waiting: bool,
    pub(crate) state: PodState,
    /// Its requirements at the variant at which it was placed: node selector and affinity; `volume` has those of its volumes.
    pub(crate) asked: SetId,
    pub(crate) volume: SetId,
    /// How many of its preferences it dropped to be placed.
    pub(crate) dropped: usize,
}

/// The ports and volumes that a pass added to a node.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) ports: Vec<HostPort>,
    /// Attached volume claims by driver, including those of bound pods.
    pub(crate) attached: Option<BTreeMap<String, FxHashSet<String>>>,
}

/// The key of a draft shape: template, requirements, rows, reservations.
pub(crate) type ShapeKey = (TemplateId, SetId, Bits<RowId>, Rc<BTreeSet<ReservationId>>);

/// The state of a scheduling pass; see the module documentation.
pub(crate) struct SchedulingPass<'a> {
    pub(crate) solver: &'a Solver,
    pub(crate) request: &'a ScheduleRequest,
    pub(crate) strategy: Strategy,
    pub(crate) algebra: Algebra,
    pub(crate) width: usize,
    pub(crate) pods: IndexVec<PodIdx, QueuedPod>,
    pub(crate) classes: IndexVec<ClassId, Class>,
    pub(crate) axes: IndexVec<AxisId, Axis>,
    pub(crate) axis_ids: FxHashMap<String, AxisId>,
    pub(crate) groups: IndexVec<GroupId, Group>,
    pub(crate) group_ids: FxHashMap<Arc<GroupIdentity>, GroupId>,
    /// Nodes not treated as deleted.
    pub(crate) present: Bits<NodeIdx>,
    /// Nodes that pods may be placed on.
    pub(crate) usable: Bits<NodeIdx>,
    /// Nodes that only waiting pods may be placed on.
    pub(crate) avoid: Arc<Bits<NodeIdx>>,
    pub(crate) remaining: Vec<i64>,
    pub(crate) loads: FxHashMap<NodeIdx, Load>,
    pub(crate) planned: IndexVec<PlannedId, PlannedNode>,
    /// Planned nodes with free resources, by number of pods.
    pub(crate) levels: BTreeMap<u32, Bits<PlannedId>>,
    /// The remaining limits of each template.
    pub(crate) limits: IndexVec<TemplateId, Vec<i64>>,
    /// Rows within the limits of each template.
    pub(crate) within_limits: IndexVec<TemplateId, Option<Rc<Bits<RowId>>>>,
    pub(crate) reservations_left: IndexVec<ReservationId, u32>,
    pub(crate) masks: RefCell<FxHashMap<(TemplateId, SetId), Rc<RowMask>>>,
    pub(crate) rows_meeting: FxHashMap<(CatalogueId, ReqId), Rc<Bits<RowId>>>,
    pub(crate) kinds: FxHashMap<(CatalogueId, SetId), Rc<Bits<OfferingKindId>>>,
    pub(crate) shapes: FxHashMap<ShapeKey, Option<Arc<DraftShape>>>,
    /// The smallest request of any class, by resource: a planned node without this much room is closed.
    pub(crate) least: Box<[i64]>,
    /// Incremented by each change that can make a refused pod placeable.
    pub(crate) epoch: u64,
    /// Set if no NodePool can be used.
    pub(crate) no_usable_pool: Option<Unschedulable>,
    /// Allocates devices for resource claims, if some pod has any.
    pub(crate) devices: Option<Box<Devices<'a>>>,
}

impl<'a> SchedulingPass<'a> {
    pub(crate) fn new(
        solver: &'a Solver,
        request: &'a ScheduleRequest,
        strategy: Strategy,
    ) -> Self {
        let width = solver.dimensions.len();
        let node = |name: &String| solver.node_index.get(name).copied();
        let mut usable = Bits::full(solver.nodes.len());
        for index in request.without.iter().filter_map(node) {
            usable.remove(index);
        }
        let present = usable.clone();
        for (index, node) in solver.nodes.iter_enumerated() {
            if node.broken {
                usable.remove(index);
            }
        }
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
        let mut run = Self {
            solver,
            request,
            strategy,
            algebra: solver.algebra.layer(),
            width,
            pods: IndexVec::new(),
            classes: IndexVec::new(),
            axes: IndexVec::new(),
            axis_ids: FxHashMap::default(),
            groups: IndexVec::new(),
            group_ids: FxHashMap::default(),
            present,
            usable,
            avoid: solver.nodes_named(&request.avoid),
            remaining: solver.remaining.clone(),
            loads: FxHashMap::default(),
            planned: IndexVec::new(),
            levels: BTreeMap::new(),
            within_limits: solver.templates.iter().map(|_| None).collect(),
            limits,
            reservations_left: solver.reservations.left.clone(),
            masks: RefCell::default(),
            rows_meeting: FxHashMap::default(),
            kinds: FxHashMap::default(),
            shapes: FxHashMap::default(),
            least: Box::default(),
            epoch: 1,
            no_usable_pool: None,
            devices: None,
        };
        for template in solver.templates.indices() {
            run.refresh_limits(template);
        }
        run
    }

    pub(crate) fn solve(mut self) -> Attempt {
        self.collect();
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
            self.no_usable_pool = Some(Unschedulable::NoInstanceTypes);
        }
        let pending_by_zone = if matches!(self.request.pods, PodSet::Waiting) {
            self.pending_by_zone()
        } else {
            BTreeMap::new()
        };
        self.place_all();
        let hasty = self.repack();
        let strategy = self.strategy;
        let dropped = self.pods.iter().map(|queued| queued.dropped).sum();
        let mut left_out: BTreeMap<(ClassId, bool), usize> = BTreeMap::new();
        for queued in &self.pods {
            if !matches!(queued.state, PodState::Placed(_)) {
                *left_out.entry((queued.class, queued.buffer)).or_default() += 1;
            }
        }
        let plan = Plan {
            pending_by_zone,
            ..self.into_plan()
        };
        Attempt {
            plan,
            strategy,
            dropped,
            left_out,
            hasty,
        }
    }
}
