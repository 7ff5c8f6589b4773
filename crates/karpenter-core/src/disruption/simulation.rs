//! What-if: where would the pods of some machines go?

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use karpenter_api::{
    conditions::{HasConditions, types},
    v1::NodePool,
};

use super::{candidate::Candidate, pdb::PdbLimits};
use crate::{
    cluster::{NodeState, Snapshot},
    pod::{Pod, PodKey},
    schedule::{ClaimDraft, Placement, PodSet, ReservedMode, ScheduleRequest, schedule},
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
    request: ScheduleRequest,
    pdbs: PdbLimits,
    /// Machines whose pods changed too recently to receive more by consolidation.
    reluctant: Vec<String>,
    /// Pods whose fate does not depend on the candidates: pending ones, and those of machines on their way out.
    waiting: BTreeSet<PodKey>,
    /// Pods of machines on their way out, which may wait for a machine to be ready.
    leaving: BTreeSet<PodKey>,
}

impl Simulator {
    /// A simulator with the scheduler's settings of `request`; reserved capacity may fall back, as machines are wanted soon.
    pub fn new(snapshot: &Snapshot, request: &ScheduleRequest) -> Self {
        let mut request = request.clone();
        request.reserved_mode = match request.reserved_mode {
            ReservedMode::Off => ReservedMode::Off,
            ReservedMode::Strict | ReservedMode::Fallback => ReservedMode::Fallback,
        };
        request.threads = 1;
        let leaving: BTreeSet<PodKey> = snapshot
            .pods_of_deleting_nodes()
            .map(|pod| pod.key.clone())
            .collect();
        let pending = snapshot.pending_pods().map(|pod| pod.key.clone());
        Self {
            pdbs: PdbLimits::new(snapshot),
            reluctant: reluctant(snapshot, request.now),
            waiting: pending.chain(leaving.iter().cloned()).collect(),
            leaving,
            snapshot: snapshot.fork(),
            request,
        }
    }

    /// The snapshot that is asked about.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The time of the pass.
    pub fn now(&self) -> Timestamp {
        self.request.now
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
        let plan = schedule(&self.snapshot, &request);
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
