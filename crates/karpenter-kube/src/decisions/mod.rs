//! Records of decisions (feature gate `DecisionRecords`): what the passes of this replica decided, kept in memory, written to a
//! log on request, counted in metrics, and served with explanations on a loopback port.
//!
//! All of it reads. The passes hand over their results once they have acted; nothing here is waited for, and an error in it ends
//! in a log line.

mod answers;
mod bundle;
mod choices;
mod doctor;
mod installation;
mod kept;
mod log;
mod metrics;
mod overview;
mod page;
mod plans;
mod query;
mod server;
mod status;
mod stream;
mod tls;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::{
    Command, CommandId, CommandInvalidated, DisruptionPlan, DisruptionRequest,
};
use karpenter_core::schedule::{Cancel, Plan, PlannedNodeClaim, Policy};
use karpenter_decisions::bundle::RecordedPass;
use karpenter_decisions::bundle::recording::Recorder;
use karpenter_decisions::history::{History, Input};
use karpenter_decisions::record::{CommandOutcome, CommandState, DecisionRecord, clipped};
use karpenter_decisions::ring::Recorded;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;

pub use doctor::report_regularly;
pub use installation::RULES;
pub use metrics::register;
pub use server::serve;

use crate::context::Context;
use crate::lease::{Announcement, Holder};
use crate::model::View;
use crate::options::DecisionLog;
use choices::Unworked;
use doctor::Doctor;
use kept::Kept;
use log::Log;
use overview::Feed;

/// How many records the reader of a stream may be behind.
const BEHIND: usize = 256;

/// The decisions of this replica since it leads.
pub struct Decisions {
    history: Mutex<History>,
    /// The policy of the last scheduling pass.
    scheduled: Mutex<Option<Policy>>,
    /// The request of the last disruption pass.
    disrupted: Mutex<Option<DisruptionRequest>>,
    doctor: Doctor,
    kept: Arc<Kept>,
    choices: Unworked,
    log: Option<Log>,
    new: broadcast::Sender<Arc<DecisionRecord>>,
    holder: Holder,
    /// Where other replicas reach this one, while it leads.
    announcement: Announcement,
    /// The passes of the last half hour (feature gate `FlightRecorder`).
    recorder: Option<Mutex<Recorder>>,
    /// Counts the changes of the history.
    revision: AtomicU64,
    feed: Feed,
}

impl std::fmt::Debug for Decisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decisions").finish_non_exhaustive()
    }
}

/// How a pass was made.
#[derive(Debug, Clone, Copy)]
pub struct Made<'a> {
    /// The view that it decided on.
    pub view: &'a View,
    /// The policy of the pass.
    pub policy: &'a Policy,
    /// How long it took.
    pub took: Duration,
}

impl Decisions {
    /// Creates an empty history. `holder` is the replica that holds the lease, `announcement` what this one writes into the lease.
    /// `records_flight` is whether passes are kept with their states.
    #[must_use]
    pub fn new(
        log: &DecisionLog,
        holder: Holder,
        announcement: Announcement,
        records_flight: bool,
    ) -> Self {
        let (new, _) = broadcast::channel(BEHIND);
        Self {
            history: Mutex::new(History::new(Timestamp::UNIX_EPOCH)),
            scheduled: Mutex::default(),
            disrupted: Mutex::default(),
            doctor: Doctor::default(),
            kept: Arc::default(),
            choices: Unworked::default(),
            log: Log::open(log),
            new,
            holder,
            announcement,
            recorder: records_flight.then(Mutex::default),
            revision: AtomicU64::default(),
            feed: Feed::default(),
        }
    }

    /// Begins the history: this replica leads since `now`.
    pub fn begin(&self, now: Timestamp) {
        *self.history() = History::new(now);
        *self.disrupted.lock() = None;
        self.kept.free();
        if let Some(recorder) = &self.recorder {
            *recorder.lock() = Recorder::default();
        }
        self.revision.fetch_add(1, Ordering::Relaxed);
        self.feed.begin();
    }

    /// Returns a number that changes with the history.
    fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Returns the history so far, which no later pass changes.
    fn so_far(&self) -> History {
        self.history().clone()
    }

    /// Returns the policy of the last scheduling pass, at `now`.
    fn policy(&self, now: Timestamp) -> Option<Policy> {
        Some(self.scheduled.lock().clone()?.with_now(now))
    }

    /// Returns a request like that of the last disruption pass, else of provisioning, which ends its search once `cancel` says so.
    fn disruption(&self, now: Timestamp, cancel: Cancel) -> DisruptionRequest {
        let mut request = self.disrupted.lock().clone();
        let request = request.get_or_insert_with(|| {
            let mut request = DisruptionRequest::at(now);
            request.policy = self.policy(now).unwrap_or(request.policy);
            request
        });
        request.policy.now = now;
        request.query.cancel = Some(cancel);
        request.clone()
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock()
    }

