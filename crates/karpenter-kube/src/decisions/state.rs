//! The decisions of this replica, and what is stored with them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use karpenter_core::disruption::{CommandId, DisruptionRequest};
use karpenter_core::schedule::{Cancel, Policy};
use karpenter_decisions::bundle::RecordedPass;
use karpenter_decisions::bundle::recording::Recorder;
use karpenter_decisions::doctor::{BlockerReport, Installation};
use karpenter_decisions::history::History;
use karpenter_decisions::record::{CommandOutcome, DecisionRecord};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;

use super::choices::Unworked;
use super::compiled::CompiledCache;
use super::feed::{Feed, MAX_LAG};
use super::log::Log;
use crate::clock::Clock;
use crate::lease::Holder;
use crate::model::View;
use crate::options::Options;

/// The version of the engine in answers.
pub(super) const ENGINE: &str = env!("CARGO_PKG_VERSION");

/// The latest results of the doctor.
#[derive(Debug, Default)]
pub(super) struct Doctor {
    /// The latest report on the whole cluster.
    pub(super) latest: Mutex<Option<Arc<BlockerReport>>>,
    /// The latest review of the installation.
    pub(super) reviewed: Mutex<Option<(Timestamp, Installation)>>,
}

impl Doctor {
    /// Returns the latest report on the whole cluster.
    pub(super) fn latest(&self) -> Option<Arc<BlockerReport>> {
        self.latest.lock().clone()
    }
}

/// The decisions of this replica since it leads.
pub struct Decisions {
    pub(super) history: Mutex<History>,
    /// The policy of the last scheduling pass.
    pub(super) scheduled: Mutex<Option<Policy>>,
    /// The request of the last disruption pass.
    pub(super) disrupted: Mutex<Option<DisruptionRequest>>,
    pub(super) doctor: Doctor,
    pub(super) compiled: Arc<CompiledCache>,
    pub(super) choices: Unworked,
    pub(super) log: Option<Log>,
    pub(super) new: broadcast::Sender<Arc<DecisionRecord>>,
    pub(super) holder: Holder,
    /// The passes of the last half hour (feature gate `FlightRecorder`).
    recorder: Option<Mutex<Recorder>>,
    /// Counts the changes of the history.
    pub(super) revision: AtomicU64,
    pub(super) feed: Feed,
    pub(super) clock: Clock,
    /// Whether questions can be asked on the loopback port.
    pub(super) serves: bool,
}

impl std::fmt::Debug for Decisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decisions").finish_non_exhaustive()
    }
}

impl Decisions {
    /// Creates an empty history. `holder` is the replica that holds the lease.
    #[must_use]
    pub fn new(options: &Options, clock: Clock, holder: Holder) -> Self {
        let records_flight = options.feature_gates.flight_recorder;
        let (new, _) = broadcast::channel(MAX_LAG);
        Self {
            history: Mutex::new(History::new(Timestamp::UNIX_EPOCH)),
            scheduled: Mutex::default(),
            disrupted: Mutex::default(),
            doctor: Doctor::default(),
            compiled: Arc::default(),
            choices: Unworked::default(),
            log: Log::open(&options.decision_log),
            new,
            holder,
            recorder: records_flight.then(Mutex::default),
            revision: AtomicU64::default(),
            feed: Feed::default(),
            clock,
            serves: options.decisions_port != 0,
        }
    }

    /// Begins the history: this replica leads since `now`.
    pub fn begin(&self, now: Timestamp) {
        *self.history() = History::new(now);
        *self.disrupted.lock() = None;
        self.compiled.free();
        if let Some(recorder) = &self.recorder {
            *recorder.lock() = Recorder::default();
        }
        self.revision.fetch_add(1, Ordering::Relaxed);
        self.feed.begin();
    }

    /// Returns a number that changes with the history.
    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Returns the history so far, which no later pass changes.
    pub(super) fn so_far(&self) -> History {
        self.history().clone()
    }

    /// Returns the policy of the last scheduling pass, at `now`.
    pub(super) fn policy(&self, now: Timestamp) -> Option<Policy> {
        Some(self.scheduled.lock().clone()?.with_now(now))
    }

    /// Returns a request like that of the last disruption pass, else of provisioning, which `cancel` ends early.
    pub(super) fn disruption(&self, now: Timestamp, cancel: Cancel) -> DisruptionRequest {
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

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock()
    }

    /// Records a pass with its state, if the flight recorder is on.
    pub fn record_pass(&self, pass: impl FnOnce(&mut Recorder)) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        // INVARIANT: a decision never fails because it is recorded.
        if catch_unwind(AssertUnwindSafe(|| pass(&mut recorder.lock()))).is_err() {
            tracing::error!(logger = "decisions", "recording a decision panicked");
        }
    }

    /// Returns the recorded passes since a time; `None` without a flight recorder.
    pub(super) fn recorded_since(&self, time: Timestamp) -> Option<Vec<RecordedPass>> {
        Some(self.recorder.as_ref()?.lock().since(time))
    }

    /// Records what became of a command.
    pub(super) fn record_command_outcome(&self, id: &CommandId, outcome: CommandOutcome) {
        let amended = self.history().record_command_outcome(id.claims(), outcome);
        self.revision.fetch_add(1, Ordering::Relaxed);
        // The line of a record is repeated once more is known: the last one with its id is valid.
        if let (Some(record), Some(log)) = (amended, &self.log) {
            log.write(&record);
        }
    }

    /// Records what the cloud chose for earlier NodeClaims, as far as it is known by now.
    pub(super) fn record_launched_offerings(&self, view: &View) {
        self.history().record_launched_offerings(&view.snapshot);
    }
}
