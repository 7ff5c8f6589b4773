//! What-if: where would the pods of some machines go?

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use karpenter_api::{
    conditions::{HasConditions, types},
    v1::NodePool,
};

use super::{candidate::Candidate, pdb::PdbLimits, prices::PriceLists};
use crate::{
    cluster::{Cluster, NodeState, Snapshot},
    pod::{Pod, PodKey},
    schedule::{ClaimDraft, Packing, Placement, PodSet, ReservedMode, ScheduleRequest, Solver},
};

/// The scheduler's answer.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Machines to launch.
    pub new_claims: Vec<ClaimDraft>,
    /// Pods that go to machines that exist.
    pub placements: Vec<Placement>,
    /// Pods of the machines in question that find no place, and why. Pods that were pending before do not count.
    pub stuck: Vec<(PodKey, String)>,
}

/// Asks the scheduler about one snapshot. Shared by all threads of a pass.
#[derive(Clone, Debug)]
pub struct Simulator {
    snapshot: Snapshot,
    /// The snapshot, compiled once for all questions.
    solver: Arc<Solver>,
    request: ScheduleRequest,
    prices: Arc<PriceLists>,
    pdbs: PdbLimits,
    /// Machines whose pods changed too recently to receive more by consolidation.
    reluctant: Arc<[String]>,
    /// Pods whose fate does not depend on the candidates: pending ones, and those of machines on their way out.
    waiting: BTreeSet<PodKey>,
    /// Pods of machines on their way out, which may wait for a machine to be ready.
    leaving: BTreeSet<PodKey>,
}

impl Simulator {
    /// A simulator with the scheduler's settings of `request`; reserved capacity may fall back, as machines are wanted soon.
    pub fn new(snapshot: &Snapshot, request: &ScheduleRequest, prices: &Arc<PriceLists>) -> Self {
        let mut request = request.clone();
        request.reserved_mode = match request.reserved_mode {
            ReservedMode::Off => ReservedMode::Off,
            ReservedMode::Strict | ReservedMode::Fallback => ReservedMode::Fallback,
        };
        // A command replaces machines by at most one.
        request.packing = Packing::FewestMachines;
        let leaving: BTreeSet<PodKey> = snapshot
            .pods_of_deleting_nodes()
            .map(|pod| pod.key.clone())
            .collect();
        let pending = snapshot.pending_pods().map(|pod| pod.key.clone());
        Self {
            prices: prices.clone(),
            pdbs: PdbLimits::new(snapshot),
            reluctant: reluctant(snapshot, request.now).into(),
            waiting: pending.chain(leaving.iter().cloned()).collect(),
            leaving,
            solver: Arc::new(Solver::prepare(snapshot, &request)),
            snapshot: snapshot.fork(),
            request,
        }
    }

    /// The snapshot that is asked about.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// What machines cost.
    pub fn prices(&self) -> &PriceLists {
        &self.prices
    }

    /// The time of the pass.
    pub fn now(&self) -> Timestamp {
        self.request.now
    }

    /// A simulator of what is left once the candidates went as `outcome` says.
    ///
    /// Machines that are launched for them count as full.
    pub fn after(&self, gone: &[&Candidate], placements: &[Placement]) -> Self {
        let mut cluster = Cluster::from(self.snapshot.fork());
        for candidate in gone {
            for pod in &candidate.pods {
                cluster.remove_pod(&pod.key.namespace, &pod.key.name);
            }
            cluster.remove_node(candidate.name());
            cluster.remove_node_claim(candidate.claim_name());
        }
        for placement in placements {
            let key = &placement.pod;
            if let Some(pod) = self.snapshot.pod(&key.namespace, &key.name) {
                let mut pod = pod.as_ref().clone();
                pod.node_name = Some(placement.node.clone());
                pod.unschedulable = false;
                cluster.insert_pod(pod);
            }
        }
        Self::new(&cluster.snapshot(), &self.request, &self.prices)
    }

    /// What happens if the candidates go. `consolidating` keeps pods off machines that changed recently.
    pub fn remove(&self, candidates: &[&Candidate], consolidating: bool) -> Outcome {
        let now = self.request.now;
        let mut request = self.request.clone();
        let moving: Vec<Arc<Pod>> = candidates
            .iter()
            .flat_map(|candidate| candidate.reschedulable())
            .filter(|pod| !self.pdbs.never_moves(pod, now))
            .cloned()
            .collect();
        request.pods = PodSet::WaitingAnd(moving);
        request.without = candidates
            .iter()
            .map(|candidate| candidate.name().to_owned())
            .collect();
        if consolidating {
            request.reluctant.clone_from(&self.reluctant);
        }
        let plan = self.solver.solve(&request);
        let unplaced = plan
            .unplaced
            .iter()
            .filter(|unplaced| !self.waiting.contains(&unplaced.pod) && !unplaced.buffer);
        let mut stuck: Vec<(PodKey, String)> = unplaced
            .map(|unplaced| (unplaced.pod.clone(), unplaced.why.to_string()))
            .collect();
        // A machine that is still starting may never become ready: pods are not moved there from one that is.
        let starting = plan.existing.iter().filter(|placement| {
            let machine = self.snapshot.node(&placement.node);
            machine.is_some_and(|machine| !machine.is_initialized())
                && !self.leaving.contains(&placement.pod)
                && !self.waiting.contains(&placement.pod)
        });
        stuck.extend(starting.map(|placement| {
            let why = format!(
                "would schedule against uninitialized node \"{}\"",
                placement.node
            );
            (placement.pod.clone(), why)
        }));
        stuck.extend(
            plan.undecided
                .iter()
                .map(|pod| (pod.clone(), "not decided in time".to_owned())),
        );
        Outcome {
            new_claims: plan.new_claims,
            placements: plan.existing,
            stuck,
        }
    }
}

/// Machines inside their own `consolidateAfter`.
fn reluctant(snapshot: &Snapshot, now: Timestamp) -> Vec<String> {
    let inside = |machine: &&Arc<NodeState>| {
        let pool = machine
            .node_pool()
            .and_then(|name| snapshot.node_pool(name));
        pool.is_some_and(|pool| changed_recently(machine, pool, now))
    };
    snapshot
        .nodes()
        .filter(inside)
        .map(|machine| machine.name().to_owned())
        .collect()
}

/// Whether pods came to or left the machine, or it was initialised, less than `consolidateAfter` ago.
///
/// Never, if consolidation is disabled for the pool.
pub fn changed_recently(machine: &NodeState, pool: &NodePool, now: Timestamp) -> bool {
    let Some(after) = pool
        .spec
        .disruption
        .consolidate_after
        .value()
        .filter(|after| after.is_positive())
    else {
        return false;
    };
    let Some(claim) = machine
        .claim
        .as_ref()
        .filter(|claim| claim.is_true(types::INITIALIZED))
    else {
        return false;
    };
    let initialized = || {
        claim
            .condition(types::INITIALIZED)
            .map(|c| c.last_transition_time.0)
    };
    let changed = claim
        .status
        .last_pod_event_time
        .as_ref()
        .map(|time| time.0)
        .or_else(initialized);
    changed.is_some_and(|changed| now.duration_since(changed) < after)
}
