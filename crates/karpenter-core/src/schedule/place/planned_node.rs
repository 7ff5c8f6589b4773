//! A planned node: the requirements and resources that the pods placed on it leave.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Index, IndexMut};
use std::rc::Rc;
use std::sync::Arc;

use index_vec::IndexVec;
use smallvec::smallvec;

use crate::dra::Allocation;
use crate::pod::HostPort;
use crate::schedule::compile::algebra::{ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{NO_ROW, PlannedId, PodIdx, ReservationId, RowId, TemplateId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::compile::vectors::Vector;
use crate::schedule::place::budgets::PoolBudgets;
use crate::schedule::place::row_cache::RowCache;

/// A planned node of this pass. Its requirements only narrow and its load only grows.
#[derive(Clone, Debug)]
pub(crate) struct PlannedNode {
    pub(crate) template: TemplateId,
    pub(crate) set: SetId,
    pub(crate) used: Vector,
    /// The pods placed on it.
    pub(crate) pods: Vec<PodIdx>,
    /// A row that fits.
    pub(crate) witness: RowId,
    /// Rows that may still fit, roomiest first. May hold some that no longer do.
    pub(crate) alive: Arc<Vec<RowId>>,
    /// Rows that limits and host ports leave; `None` is all.
    pub(crate) allowed: Option<Rc<Bits<RowId>>>,
    pub(crate) ports: Vec<HostPort>,
    /// Reservations it holds an instance of.
    pub(crate) reservations: Rc<BTreeSet<ReservationId>>,
    pub(crate) min_values_relaxed: bool,
    /// Resources charged to the limits of its NodePool.
    pub(crate) charged: Vec<i64>,
    /// For each limit, a row that uses the charged amount.
    pub(crate) charged_for: Vec<RowId>,
    /// Drivers of the devices of its pods, if any pod has resource claims.
    pub(crate) drivers: Option<BTreeSet<String>>,
}

impl PlannedNode {
    /// Returns a planned node without pods.
    pub(crate) fn new(template: TemplateId, solver: &Solver) -> Self {
        let compiled = &solver.templates[template];
        Self {
            template,
            set: compiled.set,
            used: smallvec![0; solver.width()],
            pods: Vec::new(),
            witness: NO_ROW,
            alive: compiled.order.clone(),
            allowed: None,
            ports: Vec::new(),
            reservations: Rc::default(),
            min_values_relaxed: false,
            charged: vec![0; compiled.limit_names.len()],
            charged_for: Vec::new(),
            drivers: None,
        }
    }

    /// Returns the lowest price of an instance type that fits its pods.
    pub(crate) fn lowest_price(&self, rows: &mut RowCache<'_>) -> f64 {
        let allowed = self.allowed.as_deref();
        rows.lowest_price(self.template, self.set, &self.used, allowed)
    }

    /// Returns the lowest price at which it is launched: reserved capacity counts only if it holds a reservation.
    pub(crate) fn launch_price(&self, rows: &mut RowCache<'_>, budgets: &PoolBudgets<'_>) -> f64 {
        let requirements = budgets.launch_requirements(self, &rows.algebra);
        let Some(requirements) = requirements else {
            return self.lowest_price(rows);
        };
        let names = &rows.solver().snapshot.config().well_known;
        let set = rows.algebra.set(&requirements, |key| names.contains(key));
        rows.lowest_price(self.template, set, &self.used, self.allowed.as_deref())
    }

    /// Sets its requirements and the row that fits.
    pub(crate) fn narrow(&mut self, set: SetId, witness: RowId, rows: &mut RowCache<'_>) {
        self.set = set;
        let before = std::mem::replace(&mut self.witness, witness);
        // Rows are checked for room where they are used. Once the pods need another row, others without room are worth looking for.
        if before != witness && before != NO_ROW {
            let mask = rows.mask(self.template, set);
            let fits = |row: &RowId| {
                mask.rows.contains(*row) && rows.has_room(self.template, *row, &self.used)
            };
            self.alive = Arc::new(self.alive.iter().copied().filter(fits).collect());
        }
    }

    /// Returns its state under one more requirement; `None` if it cannot meet it: its pods do not fit, minValues are unmet, or the
    /// reserved capacity it relies on is used up.
    pub(crate) fn narrowed_by(
        &self,
        req: ReqId,
        rows: &mut RowCache<'_>,
        budgets: &PoolBudgets<'_>,
    ) -> Option<Narrowed> {
        let Self {
            template, witness, ..
        } = *self;
        let set = rows.algebra.narrow(self.set, req)?;
        let counts_types = rows.algebra.has_min_values(self.set);
        let is_free = !counts_types && self.reservations.is_empty();
        if set == self.set || (is_free && rows.mask(template, set).rows.contains(witness)) {
            return Some(Narrowed {
                set,
                witness,
                reservations: None,
            });
        }
        let left = rows.rows_with_room(template, set, &self.used, self.allowed.as_deref());
        let first = left.iter().next()?;
        if counts_types && rows.unmet_min_values(template, set, &left).is_some() {
            return None;
        }
        let reservations = match self.reservations.is_empty() {
            true => None,
            false => Some(budgets.reservations_of(self, set, &left, rows).ok()?),
        };
        Some(Narrowed {
            set,
            witness: if left.contains(witness) {
                witness
            } else {
                first
            },
            reservations,
        })
    }

    /// Reports whether a request fits beside its pods.
    fn has_room_for(&self, requests: &[i64], rows: &RowCache<'_>) -> bool {
        let fits = |row: RowId| rows.row_fits(self.template, row, &self.used, requests);
        fits(self.witness) || self.alive.iter().copied().any(fits)
    }

    /// Returns the drivers of the devices of its pods, sorted and joined; empty without any.
    pub(crate) fn drivers(&self) -> Arc<str> {
        let drivers = self.drivers.iter().flatten();
        let drivers: Vec<&str> = drivers.map(String::as_str).collect();
        drivers.join(",").into()
    }
}

/// The planned nodes of a pass.
pub(crate) struct PlannedNodes {
    nodes: IndexVec<PlannedId, PlannedNode>,
    /// Planned nodes with free resources, by number of pods.
    pub(super) levels: BTreeMap<u32, Bits<PlannedId>>,
    /// The smallest request of any class, by resource: a planned node without this much room is closed.
    least: Box<[i64]>,
}

impl PlannedNodes {
    pub(crate) fn new(least: Box<[i64]>) -> Self {
        Self {
            nodes: IndexVec::new(),
            levels: BTreeMap::new(),
            least,
        }
    }

    pub(crate) fn all(&self) -> &IndexVec<PlannedId, PlannedNode> {
        &self.nodes
    }

    /// Returns the same without nodes.
    pub(crate) fn cleared(&self) -> Self {
        Self::new(self.least.clone())
    }

    /// Replaces some planned nodes by others, which get the last ids. Nothing is placed on any of them afterwards.
    pub(crate) fn replace(&mut self, replaced: &Bits<PlannedId>, added: Vec<PlannedNode>) {
        let old = std::mem::take(&mut self.nodes).into_iter_enumerated();
        let kept = old.filter(|(index, _)| !replaced.contains(*index));
        self.nodes = kept.map(|(_, node)| node).chain(added).collect();
        self.levels.clear();
    }

    /// Adds a planned node without pods.
    pub(crate) fn push(&mut self, node: PlannedNode) -> PlannedId {
        let index = self.nodes.push(node);
        self.levels.entry(0).or_default().insert(index);
        index
    }

    /// Moves a planned node that got one more pod to the next level; closes it if nothing more fits.
    pub(crate) fn relevel(&mut self, index: PlannedId, rows: &RowCache<'_>) {
        let node = &self.nodes[index];
        let level = node.pods.len() as u32;
        let open = node.has_room_for(&self.least, rows);
        if let Some(before) = self.levels.get_mut(&(level - 1)) {
            before.remove(index);
            if before.is_empty() {
                self.levels.remove(&(level - 1));
            }
        }
        if open {
            self.levels.entry(level).or_default().insert(index);
        }
    }
}

impl Index<PlannedId> for PlannedNodes {
    type Output = PlannedNode;

    #[inline]
    fn index(&self, id: PlannedId) -> &PlannedNode {
        &self.nodes[id]
    }
}

impl IndexMut<PlannedId> for PlannedNodes {
    #[inline]
    fn index_mut(&mut self, id: PlannedId) -> &mut PlannedNode {
        &mut self.nodes[id]
    }
}

/// The state of a planned node under one more requirement.
pub(crate) struct Narrowed {
    pub(crate) set: SetId,
    /// A row that fits.
    pub(crate) witness: RowId,
    /// Reservations it would hold, if it holds any.
    pub(crate) reservations: Option<BTreeSet<ReservationId>>,
}

/// The state of a planned node if a pod were placed on it.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    pub(crate) set: SetId,
    pub(crate) witness: RowId,
    pub(crate) allowed: Option<Rc<Bits<RowId>>>,
    /// Reservations it would hold; `None` if reservations are not tracked.
    pub(crate) reservations: Option<BTreeSet<ReservationId>>,
    pub(crate) min_values_relaxed: bool,
    pub(crate) price: f64,
    /// The alternative of the volume requirements that was chosen.
    pub(crate) volume: SetId,
    /// Devices the pod would be allocated, if it has resource claims.
    pub(crate) devices: Option<Rc<Allocation>>,
}
