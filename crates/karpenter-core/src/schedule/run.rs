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

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use karpenter_api::labels;
use rustc_hash::{FxHashMap, FxHashSet};

use super::algebra::{Algebra, ReqId, SetId};
use super::bits::Bits;
use super::claim::Claim;
use super::class::{Class, GroupId};
use super::devices::Devices;
use super::masks::RowMask;
use super::plan::{DraftShape, Plan, PoolOutcome, Unschedulable};
use super::portfolio::{Attempt, Strategy};
use super::prepare::Solver;
use super::request::{PodSet, ScheduleRequest};
use super::topology::{Axis, Group, GroupIdentity, Host};
use crate::limits::known_usage;
use crate::pod::{HostPort, Pod};

/// The state of a pod in the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Waiting,
    Placed(Host),
    Refused,
    /// Only reserved capacity is compatible, and it is used up.
    Deferred,
}

/// A pod of the pass.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) pod: Arc<Pod>,
    pub(super) class: usize,
    pub(super) buffer: bool,
    /// It is pending or leaves a deleting node.
    pub(super) waiting: bool,
    pub(super) fate: Fate,
    /// Its requirements at the variant at which it was placed: node selector and affinity; `volume` has those of its volumes.
    pub(super) asked: SetId,
    pub(super) volume: SetId,
    /// How many of its preferences it dropped to be placed.
    pub(super) dropped: usize,
}

/// The ports and volumes that a pass added to a node.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) ports: Vec<HostPort>,
    /// Attached volume claims by driver, including those of bound pods.
    pub(super) attached: Option<BTreeMap<String, FxHashSet<String>>>,
}

/// The key of a draft shape: template, requirements, rows, reservations.
pub(super) type ShapeKey = (usize, SetId, Bits, Rc<BTreeSet<usize>>);

/// The state of a scheduling pass; see the module documentation.
pub(super) struct Run<'a> {
    pub(super) solver: &'a Solver,
    pub(super) request: &'a ScheduleRequest,
    pub(super) strategy: Strategy,
    pub(super) algebra: Algebra,
    pub(super) width: usize,
    pub(super) items: Vec<Item>,
    pub(super) classes: Vec<Class>,
    pub(super) axes: Vec<Axis>,
    pub(super) axis_ids: FxHashMap<String, usize>,
    pub(super) groups: Vec<Group>,
    pub(super) group_ids: FxHashMap<Arc<GroupIdentity>, GroupId>,
    /// Nodes not treated as deleted.
    pub(super) present: Bits,
    /// Nodes that pods may be placed on.
    pub(super) usable: Bits,
    /// Nodes that only waiting pods may be placed on.
    pub(super) reluctant: Arc<Bits>,
    pub(super) remaining: Vec<i64>,
    pub(super) loads: FxHashMap<usize, Load>,
    pub(super) claims: Vec<Claim>,
    /// Planned nodes with free resources, by number of pods.
    pub(super) levels: BTreeMap<u32, Bits>,
    /// The remaining limits of each template.
    pub(super) limits: Vec<Vec<i64>>,
    /// Rows within the limits of each template.
    pub(super) within_limits: Vec<Option<Rc<Bits>>>,
    pub(super) reservations_left: Vec<u32>,
    pub(super) masks: RefCell<FxHashMap<(usize, SetId), Rc<RowMask>>>,
    pub(super) rows_meeting: FxHashMap<(usize, ReqId), Rc<Bits>>,
    pub(super) kinds: FxHashMap<(usize, SetId), Rc<Bits>>,
    pub(super) shapes: FxHashMap<ShapeKey, Option<Arc<DraftShape>>>,
    /// The smallest request of any class, by resource: a planned node without this much room is closed.
    pub(super) least: Box<[i64]>,
    /// Incremented by each change that can make a refused pod placeable.
    pub(super) epoch: u64,
    /// Set if no NodePool can be used.
    pub(super) no_usable_pool: Option<Unschedulable>,
    /// Allocates devices for resource claims, if some pod has any.
    pub(super) devices: Option<Box<Devices<'a>>>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        solver: &'a Solver,
        request: &'a ScheduleRequest,
        strategy: Strategy,
    ) -> Self {
        let width = solver.dimensions.len();
        let node = |name: &String| solver.node_index.get(name).map(|index| *index as usize);
        let mut usable = Bits::full(solver.nodes.len());
        for index in request.without.iter().filter_map(node) {
            usable.remove(index);
        }
        let present = usable.clone();
        for (index, node) in solver.nodes.iter().enumerate() {
            if node.broken {
                usable.remove(index);
            }
        }
        let mut limits: Vec<Vec<i64>> = solver
            .templates
            .iter()
            .map(|template| template.limits.clone())
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
            items: Vec::new(),
            classes: Vec::new(),
            axes: Vec::new(),
            axis_ids: FxHashMap::default(),
            groups: Vec::new(),
            group_ids: FxHashMap::default(),
            present,
            usable,
            reluctant: solver.nodes_named(&request.reluctant),
            remaining: solver.remaining.clone(),
            loads: FxHashMap::default(),
            claims: Vec::new(),
            levels: BTreeMap::new(),
            within_limits: vec![None; solver.templates.len()],
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
        for template in 0..solver.templates.len() {
            run.refresh_limits(template);
        }
        run
    }

    pub(super) fn solve(mut self) -> Attempt {
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
        let dropped = self.items.iter().map(|item| item.dropped).sum();
        let mut left_out: BTreeMap<(usize, bool), usize> = BTreeMap::new();
        for item in &self.items {
            if !matches!(item.fate, Fate::Placed(_)) {
                *left_out.entry((item.class, item.buffer)).or_default() += 1;
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

    /// Reports whether a label exists in the simulation only.
    pub(super) fn is_simulated_label(key: &str) -> bool {
        matches!(
            key,
            labels::REGISTERED | labels::INITIALIZED | labels::HOSTNAME
        )
    }
}
