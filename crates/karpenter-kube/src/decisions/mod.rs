//! Records of decisions (feature gate `DecisionRecords`): what the passes of this replica decided, kept in memory, written to a
//! log on request, counted in metrics, and served with explanations on a loopback port.
//!
//! All of it reads. The passes hand over their results once they have acted; nothing here is waited for, and an error in it ends
//! in a log line. Here are the records that passes make; `state` keeps them, `server` answers from them.

mod choices;
mod doctor;
mod feed;
mod installation;
mod kept;
mod log;
mod metrics;
mod server;
mod state;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::{
    Command, CommandId, CommandInvalidated, DisruptionPlan, DisruptionRequest,
};
use karpenter_core::schedule::{Plan, PlannedNodeClaim, Policy};
use karpenter_decisions::history::{History, Input};
use karpenter_decisions::record::{CommandOutcome, CommandState, clipped};
use karpenter_decisions::ring::Recorded;

pub use doctor::report_regularly;
pub use installation::RULES;
pub use metrics::register;
pub use server::serve;
pub use state::Decisions;

use crate::context::Context;
use crate::model::View;

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
        self.launched(cx, made.view, &plan.new_node_claims, claims);
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
        self.launched(cx, &cx.view(), &command.replacements, &created);
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

    /// Keeps what the choice of instance types is worked out from later. Without the server no question can be asked about it.
    fn launched(
        &self,
        cx: &Context,
        view: &View,
        planned: &[PlannedNodeClaim],
        created: &[Option<Arc<NodeClaim>>],
    ) {
        if cx.options.decisions_port != 0 {
            self.choices.add(view, planned, created);
        }
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
