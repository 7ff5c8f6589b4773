//! The disruption controller: executes the disruption process of `karpenter-core`.
//!
//! [`Process`] decides when a pass is made, what becomes of its commands, and what follows from each answer; here is what talks to
//! the engine ([`engine`]) and to the API server ([`commands`]). Requests run as tasks beside the loop, and commands beside passes.

mod commands;
mod engine;
mod pauses;
mod report;
mod taints;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use karpenter_core::lifecycle::disruption::{Disruption as Process, Effect, Event, Settings};
use tokio::task::{JoinError, JoinSet};
use tracing::Instrument;

#[cfg(feature = "decisions")]
pub(crate) use engine::request;

use crate::context::Context;
use crate::controller::{Backoff, Periodic, ReconcileError};
use crate::model::View;
use crate::provisioning;
use pauses::Pauses;

/// How long a pass waits for the model to be in sync.
const SYNC_RETRY: Duration = Duration::from_secs(1);
/// Interval between checks of commands.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Disrupts nodes: drift, emptiness and consolidation.
#[derive(Debug)]
pub struct Disruption {
    cx: Arc<Context>,
    process: Process,
    tasks: JoinSet<Answer>,
    pauses: Pauses,
    /// Why an effect failed: the pass ends with it, and is repeated with back-off.
    failure: Option<ReconcileError>,
}

/// The answer to an effect.
#[derive(Debug)]
struct Answer {
    event: Event,
    failure: Option<ReconcileError>,
}

impl From<Event> for Answer {
    fn from(event: Event) -> Self {
        Self {
            event,
            failure: None,
        }
    }
}

impl Disruption {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            process: Process::new(Settings::default(), cx.clock.now()),
            cx,
            tasks: JoinSet::new(),
            pauses: Pauses::default(),
            failure: None,
        }
    }

    /// Hands an event to the process, and executes the effects.
    async fn on(&mut self, event: Event) -> Result<(), ReconcileError> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let view = self.cx.view();
            let effects = self.process.on(event, &view.snapshot, self.cx.clock.now());
            for effect in effects {
                events.extend(self.execute(effect, &view).await?);
            }
        }
        Ok(())
    }

    /// Executes an effect; returns its answer, unless a task will.
    async fn execute(
        &mut self,
        effect: Effect,
        view: &Arc<View>,
    ) -> Result<Option<Event>, ReconcileError> {
        let cx = Arc::clone(&self.cx);
        match effect {
            Effect::Plan(inputs) => {
                self.spawn(engine::plan(cx, Arc::clone(view), inputs));
            }
            Effect::Validate(command, inputs) => {
                self.spawn(engine::validate(cx, Arc::clone(view), command, inputs));
            }
            Effect::Reserve(nodes) => {
                let pools = &cx.static_capacity;
                let reserved = pools.with(&cx.model, |pools, latest| pools.reserve(&nodes, latest));
                return Ok(Some(Event::Reserved(reserved)));
            }
            Effect::Release(nodes) => {
                let pools = &cx.static_capacity;
                pools.with(&cx.model, |pools, _| pools.release(&nodes));
            }
            Effect::Taint(command) => self.spawn(commands::taint(cx, Arc::clone(view), command)),
            Effect::Untaint(nodes) => self.spawn(commands::untaint(cx, nodes)),
            Effect::Launch(command) => self.spawn(commands::launch(cx, command)),
            Effect::Mark(ids, mark) => {
                cx.model.mark_for_deletion(ids, mark).await?;
                return Ok(mark.then_some(Event::Marked));
            }
            Effect::Nominate(nodes) => cx.nominate(nodes).await?,
            Effect::Delete {
                command,
                candidate,
                until,
            } => self.spawn(commands::delete(cx, command.id(), candidate, until)),
            Effect::Report(report) => report::report(&cx, view, report),
        }
        Ok(None)
    }

    fn spawn(&mut self, task: impl Future<Output = Answer> + Send + 'static) {
        self.tasks.spawn(task.in_current_span());
    }

    async fn answered(&mut self, answer: Result<Answer, JoinError>) -> Result<(), ReconcileError> {
        match answer {
            Ok(answer) => {
                self.failure = answer.failure.or(self.failure.take());
                self.on(answer.event).await
            }
            Err(error) => {
                tracing::error!(error = %error, "disruption panicked, forgetting its commands and removing their taints");
                self.restart().await
            }
        }
    }

    /// Refreshes instance types: after a restart without pending pods, no other controller has asked for them yet. Commands go on
    /// while the provider is slow.
    async fn refresh_instance_types(&mut self) -> Result<(), ReconcileError> {
        let cx = Arc::clone(&self.cx);
        let mut refresh = pin!(provisioning::refresh_instance_types(&cx));
        loop {
            tokio::select! {
                biased;
                refreshed = &mut refresh => return Ok(refreshed?),
                Some(answer) = self.tasks.join_next() => self.answered(answer).await?,
                () = cx.clock.sleep(CHECK_INTERVAL) => self.on(Event::Changed).await?,
            }
        }
    }

    /// Forgets all commands, as a restart of the operator would: an effect will never be answered.
    async fn restart(&mut self) -> Result<(), ReconcileError> {
        self.tasks.shutdown().await;
        let view = self.cx.view();
        for effect in self.process.restart(self.cx.clock.now()) {
            self.execute(effect, &view).await?;
        }
        Ok(())
    }
}

impl Periodic for Disruption {
    const NAME: &'static str = "disruption";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        if !self.cx.view().is_synced() {
            return Ok(SYNC_RETRY);
        }
        while let Some(answer) = self.tasks.try_join_next() {
            self.answered(answer).await?;
        }
        self.on(Event::Changed).await?;
        if self.process.is_due(self.cx.clock.now()) {
            self.pauses.report(&self.cx, &self.cx.view());
            self.refresh_instance_types().await?;
            let on_nodes = self.cx.buffers.on_nodes(&self.cx.view().snapshot);
            self.process.set_buffer_pods(on_nodes);
            self.on(Event::Due).await?;
        }
        while self.process.is_passing() {
            tokio::select! {
                biased;
                Some(answer) = self.tasks.join_next() => self.answered(answer).await?,
                // A pass that panicked left no task behind.
                () = self.cx.clock.sleep(CHECK_INTERVAL), if self.tasks.is_empty() => self.restart().await?,
                () = self.cx.clock.sleep(CHECK_INTERVAL) => self.on(Event::Changed).await?,
            }
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let now = self.cx.clock.now();
        let left = self.process.next().duration_since(now);
        let left = Duration::try_from(left).unwrap_or_default();
        Ok(match self.process.is_executing() {
            true => left.min(CHECK_INTERVAL),
            false => left,
        })
    }

    /// A failure of the provider must not hold up commands.
    fn backoff(&self) -> Backoff {
        Backoff {
            max: Duration::from_secs(10),
            ..Backoff::DEFAULT
        }
    }
}
