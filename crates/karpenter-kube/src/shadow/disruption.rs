//! The disruption controller of a shadow: plans as the real one, and disrupts nothing.
//!
//! A pass is made every ten seconds, and whenever the other Karpenter begins to disrupt a node that we have not decided about:
//! on the state before. Commands that are validated before they start count once they are valid fifteen seconds later, or once the
//! other disrupts one of their nodes.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{
    Candidate, Command, DisruptionPlan, DisruptionRequest, Method, MultiNodeSearch, plan, validate,
};
use karpenter_core::schedule::Cancel;
use karpenter_decisions::shadow::comparison::in_flight;
use tokio::time::Instant;

use super::{Shadow, Taken};
use crate::context::Context;
use crate::controller::{Periodic, ReconcileError, compute};
use crate::decisions::Made;
use crate::model::View;
use crate::provisioning;

/// Interval between passes.
const IDLE: Duration = Duration::from_secs(10);
/// How long a pass waits for the model to be in sync.
const UNSYNCED: Duration = Duration::from_secs(1);
/// How long until a proposal is validated.
const VALIDATION: Duration = Duration::from_secs(15);
/// How long no pass is made after one that found nothing, while nothing changes.
const UNCHANGED: Duration = Duration::from_secs(300);
/// How long the search for a set of nodes, and for single nodes, may take.
const SEARCH: Duration = Duration::from_secs(60);

/// A command that waits for its validation.
struct Proposal {
    command: Command,
    due: Instant,
}

/// Plans disruption on the states of another Karpenter.
pub struct Disruption {
    cx: Arc<Context>,
    proposals: Vec<Proposal>,
    /// Epoch of the last state for which nothing was found, and until when that holds.
    fruitless: Option<(u64, Instant)>,
    next_plan: Instant,
}

impl std::fmt::Debug for Disruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disruption")
            .field("proposals", &self.proposals.len())
            .finish_non_exhaustive()
    }
}

