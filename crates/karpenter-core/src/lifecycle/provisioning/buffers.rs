//! Where the pods of capacity buffers are placed: such nodes are not empty.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::capacity_buffer::buffer_of;
use crate::cluster::Snapshot;
use crate::pod::Pod;
use crate::schedule::Plan;

/// Where the latest plan placed the pods of each capacity buffer, which is named `namespace/name`.
#[derive(Clone, Debug, Default)]
pub struct PlacedBuffers(BTreeMap<String, Places>);

/// The places of the pods of a buffer.
#[derive(Clone, Debug, Default)]
struct Places {
    /// Number of pods on each node. A node has the name of its NodeClaim, which stays the same when the Node joins, or its own if it
    /// has none.
    nodes: BTreeMap<String, usize>,
    /// Number of pods on nodes that are not launched yet.
    launching: usize,
}

impl PlacedBuffers {
    /// Returns what an earlier plan placed; of which buffers is not known.
    pub fn new(nodes: BTreeMap<String, usize>) -> Self {
        let launching = 0;
        Self([(String::new(), Places { nodes, launching })].into())
    }

    /// Records where a plan places `pods`, which are all buffer pods that it was asked for. `created` are the NodeClaims of the
    /// planned nodes.
    pub fn record<'c>(
        &mut self,
        pods: &[Arc<Pod>],
        plan: &Plan,
        created: impl Iterator<Item = Option<&'c str>>,
        snapshot: &Snapshot,
    ) {
        let mut owners: BTreeMap<&str, String> = BTreeMap::new();
        for pod in pods {
            if let Some((namespace, name)) = buffer_of(pod) {
                owners.insert(&pod.key.uid, format!("{namespace}/{name}"));
            }
        }
        let asked = owners.values().cloned();
        self.0 = asked.map(|buffer| (buffer, Places::default())).collect();
        let existing = plan.existing.iter().filter(|it| it.buffer);
        let existing = existing.map(|placement| {
            let claim = snapshot
                .node(&placement.node)
                .and_then(|it| it.claim_name());
            let target = claim.unwrap_or(&placement.node);
            (&placement.pod, target, false)
        });
        let launched = plan.new_node_claims.iter().zip(created);
        let launched = launched.filter_map(|(planned, name)| Some((planned, name?)));
        let launched = launched.flat_map(|(planned, name)| {
            let pods = planned.buffer_pods.iter();
            pods.map(move |pod| (pod, name, true))
        });
        for (pod, target, is_launching) in existing.chain(launched) {
            let owner = owners.get(pod.uid.as_str());
            if let Some(places) = owner.and_then(|owner| self.0.get_mut(owner)) {
                *places.nodes.entry(target.to_owned()).or_default() += 1;
                places.launching += usize::from(is_launching);
            }
        }
    }

    /// Removes the buffers that are not to be kept.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|buffer, _| is_kept(buffer));
    }

    /// Returns how many pods of a buffer are on nodes that are launched; `None` before its first plan.
    pub fn ready(&self, buffer: &str) -> Option<usize> {
        let places = self.0.get(buffer)?;
        Some(places.nodes.values().sum::<usize>() - places.launching)
    }

    /// Returns the number of buffer pods on each node of a snapshot, by its name.
    pub fn on_nodes(&self, snapshot: &Snapshot) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (target, count) in self.iter() {
            if let Some(node) = snapshot.node(target) {
                *counts.entry(node.name().to_owned()).or_default() += count;
            }
        }
        counts
    }

    /// Iterates over the names of the nodes of each buffer, each with its number of pods.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        let nodes = self.0.values().flat_map(|places| &places.nodes);
        nodes.map(|(name, count)| (name.as_str(), *count))
    }
}
