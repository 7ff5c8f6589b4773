//! Records of decisions (feature gate `DecisionRecords`): what the passes of this replica decided, kept in memory, written to a
//! log on request, counted in metrics, and served with explanations on a loopback port.
//!
//! All of it reads. The passes hand over their results once they have acted; nothing here is waited for, and an error in it ends
//! in a log line. Here are the records that passes make; `state` keeps them, `server` answers from them.

mod choices;
mod compiled;
mod doctor;
mod feed;
mod installation;
mod log;
mod metrics;
mod server;
mod state;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::{
    Command, CommandId, CommandInvalidated, DisruptionPlan, DisruptionRequest,
};
use karpenter_core::lifecycle::disruption::CommandEnd;
use karpenter_core::schedule::{Plan, PlannedNodeClaim};
use karpenter_decisions::history::{History, Input};
use karpenter_decisions::record::{CommandOutcome, CommandState, clipped};
use karpenter_decisions::ring::Recorded;

pub use doctor::report_regularly;
pub use installation::RULES;
pub use metrics::register;
pub use server::{ShadowReports, serve};
pub use state::Decisions;

use crate::listener::{Decided, Listener, Made};
use crate::model::View;

impl Listener for Decisions {
    fn leads(&self, now: Timestamp) {
        self.begin(now);
    }

    fn decided(&self, made: Made<'_>, decided: Decided<'_>) {
        match decided {
            Decided::Provisioned {
                question,
                query,
                plan,
                claims,
            } => {
                self.provisioned(made, plan, claims);
                let standing = &question.standing;
                let assumed = [
                    standing.nominated.len(),
                    standing.backing_off.len(),
                    standing.deferred.len(),
                ];
                self.record_pass(|recorder| {
                    let (snapshot, assumed) = (&question.snapshot, assumed.iter().sum());
                    recorder.provisioned(snapshot, made.policy, query, assumed, plan);
                });
            }
            Decided::Disrupted {
                request,
                consolidates,
                plan,
            } => {
                self.disrupted(made, request, plan);
                self.record_pass(|recorder| {
                    recorder.disrupted(&made.view.snapshot, request, consolidates, plan);
                });
            }
            Decided::Rejected { command, why } => self.rejected(made, command, why),
            Decided::Grew {
                planned,
                claims,
                at_limit,
            } => {
                let names: Vec<Option<&str>> = claims.iter().map(Option::as_deref).collect();
                self.record(made, |history, input| {
                    history.static_capacity(input, planned, &names, at_limit)
                });
            }
            Decided::Shrank(claims) => {
                self.record(made, |history, input| history.shrunk(input, claims));
            }
            Decided::Repaired { node, condition } => self.record(made, |history, input| {
                history.repaired(input, node, condition)
            }),
        }
    }

    fn started(&self, view: &View, command: &Command, replacements: &[Arc<NodeClaim>]) {
        let created: Vec<_> = replacements.iter().cloned().map(Some).collect();
        self.launched(view, &command.replacements, &created);
        let names = replacements.iter().take(karpenter_decisions::record::NAMED);
        let outcome = CommandOutcome {
            state: CommandState::Started,
            at: self.clock.now(),
            why: None,
            replacements: names.map(|claim| claim.name().to_owned()).collect(),
        };
        self.record_command_outcome(&command.id(), outcome);
    }

    fn ended(&self, command: &CommandId, end: &CommandEnd) {
        let state = match end {
            CommandEnd::Succeeded => CommandState::Succeeded,
            CommandEnd::NotStarted => CommandState::NotStarted,
            CommandEnd::TimedOut { .. } => CommandState::TimedOut,
            CommandEnd::ReplacementDeleted { .. } | CommandEnd::NotDeleted { .. } => {
                CommandState::RolledBack
            }
        };
        let failed = matches!(state, CommandState::TimedOut | CommandState::RolledBack);
        let outcome = CommandOutcome {
            state,
            at: self.clock.now(),
            why: failed.then(|| clipped(end.to_string())),
            replacements: Vec::new(),
        };
        self.record_command_outcome(command, outcome);
    }
}

impl Decisions {
    /// Records a scheduling pass. `claims` are the NodeClaims of the planned nodes.
    pub fn provisioned(&self, made: Made<'_>, plan: &Plan, claims: &[Option<Arc<NodeClaim>>]) {
        let names = claims.iter().map(|claim| Some(claim.as_ref()?.name()));
        let names: Vec<Option<&str>> = names.collect();
        *self.scheduled.lock() = Some(made.policy.clone());
        self.launched(made.view, &plan.new_node_claims, claims);
        self.record(made, |history, input| {
            history.provisioned(input, plan, &names)
        });
    }

    /// Records a disruption pass.
    pub fn disrupted(&self, made: Made<'_>, request: &DisruptionRequest, plan: &DisruptionPlan) {
        let mut kept = request.clone();
        // Those of the pass belong to it.
        kept.multi_node.cancel = None;
        kept.single_node_cancel = None;
        kept.stopwatch = None;
        *self.disrupted.lock() = Some(kept);
        self.record(made, |history, input| history.disrupted(input, plan));
    }

    /// Records that a proposed command was not started.
    pub fn rejected(&self, made: Made<'_>, command: &Command, why: &CommandInvalidated) {
        self.record(made, |history, input| history.rejected(input, command, why));
    }

    /// Stores the input from which the choice of instance types is explained later, if there is a server to ask.
    fn launched(
        &self,
        view: &View,
        planned: &[PlannedNodeClaim],
        created: &[Option<Arc<NodeClaim>>],
    ) {
        if self.serves {
            self.choices.add(view, planned, created);
        }
    }

    fn record(&self, made: Made<'_>, record: impl FnOnce(&mut History, Input<'_>) -> Recorded) {
        let input = Input {
            snapshot: &made.view.snapshot,
            policy: made.policy,
            took: made.took,
            now: self.clock.now(),
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
