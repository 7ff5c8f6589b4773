//! The disruption controller of a shadow: the process of the real one, which is refused every command.
//!
//! Whenever the other Karpenter begins to disrupt a node that we have not decided about, a plan is made on the state before, too.
//! Commands that are validated before they start count once they are valid, or once the other disrupts one of their nodes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{
    Candidate, Command, DisruptionPlan, DisruptionRequest, plan, validate,
};
use karpenter_core::lifecycle::disruption::{
    Disruption as Process, Effect, Event, Inputs, Settings,
};
use karpenter_decisions::shadow::comparison::in_flight;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::{Shadow, Taken};
use crate::context::Context;
use crate::controller::{Periodic, ReconcileError, compute};
use crate::disruption::request;
use crate::listener::Made;
use crate::model::View;
use crate::provisioning;

/// How long a pass waits for the model to be in sync.
const SYNC_RETRY: Duration = Duration::from_secs(1);

/// Plans disruption on the states of another Karpenter.
#[derive(Debug)]
pub struct Disruption {
    cx: Arc<Context>,
    shadow: Arc<Shadow>,
    process: Process,
}

/// A state to decide on, and the request for it.
struct Question {
    state: Snapshot,
    request: DisruptionRequest,
    _guard: DropGuard,
}

impl Question {
    /// Returns the question for a state at a time: nodes that the other disrupts are in flight.
    fn new(
        cx: &Context,
        shadow: &Shadow,
        state: &Snapshot,
        inputs: &Inputs,
        at: Timestamp,
    ) -> Self {
        let (held, state) = in_flight(state);
        let (mut request, guard) = request(cx, &state, inputs);
        request.policy.now = at;
        request.surroundings.in_flight.extend(held);
        let state = shadow.changed(state, &mut request);
        Self {
            state,
            request,
            _guard: guard,
        }
    }

    fn made<'a>(&'a self, view: &'a View, started: Instant) -> Made<'a> {
        Made {
            view,
            policy: &self.request.policy,
            took: started.elapsed(),
        }
    }

    async fn plan(&self) -> Result<DisruptionPlan, ReconcileError> {
        let (state, request) = (self.state.fork(), self.request.clone());
        compute("the disruption planner", move || plan(&state, &request)).await
    }
}

impl Disruption {
    /// Creates the controller of a shadow.
    #[must_use]
    pub fn new(cx: Arc<Context>, shadow: Arc<Shadow>) -> Self {
        let settings = Settings {
            removes_stale_taints: false,
            checks_starts: false,
            ..Settings::default()
        };
        Self {
            process: Process::new(settings, cx.clock.now()),
            cx,
            shadow,
        }
    }

    /// Decides on the states before the other Karpenter began to disrupt nodes.
    async fn answer(&mut self, shadow: &Shadow) -> Result<(), ReconcileError> {
        loop {
            let next = shadow.taken.lock().pop_front();
            let Some(Taken { claim, state, at }) = next else {
                return Ok(());
            };
            let proposed = |command: &Command| names(command).any(|name| name == claim);
            if shadow.comparison().is_ours(&claim) || self.process.proposals().any(proposed) {
                continue;
            }
            // Nothing of ours is in flight there: the proposals belong to the state of today.
            let inputs = Inputs {
                in_flight: BTreeSet::new(),
                recent_replacements: BTreeSet::new(),
                unseen_pools: BTreeSet::new(),
                cooling_down_pools: BTreeSet::new(),
                consolidates: true,
                after: None,
            };
            let question = Question::new(&self.cx, shadow, &state, &inputs, at);
            let plan = question.plan().await?;
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

    async fn on(&mut self, shadow: &Shadow, event: Event) -> Result<(), ReconcileError> {
        let (mut events, mut result) = (VecDeque::from([event]), Ok(()));
        while let Some(event) = events.pop_front() {
            let view = self.cx.view();
            let now = self.cx.clock.now();
            for effect in self.process.on(event, &view.snapshot, now) {
                match self.execute(shadow, effect, &view, now).await {
                    Ok(answer) => events.extend(answer),
                    Err(error) => {
                        events.push_back(Event::Unanswered);
                        result = Err(error);
                    }
                }
            }
        }
        result
    }

    async fn execute(
        &self,
        shadow: &Shadow,
        effect: Effect,
        view: &View,
        now: Timestamp,
    ) -> Result<Option<Event>, ReconcileError> {
        let (cx, started) = (&self.cx, Instant::now());
        Ok(match effect {
            Effect::Plan(inputs) => {
                let question = Question::new(cx, shadow, &view.snapshot, &inputs, now);
                let mut plan = question.plan().await?;
                let made = question.made(view, started);
                shadow.decisions.disrupted(made, &question.request, &plan);
                // What we have decided before, and the other has not followed, counts again once the comparison is over.
                let is_ours = |command: &Command| {
                    names(command).all(|name| shadow.comparison().is_ours(name))
                };
                plan.commands.retain(|command| !is_ours(command));
                Some(Event::Planned(Arc::new(plan)))
            }
            Effect::Validate(command, _) if shadow.comparison().is_confirmed(&command) => {
                Some(Event::Validated(Ok(command)))
            }
            Effect::Validate(command, inputs) => {
                let question = Question::new(cx, shadow, &view.snapshot, &inputs, now);
                let (state, request) = (question.state.fork(), question.request.clone());
                let proposed = command.clone();
                let check = move || validate(&proposed, &state, &request);
                let checked = compute("the disruption planner", check).await?;
                if let Err(why) = &checked {
                    let made = question.made(view, started);
                    shadow.decisions.rejected(made, &command, why);
                }
                Some(Event::Validated(checked))
            }
            Effect::Reserve(_) => Some(Event::Reserved(true)),
            Effect::Taint(command) => {
                shadow.comparison().disrupted(&command, now);
                Some(Event::Refused)
            }
            // A refused command asks for none of these.
            Effect::Release(_)
            | Effect::Untaint(_)
            | Effect::Launch(_)
            | Effect::Mark(..)
            | Effect::Nominate(_)
            | Effect::Delete { .. }
            | Effect::Report(_) => None,
        })
    }
}

fn names(command: &Command) -> impl Iterator<Item = &str> {
    command.candidates.iter().map(Candidate::claim_name)
}

impl Periodic for Disruption {
    const NAME: &'static str = "shadow.disruption";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let cx = Arc::clone(&self.cx);
        if !cx.view().is_synced() {
            return Ok(SYNC_RETRY);
        }
        let shadow = &*Arc::clone(&self.shadow);
        provisioning::refresh_instance_types(&cx).await?;
        self.answer(shadow).await?;
        if self.process.is_due(cx.clock.now()) {
            self.on(shadow, Event::Due).await?;
        }
        let left = self.process.next().duration_since(cx.clock.now());
        let left = Duration::try_from(left).unwrap_or_default();
        tokio::select! {
            biased;
            () = shadow.took.notified() => {}
            () = cx.clock.sleep(left) => {}
        }
        Ok(Duration::ZERO)
    }
}
