//! The provisioner: executes the provisioning process of `karpenter-core`.
//!
//! The process decides when a batch closes, which pods are planned, and which nodes are nominated; here is what triggers it, what asks
//! the engine, and what creates NodeClaims. A NodeClaim whose launch hangs counts as a planned node and does not block the
//! provisioner.
//!
//! UPSTREAM: pkg/controllers/provisioning/provisioner.go

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::v1::NodeClaim;
use karpenter_core::behavior::Behavior;
use karpenter_core::lifecycle::provisioning::Event::{Launched, Planned, Unanswered};
use karpenter_core::lifecycle::provisioning::{Effect, Event, Memory, Question};
use karpenter_core::pod::Pod;
use karpenter_core::schedule::{
    Cancel, Plan, Policy, PreferencePolicy, Query, ReservedMode, schedule,
};
use tokio::time::Instant;
#[cfg(feature = "decisions")]
use tokio_util::sync::CancellationToken;

#[cfg(feature = "decisions")]
use super::hints::Hints;
use super::progress::SchedulingSeries;
#[cfg(feature = "decisions")]
use super::report::Failed;
use super::soft_constraints::SoftConstraints;
use super::{Due, PodLedger, Triggers, catalogue, launch, report};
use crate::context::Context;
use crate::controller::{Periodic, ReconcileError, compute};
use crate::listener::{Decided, Made};
use crate::metrics::Metrics;
use crate::model::{Change, View};
use crate::process::resident;

/// Time limit of one plan; the remaining pods are planned by the next.
pub(crate) const SOLVE_DEADLINE: Duration = Duration::from_secs(60);

/// Creates NodeClaims for pods. Cheap to clone; clones share the state.
#[derive(Debug, Clone)]
pub struct Provisioner {
    cx: Arc<Context>,
    triggers: Arc<Triggers>,
    ledger: Arc<PodLedger>,
    soft_constraints: Arc<SoftConstraints>,
    #[cfg(feature = "decisions")]
    hints: Arc<Hints>,
}

impl Provisioner {
    /// Creates a provisioner that is triggered through `triggers`.
    #[must_use]
    pub fn new(cx: Arc<Context>, triggers: Arc<Triggers>, ledger: Arc<PodLedger>) -> Self {
        Self {
            cx,
            triggers,
            ledger,
            soft_constraints: Arc::default(),
            #[cfg(feature = "decisions")]
            hints: Arc::default(),
        }
    }

    /// Hands events about pods that were not placed over to be explained (feature gate `SchedulingHints`); returns the others.
    #[cfg(feature = "decisions")]
    fn hand_over(&self, view: &View, failed: Vec<Failed>) -> Vec<Failed> {
        if !self.cx.options.feature_gates.scheduling_hints {
            return failed;
        }
        let policy = policy(&self.cx);
        self.hints.publish(&self.cx, &view.snapshot, policy, failed);
        Vec::new()
    }

    /// Explains the events about pods that were not placed, until `stop` (feature gate `SchedulingHints`).
    #[cfg(feature = "decisions")]
    pub async fn explain_events(&self, stop: CancellationToken) {
        self.hints.run(&self.cx, stop).await;
    }

    /// Takes note of a change of the model. Runs on the model's task.
    pub fn observe(&self, change: &Change, view: &View) {
        let metrics = self.cx.acting.since().map(|_| &self.cx.metrics);
        if let Change::Pod { before, after } = change {
            self.track(before.as_deref(), after.as_deref(), metrics);
        }
        let has_buffers = !self.cx.buffers.is_empty();
        let bound = self.triggers.observe(change, &view.snapshot, has_buffers);
        if let Some((bound, metrics)) = bound.zip(metrics) {
            let as_planned = if bound.as_planned { "true" } else { "false" };
            let plans = if bound.plans > 1 { "several" } else { "one" };
            metrics
                .pods_nominations_bound_total
                .inc(&[as_planned, plans]);
        }
    }

    /// Keeps the times of pods.
    fn track(&self, before: Option<&Pod>, after: Option<&Pod>, metrics: Option<&Metrics>) {
        let uid = after.map(|pod| &pod.key.uid);
        if let Some(deleted) = before.filter(|pod| Some(&pod.key.uid) != uid) {
            self.ledger.forget(&deleted.key.uid);
        }
        let Some(pod) = after else { return };
        let now = self.cx.clock.now();
        self.ledger.changed(pod, now, metrics);
        if pod.is_provisionable() {
            self.ledger.seen(&pod.key.uid, now);
        }
    }

    /// Hands an event to the process, and executes the effects.
    async fn on(&self, event: Event) -> Result<(), ReconcileError> {
        let (mut events, mut passed) = (VecDeque::from([event]), None);
        while let Some(event) = events.pop_front() {
            let view = self.cx.view();
            for effect in self.triggers.on(event, &view.snapshot) {
                match effect {
                    Effect::Plan(question) => {
                        let pass = self.plan(&view, question).await;
                        events.push_back(match &pass {
                            Ok(pass) => Planned(Arc::clone(&pass.plan)),
                            Err(_) => Unanswered,
                        });
                        passed = Some(pass);
                    }
                    // Nominated nodes are not disrupted.
                    Effect::Nominate(nodes) => self.cx.nominate(nodes).await?,
                    Effect::Launch(question, plan) => {
                        let (planned, none) = (&plan.new_node_claims, BTreeSet::new());
                        let claims =
                            launch::create_claims(&self.cx, planned, &none, "provisioned").await;
                        let claims = launch::created(claims);
                        let name = |claim: &Option<Arc<NodeClaim>>| {
                            Some(claim.as_ref()?.name().to_owned())
                        };
                        events.push_back(Launched(claims.iter().map(name).collect()));
                        let buffer_pods = &question.query.buffer_pods;
                        self.cx
                            .buffers
                            .record(buffer_pods, &plan, &claims, &view.snapshot);
                        if let Some(Ok(pass)) = &mut passed {
                            pass.claims = claims;
                        }
                    }
                    Effect::NominatePods(pods) => {
                        self.triggers.nominate_pods(&self.cx, pods).await;
                    }
                    Effect::ReportIdle => report::nothing_waits(&self.cx),
                }
            }
        }
        if let Some(pass) = passed.transpose()? {
            self.report(&pass);
        }
        Ok(())
    }

