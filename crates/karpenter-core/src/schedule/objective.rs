//! What a plan costs: the one order in which plans are compared.
//!
//! 1. Pods without a place, those of the highest priority first; then pods of capacity buffers without a place.
//! 2. The price per hour: each node at its cheapest offering, and [`Policy::node_overhead_price`] for each node.
//! 3. The number of nodes, then the number of preferences that are not met.
//!
//! Plans are compared only if they keep what first fit's plan keeps ([`Cost::is_admissible`]).
//!
//! [`Policy::node_overhead_price`]: crate::schedule::request::Policy::node_overhead_price

use std::cmp::Ordering;
use std::collections::BTreeMap;

use index_vec::IndexVec;

use crate::schedule::compile::ids::{ClassId, PodIdx};
use crate::schedule::pods::class::PodState;
use crate::schedule::pods::queue::QueuedPod;

/// Prices that differ by less are equal: sums of the same prices in another order.
pub(crate) const SAME_PRICE: f64 = 1e-9;

/// How much the instances of a plan may cost, for fewer nodes, relative to those of first fit.
const MOST_ABOVE_FIRST_FIT: f64 = 1.01;

/// What a plan costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// What became of the pods, those of capacity buffers apart.
    pub(crate) pods: Outcome,
    /// What became of the pods of capacity buffers.
    pub(crate) buffers: Outcome,
    /// Dollars per hour of the instances.
    pub(crate) instances: f64,
    /// The same with the price of each node's own.
    pub(crate) price: f64,
    pub(crate) nodes: usize,
}

/// Priorities, the highest first, and the number of unplaced pods of each.
type Unplaced = [(i32, usize)];

/// What a plan leaves undone for some of its pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// How many preferences of the pods are not met in total.
    pub(crate) unmet: usize,
    /// Unplaced pods by priority, the highest first.
    pub(crate) unplaced: Vec<(i32, usize)>,
    /// Unplaced pods of each class. Pods of a class are interchangeable.
    pub(crate) left_out: BTreeMap<ClassId, usize>,
}

impl Outcome {
    /// Returns the outcome of the pods of capacity buffers, or of the others.
    pub(crate) fn of(pods: &IndexVec<PodIdx, QueuedPod>, buffers: bool) -> Self {
        let mut outcome = Self::default();
        let mut unplaced: BTreeMap<i32, usize> = BTreeMap::new();
        for queued in pods.iter().filter(|queued| queued.buffer == buffers) {
            outcome.unmet += queued.dropped;
            if !matches!(queued.state, PodState::Placed(_)) {
                *unplaced.entry(queued.pod.shape.priority).or_default() += 1;
                *outcome.left_out.entry(queued.class).or_default() += 1;
            }
        }
        outcome.unplaced = unplaced.into_iter().rev().collect();
        outcome
    }

    /// Admits plans that leave out as many pods of each class as another one of first fit.
    pub(crate) fn admit(&mut self, other: &Self) {
        for (class, number) in &other.left_out {
            let bound = self.left_out.entry(*class).or_default();
            *bound = (*bound).max(*number);
        }
    }

    /// Reports whether no more pods of any class are left out than in another plan.
    fn leaves_out_no_more_than(&self, other: &Self) -> bool {
        let mut left_out = self.left_out.iter();
        left_out.all(|(class, number)| other.left_out.get(class) >= Some(number))
    }
}

impl Cost {
    /// Reports whether a plan may be used instead of first fit's: it leaves no more pods of any class unplaced, and no more pods of
    /// capacity buffers unless it places more of the others. The instances of a plan that places as many cost at most a hundredth more:
    /// fewer nodes are not worth any price.
    pub(crate) fn is_admissible(&self, first_fit: &Self) -> bool {
        let places_more = self.pods.unplaced < first_fit.pods.unplaced;
        let is_dearer = self.unplaced() == first_fit.unplaced()
            && self.instances > first_fit.instances * MOST_ABOVE_FIRST_FIT + SAME_PRICE;
        !is_dearer
            && self.pods.leaves_out_no_more_than(&first_fit.pods)
            && (places_more || self.buffers.leaves_out_no_more_than(&first_fit.buffers))
    }

    /// Reports whether a plan is better than the best one so far. Of plans that place as many pods, only those count that leave at most
    /// so many preferences unmet.
    pub(crate) fn improves(&self, best: &Self, most_unmet: usize) -> bool {
        match self.unplaced().cmp(&best.unplaced()) {
            Ordering::Less => true,
            Ordering::Greater => false,
            // A pod without a place has no preferences, so that they are not compared with those of a plan that places fewer.
            Ordering::Equal => self.unmet() <= most_unmet && self.is_cheaper(best),
        }
    }

    fn is_cheaper(&self, best: &Self) -> bool {
        let difference = self.price - best.price;
        if difference.abs() > SAME_PRICE {
            return difference < 0.0;
        }
        (self.nodes, self.unmet()) < (best.nodes, best.unmet())
    }

    /// Returns the unplaced pods, and those of capacity buffers, by priority.
    pub(crate) fn unplaced(&self) -> (&Unplaced, &Unplaced) {
        (&self.pods.unplaced, &self.buffers.unplaced)
    }

    /// Returns how many preferences are not met.
    pub(crate) fn unmet(&self) -> usize {
        self.pods.unmet + self.buffers.unmet
    }
}

#[cfg(test)]
mod tests;
