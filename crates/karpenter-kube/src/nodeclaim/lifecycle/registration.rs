//! Registration hooks, and what is reported about registration and initialization.

use std::time::Duration;

use futures::future::join_all;
use karpenter_api::labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::node_claim::HookAnswers;
use karpenter_core::provider::HookOutcome;

use crate::controller::{Doing, ReconcileError};
use crate::logging;
use crate::nodeclaim::lifecycle::Lifecycle;

impl Lifecycle {
    /// Runs every hook in parallel. A hook that fails is pending; its error makes the reconciliation fail, so that it runs again.
    pub(super) async fn run_hooks(&self, claim: &NodeClaim) -> (HookAnswers, Vec<ReconcileError>) {
        let hooks = self.cx.provider.registration_hooks();
        let outcomes = join_all(hooks.iter().map(|hook| hook.registered(claim))).await;
        let (mut answers, mut errors) = (HookAnswers::default(), Vec::new());
        for (hook, outcome) in hooks.iter().zip(outcomes) {
            match outcome.doing("running registration hook") {
                Ok(HookOutcome::Ready) => {}
                Ok(HookOutcome::ReadyWith(labels)) => answers.labels.extend(labels),
                Ok(HookOutcome::Wait(wait)) => {
                    answers.pending.push(hook.name().to_owned());
                    let wait = Duration::try_from(wait).unwrap_or_default();
                    answers.next = Some(answers.next.map_or(wait, |next| next.min(wait)));
                }
                Err(error) => {
                    answers.pending.push(hook.name().to_owned());
                    errors.push(error);
                }
            }
        }
        (answers, errors)
    }

    /// Reports a registration that has been written.
    pub(super) fn announce_registration(&self, claim: &NodeClaim) {
        let name = claim.status.node_name.as_deref().unwrap_or_default();
        tracing::info!(
            NodeClaim = logging::object(None, claim.name()),
            nodeclaim = claim.name(),
            "provider-id" = claim.status.provider_id.as_deref().unwrap_or_default(),
            Node = logging::object(None, name),
            "registered nodeclaim"
        );
        let pool = claim.node_pool().unwrap_or_default();
        let zone = claim.label(labels::ZONE).unwrap_or_default();
        self.cx.metrics.nodes_created_total.inc(&[pool, zone]);
        self.record_registration(claim, Ok(()));
    }

    /// Reports an initialization that has been written.
    pub(super) fn announce_initialization(&self, claim: &NodeClaim) {
        let id = claim.status.provider_id.as_deref().unwrap_or_default();
        let nodes = self.cx.nodes_of(&self.cx.view(), id);
        let status = nodes.first().and_then(|node| node.status.as_ref());
        let name = claim.status.node_name.as_deref().unwrap_or_default();
        tracing::info!(
            NodeClaim = logging::object(None, claim.name()),
            nodeclaim = claim.name(),
            "provider-id" = id,
            Node = logging::object(None, name),
            allocatable = logging::json(&status.and_then(|s| s.allocatable.as_ref())),
            "initialized nodeclaim"
        );
    }
}
