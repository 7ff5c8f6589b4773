//! The provisioner: waits for a batch, decides on a snapshot, launches what is missing.
//!
//! 1. A batch of triggers closes. The model is waited for if it is not in sync; the triggers are not lost.
//! 2. Instance types are refreshed, and the engine places pending pods that have no place yet, and pods of nodes that go away.
//! 3. NodeClaims are created in parallel, nodes that get pods are nominated, and users are told.
//! 4. While pods wait, the same is done again every ten seconds, as upstream's triggers do. Pods that were given a place keep
//!    it meanwhile: see [`Nominations`].
//!
//! Passes never overlap. A NodeClaim whose launch hangs counts as the machine it asks for and holds up nobody.
//!
//! UPSTREAM: pkg/controllers/provisioning/provisioner.go

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::disruption::pdb::leaving_pods;
use karpenter_core::pod::{Pod, PodKey};
use karpenter_core::schedule::{
    Cancel, MinValuesPolicy, Plan, PodSet, PreferencePolicy, ReservedMode, ScheduleRequest,
    schedule,
};
use tokio::time::Instant;

use super::nominations::{Overdue, Standing};
use super::progress::Shown;
use super::{Batcher, Nominations, PodLedger, catalogue, launch, report};
use crate::context::Context;
use crate::controller::{Periodic, ReconcileError, compute};
use crate::model::{Change, Stopped, View};
use crate::options;

/// How long one decision may take before the rest of the pods is left to the next.
const SOLVE_DEADLINE: Duration = Duration::from_secs(60);

/// How often waiting pods are looked at again.
const AGAIN: Duration = Duration::from_secs(10);

/// Makes NodeClaims for pods. Cheap to clone; clones share everything.
#[derive(Debug, Clone)]
pub struct Provisioner {
    cx: Arc<Context>,
    batcher: Arc<Batcher>,
    ledger: Arc<PodLedger>,
    nominations: Arc<Nominations>,
}

impl Provisioner {
    /// A provisioner that is woken through `batcher`.
    #[must_use]
    pub fn new(cx: Arc<Context>, batcher: Arc<Batcher>, ledger: Arc<PodLedger>) -> Self {
        Self {
            cx,
            batcher,
            ledger,
            nominations: Arc::default(),
        }
    }

    /// Handles a change of the model: what needs a decision triggers a batch. Runs on the model's task.
    pub fn observe(&self, change: &Change, view: &View) {
        match change {
            Change::Pod { before, after } => self.observe_pod(before.as_deref(), after.as_deref()),
            // The pods of a node that goes away need another before they are pending.
            Change::Node {
                before,
                after: Some(after),
                ..
            } if is_disrupted(after) && !before.as_deref().is_some_and(is_disrupted) => {
                self.batcher
                    .trigger(after.metadata.uid.as_deref().unwrap_or_default());
            }
            // What was to carry pods is gone, or could carry them now: do not wait for the next look.
            Change::NodeClaim {
                name,
                before,
                after,
            } => {
                let leaves = |claim: &Arc<NodeClaim>| claim.is_deleting();
                if after.as_ref().is_none_or(leaves) && !before.as_ref().is_some_and(leaves) {
                    let last = after.as_ref().or(before.as_ref());
                    if last.is_some_and(|claim| !claim.is_true(types::REGISTERED)) {
                        self.nominations.release(name);
                    }
                    self.wake(view, name);
                }
            }
            Change::NodePool {
                name,
                before,
                after,
            } if !offers_the_same(before.as_deref(), after.as_deref()) => self.wake(view, name),
            Change::Synced => self.wake(view, "synced"),
            _ => {}
        }
    }

