//! The provisioner: waits for a batch, decides on a snapshot, launches what is missing.
//!
//! 1. A batch of triggers closes. The model is waited for if it is not in sync; the triggers are not lost.
//! 2. Instance types are refreshed, and the engine places pending pods and pods of machines that go away.
//! 3. Machines that get pods are nominated, NodeClaims are created in parallel, and users are told.
//! 4. While pods wait, the same is done again every ten seconds, as upstream's triggers do.
//!
//! Passes never overlap. A NodeClaim whose launch hangs counts as the machine it asks for and holds up nobody.
//!
//! UPSTREAM: pkg/controllers/provisioning/provisioner.go

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::labels::taints;
use karpenter_core::disruption::pdb::leaving_pods;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::{
    Cancel, MinValuesPolicy, Plan, PodSet, PreferencePolicy, ReservedMode, ScheduleRequest,
    schedule,
};
use tokio::time::Instant;

use super::progress::Shown;
use super::{Batcher, PodLedger, catalogue, launch, report};
use crate::context::Context;
use crate::controller::{Periodic, ReconcileError, compute};
use crate::model::{Change, View};
use crate::options;

/// How long one decision may take before the rest of the pods is left to the next.
const SOLVE_DEADLINE: Duration = Duration::from_secs(60);

/// How often waiting pods are looked at again.
const AGAIN: Duration = Duration::from_secs(10);

/// Makes NodeClaims for pods.
#[derive(Debug)]
pub struct Provisioner {
    cx: Arc<Context>,
    batcher: Arc<Batcher>,
    ledger: Arc<PodLedger>,
}

impl Provisioner {
    /// A provisioner that is woken through `batcher`.
    #[must_use]
    pub fn new(cx: Arc<Context>, batcher: Arc<Batcher>, ledger: Arc<PodLedger>) -> Self {
        Self {
            cx,
            batcher,
            ledger,
        }
    }

    /// What a change of the model means to the batcher and the ledger; runs on the model's task.
    pub fn observe(
        cx: &Context,
        batcher: &Batcher,
        ledger: &PodLedger,
        change: &Change,
        view: &View,
    ) {
        match change {
            Change::Pod { before, after } => {
                let uid = after.as_ref().map(|pod| &pod.key.uid);
                if let Some(gone) = before.as_ref().filter(|pod| Some(&pod.key.uid) != uid) {
                    ledger.forget(&gone.key.uid);
                }
                let Some(pod) = after else { return };
                let now = cx.clock.now();
                ledger.changed(pod, now, cx.acting.since().map(|_| &cx.metrics));
                if pod.is_provisionable() {
                    ledger.seen(&pod.key.uid, now);
                    batcher.trigger(&pod.key.uid);
                }
            }
            // The pods of a node that goes away need another before they are pending.
            Change::Node {
                after: Some(node), ..
            } => {
                let spec = node.spec.as_ref();
                if spec
                    .and_then(|s| s.taints.as_ref())
                    .is_some_and(|t| t.iter().any(|t| taints::same(t, &taints::disrupted())))
                {
                    batcher.trigger(node.metadata.uid.as_deref().unwrap_or_default());
                }
            }
            // What was to carry pods is gone, or could carry them now: do not wait for the next look.
            Change::NodeClaim { name, after, .. }
                if after.as_ref().is_none_or(|c| c.is_deleting()) =>
            {
                wake(batcher, view, name)
            }
            Change::NodePool { name, .. } => wake(batcher, view, name),
            Change::Synced => wake(batcher, view, "synced"),
            _ => {}
        }
    }

    async fn wait_for_batch(&self) {
        let options = &self.cx.options;
        let batch = self.batcher.batch(
            &self.cx.clock,
            options.batch_idle_duration,
            options.batch_max_duration,
        );
        tokio::pin!(batch);
        loop {
            tokio::select! {
                biased;
                () = &mut batch => return,
                () = self.cx.clock.sleep(AGAIN) => {
                    if has_work(&self.cx.view(), self.cx.clock.now()) {
                        self.batcher.trigger("again");
                    } else {
                        report::nothing_waits(&self.cx);
                    }
                }
            }
        }
    }

