//! Plans and validations: the engine on other threads, and what is recorded of them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{
    Command, DisruptionRequest, MultiNodeSearch, plan as decide, validate as check,
};
use karpenter_core::lifecycle::disruption::{Event, Inputs};
use karpenter_core::schedule::Cancel;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Answer, report};
use crate::context::Context;
use crate::controller::{ReconcileError, compute};
use crate::listener::{Decided, Made};
use crate::model::View;
use crate::provisioning;

/// Time limit of the search for a set of nodes.
const MULTI_NODE_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of the consolidation of single nodes.
const SINGLE_NODE_LIMIT: Duration = Duration::from_secs(180);

impl Answer {
    /// Answers that the engine failed.
    fn unanswered(error: ReconcileError) -> Self {
        Self {
            event: Event::Unanswered,
            failure: Some(error),
        }
    }
}

/// Cancels when `limit` has passed since the first check, or when `stop` is cancelled.
fn time_limit(limit: Duration, stop: &CancellationToken) -> Cancel {
    let stop = stop.clone();
    let first = OnceLock::new();
    Arc::new(move || {
        let now = Instant::now();
        stop.is_cancelled() || now.duration_since(*first.get_or_init(|| now)) >= limit
    })
}

/// Returns the request of a pass on a snapshot, and what abandons it when dropped.
pub(crate) fn request(
    cx: &Context,
    snapshot: &Snapshot,
    inputs: &Inputs,
) -> (DisruptionRequest, DropGuard) {
    let stop = CancellationToken::new();
    let abandoned = stop.clone();
    let mut request = DisruptionRequest::at(cx.clock.now());
    request.policy = provisioning::policy(cx);
    request.query.cancel = Some(Arc::new(move || abandoned.is_cancelled()));
    // A node that only holds buffer pods is not disrupted unless there is another place for them.
    request.query.buffer_pods = cx.buffers.pods();
    request.surroundings.buffer_pods = cx.buffers.on_nodes(snapshot);
    request.spot_to_spot = cx.options.feature_gates.spot_to_spot_consolidation;
    request.multi_node = MultiNodeSearch {
        cancel: Some(time_limit(cx.clock.real_duration(MULTI_NODE_LIMIT), &stop)),
        max_replacements: cx.options.consolidation_max_replacements,
    };
    request.single_node_cancel = Some(time_limit(cx.clock.real_duration(SINGLE_NODE_LIMIT), &stop));
    let pools = &cx.static_capacity;
    request.static_headroom = pools.with(&cx.model, |pools, latest| pools.drift_headroom(latest));
    let started = Instant::now();
    request.stopwatch = Some(Arc::new(move || started.elapsed()));
    request.threads = cx.options.cores();
    inputs.complete(&mut request);
    (request, stop.drop_guard())
}

pub(super) async fn plan(cx: Arc<Context>, view: Arc<View>, inputs: Inputs) -> Answer {
    let (request, _guard) = request(&cx, &view.snapshot, &inputs);
    let (snapshot, asked) = (view.snapshot.fork(), request.clone());
    let started = Instant::now();
    let pass = move || decide(&snapshot, &request);
    let plan = match compute("the disruption planner", pass).await {
        Ok(plan) => plan,
        Err(error) => return Answer::unanswered(error),
    };
    tracing::debug!(evaluated = plan.evaluated, "planned disruption");
    report::planned(&cx, &view, &plan, inputs.consolidates);
    if let Some(listener) = &cx.listener {
        let made = Made {
            view: &view,
            policy: &asked.policy,
            took: started.elapsed(),
        };
        let decided = Decided::Disrupted {
            request: &asked,
            consolidates: inputs.consolidates,
            plan: &plan,
        };
        listener.decided(made, decided);
    }
    Event::Planned(Arc::new(plan)).into()
}

/// Validates a command on a view.
pub(super) async fn validate(
    cx: Arc<Context>,
    view: Arc<View>,
    command: Command,
    inputs: Inputs,
) -> Answer {
    let (request, _guard) = request(&cx, &view.snapshot, &inputs);
    let (snapshot, proposed) = (view.snapshot.fork(), command.clone());
    let (started, policy) = (Instant::now(), request.policy.clone());
    let validation = move || check(&proposed, &snapshot, &request);
    let checked = match compute("the disruption planner", validation).await {
        Ok(checked) => checked,
        Err(error) => return Answer::unanswered(error),
    };
    match &checked {
        Ok(checked) => {
            let lost = command.candidates.len() - checked.candidates.len();
            report::dropped(&cx, command.method, lost);
        }
        Err(why) => {
            report::rejected(&cx, &view, &command, why);
            if let Some(listener) = &cx.listener {
                let made = Made {
                    view: &view,
                    policy: &policy,
                    took: started.elapsed(),
                };
                let command = &command;
                listener.decided(made, Decided::Rejected { command, why });
            }
        }
    }
    Event::Validated(checked).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_search_ends_when_its_time_is_up_or_its_pass_is_abandoned() {
        let (kept, abandoned) = (CancellationToken::new(), CancellationToken::new());
        let limit = Duration::from_secs(60);
        let searches = [&kept, &abandoned].map(|stop| time_limit(limit, stop));
        let ended = || searches.each_ref().map(|is_cancelled| is_cancelled());
        assert_eq!(ended(), [false, false]);
        abandoned.cancel();
        assert_eq!(ended(), [false, true]);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(ended(), [false, true]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(ended(), [true, true]);
    }
}