    async fn plan(
        &self,
        view: &Arc<View>,
        question: Arc<Question>,
    ) -> Result<Pass, ReconcileError> {
        let (cx, standing, started) = (&self.cx, &question.standing, Instant::now());
        report::deferred(cx, standing);
        let names = names(&standing.unplaced, &question.leaving);
        if !names.is_empty() {
            report::found(names.len(), &names, started.elapsed());
        }
        if cx.options.preference_policy == PreferencePolicy::Respect {
            let now = cx.clock.now();
            self.soft_constraints.log(&standing.unplaced, now);
        }
        let deadline = cx.clock.instant_after(SOLVE_DEADLINE);
        let cancel: Cancel = Arc::new(move || Instant::now() >= deadline);
        let id = format!("{:x}", cx.clock.now().as_nanosecond());
        let (series, progress) = SchedulingSeries::new(&cx.metrics, id);
        let query = question.query.clone();
        let query = query.with_cancel(cancel).with_progress(progress);
        let policy = policy(cx);
        let asked = (Arc::clone(&question), policy.clone(), query.clone());
        let plan = compute("the scheduler", move || {
            schedule(&asked.0.snapshot, &asked.1, &asked.2)
        })
        .await?;
        drop(series);
        if !plan.undecided.is_empty() {
            tracing::error!(pods = plan.undecided.len(), "scheduling ran out of time");
        }
        cx.metrics
            .scheduler_scheduling_duration_seconds
            .observe(&["provisioner"], started.elapsed().as_secs_f64());
        let failed = report::outcome(cx, view, &plan, &self.ledger);
        #[cfg(feature = "decisions")]
        let failed = self.hand_over(view, failed);
        for failed in failed {
            cx.recorder.publish(failed.event);
        }
        report::computed(&plan);
        report::overdue(cx, view, &plan, &question.standing.overdue);
        Ok(Pass {
            view: Arc::clone(view),
            question,
            policy,
            query,
            plan: Arc::new(plan),
            claims: Vec::new(),
            started,
        })
    }

    /// Reports a pass once its NodeClaims are created.
    fn report(&self, pass: &Pass) {
        let (cx, plan) = (&self.cx, &pass.plan);
        if let Some(listener) = &cx.listener {
            let made = Made {
                view: &pass.view,
                policy: &pass.policy,
                took: pass.started.elapsed(),
            };
            let decided = Decided::Provisioned {
                question: &pass.question,
                query: &pass.query,
                plan,
                claims: &pass.claims,
            };
            listener.decided(made, decided);
        }
        report::nominations(cx, &pass.view, plan, &pass.claims);
    }
}

/// A plan with all that it depends on.
struct Pass {
    view: Arc<View>,
    question: Arc<Question>,
    policy: Policy,
    query: Query,
    plan: Arc<Plan>,
    /// The NodeClaims of the planned nodes.
    claims: Vec<Option<Arc<NodeClaim>>>,
    started: Instant,
}

/// Returns the names of pods that are planned.
fn names(unplaced: &[Arc<Pod>], leaving: &[Arc<Pod>]) -> Vec<String> {
    let all = unplaced.iter().chain(leaving);
    all.map(|pod| pod.key.to_string()).collect()
}

/// Returns the engine's policy by the operator's options.
pub(crate) fn policy(cx: &Context) -> Policy {
    let options = &cx.options;
    Policy::at(cx.clock.now())
        .with_preference_policy(options.preference_policy)
        .with_min_values_policy(options.min_values_policy)
        .with_reserved_mode(if options.feature_gates.reserved_capacity {
            ReservedMode::Strict
        } else {
            ReservedMode::Off
        })
        .with_ignore_dra_requests(options.ignore_dra_requests)
        .with_node_overhead_price(options.node_overhead_price)
        .with_default_spread(options.scheduler_config.default_spread.clone())
        .with_behavior(Behavior {
            consolidate_after_applies_to_destinations: options
                .consolidate_after_applies_to_destinations,
            ..Behavior::default()
        })
}

impl Periodic for Provisioner {
    const NAME: &'static str = "provisioner";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let event = match self.triggers.due().await {
            Due::Check => Event::Check,
            Due::Batch => {
                // The triggers are not lost if one of these fails: the batch stays closed.
                self.cx.model.synced().await;
                catalogue::refresh_instance_types(&self.cx).await?;
                Event::Closed {
                    memory: memory(self.cx.options.memory_limit),
                    buffer_pods: self.cx.buffers.pods(),
                }
            }
        };
        self.on(event).await.map(|()| Duration::ZERO)
    }
}

/// Returns the memory of the process; `limit` is `--memory-limit` in bytes, not positive if there is none.
fn memory(limit: i64) -> Option<Memory> {
    let limit = u64::try_from(limit).ok().filter(|limit| *limit > 0)?;
    let resident = resident()?;
    Some(Memory { limit, resident })
}