    async fn provision(&self) -> Result<(), ReconcileError> {
        catalogue::refresh_instance_types(&self.cx).await?;
        let view = self.cx.view();
        let started = Instant::now();
        let names: Vec<String> = waiting_pods(&view, self.cx.clock.now());
        let buffer_pods = self.cx.buffers.pods();
        if names.is_empty() && buffer_pods.is_empty() {
            report::nothing_waits(&self.cx);
            return Ok(());
        }
        if !names.is_empty() {
            report::found(names.len(), &names, started.elapsed());
        }
        let plan = self.decide(&view, buffer_pods.clone()).await?;
        self.cx.buffers.record(&buffer_pods, &plan);
        self.cx
            .metrics
            .scheduler_scheduling_duration_seconds
            .observe(&["provisioner"], started.elapsed().as_secs_f64());
        report::outcome(&self.cx, &view, &plan, &self.ledger);
        report::computed(&plan);

        self.nominate(&plan).await?;
        let nobody = BTreeSet::new();
        let claims =
            launch::create_claims(&self.cx, &plan.new_claims, &nobody, "provisioned").await;
        let claims = launch::settle(claims);
        report::nominations(&self.cx, &view, &plan, &claims);
        Ok(())
    }

    async fn decide(
        &self,
        view: &View,
        buffer_pods: Vec<Arc<Pod>>,
    ) -> Result<Plan, ReconcileError> {
        let snapshot = view.snapshot.fork();
        let deadline = self.cx.clock.instant_after(SOLVE_DEADLINE);
        let cancel: Cancel = Arc::new(move || Instant::now() >= deadline);
        let id = format!("{:x}", self.cx.clock.now().as_nanosecond());
        let (shown, progress) = Shown::new(&self.cx.metrics, id);
        let request = ScheduleRequest {
            cancel: Some(cancel),
            progress: Some(progress),
            buffer_pods,
            ..request(&self.cx)
        };
        let plan = compute("the scheduler", move || schedule(&snapshot, &request)).await?;
        drop(shown);
        if !plan.undecided.is_empty() {
            tracing::error!(pods = plan.undecided.len(), "scheduling ran out of time");
            self.batcher.trigger("undecided");
        }
        Ok(plan)
    }

    async fn nominate(&self, plan: &Plan) -> Result<(), ReconcileError> {
        let machines: BTreeSet<String> = plan
            .existing
            .iter()
            .filter(|p| !p.buffer)
            .map(|p| p.node.clone())
            .collect();
        if machines.is_empty() {
            return Ok(());
        }
        let window = SignedDuration::try_from(self.cx.options.nomination_window())
            .unwrap_or(SignedDuration::from_secs(20));
        let until = self
            .cx
            .clock
            .now()
            .saturating_add(window)
            .unwrap_or(jiff::Timestamp::MAX);
        Ok(self
            .cx
            .model
            .nominate(machines.into_iter().collect(), until)
            .await?)
    }
}

/// A request to the engine with the operator's options.
pub(crate) fn request(cx: &Context) -> ScheduleRequest {
    let options = &cx.options;
    ScheduleRequest {
        preference_policy: match options.preference_policy {
            options::PreferencePolicy::Respect => PreferencePolicy::Respect,
            options::PreferencePolicy::Ignore => PreferencePolicy::Ignore,
        },
        min_values_policy: match options.min_values_policy {
            options::MinValuesPolicy::Strict => MinValuesPolicy::Strict,
            options::MinValuesPolicy::BestEffort => MinValuesPolicy::BestEffort,
        },
        reserved_mode: if options.feature_gates.reserved_capacity {
            ReservedMode::Strict
        } else {
            ReservedMode::Off
        },
        ignore_dra_requests: options.ignore_dra_requests,
        default_spread: options.scheduler_config.default_spread.clone(),
        pods: PodSet::Waiting,
        ..ScheduleRequest::at(cx.clock.now())
    }
}

fn wake(batcher: &Batcher, view: &View, uid: &str) {
    if view.snapshot.pending_pods().next().is_some() {
        batcher.trigger(uid);
    }
}

fn has_work(view: &View, now: Timestamp) -> bool {
    view.snapshot.pending_pods().next().is_some() || !leaving_pods(&view.snapshot, now).is_empty()
}

fn waiting_pods(view: &View, now: Timestamp) -> Vec<String> {
    let leaving = leaving_pods(&view.snapshot, now);
    let all = view.snapshot.pending_pods().chain(&leaving);
    all.map(|pod| pod.key.to_string()).collect()
}

impl Periodic for Provisioner {
    fn name(&self) -> &'static str {
        "provisioner"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        self.wait_for_batch().await;
        self.cx.model.synced().await;
        let outcome = self.provision().await;
        if outcome.is_err() {
            // What the batch stood for is still to be done.
            self.batcher.trigger("failed");
        }
        outcome.map(|()| Duration::ZERO)
    }
}
