//! Which existing nodes a pass looked at for each pod: what its result depends on, beside the topology groups.

use std::sync::Arc;

use crate::pod::Shape;
use crate::schedule::compile::ids::{NodeIdx, Target};
use crate::schedule::compile::solver::Solver;
use crate::schedule::pass::Pass;
use crate::schedule::pods::class::PodState;
use crate::schedule::pods::queue::PodQueue;
use crate::schedule::report::plan::Plan;
use crate::schedule::request::{Packing, Query};

/// Where a pass looked for a pod's place on existing nodes.
///
/// Nodes are tried in order, and the first that accepts the pod is taken. So the nodes up to that one were looked at, or all of
/// them if none accepted the pod, or not at once.
#[derive(Clone, Debug)]
pub(crate) struct TracedPod {
    pub(crate) shape: Arc<Shape>,
    /// The existing node it was placed on.
    pub(crate) node: Option<NodeIdx>,
    /// Whether all existing nodes were looked at.
    pub(crate) scanned: bool,
}

impl PodQueue {
    /// Returns the trace of all pods of the pass, once they are placed.
    pub(crate) fn trace(&self) -> Vec<TracedPod> {
        let traced = self.pods.iter().map(|queued| {
            let node = match queued.state {
                PodState::Placed(Target::Node(node)) => Some(node),
                _ => None,
            };
            TracedPod {
                shape: queued.pod.shape.clone(),
                node,
                scanned: queued.scanned || node.is_none(),
            }
        });
        traced.collect()
    }
}

impl Solver {
    /// Places the pods of `query` as [`solve`](Self::solve) does, and returns the trace; `None` if the result depends on more than
    /// a trace and the topology groups tell.
    pub(crate) fn solve_traced(&self, query: &Query) -> (Plan, Option<Vec<TracedPod>>) {
        if self.policy.packing != Packing::FewestNodes || !query.nominated.is_empty() {
            return (self.solve(query), None);
        }
        let Some(mut pass) = Pass::new(self, query) else {
            return (self.solve(query), None);
        };
        pass.place_first();
        let trace = pass.trace();
        let plan = pass.into_plan();
        let is_complete = plan.undecided.is_empty() && !query.is_cancelled();
        (plan, is_complete.then_some(trace))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use jiff::Timestamp;
    use karpenter_fixtures::{node_pool, pod};

    use super::*;
    use crate::cluster::Cluster;
    use crate::fake;
    use crate::pod::PodKey;
    use crate::schedule::request::Policy;

    /// Returns the number of traced pods of a query for two pending pods.
    fn traced(packing: Packing, query: &Query) -> Option<usize> {
        let mut cluster = Cluster::new(fake::cluster_config());
        cluster.apply_node_pool(&node_pool("default").build());
        cluster.set_instance_types("default", Ok(fake::catalogue()));
        for name in ["a", "b"] {
            cluster.apply_pod(&pod(name).cpu("1").build());
        }
        let policy = Policy::at(Timestamp::UNIX_EPOCH).with_packing(packing);
        let solver = Solver::prepare_for(&cluster.snapshot(), &policy, query);
        let (plan, trace) = solver.solve_traced(query);
        assert_eq!(plan.unplaced.len(), 0);
        trace.map(|trace| trace.len())
    }

    #[test]
    fn only_first_fit_without_nominations_is_traced() {
        let nominated = Query::default().with_nominated(vec![(PodKey::default(), "n".to_owned())]);
        let query = Query::default();
        assert_eq!(traced(Packing::FewestNodes, &query), Some(2));
        assert_eq!(traced(Packing::default(), &query), None);
        assert_eq!(traced(Packing::FewestNodes, &nominated), None);
    }

    #[test]
    fn a_pass_that_was_cancelled_leaves_no_trace() {
        let cancelled_in = |calls: std::ops::Range<usize>| {
            let made = AtomicUsize::new(0);
            let cancel = move || calls.contains(&made.fetch_add(1, Ordering::Relaxed));
            let query = Query::default().with_cancel(Arc::new(cancel));
            traced(Packing::FewestNodes, &query)
        };
        assert_eq!(cancelled_in(0..usize::MAX), None);
        assert_eq!(cancelled_in(1..usize::MAX), None, "after the last pod");
        assert_eq!(cancelled_in(0..1), None, "before the first pod");
        assert_eq!(cancelled_in(0..0), Some(2));
    }
}
