//! One scheduling run.
//!
//! 1. Pods are sorted: cpu descending, memory descending, creation, uid. Buffers' pods come last.
//! 2. Each pod is tried on machines that exist, then on claims of this run, then on a new claim of each NodePool; if none
//!    takes it, its demands are relaxed by a step and everything is tried again.
//! 3. Pods that failed are tried again as long as others were placed since and that can have made a difference.
//!
//! Ties: machines go by name (initialised first), claims by number of pods and then by age, NodePools by weight and then by
//! name descending, domains by count, then by price for a new claim, then by name.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use karpenter_api::labels;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    algebra::{Algebra, ReqId, SetId},
    bits::Bits,
    claim::Claim,
    class::{Class, GroupId},
    devices::Devices,
    masks::RowMask,
    plan::{DraftShape, Plan, PoolOutcome, WhyNot},
    portfolio::{Attempt, Strategy},
    prepare::Solver,
    request::{PodSet, ScheduleRequest},
    topology::{Axis, Group, GroupIdentity, Host},
};
use crate::{
    limits::known_usage,
    pod::{HostPort, Pod},
};

/// Where a pod went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Waiting,
    Placed(Host),
    Refused,
    /// Reserved capacity would do but is used up.
    Deferred,
}

/// A pod of the run.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) pod: Arc<Pod>,
    pub(super) class: usize,
    pub(super) buffer: bool,
    /// It is pending or comes from a machine that is going away.
    pub(super) waiting: bool,
    pub(super) fate: Fate,
    /// What it asked for where it was placed: node selector and affinity, and what its volumes left.
    pub(super) asked: SetId,
    pub(super) volume: SetId,
    /// How many of its preferences it dropped to be placed.
    pub(super) dropped: usize,
}

/// What a run added to a machine, beside resources.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) ports: Vec<HostPort>,
    /// Claims attached by driver, the bound pods' included.
    pub(super) attached: Option<BTreeMap<String, FxHashSet<String>>>,
}

/// What drafts must have in common to be alike: template, requirements, rows, reservations.
pub(super) type ShapeKey = (usize, SetId, Bits, Rc<BTreeSet<usize>>);

/// See the module documentation.
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
    /// Machines that are not supposed gone.
    pub(super) present: Bits,
    /// Machines that may be used.
    pub(super) usable: Bits,
    /// Machines that only waiting pods may use.
    pub(super) reluctant: Arc<Bits>,
    pub(super) remaining: Vec<i64>,
    pub(super) loads: FxHashMap<usize, Load>,
    pub(super) claims: Vec<Claim>,
    /// Open claims by number of pods.
    pub(super) levels: BTreeMap<u32, Bits>,
    /// What is left of each template's limits.
    pub(super) limits: Vec<Vec<i64>>,
    /// Rows within the limits of each template.
    pub(super) within_limits: Vec<Option<Rc<Bits>>>,
    pub(super) reservations_left: Vec<u32>,
    pub(super) masks: RefCell<FxHashMap<(usize, SetId), Rc<RowMask>>>,
    pub(super) rows_meeting: FxHashMap<(usize, ReqId), Rc<Bits>>,
    pub(super) kinds: FxHashMap<(usize, SetId), Rc<Bits>>,
    pub(super) shapes: FxHashMap<ShapeKey, Option<Arc<DraftShape>>>,
    /// The least any class asks for, by resource: a claim without this much room is closed.
    pub(super) least: Box<[i64]>,
    /// Changes whenever something happened that can make room for a pod that was refused.
    pub(super) epoch: u64,
    /// No NodePool can be used at all.
    pub(super) hopeless: Option<WhyNot>,
    /// Gives devices to resource claims, if some pod has any.
    pub(super) devices: Option<Box<Devices<'a>>>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        solver: &'a Solver,
        request: &'a ScheduleRequest,
        strategy: Strategy,
    ) -> Self {
        let width = solver.dimensions.len();
        let machine = |name: &String| solver.machine_of.get(name).map(|index| *index as usize);
        let mut usable = Bits::full(solver.machines.len());
        for index in request.without.iter().filter_map(machine) {
            usable.remove(index);
        }
        let present = usable.clone();
        for (index, machine) in solver.machines.iter().enumerate() {
            if machine.broken {
                usable.remove(index);
            }
        }
        let mut limits: Vec<Vec<i64>> = solver
            .templates
            .iter()
            .map(|template| template.limits.clone())
            .collect();
        for index in request.without.iter().filter_map(machine) {
            let state = &solver.machines[index].state;
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
            reluctant: solver.machines_named(&request.reluctant),
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
            hopeless: None,
            devices: None,
        };
        for template in 0..solver.templates.len() {
            run.refresh_limits(template);
        }
        run
    }

    /// Makes the plan.
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
            self.hopeless = Some(WhyNot::NoNodePools);
        } else if self.solver.templates.is_empty() {
            self.hopeless = Some(WhyNot::NoInstanceTypes);
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

    /// Labels that exist in the simulation only.
    pub(super) fn is_simulated_label(key: &str) -> bool {
        matches!(
            key,
            labels::REGISTERED | labels::INITIALIZED | labels::HOSTNAME
        )
    }
}
