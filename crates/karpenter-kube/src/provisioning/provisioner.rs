//! The provisioner: waits for a batch, plans on a snapshot, launches the missing nodes.
//!
//! 1. A batch of triggers closes. The provisioner waits until the model is in sync; the triggers are not lost.
//! 2. Instance types are refreshed, and the engine places pending pods without a nomination, and pods of nodes that are
//!    being deleted.
//! 3. NodeClaims are created in parallel, the nodes of placed pods are nominated, and events are published.
//! 4. While pods are pending, this is repeated every ten seconds, as upstream's triggers do. Nominated pods keep their
//!    place meanwhile: see [`Nominations`].
//!
//! Passes never overlap. A NodeClaim whose launch hangs counts as a planned node and does not block the provisioner.
//!
//! UPSTREAM: pkg/controllers/provisioning/provisioner.go

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::Snapshot;
use karpenter_core::cluster::pdb::leaving_pods;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::{
    Cancel, Plan, Policy, PreferencePolicy, Query, ReservedMode, schedule,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hints::Hints;
use super::memory::Slices;
use super::nominations::Standing;
use super::progress::SchedulingSeries;
use super::soft_constraints::SoftConstraints;
use super::{Batcher, Nominations, PodLedger, catalogue, launch, report};
use crate::context::Context;
use crate::controller::{Periodic, ReconcileError, compute};
use crate::decisions::Made;
use crate::model::{Change, Stopped, View};

/// Time limit of one plan; the remaining pods are planned by the next.
const SOLVE_DEADLINE: Duration = Duration::from_secs(60);

/// Interval between plans for pending pods.
const AGAIN: Duration = Duration::from_secs(10);

/// Creates NodeClaims for pods. Cheap to clone; clones share the state.
#[derive(Debug, Clone)]
pub struct Provisioner {
    cx: Arc<Context>,
    batcher: Arc<Batcher>,
    ledger: Arc<PodLedger>,
    nominations: Arc<Nominations>,
    soft_constraints: Arc<SoftConstraints>,
    hints: Arc<Hints>,
    slices: Arc<Slices>,
}

impl Provisioner {
    /// Creates a provisioner that is triggered through `batcher`.
    #[must_use]
    pub fn new(cx: Arc<Context>, batcher: Arc<Batcher>, ledger: Arc<PodLedger>) -> Self {
        Self {
            cx,
            batcher,
            ledger,
            nominations: Arc::default(),
            soft_constraints: Arc::default(),
            hints: Arc::default(),
            slices: Arc::default(),
        }
    }

    /// Explains the events about pods that were not placed, until `stop` (feature gate `SchedulingHints`).
    pub async fn explain_events(&self, stop: CancellationToken) {
        self.hints.run(&self.cx, stop).await;
    }

    /// Triggers a batch if a change of the model needs a plan. Runs on the model's task.
    pub fn observe(&self, change: &Change, view: &View) {
        match change {
            Change::Pod { before, after } => self.observe_pod(before.as_deref(), after.as_deref()),
            // The pods of a node that is being deleted need another one before they are pending.
            Change::Node {
                before,
                after: Some(after),
                ..
            } if is_disrupted(after) && !before.as_deref().is_some_and(is_disrupted) => {
                self.batcher
                    .trigger(after.metadata.uid.as_deref().unwrap_or_default());
            }
            // The NodeClaim of nominated pods is deleted, or is ready for them now: their pods are planned or bound without delay.
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
                    self.trigger(view, name);
                }
            }
            Change::NodePool {
                name,
                before,
                after,
            } if !offers_the_same(before.as_deref(), after.as_deref()) => self.trigger(view, name),
            Change::Synced => self.trigger(view, "synced"),
            _ => {}
        }
    }

    /// Triggers a batch when a pod becomes provisionable or its requirements change. Other changes of a pending pod, such
    /// as kube-scheduler's message, do not trigger a plan.
    fn observe_pod(&self, before: Option<&Pod>, after: Option<&Pod>) {
        let uid = after.map(|pod| &pod.key.uid);
        if let Some(deleted) = before.filter(|pod| Some(&pod.key.uid) != uid) {
            self.ledger.forget(&deleted.key.uid);
            self.nominations.forget(&deleted.key.uid);
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

    fn trigger(&self, view: &View, uid: &str) {
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
        let mut standing = self.nominations.standing(&view, now);
        let limit = self.cx.options.memory_limit;
        let goes_on = self.slices.cut(limit, &mut standing);
        report::deferred(&self.cx, &standing);
        let names = names(&standing.unplaced, &leaving_pods(&view.snapshot, now));
        let buffer_pods = self.cx.buffers.pods();
        if names.is_empty() && buffer_pods.is_empty() {
            report::nothing_to_plan(&self.cx, &view);
            return Ok(());
        }
        if !names.is_empty() {
            report::found(names.len(), &names, started.elapsed());
        }
        if self.cx.options.preference_policy == PreferencePolicy::Respect {
            self.soft_constraints.log(&standing.unplaced, now);
        }
        let decided = self.decide(&view, &standing, buffer_pods.clone()).await?;
        let plan = &decided.plan;
        self.cx
            .metrics
            .scheduler_scheduling_duration_seconds
            .observe(&["provisioner"], started.elapsed().as_secs_f64());
        let gates = &self.cx.options.feature_gates;
        let hints = gates.scheduling_hints.then_some(&*self.hints);
        report::outcome(&self.cx, &view, plan, &self.ledger, hints);
        report::computed(plan);
        report::overdue(&self.cx, &view, plan, &standing.overdue);

        // Launching takes time: nominate first, because nominated nodes are not disrupted.
        let existing = plan.existing.iter().filter(|p| !p.buffer);
        self.nominate_nodes(&standing, existing.map(|p| p.node.clone()))
            .await?;
        let none_replaced = BTreeSet::new();
        let claims = launch::create_claims(
            &self.cx,
            &plan.new_node_claims,
            &none_replaced,
            "provisioned",
        )
        .await;
        let claims = launch::created(claims);
        self.cx
            .buffers
            .record(&buffer_pods, plan, &claims, &view.snapshot);
        let names = claims.iter().map(|claim| Some(claim.as_ref()?.name()));
        self.nominations
            .nominate_planned(&view.snapshot, plan, names, self.cx.clock.now());
        let with_pods = plan.new_node_claims.iter().zip(&claims);
        let with_pods = with_pods.filter(|(draft, _)| !draft.pods.is_empty());
        let launched = with_pods.filter_map(|(_, claim)| Some(claim.as_ref()?.name().to_owned()));
        self.nominate_nodes(&Standing::default(), launched).await?;
        if let Some(decisions) = &self.cx.decisions {
            let made = Made {
                view: &view,
                policy: &decided.policy,
                took: started.elapsed(),
            };
            decisions.provisioned(&self.cx, made, plan, &claims);
            decisions.keep(|recorder| {
                let Decided {
                    snapshot,
                    policy,
                    query,
                    plan,
                } = &decided;
                let assumed = [
                    standing.nominated.len(),
                    standing.backing_off.len(),
                    standing.deferred.len(),
                ];
                let assumed = assumed.iter().sum();
                recorder.provisioned(snapshot, policy, query, assumed, plan);
            });
        }
        report::nominations(&self.cx, &view, plan, &claims);
        if goes_on {
            self.batcher.trigger("deferred");
        }
        Ok(())
    }

    async fn decide(
        &self,
        view: &View,
        standing: &Standing,
        buffer_pods: Vec<Arc<Pod>>,
    ) -> Result<Decided, ReconcileError> {
        let (snapshot, query) = standing.question(&view.snapshot);
        let deadline = self.cx.clock.instant_after(SOLVE_DEADLINE);
        let cancel: Cancel = Arc::new(move || Instant::now() >= deadline);
        let id = format!("{:x}", self.cx.clock.now().as_nanosecond());
        let (series, progress) = SchedulingSeries::new(&self.cx.metrics, id);
        let query = query
            .with_cancel(cancel)
            .with_progress(progress)
            .with_buffer_pods(buffer_pods);
        let policy = policy(&self.cx);
        let decided = compute("the scheduler", move || Decided {
            plan: schedule(&snapshot, &policy, &query),
            snapshot,
            policy,
            query,
        })
        .await?;
        let plan = &decided.plan;
        drop(series);
        if !plan.undecided.is_empty() {
            tracing::error!(pods = plan.undecided.len(), "scheduling ran out of time");
            self.batcher.trigger("undecided");
        }
        Ok(decided)
    }

    /// Protects the nodes that pods are nominated to, and `more`, from disruption.
    async fn nominate_nodes(
        &self,
        standing: &Standing,
        more: impl IntoIterator<Item = String>,
    ) -> Result<(), Stopped> {
        let nominated = standing.nominated.iter().map(|(_, target)| target.clone());
        self.cx.nominate(nominated.chain(more).collect()).await
    }
}

/// A plan with all that it depends on.
struct Decided {
    /// The cluster, with nominated pods on their nodes.
    snapshot: Snapshot,
    policy: Policy,
    query: Query,
    plan: Plan,
}

/// Returns whether a node has the taint of nodes that are being disrupted.
fn is_disrupted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let disrupted = taints::disrupted();
    taints.is_some_and(|all| all.iter().any(|taint| taints::same(taint, &disrupted)))
}

