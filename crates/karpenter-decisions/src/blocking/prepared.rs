//! A cluster that is prepared for questions about its pending pods.

use std::fmt;
use std::sync::Arc;

use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::Shape;
use karpenter_core::schedule::{Packing, Policy, Query, Solver};
use karpenter_core::taints::Taint;
use rustc_hash::{FxHashMap, FxHashSet};

use super::atom;
use crate::workload::Workload;

/// A cluster, compiled once for the questions about all its pods.
///
/// Compiling reads every node and every pod: it is most of what a single answer costs. Keep it for several questions,
/// as long as the cluster does not change.
pub struct Prepared {
    pub(super) snapshot: Snapshot,
    pub(super) policy: Policy,
    pub(super) solver: Arc<Solver>,
    /// The shapes of bound pods with required anti-affinity, by the workload that has to be named.
    pub(super) anti_affinity: Vec<(Workload, Arc<Shape>)>,
    /// The distinct taints of nodes, except those that Kubernetes and Karpenter set.
    pub(super) node_taints: Vec<Taint>,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared")
            .field("epoch", &self.snapshot.epoch())
            .finish_non_exhaustive()
    }
}

impl Prepared {
    /// Compiles a snapshot. `policy` is that of the pass that left pods without a place.
    pub fn new(snapshot: &Snapshot, policy: &Policy) -> Self {
        Self::for_query(snapshot, policy, &Query::default())
    }

    /// Like [`Self::new`], for a pod that the snapshot need not have.
    pub(super) fn for_query(snapshot: &Snapshot, policy: &Policy, query: &Query) -> Self {
        let policy = policy.clone().with_packing(Packing::FewestNodes);
        Self {
            solver: Arc::new(Solver::prepare_for(snapshot, &policy, query)),
            anti_affinity: anti_affinity(snapshot),
            node_taints: atom::node_taints(snapshot),
            snapshot: snapshot.fork(),
            policy,
        }
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the compiled snapshot.
    pub(crate) fn solver(&self) -> &Solver {
        &self.solver
    }

    /// Reports whether answers with this policy are those of the prepared one: it differs in the time at most.
    pub fn is_for(&self, policy: &Policy) -> bool {
        let policy = policy.clone().with_packing(Packing::FewestNodes);
        policy.with_now(self.policy.now) == self.policy
    }

    /// Returns the memory in bytes that is needed beside the snapshot, approximately.
    pub fn memory(&self) -> usize {
        let terms = self.anti_affinity.capacity() * size_of::<(Workload, Arc<Shape>)>();
        self.solver.memory() + terms
    }
}

/// Returns the workloads of bound pods with required anti-affinity, each with its shapes.
fn anti_affinity(snapshot: &Snapshot) -> Vec<(Workload, Arc<Shape>)> {
    // Pods of a workload share their shape; a pod without a controller is a workload of its own.
    let mut shared: FxHashSet<*const Shape> = FxHashSet::default();
    let mut found: FxHashMap<(Workload, *const Shape), Arc<Shape>> = FxHashMap::default();
    for pod in snapshot.bound_pods().flat_map(|(_, pods)| pods.pods()) {
        let shape = &pod.shape;
        if shape.required_anti_affinity.is_empty()
            || (shape.controller.is_some() && !shared.insert(Arc::as_ptr(shape)))
        {
            continue;
        }
        let key = (Workload::of(pod), Arc::as_ptr(shape));
        found.entry(key).or_insert_with(|| shape.clone());
    }
    let found = found.into_iter();
    found.map(|((owner, _), shape)| (owner, shape)).collect()
}
