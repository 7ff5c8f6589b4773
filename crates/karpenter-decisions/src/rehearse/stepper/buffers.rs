//! Capacity buffers: which nodes hold their pods, because those nodes are not empty.

use std::collections::BTreeMap;

use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::schedule::Plan;

/// The number of buffer pods on each node by the latest plan. A node has the name of its NodeClaim, which stays the same when the
/// Node joins, or its own if it has none.
#[derive(Clone, Debug)]
pub(in crate::rehearse) struct Buffers {
    placed: BTreeMap<String, usize>,
    exist: bool,
}

impl Buffers {
    /// Returns where the last pass of the cluster had placed buffer pods.
    pub(super) fn of(request: &DisruptionRequest) -> Self {
        let exist = !request.query.buffer_pods.is_empty();
        let placed = if exist {
            request.surroundings.buffer_pods.clone()
        } else {
            BTreeMap::new()
        };
        Self { placed, exist }
    }

    /// Reports whether there are no buffer pods.
    pub(super) fn is_empty(&self) -> bool {
        !self.exist
    }

    /// Records where a plan places the buffer pods; returns whether that is elsewhere than before. `created` are the NodeClaims of
    /// the planned nodes.
    pub(super) fn record<'c>(
        &mut self,
        plan: &Plan,
        created: impl Iterator<Item = Option<&'c str>>,
        snapshot: &Snapshot,
    ) -> bool {
        let mut placed: BTreeMap<String, usize> = BTreeMap::new();
        for placement in plan.existing.iter().filter(|placement| placement.buffer) {
            let claim = snapshot
                .node(&placement.node)
                .and_then(|node| node.claim_name());
            let target = claim.unwrap_or(&placement.node).to_owned();
            *placed.entry(target).or_default() += 1;
        }
        for (planned, name) in plan.new_node_claims.iter().zip(created) {
            if let Some(name) = name.filter(|_| !planned.buffer_pods.is_empty()) {
                placed.insert(name.to_owned(), planned.buffer_pods.len());
            }
        }
        let before = std::mem::replace(&mut self.placed, placed);
        by_node(&before, snapshot) != by_node(&self.placed, snapshot)
    }

    /// Returns the number of buffer pods on each node, by its name.
    pub(super) fn on_nodes(&self, snapshot: &Snapshot) -> BTreeMap<String, usize> {
        by_node(&self.placed, snapshot)
    }
}

fn by_node(placed: &BTreeMap<String, usize>, snapshot: &Snapshot) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (target, count) in placed {
        if let Some(node) = snapshot.node(target) {
            *counts.entry(node.name().to_owned()).or_default() += count;
        }
    }
    counts
}
