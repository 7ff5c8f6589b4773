//! A decision to disrupt machines, and its execution.
//!
//! UPSTREAM: pkg/controllers/disruption/queue.go

use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::events;
use karpenter_api::labels::{self, taints};
use karpenter_api::v1::{DisruptionReason, NodeClaim};
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use serde_json::json;

use super::{Candidate, snake};
use crate::context::Context;
use crate::controller::{Doing, ReconcileError, is_not_found};
use crate::events::{Event, reference};
use crate::nodeclaim::lifecycle::termination_mode;
use crate::patch::{Lock, patch_object, patch_status};

/// Machines to be disrupted together.
#[derive(Debug, Clone)]
pub struct Command {
    /// The machines.
    pub candidates: Vec<Candidate>,
    /// Why.
    pub reason: DisruptionReason,
    /// The method's label on the metrics.
    pub consolidation_type: &'static str,
}

impl Command {
    /// A command that gives machines back without replacement.
    #[must_use]
    pub fn delete(
        reason: DisruptionReason,
        consolidation_type: &'static str,
        candidates: Vec<Candidate>,
    ) -> Self {
        Self {
            candidates,
            reason,
            consolidation_type,
        }
    }

    /// Taints the nodes, marks the machines and deletes their NodeClaims. Machines that cannot be tainted are left out.
    ///
    /// # Errors
    /// When the operator is stopping. What fails at the API server is logged and left for the next look.
    pub async fn execute(&self, cx: &Arc<Context>) -> Result<(), ReconcileError> {
        let marked = join_all(
            self.candidates
                .iter()
                .map(|candidate| self.mark(cx, candidate)),
        )
        .await;
        let ready: Vec<&Candidate> = self
            .candidates
            .iter()
            .zip(marked)
            .filter_map(|(candidate, marked)| match marked {
                Ok(()) => Some(candidate),
                Err(error) if error.is_expected() || error.is_not_found() => None,
                Err(error) => {
                    tracing::error!(node = candidate.name(), error = %error, "failed to mark a node for disruption");
                    None
                }
            })
            .collect();
        if ready.is_empty() {
            return Ok(());
        }
        self.log(&ready);
        let ids: Vec<String> = ready
            .iter()
            .filter_map(|c| c.machine.provider_id().map(str::to_owned))
            .collect();
        cx.model.mark_for_deletion(ids, true).await?;
        let deleted = join_all(
            ready
                .iter()
                .map(|candidate| self.delete_claim(cx, candidate)),
        )
        .await;
        let mut spared = Vec::new();
        for (candidate, deleted) in ready.iter().zip(deleted) {
            match deleted {
                Ok(()) => self.count(cx, candidate),
                Err(error) => {
                    tracing::error!(node = candidate.name(), error = %error, "failed to delete a nodeclaim for disruption");
                    spared.extend(candidate.machine.provider_id().map(str::to_owned));
                }
            }
        }
        let reason = snake(self.reason.as_str());
        cx.metrics.voluntary_disruption_decisions_total.inc(&[
            "delete",
            &reason,
            self.consolidation_type,
        ]);
        if !spared.is_empty() {
            cx.metrics.voluntary_disruption_queue_failures_total.inc(&[
                "delete",
                &reason,
                self.consolidation_type,
            ]);
            cx.model.mark_for_deletion(spared, false).await?;
        }
        Ok(())
    }

    async fn mark(&self, cx: &Context, candidate: &Candidate) -> Result<(), ReconcileError> {
        let mut node = Node::clone(&candidate.node);
        let present = node
            .spec
            .get_or_insert_default()
            .taints
            .get_or_insert_default();
        present.retain(|t| t.key != taints::DISRUPTED);
        present.push(taints::disrupted());
        let api: Api<Node> = Api::all(cx.clients.api.clone());
        patch_object(&api, &candidate.node, &node, Lock::Optimistic)
            .await
            .doing("tainting node")?;
        let mut claim = NodeClaim::clone(&candidate.claim);
        claim.set_true_with_reason(
            types::DISRUPTION_REASON,
            self.reason.as_str(),
            self.reason.as_str(),
            cx.clock.now(),
        );
        patch_status(
            &cx.node_claims(),
            &candidate.claim,
            &claim,
            Lock::Optimistic,
        )
        .await
        .doing("updating nodeclaim status")?;
        Ok(())
    }

    async fn delete_claim(
        &self,
        cx: &Context,
        candidate: &Candidate,
    ) -> Result<(), ReconcileError> {
        let message = |kind: &str| format!("Disrupting {kind}: {}", self.reason.as_str());
        let event = |about, kind| {
            Event::normal(about, events::DISRUPTION_TERMINATING, message(kind)).dedupe_by_message()
        };
        cx.recorder
            .publish(event(reference(&*candidate.node), "Node"));
        cx.recorder
            .publish(event(reference(&*candidate.claim), "NodeClaim"));
        let only_this = DeleteParams {
            preconditions: Some(Preconditions {
                uid: candidate.claim.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match cx
            .node_claims()
            .delete(candidate.claim.name(), &only_this)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error).doing("deleting nodeclaim"),
        }
    }

    fn count(&self, cx: &Context, candidate: &Candidate) {
        let reason = snake(self.reason.as_str());
        let pool = candidate.pool.name();
        let capacity_type = candidate
            .claim
            .label(labels::CAPACITY_TYPE)
            .unwrap_or_default();
        let policy = policy_label(candidate.pool.spec.disruption.consolidation_policy.as_str());
        let series = [
            &reason as &str,
            pool,
            capacity_type,
            &policy,
            termination_mode(&candidate.claim),
        ];
        cx.metrics.nodeclaims_disrupted_total.inc(&series);
        cx.metrics
            .pods_disruption_initiated_total
            .add(&series, candidate.reschedulable.len() as f64);
        cx.metrics
            .voluntary_disruption_decisions_by_nodepool_total
            .inc(&["delete", &reason, self.consolidation_type, pool]);
    }

    fn log(&self, candidates: &[&Candidate]) {
        let nodes: Vec<_> = candidates
            .iter()
            .map(|c| {
                json!({
                    "Node": {"name": c.name()},
                    "NodeClaim": {"name": c.claim.name()},
                    "capacity-type": c.claim.label(labels::CAPACITY_TYPE),
                    "instance-type": c.claim.label(labels::INSTANCE_TYPE),
                })
            })
            .collect();
        tracing::info!(
            reason = snake(self.reason.as_str()),
            decision = "delete",
            "disrupted-node-count" = candidates.len(),
            "replacement-node-count" = 0,
            "pod-count" = candidates
                .iter()
                .map(|c| c.reschedulable.len())
                .sum::<usize>(),
            "disrupted-nodes" = serde_json::Value::from(nodes).to_string(),
            "disrupting node(s)"
        );
    }
}

/// `WhenEmptyOrUnderutilized` as `when_empty_or_underutilized`: the spelling of the metrics.
fn policy_label(policy: &str) -> String {
    let mut label = String::with_capacity(policy.len() + 4);
    for (at, c) in policy.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            label.push('_');
        }
        label.push(c.to_ascii_lowercase());
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_spelt_in_snake_case() {
        assert_eq!(
            policy_label("WhenEmptyOrUnderutilized"),
            "when_empty_or_underutilized"
        );
        assert_eq!(policy_label("Balanced"), "balanced");
    }
}
