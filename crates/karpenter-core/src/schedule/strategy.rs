//! What a scheduling pass may choose freely, and what it results in.

use std::collections::BTreeMap;

use crate::schedule::compile::ids::ClassId;
use crate::schedule::report::plan::Plan;
use crate::schedule::trace::TracedPod;

/// Plans for more pods are made with one strategy.
pub(crate) const MOST_PODS: usize = 1_500;
/// The order in which pods are placed. Buffers' pods come last in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Order {
    /// By cpu request, then memory, descending: upstream's order.
    #[default]
    Size,
    /// By memory request, then cpu, descending.
    Memory,
    /// Pods with the same node requirements one after the other.
    Alike,
}

/// The choices that constraints leave open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Strategy {
    pub(crate) order: Order,
    /// Joins the planned node whose price rises least, or opens one if that costs less; else joins the first with room.
    pub(crate) least_increase: bool,
    /// Among domains that a topology constraint ranks equal, takes the first by name, as upstream does, else the cheapest for the
    /// pod: the cheapest domain for the first pod may be expensive for the pods after it.
    pub(crate) domains_by_name: bool,
    /// Repacks wasteful nodes thoroughly. Done once, for the best strategy: the savings differ little between strategies, and the
    /// search takes most of the time.
    pub(crate) thorough: bool,
}

impl Strategy {
    pub(crate) const fn new(order: Order) -> Self {
        Self {
            order,
            least_increase: false,
            domains_by_name: false,
            thorough: false,
        }
    }

    pub(crate) const fn least_increase(order: Order) -> Self {
        Self {
            least_increase: true,
            ..Self::new(order)
        }
    }
}

/// What a plan leaves undone for some of its pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// How many preferences the pods dropped in total.
    pub(crate) dropped: usize,
    pub(crate) unplaced: usize,
    /// Unplaced pods of each class. Pods of a class are interchangeable.
    pub(crate) left_out: BTreeMap<ClassId, usize>,
}

impl Outcome {
    /// Reports whether no more pods of any class are left out than in another plan.
    pub(crate) fn leaves_out_no_more_than(&self, other: &Self) -> bool {
        let mut left_out = self.left_out.iter();
        left_out.all(|(class, number)| other.left_out.get(class) >= Some(number))
    }
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
    /// The pass was not run: the solver was not compiled for a resource that a pod of the query requests.
    pub(crate) unknown_resources: bool,
}