    /// Keeps a pass with its state, if the flight recorder is on.
    pub fn keep(&self, pass: impl FnOnce(&mut Recorder)) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        // INVARIANT: a decision never fails because it is kept.
        if catch_unwind(AssertUnwindSafe(|| pass(&mut recorder.lock()))).is_err() {
            tracing::error!(logger = "decisions", "keeping a decision panicked");
        }
    }

    /// Returns the kept passes since a time; `None` without a flight recorder.
    fn kept_since(&self, time: Timestamp) -> Option<Vec<RecordedPass>> {
        Some(self.recorder.as_ref()?.lock().since(time))
    }

    /// Records a scheduling pass. `claims` are the NodeClaims of the planned nodes.
    pub fn provisioned(
        &self,
        cx: &Context,
        made: Made<'_>,
        plan: &Plan,
        claims: &[Option<Arc<NodeClaim>>],
    ) {
        let names = claims.iter().map(|claim| Some(claim.as_ref()?.name()));
        let names: Vec<Option<&str>> = names.collect();
        *self.scheduled.lock() = Some(made.policy.clone());
        self.choices
            .add(cx, made.view, &plan.new_node_claims, claims);
        self.record(cx, made, |history, input| {
            history.provisioned(input, plan, &names)
        });
    }

    /// Records a disruption pass.
    pub fn disrupted(
        &self,
        cx: &Context,
        made: Made<'_>,
        request: &DisruptionRequest,
        plan: &DisruptionPlan,
    ) {
        let mut kept = request.clone();
        // Those of the pass belong to it.
        kept.multi_node.cancel = None;
        kept.single_node_cancel = None;
        kept.stopwatch = None;
        *self.disrupted.lock() = Some(kept);
        self.record(cx, made, |history, input| history.disrupted(input, plan));
    }

    /// Records that a proposed command was not started.
    pub fn rejected(
        &self,
        cx: &Context,
        made: Made<'_>,
        command: &Command,
        why: &CommandInvalidated,
    ) {
        self.record(cx, made, |history, input| {
            history.rejected(input, command, why)
        });
    }

    /// Records a pass over a static NodePool that lacks nodes; `at_limit` is the NodePool, if its limit allows none.
    pub fn static_capacity(
        &self,
        cx: &Context,
        made: Made<'_>,
        planned: &[PlannedNodeClaim],
        claims: &[Option<String>],
        at_limit: Option<&str>,
    ) {
        let names: Vec<Option<&str>> = claims.iter().map(Option::as_deref).collect();
        self.record(cx, made, |history, input| {
            history.static_capacity(input, planned, &names, at_limit)
        });
    }

    /// Records that an unhealthy node is deleted, because of a condition.
    pub fn repaired(&self, cx: &Context, made: Made<'_>, node: &str, condition: &str) {
        self.record(cx, made, |history, input| {
            history.repaired(input, node, condition)
        });
    }

    /// Records that surplus nodes of a static NodePool are deleted; by the names of their NodeClaims.
    pub fn shrunk(&self, cx: &Context, made: Made<'_>, claims: &[&str]) {
        self.record(cx, made, |history, input| history.shrunk(input, claims));
    }

    /// Records that a command was started, with its replacements.
    pub fn started(&self, cx: &Context, command: &Command, replacements: &[Arc<NodeClaim>]) {
        let created: Vec<_> = replacements.iter().cloned().map(Some).collect();
        self.choices
            .add(cx, &cx.view(), &command.replacements, &created);
        let names = replacements.iter().take(karpenter_decisions::record::NAMED);
        let outcome = CommandOutcome {
            state: CommandState::Started,
            at: cx.clock.now(),
            why: None,
            replacements: names.map(|claim| claim.name().to_owned()).collect(),
        };
        self.became(&command.id(), outcome);
    }

    /// Records how a command ended, and why.
    pub fn ended(&self, cx: &Context, id: &CommandId, state: CommandState, why: Option<String>) {
        let outcome = CommandOutcome {
            state,
            at: cx.clock.now(),
            why: why.map(clipped),
            replacements: Vec::new(),
        };
        self.became(id, outcome);
    }

    fn became(&self, id: &CommandId, outcome: CommandOutcome) {
        let amended = self.history().became(id.claims(), outcome);
        self.revision.fetch_add(1, Ordering::Relaxed);
        // The line of a record is repeated once more is known: the last one with its id holds.
        if let (Some(record), Some(log)) = (amended, &self.log) {
            log.write(&record);
        }
    }

    /// Records what the cloud chose for earlier NodeClaims, as far as it is known by now.
    fn settle(&self, view: &View) {
        self.history().settle(&view.snapshot);
    }

    fn record(
        &self,
        cx: &Context,
        made: Made<'_>,
        record: impl FnOnce(&mut History, Input<'_>) -> Recorded,
    ) {
        let input = Input {
            snapshot: &made.view.snapshot,
            policy: made.policy,
            took: made.took,
            now: cx.clock.now(),
        };
        // INVARIANT: a decision never fails because of its record.
        let recorded = catch_unwind(AssertUnwindSafe(|| {
            let mut history = self.history();
            let recorded = record(&mut history, input);
            if let Recorded::New(record) = &recorded {
                // Under the lock: a stream that begins now gets the record either from the history or from here.
                let _ = self.new.send(Arc::clone(record));
            }
            recorded
        }));
        self.revision.fetch_add(1, Ordering::Relaxed);
        match recorded {
            Ok(Recorded::New(record)) => {
                if let Some(log) = &self.log {
                    log.write(&record);
                }
            }
            Ok(Recorded::Extended(_)) => {}
            Err(_) => tracing::error!(logger = "decisions", "recording a decision panicked"),
        }
    }
}
