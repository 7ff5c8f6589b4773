//! The disruption controller: which machines are given back, and how.
//!
//! 1. Marks left by an earlier process are taken back.
//! 2. Each method looks at the candidates it accepts, within the budgets of its reason, and proposes commands.
//! 3. A proposal is validated a while later on a fresh view; the loop goes on meanwhile.
//! 4. A valid command is executed: nodes are tainted, marked in the model, and their NodeClaims deleted.
//!
//! Methods so far: [`emptiness`].
//!
//! UPSTREAM: pkg/controllers/disruption/controller.go

mod candidate;
mod command;
mod emptiness;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::NodeClaim;
use kube::Api;
use tokio::time::Instant;

pub use candidate::{Budgets, Candidate, Refusal, candidates};
pub use command::Command;
pub use emptiness::Emptiness;

use crate::context::Context;
use crate::controller::{Doing, Periodic, ReconcileError};
use crate::model::View;
use crate::patch::{Lock, patch_object, patch_status};
use crate::provisioning::refresh_instance_types;

/// How long the loop rests when there is nothing to do.
const IDLE: Duration = Duration::from_secs(10);
/// How long the loop waits for the model.
const UNSYNCED: Duration = Duration::from_secs(1);

/// A way to find machines to give back.
pub trait Method: Send + Sync {
    /// Why it disrupts.
    fn reason(&self) -> karpenter_api::v1::DisruptionReason;
    /// Its label on the metrics.
    fn consolidation_type(&self) -> &'static str;
    /// How long a proposal must hold before it is executed.
    fn validation_delay(&self) -> Duration;
    /// Whether it concerns itself with a candidate.
    fn accepts(&self, candidate: &Candidate) -> bool;
    /// Proposes commands for the candidates it accepts.
    fn propose(&self, candidates: Vec<Candidate>, budgets: &mut Budgets) -> Vec<Command>;
    /// What of a proposal still holds on a fresh view; `None` drops it.
    fn validate(
        &self,
        proposal: &Command,
        candidates: Vec<Candidate>,
        budgets: &mut Budgets,
    ) -> Option<Command>;
}

/// Gives machines back.
pub struct Disruption {
    cx: Arc<Context>,
    methods: Vec<Arc<dyn Method>>,
    proposals: Vec<Proposal>,
}

impl std::fmt::Debug for Disruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disruption")
            .field("proposals", &self.proposals.len())
            .finish_non_exhaustive()
    }
}

struct Proposal {
    method: Arc<dyn Method>,
    command: Command,
    due: Instant,
}

