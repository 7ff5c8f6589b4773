//! Where the pods of capacity buffers are placed: such nodes are not empty.

use std::collections::BTreeMap;

use crate::cluster::Snapshot;
use crate::schedule::Plan;

/// The number of buffer pods on each node by the latest plan. A node has the name of its NodeClaim, which stays the same when the
/// Node joins, or its own if it has none.
#[derive(Clone, Debug, Default)]
pub struct PlacedBuffers(BTreeMap<String, usize>);

impl PlacedBuffers {
    /// Returns what an earlier plan placed.
    pub fn new(placed: BTreeMap<String, usize>) -> Self {
        Self(placed)
    }

    /// Records where a plan places the buffer pods; returns whether that is elsewhere than before. `created` are the NodeClaims of
    /// the planned nodes.
    pub fn record<'c>(
        &mut self,
        plan: &Plan,
        created: impl Iterator<Item = Option<&'c str>>,
        snapshot: &Snapshot,
    ) -> bool {
        let mut placed: BTreeMap<String, usize> = BTreeMap::new();
        for placement in plan.existing.iter().filter(|placement| placement.buffer) {
            let node = snapshot.node(&placement.node);
            let claim = node.and_then(|node| node.claim_name());
            let target = claim.unwrap_or(&placement.node).to_owned();
            *placed.entry(target).or_default() += 1;
        }
        for (planned, name) in plan.new_node_claims.iter().zip(created) {
            if let Some(name) = name.filter(|_| !planned.buffer_pods.is_empty()) {
                placed.insert(name.to_owned(), planned.buffer_pods.len());
            }
        }
        let before = std::mem::replace(self, Self(placed));
        before.on_nodes(snapshot) != self.on_nodes(snapshot)
    }

    /// Returns the number of buffer pods on each node, by its name.
    pub fn on_nodes(&self, snapshot: &Snapshot) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (target, count) in &self.0 {
            if let Some(node) = snapshot.node(target) {
                *counts.entry(node.name().to_owned()).or_default() += count;
            }
        }
        counts
    }

    /// Iterates over the names of the nodes, each with its number of pods.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }
}
