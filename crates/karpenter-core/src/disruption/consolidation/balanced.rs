//! The Balanced consolidation policy: a command must save at least its share of a NodePool's cost for the share of the
//! NodePool's pods it disrupts.
//!
//! ```text
//! score = (savings / price of the NodePool) / (disruption cost of the command / disruption cost of all nodes of the NodePool)
//! ```
//!
//! A command is approved at a score of 1/k, with k = 2: a node of average price and average load may be replaced at half price.

use std::collections::BTreeMap;

use karpenter_api::v1::ConsolidationPolicy;

use crate::cluster::Snapshot;
use crate::disruption::candidate::Candidate;
use crate::disruption::consolidation::prices::PriceLists;
use crate::disruption::cost::{eviction_cost, price};

/// How many times its share of the savings a command may disrupt.
pub const K: f64 = 2.0;

/// The lowest score at which a command is approved.
pub const THRESHOLD: f64 = 1.0 / K;

/// The score of a command in one NodePool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolScore {
    /// The NodePool.
    pub node_pool: String,
    /// The score.
    pub score: f64,
    /// The savings, as a share of the price of the NodePool's nodes.
    pub savings: f64,
    /// The disruption cost, as a share of that of all the NodePool's nodes.
    pub disruption: f64,
}

/// The price (dollars per hour) and disruption cost of all nodes of each NodePool. Fixed for a pass.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    by_pool: BTreeMap<String, Total>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Total {
    price: f64,
    disruption: f64,
}

impl Totals {
    /// Sums over all nodes of the snapshot, candidates or not.
    pub fn new<'a>(
        snapshot: &Snapshot,
        candidates: impl IntoIterator<Item = &'a Candidate>,
        prices: &PriceLists,
    ) -> Self {
        let known: BTreeMap<&str, f64> = candidates
            .into_iter()
            .map(|candidate| (candidate.name(), candidate.reschedule_cost))
            .collect();
        let mut by_pool: BTreeMap<String, Total> = BTreeMap::new();
        for node in snapshot.nodes() {
            let Some(pool) = node.node_pool() else {
                continue;
            };
            let name = node.facts().instance_type.as_deref();
            let instance_type = prices.of(pool).zip(name).and_then(|(list, name)| {
                let place = list.place(name)?;
                Some(list.instance_type(place))
            });
            let disruption = known.get(node.name()).copied().unwrap_or_else(|| {
                let pods = snapshot.pods_on(node.name());
                1.0 + pods
                    .iter()
                    .map(|pod| eviction_cost(pod).max(0.0))
                    .sum::<f64>()
            });
            let total = by_pool.entry(pool.to_owned()).or_default();
            total.price += price(node, instance_type);
            total.disruption += disruption;
        }
        Self { by_pool }
    }

    /// Returns the lowest score of a command over its Balanced NodePools; `None` if it has none.
    ///
    /// A command without savings, without nodes, or in a NodePool whose price is 0 has score 0.
    pub fn score(&self, candidates: &[&Candidate], savings: f64) -> Option<f64> {
        if candidates.is_empty() {
            return Some(0.0);
        }
        let scores = self.judge(candidates, savings);
        let scores = scores.into_iter().map(|of_pool| of_pool.score);
        scores.min_by(f64::total_cmp)
    }

    /// Returns the score of a command in each of its Balanced NodePools, by name.
    pub fn judge(&self, candidates: &[&Candidate], savings: f64) -> Vec<PoolScore> {
        let total_price: f64 = candidates.iter().map(|candidate| candidate.price).sum();
        let mut pools: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        let balanced = candidates.iter().filter(|candidate| {
            candidate.node_pool.spec.disruption.consolidation_policy
                == ConsolidationPolicy::Balanced
        });
        for candidate in balanced {
            let (price, disruption) = pools.entry(candidate.pool_name()).or_default();
            *price += candidate.price;
            *disruption += candidate.reschedule_cost;
        }
        let score = |(pool, (price, disruption)): (&str, (f64, f64))| {
            let total = self.by_pool.get(pool).copied().unwrap_or_default();
            let saved = if total_price > 0.0 {
                savings * price / total_price
            } else {
                0.0
            };
            let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
            let (savings, disruption) = (
                share(saved, total.price),
                share(disruption, total.disruption),
            );
            let score = if saved <= 0.0 || total.price <= 0.0 {
                0.0
            } else if disruption <= 0.0 {
                f64::INFINITY
            } else {
                savings / disruption
            };
            PoolScore {
                node_pool: pool.to_owned(),
                score,
                savings,
                disruption,
            }
        };
        pools.into_iter().map(score).collect()
    }
}