    /// A pod triggers a batch when it becomes provisionable or asks for something else. Whatever else changes while it waits,
    /// such as kube-scheduler's message, is no reason to decide again.
    fn observe_pod(&self, before: Option<&Pod>, after: Option<&Pod>) {
        let uid = after.map(|pod| &pod.key.uid);
        if let Some(gone) = before.filter(|pod| Some(&pod.key.uid) != uid) {
            self.ledger.forget(&gone.key.uid);
            self.nominations.forget(&gone.key.uid);
        }
        let Some(pod) = after else { return };
        let now = self.cx.clock.now();
        let metrics = self.cx.acting.since().map(|_| &self.cx.metrics);
        self.ledger.changed(pod, now, metrics);
        if pod.node_name.is_some() || !pod.is_active() {
            self.nominations.forget(&pod.key.uid);
        }
        if pod.is_provisionable() {
            self.ledger.seen(&pod.key.uid, now);
            let waited = |before: &Pod| before.is_provisionable() && before.shape == pod.shape;
            if !before.is_some_and(waited) {
                self.batcher.trigger(&pod.key.uid);
            }
        }
    }

    fn wake(&self, view: &View, uid: &str) {
        if view.snapshot.pending_pods().next().is_some() || !self.cx.buffers.is_empty() {
            self.batcher.trigger(uid);
        }
    }

    async fn wait_for_batch(&self) -> Result<(), Stopped> {
        let options = &self.cx.options;
        let batch = self.batcher.batch(
            &self.cx.clock,
            options.batch_idle_duration,
            options.batch_max_duration,
        );
        tokio::pin!(batch);
        let mut wait = AGAIN;
        loop {
            tokio::select! {
                biased;
                () = &mut batch => return Ok(()),
                () = self.cx.clock.sleep(wait) => {}
            }
            let (view, now) = (self.cx.view(), self.cx.clock.now());
            let standing = self.nominations.standing(&view, now);
            if !standing.unplaced.is_empty() || !leaving_pods(&view.snapshot, now).is_empty() {
                self.batcher.trigger("again");
            } else if view.snapshot.pending_pods().next().is_none() {
                report::nothing_waits(&self.cx);
            }
            self.nominate_nodes(&standing, []).await?;
            wait = standing.next.map_or(AGAIN, |next| {
                let left = next.duration_since(now);
                Duration::try_from(left).unwrap_or_default().min(AGAIN)
            });
        }
    }

    async fn provision(&self) -> Result<(), ReconcileError> {
        catalogue::refresh_instance_types(&self.cx).await?;
        let view = self.cx.view();
        let started = Instant::now();
        let now = self.cx.clock.now();
        let standing = self.nominations.standing(&view, now);
        let names = names(&standing.unplaced, &leaving_pods(&view.snapshot, now));
        let buffer_pods = self.cx.buffers.pods();
        if names.is_empty() && buffer_pods.is_empty() {
            report::nothing_to_plan(&self.cx, &view);
            return Ok(());
        }
        if !names.is_empty() {
            report::found(names.len(), &names, started.elapsed());
        }
        let plan = self.decide(&view, &standing, buffer_pods.clone()).await?;
        self.cx
            .metrics
            .scheduler_scheduling_duration_seconds
            .observe(&["provisioner"], started.elapsed().as_secs_f64());
        report::outcome(&self.cx, &view, &plan, &self.ledger);
        report::computed(&plan);
        report::overdue(&self.cx, &view, &plan, &standing.overdue);

        // Before launching, which takes its time: what is nominated is not disrupted.
        let existing = plan.existing.iter().filter(|p| !p.buffer);
        self.nominate_nodes(&standing, existing.map(|p| p.node.clone()))
            .await?;
        let nobody = BTreeSet::new();
        let claims =
            launch::create_claims(&self.cx, &plan.new_claims, &nobody, "provisioned").await;
        let claims = launch::settle(claims);
        self.cx
            .buffers
            .record(&buffer_pods, &plan, &claims, &view.snapshot);
        self.nominate_pods(&view, &plan, &claims);
        let with_pods = plan.new_claims.iter().zip(&claims);
        let with_pods = with_pods.filter(|(draft, _)| !draft.pods.is_empty());
        let launched = with_pods.filter_map(|(_, claim)| Some(claim.as_ref()?.name().to_owned()));
        self.nominate_nodes(&Standing::default(), launched).await?;
        report::nominations(&self.cx, &view, &plan, &claims);
        Ok(())
    }

