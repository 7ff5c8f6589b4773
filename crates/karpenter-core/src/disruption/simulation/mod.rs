//! Simulating the deletion of nodes: where their pods would be scheduled.

mod room;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use karpenter_api::v1::NodePool;

use super::candidate::Candidate;
use super::staying::{PodStays, StayingPods};
use crate::cluster::pdb::PdbLimits;
use crate::cluster::{Cluster, NodeState, Snapshot};
use crate::disruption::consolidation::prices::PriceLists;
use crate::pod::{Pod, PodKey};
use crate::schedule::{
    Packing, Placement, Plan, PlannedNodeClaim, PodSet, Policy, Query, ReservedMode, Solver,
};
use room::{COMPARED, Room};

/// The result of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Planned nodes to launch.
    pub new_node_claims: Vec<PlannedNodeClaim>,
    /// Pods placed on existing nodes.
    pub placements: Vec<Placement>,
    /// Pods of the deleted nodes that cannot be scheduled, and why. Pods that were pending before are not included.
    pub stuck: StayingPods,
}

/// Simulates the deletion of nodes in one snapshot. Shared by all threads of a pass.
#[derive(Clone, Debug)]
pub struct Simulator {
    snapshot: Snapshot,
    /// The snapshot, compiled once for all simulations.
    solver: Arc<Solver>,
    policy: Policy,
    query: Query,
    prices: Arc<PriceLists>,
    pdbs: Arc<PdbLimits>,
    /// Nodes whose pods changed too recently to receive more by consolidation.
    avoid: Arc<[String]>,
    /// Pods to schedule whatever the candidates are: pending ones, and those of deleting nodes.
    waiting: Arc<BTreeSet<PodKey>>,
    /// Pods of deleting nodes, which may be placed on uninitialized nodes.
    leaving: Arc<BTreeSet<PodKey>>,
    /// Computed when it is first asked for.
    room: Arc<OnceLock<Room>>,
}

impl Simulator {
    /// Creates a simulator with the settings of `policy`, except that reserved capacity falls back to other capacity and packing is
    /// for the fewest nodes. Each simulation asks `query`, with the candidates' pods and without the candidates.
    pub fn new(
        snapshot: &Snapshot,
        policy: &Policy,
        query: &Query,
        prices: &Arc<PriceLists>,
    ) -> Self {
        let policy = of_simulations(policy);
        let solver = Solver::prepare_for(snapshot, &policy, query);
        Self::of(solver, snapshot, policy, query, prices)
    }

    /// Like [`Self::new`], for a snapshot that `solver` has compiled, perhaps with another policy: nodes and pods are shared with it.
    pub fn sharing(
        solver: &Solver,
        snapshot: &Snapshot,
        policy: &Policy,
        query: &Query,
        prices: &Arc<PriceLists>,
    ) -> Self {
        let policy = of_simulations(policy);
        let solver = solver.with_node_pools_of(snapshot, &policy);
        Self::of(solver, snapshot, policy, query, prices)
    }

    /// Creates a simulator, [later](Self::later) than that of an earlier pass if there is one.
    pub(super) fn after_pass(
        earlier: Option<&Self>,
        snapshot: &Snapshot,
        policy: &Policy,
        query: &Query,
        prices: &Arc<PriceLists>,
    ) -> Self {
        match earlier {
            Some(earlier) => earlier.later(snapshot, policy, query, prices),
            None => Self::new(snapshot, policy, query, prices),
        }
    }

    /// Returns what [`Self::new`] would for a later snapshot of the cluster; shares the nodes that did not change.
    pub(super) fn later(
        &self,
        snapshot: &Snapshot,
        policy: &Policy,
        query: &Query,
        prices: &Arc<PriceLists>,
    ) -> Self {
        let policy = of_simulations(policy);
        let solver = self.solver.prepare_after(snapshot, &policy, query);
        Self::of(solver, snapshot, policy, query, prices)
    }