/// Returns whether no field of a NodePool changed that matters to pods: its status changes with every node.
fn offers_the_same(before: Option<&NodePool>, after: Option<&NodePool>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return false;
    };
    before.spec == after.spec
        && before.metadata.uid == after.metadata.uid
        && before.metadata.deletion_timestamp == after.metadata.deletion_timestamp
        && before.is_true(types::READY) == after.is_true(types::READY)
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
        .with_default_spread(options.scheduler_config.default_spread.clone())
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
            // The triggers of the failed batch are still to be handled.
            self.batcher.trigger("failed");
        }
        outcome.map(|()| Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use karpenter_fixtures::node_pool;

    use super::*;

    #[test]
    fn a_nodepool_offers_the_same_until_a_field_that_matters_to_pods_changes() {
        let mut pool = node_pool("p").build();
        pool.set_true(types::READY, Timestamp::UNIX_EPOCH);
        let same = |change: &dyn Fn(&mut NodePool)| {
            let mut after = pool.clone();
            change(&mut after);
            offers_the_same(Some(&pool), Some(&after))
        };
        assert!(same(&|_| ()));
        assert!(same(&|pool| pool.metadata.generation = Some(7)));
        assert!(!same(&|pool| pool.spec.weight = Some(7)));
        assert!(!same(&|pool| pool.metadata.uid = Some("another".into())));
        let deleted = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
        assert!(!same(&|pool| {
            pool.metadata.deletion_timestamp = Some(deleted.clone());
        }));
        assert!(!same(&|pool| {
            pool.set_false(types::READY, "NotReady", "", Timestamp::UNIX_EPOCH);
        }));
        assert!(!offers_the_same(None, Some(&pool)));
        assert!(!offers_the_same(Some(&pool), None));
    }
}
