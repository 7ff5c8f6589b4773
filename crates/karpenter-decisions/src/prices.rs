//! Prices of nodes.

use karpenter_api::labels;
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::disruption::cost;
use karpenter_core::instance_type::InstanceType;
use rustc_hash::FxHashMap;

/// The largest amount, in millionths of a dollar per hour: overlays and providers may state any price, and sums of nine million such
/// amounts do not overflow.
const MAX_AMOUNT: f64 = 1e12;

/// Returns dollars in millionths, so that sums do not depend on their order; an unknown price counts as zero.
pub(crate) fn micro_dollars(price: f64) -> i64 {
    (finite(price) * 1e6).clamp(-MAX_AMOUNT, MAX_AMOUNT).round() as i64
}

/// The instance types of a snapshot, by NodePool and name.
#[derive(Debug, Default)]
pub struct Prices<'a> {
    pools: FxHashMap<&'a str, FxHashMap<&'a str, &'a InstanceType>>,
}

impl<'a> Prices<'a> {
    /// Indexes the instance types of all NodePools.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let pools = snapshot.node_pools().filter_map(|pool| {
            let Some(Ok(types)) = snapshot.instance_types(pool.name()) else {
                return None;
            };
            let types = types.iter().map(|it| (it.name.as_str(), it));
            Some((pool.name(), types.collect()))
        });
        Self {
            pools: pools.collect(),
        }
    }

    /// Returns the price of a node in dollars per hour; 0 if it is not known.
    pub fn of(&self, node: &NodeState) -> f64 {
        let name = node.labels().get(labels::INSTANCE_TYPE);
        let pool = node.node_pool().and_then(|pool| self.pools.get(pool));
        let instance_type = name.zip(pool).and_then(|(name, pool)| pool.get(name));
        cost::price(node, instance_type.copied())
    }

    /// Returns the price of a single node, without an index; 0 if it is not known.
    pub fn of_one(snapshot: &Snapshot, node: &NodeState) -> f64 {
        let types = node.node_pool().map(|pool| snapshot.instance_types(pool));
        let Some(Some(Ok(types))) = types else {
            return 0.0;
        };
        let name = node.labels().get(labels::INSTANCE_TYPE);
        let instance_type = types.iter().find(|it| Some(&*it.name) == name);
        cost::price(node, instance_type)
    }
}

/// Returns a number that JSON can express: an unknown price counts as zero.
pub(crate) fn finite(amount: f64) -> f64 {
    if amount.is_finite() { amount } else { 0.0 }
}

/// Returns an amount of millionths of a dollar in dollars.
pub(crate) fn dollars(micro: i64) -> f64 {
    micro as f64 / 1e6
}
