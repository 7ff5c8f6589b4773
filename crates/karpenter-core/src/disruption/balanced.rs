//! The Balanced policy: a move must save at least its share of a pool's cost for the share of the pool's pods it disturbs.
//!
//! ```text
//! score = (savings / cost of the pool) / (cost of the move / cost of moving everything in the pool)
//! ```
//!
//! A move is approved at 1/k, with k = 2: a pool's machine of average price and average load may be replaced at half price.

use std::collections::BTreeMap;

use karpenter_api::v1::ConsolidationPolicy;

use super::{
    candidate::Candidate,
    cost::{eviction_cost, price},
    prices::PriceLists,
};
use crate::cluster::Snapshot;

/// How many times its fair share a move may disturb.
pub const K: f64 = 2.0;

/// What a move's score must reach.
pub const THRESHOLD: f64 = 1.0 / K;

/// How a move does in one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolScore {
    /// The NodePool.
    pub node_pool: String,
    /// The score.
    pub score: f64,
    /// What it saves, as a share of what the pool costs.
    pub savings: f64,
    /// What it disturbs, as a share of what moving everything in the pool would.
    pub disruption: f64,
}

/// What all machines of each pool cost, in dollars an hour and in disruption. Fixed for a pass.
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
    /// Sums over all machines of the snapshot, candidates or not.
    pub fn new(snapshot: &Snapshot, candidates: &[Candidate], prices: &PriceLists) -> Self {
        let known: BTreeMap<&str, f64> = candidates
            .iter()
            .map(|candidate| (candidate.name(), candidate.reschedule_cost))
            .collect();
        let mut by_pool: BTreeMap<String, Total> = BTreeMap::new();
        for machine in snapshot.nodes() {
            let Some(pool) = machine.node_pool() else {
                continue;
            };
            let name = machine.labels().get(karpenter_api::labels::INSTANCE_TYPE);
            let instance_type = prices.of(pool).zip(name).and_then(|(list, name)| {
                let place = list.place(name)?;
                Some(list.instance_type(place))
            });
            let disruption = known.get(machine.name()).copied().unwrap_or_else(|| {
                let pods = snapshot.pods_on(machine.name());
                1.0 + pods
                    .iter()
                    .map(|pod| eviction_cost(pod).max(0.0))
                    .sum::<f64>()
            });
            let total = by_pool.entry(pool.to_owned()).or_default();
            total.price += price(machine, instance_type);
            total.disruption += disruption;
        }
        Self { by_pool }
    }

    /// The least score of a move over the Balanced pools in it; `None` if none is.
    ///
    /// A move that saves nothing, of no machine, or in a pool that costs nothing, scores 0.
    pub fn score(&self, candidates: &[&Candidate], savings: f64) -> Option<f64> {
        if candidates.is_empty() {
            return Some(0.0);
        }
        let scores = self.judge(candidates, savings);
        let scores = scores.into_iter().map(|of_pool| of_pool.score);
        scores.min_by(f64::total_cmp)
    }

    /// How a move does in each Balanced pool that it touches, by name.
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
            let score = if saved <= 0.0 || total.price <= 0.0 || total.disruption <= 0.0 {
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