impl Disruption {
    /// Creates the controller of a shadow.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            cx,
            proposals: Vec::new(),
            fruitless: None,
            next_plan: Instant::now(),
        }
    }

    fn request(&self, in_flight: BTreeSet<String>, now: Timestamp) -> DisruptionRequest {
        let cx = &self.cx;
        let limit = cx.clock.real_duration(SEARCH);
        let search = || -> Cancel {
            let first = OnceLock::new();
            Arc::new(move || {
                let now = Instant::now();
                now.duration_since(*first.get_or_init(|| now)) >= limit
            })
        };
        let mut request = DisruptionRequest::at(now)
            .with_policy(provisioning::policy(cx).with_now(now))
            .with_spot_to_spot(cx.options.feature_gates.spot_to_spot_consolidation)
            .with_multi_node(MultiNodeSearch {
                cancel: Some(search()),
                max_replacements: cx.options.consolidation_max_replacements,
            })
            .with_threads(cx.options.cores());
        request.surroundings.in_flight = in_flight;
        request.single_node_cancel = Some(search());
        request
    }

    /// Returns a state to decide on, and the request for it: nodes that the other disrupts, and those of our proposals, are in
    /// flight.
    fn question(
        &self,
        shadow: &Shadow,
        state: &Snapshot,
        now: Timestamp,
        consolidate: bool,
    ) -> (Snapshot, DisruptionRequest) {
        let (mut held, state) = in_flight(state);
        let proposed = self.proposals.iter().flat_map(|p| &p.command.candidates);
        held.extend(proposed.map(|it| it.claim_name().to_owned()));
        let mut request = self.request(held, now);
        if !consolidate {
            request.multi_node.cancel = Some(Arc::new(|| true));
            request.single_node_cancel = Some(Arc::new(|| true));
        }
        let state = shadow.changed(state, &mut request);
        (state, request)
    }

    fn is_consolidating(&self) -> bool {
        self.proposals
            .iter()
            .any(|p| p.command.method != Method::Emptiness)
    }

    async fn plan_on(
        &self,
        state: Snapshot,
        request: &DisruptionRequest,
    ) -> Result<DisruptionPlan, ReconcileError> {
        let asked = request.clone();
        compute("the disruption planner", move || plan(&state, &asked)).await
    }

    /// Decides on the states before the other Karpenter began to disrupt nodes.
    async fn answer(&mut self, shadow: &Shadow) -> Result<(), ReconcileError> {
        loop {
            let next = shadow.taken.lock().pop_front();
            let Some(Taken { claim, state, at }) = next else {
                return Ok(());
            };
            let proposed = |p: &Proposal| names(&p.command).any(|name| name == claim);
            if shadow.comparison().is_ours(&claim) || self.proposals.iter().any(proposed) {
                continue;
            }
            // Nothing of ours is in flight there: the proposals belong to the state of today.
            let (held, state) = in_flight(&state);
            let mut request = self.request(held, at);
            let state = shadow.changed(state, &mut request);
            let plan = self.plan_on(state, &request).await?;
            let mut comparison = shadow.comparison();
            for command in &plan.commands {
                // Commands that are not validated start at once, all of a pass.
                if !command.method.is_validated() || names(command).any(|it| it == claim) {
                    comparison.disrupted(command, at);
                }
            }
            comparison.keeps(&plan);
        }
    }

    /// Counts the proposals that are due, as far as they are confirmed or still valid.
    async fn validate_due(&mut self, shadow: &Shadow) -> Result<(), ReconcileError> {
        let now = Instant::now();
        let (due, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.proposals)
            .into_iter()
            .partition(|p| p.due <= now);
        self.proposals = waiting;
        for Proposal { command, .. } in due {
            let at = self.cx.clock.now();
            if shadow.comparison().is_confirmed(&command) {
                shadow.comparison().disrupted(&command, at);
                continue;
            }
            let view = self.cx.view();
            let (held, state) = in_flight(&view.snapshot);
            let mut request = self.request(held, at);
            let state = shadow.changed(state, &mut request);
            let (proposed, asked) = (command.clone(), request.clone());
            let checked = compute("the disruption planner", move || {
                validate(&proposed, &state, &asked)
            })
            .await?;
            match checked {
                Ok(checked) => shadow.comparison().disrupted(&checked, at),
                Err(why) => {
                    if let Some(decisions) = &self.cx.decisions {
                        decisions.rejected(&self.cx, made(&view, &request, now), &command, &why);
                    }
                }
            }
        }
        Ok(())
    }

    async fn plan(&mut self, shadow: &Shadow, view: &View) -> Result<(), ReconcileError> {
        let epoch = view.snapshot.epoch();
        let unchanged = |(known, until): (u64, Instant)| known == epoch && Instant::now() < until;
        if self.fruitless.is_some_and(unchanged) {
            return Ok(());
        }
        let (now, started) = (self.cx.clock.now(), Instant::now());
        let consolidate = !self.is_consolidating();
        let (state, request) = self.question(shadow, &view.snapshot, now, consolidate);
        let plan = self.plan_on(state, &request).await?;
        if let Some(decisions) = &self.cx.decisions {
            decisions.disrupted(&self.cx, made(view, &request, started), &request, &plan);
        }
        let fruitless = plan.commands.is_empty() && plan.timed_out.is_empty() && consolidate;
        self.fruitless = fruitless.then(|| (epoch, self.cx.clock.instant_after(UNCHANGED)));
        for command in plan.commands {
            // We have decided so before, and the other has not followed: it counts again once the comparison is over.
            if names(&command).all(|name| shadow.comparison().is_ours(name)) {
                continue;
            }
            if command.method.is_validated() {
                let due = self.cx.clock.instant_after(VALIDATION);
                self.proposals.push(Proposal { command, due });
            } else {
                shadow.comparison().disrupted(&command, now);
            }
        }
        Ok(())
    }
}

fn names(command: &Command) -> impl Iterator<Item = &str> {
    command.candidates.iter().map(Candidate::claim_name)
}

fn made<'a>(view: &'a View, request: &'a DisruptionRequest, started: Instant) -> Made<'a> {
    Made {
        view,
        policy: &request.policy,
        took: started.elapsed(),
    }
}

impl Periodic for Disruption {
    fn name(&self) -> &'static str {
        "shadow.disruption"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let cx = Arc::clone(&self.cx);
        let Some(shadow) = &cx.shadow else {
            return Ok(IDLE);
        };
        if !cx.view().is_synced() {
            return Ok(UNSYNCED);
        }
        provisioning::refresh_instance_types(&cx).await?;
        self.answer(shadow).await?;
        self.validate_due(shadow).await?;
        if self.next_plan <= Instant::now() {
            let view = cx.view();
            self.plan(shadow, &view).await?;
            self.next_plan = cx.clock.instant_after(IDLE);
        }
        let due = self.proposals.iter().map(|p| p.due);
        let next = due.fold(self.next_plan, Instant::min);
        tokio::select! {
            biased;
            () = shadow.took.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
        Ok(Duration::ZERO)
    }
}