impl Disruption {
    /// The controller with its methods, in the order they are tried.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            cx,
            methods: vec![Arc::new(Emptiness)],
            proposals: Vec::new(),
        }
    }

    /// Executes the proposals whose time has come, as far as they still hold.
    async fn execute_due(&mut self) -> Result<bool, ReconcileError> {
        let now = Instant::now();
        let (due, waiting) = std::mem::take(&mut self.proposals)
            .into_iter()
            .partition(|p| p.due <= now);
        self.proposals = waiting;
        let mut executed = false;
        for proposal in due {
            let view = self.cx.view();
            let (candidates, mut budgets) = self.look(&view, &*proposal.method, &BTreeSet::new());
            let wanted = proposal.command.candidates.len();
            let valid = proposal
                .method
                .validate(&proposal.command, candidates, &mut budgets);
            let failed = wanted - valid.as_ref().map_or(0, |c| c.candidates.len());
            self.cx
                .metrics
                .voluntary_disruption_failed_validations_total
                .add(&[proposal.method.consolidation_type()], failed as f64);
            if let Some(command) = valid {
                command.execute(&self.cx).await?;
                executed = true;
            }
        }
        Ok(executed)
    }

    /// The candidates a method accepts, and the budgets of its reason.
    fn look(
        &self,
        view: &View,
        method: &dyn Method,
        busy: &BTreeSet<String>,
    ) -> (Vec<Candidate>, Budgets) {
        let reason = method.reason();
        let budgets = Budgets::new(&self.cx, view, &reason);
        let mut accepted = Vec::new();
        for outcome in candidates(view, self.cx.clock.now()) {
            match outcome {
                Ok(candidate) if !busy.contains(candidate.name()) && method.accepts(&candidate) => {
                    accepted.push(candidate)
                }
                Ok(_) => {}
                Err(refusal) => refusal.publish(&self.cx),
            }
        }
        self.cx
            .metrics
            .voluntary_disruption_eligible_nodes
            .set(&[&snake(reason.as_str())], accepted.len() as f64);
        (accepted, budgets)
    }

    /// Takes back the marks of commands that this process knows nothing of.
    async fn clean_up(&self, view: &View) -> Result<(), ReconcileError> {
        let stray = view
            .snapshot
            .nodes()
            .filter(|m| m.claim.is_some() && !m.is_deleting());
        let mut errors = Vec::new();
        for machine in stray {
            if let Some(node) = machine.node.as_ref().and_then(|n| view.node(&n.name))
                && let Err(error) = self.untaint(node).await
            {
                errors.push(error);
            }
            if let Some(claim) = &machine.claim
                && let Err(error) = self.clear_reason(claim).await
            {
                errors.push(error);
            }
        }
        ReconcileError::collect(errors)
    }

    async fn untaint(&self, node: &Node) -> Result<(), ReconcileError> {
        let mut wanted = node.clone();
        if let Some(present) = wanted.spec.as_mut().and_then(|s| s.taints.as_mut()) {
            present.retain(|t| t.key != taints::DISRUPTED);
        }
        let api: Api<Node> = Api::all(self.cx.clients.api.clone());
        patch_object(&api, node, &wanted, Lock::Optimistic)
            .await
            .doing("removing taint from node")
            .map(drop)
    }

    async fn clear_reason(&self, claim: &NodeClaim) -> Result<(), ReconcileError> {
        if claim.condition(types::DISRUPTION_REASON).is_none() {
            return Ok(());
        }
        let mut wanted = claim.clone();
        wanted
            .conditions_mut()
            .retain(|c| c.type_ != types::DISRUPTION_REASON);
        patch_status(&self.cx.node_claims(), claim, &wanted, Lock::Optimistic)
            .await
            .doing("updating nodeclaim status")
            .map(drop)
    }
}

/// `Underutilized` as `underutilized`: the spelling of the metrics.
fn snake(reason: &str) -> String {
    reason.to_lowercase()
}

impl Periodic for Disruption {
    fn name(&self) -> &'static str {
        "disruption"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        if !self.cx.view().is_synced() {
            return Ok(UNSYNCED);
        }
        // After a restart with nothing pending, nobody else has asked for them yet.
        refresh_instance_types(&self.cx).await?;
        let view = self.cx.view();
        self.clean_up(&view).await?;
        if self.execute_due().await? {
            return Ok(Duration::ZERO);
        }
        let busy: BTreeSet<String> = self
            .proposals
            .iter()
            .flat_map(|p| &p.command.candidates)
            .map(|c| c.name().to_owned())
            .collect();
        for method in self.methods.clone() {
            let started = Instant::now();
            let (accepted, mut budgets) = self.look(&view, &*method, &busy);
            let commands = method.propose(accepted, &mut budgets);
            let labels = [
                &snake(method.reason().as_str()) as &str,
                method.consolidation_type(),
            ];
            let took = started.elapsed().as_secs_f64();
            self.cx
                .metrics
                .voluntary_disruption_decision_evaluation_duration_seconds
                .observe(&labels, took);
            let due = self.cx.clock.instant_after(method.validation_delay());
            let found = !commands.is_empty();
            self.proposals
                .extend(commands.into_iter().map(|command| Proposal {
                    method: Arc::clone(&method),
                    command,
                    due,
                }));
            if found {
                break;
            }
        }
        // No later than the next proposal is due.
        let next = self
            .proposals
            .iter()
            .map(|p| p.due)
            .min()
            .map_or(IDLE, |due| {
                let real = due.saturating_duration_since(Instant::now());
                let speed = self
                    .cx
                    .clock
                    .real_duration(Duration::from_secs(1))
                    .as_secs_f64();
                IDLE.min(Duration::try_from_secs_f64(real.as_secs_f64() / speed).unwrap_or(IDLE))
            });
        Ok(next)
    }
}