    async fn decide(
        &self,
        view: &View,
        standing: &Standing,
        buffer_pods: Vec<Arc<Pod>>,
    ) -> Result<Plan, ReconcileError> {
        let snapshot = view
            .snapshot
            .without_pods(&standing.backing_off)
            .with_nominated(&standing.nominated);
        let deadline = self.cx.clock.instant_after(SOLVE_DEADLINE);
        let cancel: Cancel = Arc::new(move || Instant::now() >= deadline);
        let id = format!("{:x}", self.cx.clock.now().as_nanosecond());
        let (shown, progress) = Shown::new(&self.cx.metrics, id);
        let request = ScheduleRequest {
            cancel: Some(cancel),
            progress: Some(progress),
            buffer_pods,
            nominated: standing.overdue.iter().map(Overdue::place).collect(),
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

    /// Keeps the nodes that pods wait for from disruption: those that pods are nominated to, and `more`.
    async fn nominate_nodes(
        &self,
        standing: &Standing,
        more: impl IntoIterator<Item = String>,
    ) -> Result<(), Stopped> {
        let nominated = standing.nominated.iter().map(|(_, target)| target.clone());
        let nodes: BTreeSet<String> = nominated.chain(more).collect();
        if nodes.is_empty() {
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
        self.cx
            .model
            .nominate(nodes.into_iter().collect(), until)
            .await
    }

    /// Records the places of a plan. `claims` stand for the plan's drafts.
    fn nominate_pods(&self, view: &View, plan: &Plan, claims: &[Option<Arc<NodeClaim>>]) {
        let now = self.cx.clock.now();
        let snapshot = &view.snapshot;
        let nominate = |key: &PodKey, target: &str| {
            let pod = snapshot.pod(&key.namespace, &key.name);
            if let Some(pod) = pod.filter(|pod| pod.key.uid == key.uid) {
                self.nominations.nominate(pod, target, now);
            }
        };
        for placement in plan.existing.iter().filter(|p| !p.buffer) {
            let node = snapshot.node(&placement.node);
            let claim = node.and_then(|node| node.claim_name());
            nominate(&placement.pod, claim.unwrap_or(&placement.node));
        }
        for (draft, claim) in plan.new_claims.iter().zip(claims) {
            let Some(claim) = claim else { continue };
            for pod in &draft.pods {
                nominate(pod, claim.name());
            }
        }
    }
}

/// Whether a node has the taint of nodes that are being disrupted.
fn is_disrupted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let disrupted = taints::disrupted();
    taints.is_some_and(|all| all.iter().any(|taint| taints::same(taint, &disrupted)))
}

/// Whether nothing changed of a NodePool that matters to pods: its status counts every node that comes and goes.
fn offers_the_same(before: Option<&NodePool>, after: Option<&NodePool>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return false;
    };
    before.spec == after.spec
        && before.metadata.uid == after.metadata.uid
        && before.metadata.deletion_timestamp == after.metadata.deletion_timestamp
        && before.is_true(types::READY) == after.is_true(types::READY)
}

/// The names of pods that are planned.
fn names(unplaced: &[Arc<Pod>], leaving: &[Arc<Pod>]) -> Vec<String> {
    let all = unplaced.iter().chain(leaving);
    all.map(|pod| pod.key.to_string()).collect()
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

impl Periodic for Provisioner {
    fn name(&self) -> &'static str {
        "provisioner"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        self.wait_for_batch().await.map_err(ReconcileError::from)?;
        self.cx.model.synced().await;
        let outcome = self.provision().await;
        if outcome.is_err() {
            // What the batch stood for is still to be done.
            self.batcher.trigger("failed");
        }
        outcome.map(|()| Duration::ZERO)
    }
}
