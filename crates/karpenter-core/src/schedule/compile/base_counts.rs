//! The pods that topology groups count before a pass.

use std::sync::Arc;

use index_vec::IndexVec;

use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{DomainId, NodeIdx};
use crate::schedule::compile::label_domains::LabelDomains;

/// The pods that a group counts before a pass, on all nodes. Passes share it and keep what they change.
#[derive(Debug, Default)]
pub(crate) struct BaseCounts {
    /// Nodes with counted pods, ascending, and how many.
    pub(crate) places: Vec<(NodeIdx, u32)>,
    /// Existing nodes that pass the node filter; `None` is all.
    pub(crate) passing: Option<Arc<Bits<NodeIdx>>>,
    /// Counts by domain of the nodes' labels; empty for hostname.
    pub(crate) counts: IndexVec<DomainId, u32>,
    /// For hostname: the nodes with a count, those at the skew, and those over it.
    pub(crate) populated: Arc<Bits<NodeIdx>>,
    pub(crate) full: Arc<Bits<NodeIdx>>,
    pub(crate) over: Arc<Bits<NodeIdx>>,
}

impl BaseCounts {
    /// Counts pods in `places`, ascending, of which nodes that do not pass are left out. Without `domains` the nodes are the
    /// domains.
    pub(crate) fn new(
        mut places: Vec<(NodeIdx, u32)>,
        passing: Option<Arc<Bits<NodeIdx>>>,
        domains: Option<&LabelDomains>,
        max_skew: i32,
    ) -> Self {
        if let Some(passing) = &passing {
            places.retain(|(node, _)| passing.contains(*node));
        }
        let mut base = Self {
            passing,
            ..Self::default()
        };
        match domains {
            Some(domains) => {
                base.counts = index_vec::index_vec![0; domains.names.len()];
                for (node, number) in &places {
                    if let Some(domain) = domains.of_node[*node] {
                        base.counts[domain] += number;
                    }
                }
            }
            None => {
                let nodes = |counts: &dyn Fn(i64) -> bool| {
                    let there = places.iter().filter(|(_, count)| counts(i64::from(*count)));
                    Arc::new(there.map(|(node, _)| *node).collect::<Bits<NodeIdx>>())
                };
                let skew = i64::from(max_skew);
                base.populated = nodes(&|_| true);
                base.full = nodes(&|count| count >= skew);
                base.over = nodes(&|count| count > skew);
            }
        }
        base.places = places;
        base
    }

    /// Returns how many pods are counted on a node.
    pub(crate) fn on(&self, node: NodeIdx) -> u32 {
        let place = self.places.binary_search_by_key(&node, |(node, _)| *node);
        place.map_or(0, |place| self.places[place].1)
    }
}
