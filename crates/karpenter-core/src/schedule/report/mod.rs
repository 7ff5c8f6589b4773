//! Step 6: turns the placements into a [`Plan`](plan::Plan): NodeClaims to create, and a reason for every pod without a place.
//!
//! `explain` turns the refusals of `place` into the values of `reasons`; it decides nothing.

pub(crate) mod explain;
pub(crate) mod node_claims;
pub(crate) mod plan;
pub(crate) mod planned_node_claim;
pub(crate) mod zones;

use index_vec::IndexVec;

use crate::schedule::compile::ids::ClassId;
use crate::schedule::compile::solver::Solver;
use crate::schedule::place::budgets::PoolBudgets;
use crate::schedule::place::planned_node::PlannedNodes;
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::place::variant::Variant;
use crate::schedule::pods::queue::PodQueue;
use crate::schedule::reasons::Unschedulable;
use crate::schedule::topology::domains::Topology;

/// The result of a pass. Only caches change while it is reported.
pub(crate) struct Report<'p, 'a> {
    pub(crate) solver: &'a Solver,
    pub(crate) rows: &'p mut RowCache<'a>,
    pub(crate) queue: &'p PodQueue,
    pub(crate) planned: &'p PlannedNodes,
    pub(crate) topology: &'p Topology<'a>,
    pub(crate) budgets: &'p PoolBudgets<'a>,
    /// The variant of each class that was refused last.
    pub(crate) refused: &'p IndexVec<ClassId, Option<Box<Variant>>>,
    /// Set if no NodePool can be used.
    pub(crate) no_usable_pool: Option<&'p Unschedulable>,
}
