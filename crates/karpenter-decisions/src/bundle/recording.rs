//! The flight recorder: the passes of the last half hour, each with the state that it decided on, so that a bundle can have them all.
//!
//! A snapshot costs what was replaced since, because snapshots share the rest.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{self, DisruptionPlan, DisruptionRequest};
use karpenter_core::pod::PodKey;
use karpenter_core::schedule::{self, Plan, PodSet, Policy, Query};

use super::decision::{Comparison, Decision, PassResult, Replayed};
use super::{Bundle, Settings};

/// The age beyond which passes are dropped.
pub const MAX_AGE: SignedDuration = SignedDuration::from_mins(30);
/// How much memory the passes may need.
pub const MEMORY: u64 = 32 << 20;
/// The largest number of passes in a bundle.
pub const MAX_PASSES: usize = 4096;
/// What a change of the model costs while an older snapshot exists: the old object and the path to it in the maps. The bench `bundle`
/// measures it.
const CHANGE: u64 = 4 << 10;
/// What a pass costs beside its changes: its request, and the roots of the maps.
const PASS: u64 = 8 << 10;

/// A pass that was made, with all that it depended on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedPass {
    /// The cluster that it decided on. Pods that were assumed on nodes are on them.
    pub snapshot: Snapshot,
    pub settings: Settings,
    /// Pods with the nodes that they were nominated to, and that are tried first.
    pub nominated: Vec<(PodKey, String)>,
    /// Whether a disruption pass looked for consolidations. It does not while one waits for its validation.
    pub consolidates: bool,
    pub decision: Decision,
}

/// Returns the id of a pass in a recording.
fn id(pass: Replayed, at: Timestamp) -> String {
    format!("{}@{at}", pass.as_str())
}

impl RecordedPass {
    /// Returns the time of the pass.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.settings.policy().now
    }

    fn run(&self, threads: usize) -> PassResult {
        match self.decision.pass {
            Replayed::Provisioning => {
                let query = Query::new(PodSet::Waiting)
                    .with_nominated(self.nominated.clone())
                    .with_buffer_pods(self.settings.buffer_pods().to_vec());
                let policy = self.settings.policy();
                PassResult::Provisioning(schedule::schedule(&self.snapshot, policy, &query))
            }
            Replayed::Disruption => {
                let mut request = self.settings.request().with_threads(threads);
                if !self.consolidates {
                    request.multi_node.cancel = Some(Arc::new(|| true));
                    request.single_node_cancel = Some(Arc::new(|| true));
                }
                PassResult::Disruption(Box::new(disruption::plan(&self.snapshot, &request)))
            }
        }
    }

    /// Makes the pass again and compares both.
    #[must_use]
    pub fn replay(&self, threads: usize) -> Comparison {
        let recorded = &self.decision;
        let again =
            (!recorded.truncated).then(|| self.run(threads).record(recorded.id.clone(), false));
        recorded.compared(again)
    }

    /// Returns a bundle with only this pass, whose state is that of the pass.
    #[must_use]
    pub fn alone(&self, of: &Bundle) -> Bundle {
        let mut alone = Bundle::new(
            &of.provider,
            &of.engine,
            self.snapshot.clone(),
            self.settings.clone(),
        );
        alone.redaction = of.redaction;
        alone.recording = vec![self.clone()];
        alone
    }
}

/// The last passes, within bounds of time, memory and number.
#[derive(Debug, Default)]
pub struct Recorder {
    passes: VecDeque<(RecordedPass, u64)>,
    cost: u64,
    /// The number of changes of the model at the last pass.
    epoch: Option<u64>,
}

impl Recorder {
    /// Records a scheduling pass by its snapshot, in which nominated pods use their resources, and its query.
    pub fn provisioned(
        &mut self,
        snapshot: &Snapshot,
        policy: &Policy,
        query: &Query,
        assumed: usize,
        plan: &Plan,
    ) {
        let packing = query.packing.unwrap_or(policy.packing);
        let policy = policy.clone().with_packing(packing);
        let mut request = DisruptionRequest::at(policy.now);
        request.policy = policy.clone();
        request.query.buffer_pods = query.buffer_pods.clone();
        let id = id(Replayed::Provisioning, policy.now);
        let truncated = !plan.undecided.is_empty();
        let recorded = RecordedPass {
            snapshot: snapshot.clone(),
            decision: Decision::of_plan(id, plan, truncated),
            settings: Settings::new(policy, request),
            nominated: query.nominated.clone(),
            consolidates: false,
        };
        self.add(recorded, assumed);
    }

    /// Records a disruption pass by its request; `consolidates` is whether it looked for consolidations.
    pub fn disrupted(
        &mut self,
        snapshot: &Snapshot,
        request: &DisruptionRequest,
        consolidates: bool,
        plan: &DisruptionPlan,
    ) {
        let id = id(Replayed::Disruption, request.policy.now);
        // A search that was to find nothing did not end early.
        let truncated = consolidates && !plan.timed_out.is_empty();
        let recorded = RecordedPass {
            snapshot: snapshot.clone(),
            settings: Settings::new(request.policy.clone(), request.clone()),
            nominated: Vec::new(),
            consolidates,
            decision: Decision::of_disruption(id, plan, truncated),
        };
        self.add(recorded, 0);
    }

    fn add(&mut self, pass: RecordedPass, assumed: usize) {
        let (now, epoch) = (pass.at(), pass.snapshot.epoch());
        let changes = self.epoch.map_or(0, |last| epoch.saturating_sub(last));
        self.epoch = Some(epoch);
        let assumed = u64::try_from(assumed).unwrap_or(u64::MAX);
        let cost = PASS.saturating_add(changes.saturating_add(assumed).saturating_mul(CHANGE));
        self.cost = self.cost.saturating_add(cost);
        self.passes.push_back((pass, cost));
        while let Some((first, cost)) = self.passes.front() {
            let old = now.duration_since(first.at()) > MAX_AGE;
            if !old && self.cost <= MEMORY && self.passes.len() <= MAX_PASSES {
                break;
            }
            self.cost = self.cost.saturating_sub(*cost);
            self.passes.pop_front();
        }
    }

    /// Returns the passes since a time, the oldest first.
    #[must_use]
    pub fn since(&self, time: Timestamp) -> Vec<RecordedPass> {
        let passes = self.passes.iter().map(|(pass, _)| pass);
        passes.filter(|pass| pass.at() >= time).cloned().collect()
    }
}
