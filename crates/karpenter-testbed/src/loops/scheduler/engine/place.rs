//! The node of a pod, or the reason why there is none.

use std::cmp::Reverse;
use std::sync::Arc;

use super::{Engine, Nodes};
use crate::loops::scheduler::counters::Counters;
use crate::loops::scheduler::node::NodeInfo;
use crate::loops::scheduler::reason::{Diagnosis, Reason};
use crate::loops::scheduler::shape::Shape;
use crate::loops::scheduler::volumes::Need;

impl Engine {
    /// Returns the nominated node if it is feasible, or the feasible node with the best score; or the message of the condition.
    pub(super) fn place(
        &self,
        uid: &str,
        shape: &Shape,
        nodes: &Nodes,
    ) -> Result<(Arc<str>, Vec<Need>), Arc<str>> {
        self.try_place(uid, shape, nodes).map_err(|diagnosis| {
            let message = diagnosis.message(nodes.len(), shape.never_preempts);
            message.into()
        })
    }

    fn try_place(
        &self,
        uid: &str,
        shape: &Shape,
        nodes: &Nodes,
    ) -> Result<(Arc<str>, Vec<Need>), Diagnosis> {
        let needs = self.volumes.needs(shape).map_err(Diagnosis::before_nodes)?;
        let placed = self.pods.values().filter_map(|pod| {
            // Only these are counted, and a node is looked up for each.
            (shape.counts_pods() || !pod.shape.anti_affinity.is_empty()).then_some(())?;
            let node = nodes.get(pod.node.as_ref()?)?;
            Some((&*pod.shape, pod.terminating, node))
        });
        let context = Context {
            shape,
            pinned: shape.pinned(),
            needs: &needs,
            counters: Counters::new(shape, nodes.values(), placed, &self.namespaces),
        };
        let nominated = self.pods.get(uid).and_then(|pod| pod.nominated.as_deref());
        if let Some(node) = nominated.and_then(|name| nodes.get(name))
            && self.refuses(&context, node).is_empty()
        {
            return Ok((node.name.clone(), needs));
        }
        let mut diagnosis = Diagnosis::default();
        let mut feasible = Vec::new();
        for node in nodes.values() {
            let reasons = self.refuses(&context, node);
            if reasons.is_empty() {
                let soft = context.counters.soft_score(shape, node);
                feasible.push((node, node.score(shape), soft));
            } else {
                diagnosis.add(&reasons);
            }
        }
        match best_of(&feasible) {
            Some(node) => Ok((node.name.clone(), needs)),
            None => Err(diagnosis),
        }
    }

    /// Returns why the node is not feasible: what the first plugin says that rejects it, in kube-scheduler's order.
    fn refuses(&self, context: &Context<'_>, node: &NodeInfo) -> Vec<Reason> {
        let Context { shape, needs, .. } = *context;
        let pinned = context.pinned.as_ref();
        if pinned.is_some_and(|names| !names.contains(&&*node.name)) {
            return vec![Reason::Pinned];
        }
        if let Some(reason) = node.refuses(shape) {
            return vec![reason];
        }
        if node.port_taken(shape) {
            return vec![Reason::Ports];
        }
        let missing = node.missing(shape);
        if !missing.is_empty() {
            return missing;
        }
        let volumes = || {
            if self.volumes.exclusive_in_use(shape, needs, node) {
                return Some(Reason::ReadWriteOncePod);
            }
            self.volumes.refuses(needs, node)
        };
        let counters = &context.counters;
        volumes()
            .or_else(|| counters.spread_refuses(shape, node))
            .or_else(|| counters.affinity_refuses(shape, node, &self.namespaces))
            .into_iter()
            .collect()
    }
}

/// State that is computed once for a scan over the nodes.
struct Context<'a> {
    shape: &'a Shape,
    /// The nodes that the pod is restricted to by name.
    pinned: Option<Vec<&'a str>>,
    needs: &'a [Need],
    counters: Counters<'a>,
}

/// Returns the node with the best score, with the affinity score normalized over the feasible nodes; the oldest of equals.
fn best_of<'a>(feasible: &[(&'a NodeInfo, i64, i64)]) -> Option<&'a NodeInfo> {
    let low = feasible.iter().map(|f| f.2).min()?;
    let high = feasible.iter().map(|f| f.2).max()?;
    let total = |(_, score, soft): &(&NodeInfo, i64, i64)| {
        let normalized = (2000 * (soft - low)).checked_div(high - low);
        score + normalized.unwrap_or(0)
    };
    let best = feasible
        .iter()
        .max_by_key(|f| (total(f), Reverse(f.0.number)));
    best.map(|f| f.0)
}