    fn of(
        solver: Solver,
        snapshot: &Snapshot,
        policy: Policy,
        query: &Query,
        prices: &Arc<PriceLists>,
    ) -> Self {
        let leaving: BTreeSet<PodKey> = snapshot
            .pods_of_deleting_nodes()
            .map(|pod| pod.key.clone())
            .collect();
        let pending = snapshot.pending_pods().map(|pod| pod.key.clone());
        Self {
            prices: prices.clone(),
            pdbs: Arc::new(PdbLimits::new(snapshot)),
            avoid: avoided_nodes(snapshot, &policy).into(),
            waiting: Arc::new(pending.chain(leaving.iter().cloned()).collect()),
            leaving: Arc::new(leaving),
            room: Arc::default(),
            solver: Arc::new(solver),
            snapshot: snapshot.fork(),
            policy,
            query: query.clone(),
        }
    }

    /// Returns a simulator of the same snapshot for another query; `None` if the policy differs in more than the time. Pods that are
    /// leaving deleting nodes are those of the earlier time.
    pub fn again(&self, policy: &Policy, query: &Query) -> Option<Self> {
        let policy = of_simulations(policy);
        let same = policy.clone().with_now(self.policy.now) == self.policy;
        same.then(|| Self {
            avoid: avoided_nodes(&self.snapshot, &policy).into(),
            query: query.clone(),
            policy,
            room: Arc::default(),
            ..self.clone()
        })
    }

    /// Returns a simulator of a changed copy of the snapshot. Only what does not decide where pods fit may have changed:
    /// PodDisruptionBudgets, annotations, nominations, the `disruption` of NodePools, and conditions of NodeClaims.
    ///
    /// Far cheaper than [`Self::new`], because the copy is compiled only if pods are leaving deleting nodes:
    /// PodDisruptionBudgets decide which of them can.
    #[must_use]
    pub fn with_policies_of(&self, copy: &Snapshot) -> Self {
        if !self.leaving.is_empty() {
            return Self::new(copy, &self.policy, &self.query, &self.prices);
        }
        Self {
            snapshot: copy.fork(),
            pdbs: Arc::new(PdbLimits::new(copy)),
            avoid: avoided_nodes(copy, &self.policy).into(),
            room: Arc::default(),
            ..self.clone()
        }
    }

    /// Returns the snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Reports whether a pod of a deleted node moves: it can be evicted some time.
    pub(super) fn moves(&self, pod: &Pod) -> bool {
        !self.pdbs.never_moves(pod, self.policy.now)
    }

    /// Returns the limits of PodDisruptionBudgets.
    pub(super) fn pdbs(&self) -> &PdbLimits {
        &self.pdbs
    }

    pub(super) fn price_lists(&self) -> &Arc<PriceLists> {
        &self.prices
    }

    /// Returns the prices of instance types.
    pub fn prices(&self) -> &PriceLists {
        &self.prices
    }

    /// Returns the time of the pass.
    pub fn now(&self) -> Timestamp {
        self.policy.now
    }

    /// Returns a simulator of the cluster after the candidates were deleted and their pods moved as `placements` says.
    ///
    /// Replacements launched for them are not part of it.
    pub fn after(&self, deleted: &[&Candidate], placements: &[Placement]) -> Self {
        let mut cluster = Cluster::from(self.snapshot.fork());
        for candidate in deleted {
            for pod in candidate.pods.pods() {
                cluster.remove_pod(&pod.key.namespace, &pod.key.name);
            }
            cluster.remove_node(candidate.name());
            cluster.remove_node_claim(candidate.claim_name());
        }
        for placement in placements {
            let key = &placement.pod;
            if let Some(pod) = self.snapshot.pod(&key.namespace, &key.name) {
                let mut pod = pod.as_ref().clone();
                pod.node_name = Some(placement.node.as_str().into());
                pod.unschedulable = false;
                cluster.insert_pod(pod);
            }
        }
        self.later(&cluster.snapshot(), &self.policy, &self.query, &self.prices)
    }

    /// Simulates deleting the candidates. `consolidating` places no pods on nodes that changed recently.
    pub fn remove(&self, candidates: &[&Candidate], consolidating: bool) -> Outcome {
        let plan = self
            .solver
            .solve(&self.query_without(candidates, consolidating));
        self.outcome(plan)
    }

    /// Reports whether it is certain, without a simulation, that consolidating the candidates with at most `replacements` new nodes
    /// saves nothing.
    pub(super) fn rules_out(&self, candidates: &[&Candidate], replacements: usize) -> bool {
        let stays = |it: &&Candidate| it.pods.facts().may_refuse_disruption;
        let all_move = self.pdbs.is_empty() && !candidates.iter().any(stays);
        let requests = |at: usize| -> Vec<i64> {
            if all_move {
                let moving = candidates.iter().flat_map(|it| &it.pods.moving()[at]);
                return moving.copied().collect();
            }
            let pods = candidates.iter().flat_map(|it| it.reschedulable());
            let moving = pods.filter(|pod| self.moves(pod));
            moving
                .map(|pod| pod.shape.requests.get(COMPARED[at]))
                .collect()
        };
        let room = || Room::of(&self.snapshot, &self.solver, &self.avoid, &self.prices);
        let room = self.room.get_or_init(room);
        room.lacks(candidates, requests, replacements)
    }

    /// Ends each simulation as soon as a pod cannot leave its node; the other pods are not looked for then.
    pub(super) fn ending_when_stuck(mut self) -> Self {
        self.query.ends_when_stuck = true;
        self
    }

    fn query_without(&self, candidates: &[&Candidate], consolidating: bool) -> Query {
        let mut query = self.query.clone();
        let moving: Vec<Arc<Pod>> = candidates
            .iter()
            .flat_map(|candidate| candidate.reschedulable())
            .filter(|pod| self.moves(pod))
            .cloned()
            .collect();
        query.pods = PodSet::WaitingAnd(moving);
        query.without = candidates
            .iter()
            .map(|candidate| candidate.name().to_owned())
            .collect();
        if consolidating {
            query.avoid.clone_from(&self.avoid);
        }
        query
    }

    fn outcome(&self, plan: Plan) -> Outcome {
        let mut stuck = StayingPods::default();
        for unplaced in plan.unplaced {
            if !self.waiting.contains(&unplaced.pod) && !unplaced.buffer {
                stuck.push(|| {
                    let why = PodStays::Unschedulable(Arc::new(unplaced.why));
                    (unplaced.pod, why)
                });
            }
        }
        // An uninitialized node may never become ready: pods are not moved there from an initialized one.
        let starting = plan.existing.iter().filter(|placement| {
            let node = self.snapshot.node(&placement.node);
            node.is_some_and(|node| !node.is_initialized())
                && !self.leaving.contains(&placement.pod)
                && !self.waiting.contains(&placement.pod)
        });
        for placement in starting {
            stuck.push(|| {
                let node = placement.node.clone();
                (placement.pod.clone(), PodStays::UninitializedNode { node })
            });
        }
        for pod in plan.undecided {
            stuck.push(|| (pod, PodStays::Undecided));
        }
        Outcome {
            new_node_claims: plan.new_node_claims,
            placements: plan.existing,
            stuck,
        }
    }
}

/// Returns the policy of simulations: reserved capacity falls back to other capacity, and packing is for the fewest nodes, because
/// a command launches at most one replacement.
fn of_simulations(policy: &Policy) -> Policy {
    let mode = match policy.reserved_mode {
        ReservedMode::Off => ReservedMode::Off,
        ReservedMode::Strict | ReservedMode::Fallback => ReservedMode::Fallback,
    };
    let policy = policy.clone().with_reserved_mode(mode);
    policy.with_packing(Packing::FewestNodes)
}

/// Returns the names of nodes that changed within `consolidateAfter`, of NodePools where that counts.
fn avoided_nodes(snapshot: &Snapshot, policy: &Policy) -> Vec<String> {
    let inside = |node: &&Arc<NodeState>| {
        let pool = node.node_pool().and_then(|name| snapshot.node_pool(name));
        pool.is_some_and(|pool| {
            policy.behavior.keeps_from_destinations(pool)
                && changed_recently(node, pool, policy.now)
        })
    };
    snapshot
        .nodes()
        .filter(inside)
        .map(|node| node.name().to_owned())
        .collect()
}

/// Reports whether pods were added to or removed from the node, or it was initialized, less than `consolidateAfter` ago.
///
/// Always false if consolidation is disabled for the NodePool.
fn changed_recently(node: &NodeState, pool: &NodePool, now: Timestamp) -> bool {
    let after = pool.spec.disruption.consolidate_after.value();
    let after = after.filter(|after| after.is_positive());
    let changed = node.facts().changed_at.zip(after);
    changed.is_some_and(|(changed, after)| now.duration_since(changed) < after)
}
