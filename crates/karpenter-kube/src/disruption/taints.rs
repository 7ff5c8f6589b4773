//! The taint `karpenter.sh/disrupted` on nodes and the condition DisruptionReason on NodeClaims of a command.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::{DisruptionReason, NodeClaim};
use karpenter_core::disruption::Candidate;

use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Doing, ReconcileError};
use crate::model::View;

/// Number of attempts of a write that conflicts with other writers.
const MAX_ATTEMPTS: usize = 4;

/// Taints a candidate's node and sets the condition DisruptionReason on its NodeClaim.
pub(super) async fn taint(
    cx: &Context,
    view: &View,
    candidate: &Candidate,
    reason: &DisruptionReason,
) -> Result<(), ReconcileError> {
    let (node, claim) = (candidate.name(), candidate.claim_name());
    let known = view.node(node).map(|node| cx.node_writes.latest(node));
    change_taint(cx, known, node, true).await?;
    let now = cx.clock.now();
    let known = cx.node_claim(view, claim);
    change_claim(cx, known, claim, |claim| {
        claim.set_true_with_reason(
            types::DISRUPTION_REASON,
            reason.as_str(),
            reason.as_str(),
            now,
        );
    })
    .await
}

/// Reverts [`taint`]. An object that does not exist is not an error.
///
/// The API server is read, not the view: the view may lag behind our own writes, or lack one whose answer was lost.
pub(super) async fn untaint(
    cx: &Context,
    node: Option<&str>,
    claim: &str,
) -> Result<(), ReconcileError> {
    let ignore_not_found = |result: Result<(), ReconcileError>| match result {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    };
    if let Some(node) = node {
        ignore_not_found(change_taint(cx, None, node, false).await)?;
    }
    ignore_not_found(
        change_claim(cx, None, claim, |claim| {
            claim
                .conditions_mut()
                .retain(|c| c.type_ != types::DISRUPTION_REASON);
        })
        .await,
    )
}

async fn change_taint(
    cx: &Context,
    mut known: Option<Arc<Node>>,
    name: &str,
    wanted: bool,
) -> Result<(), ReconcileError> {
    let api = cx.nodes();
    for left in (0..MAX_ATTEMPTS).rev() {
        let before = match known.take() {
            Some(node) => node,
            None => Arc::new(api.get(name).await.doing("getting node")?),
        };
        let mut after = Node::clone(&before);
        let spec = after.spec.get_or_insert_default();
        let present = spec.taints.get_or_insert_default();
        present.retain(|taint| taint.key != taints::DISRUPTED);
        if wanted {
            present.push(taints::disrupted());
        }
        if present.is_empty() && before.spec.as_ref().is_none_or(|s| s.taints.is_none()) {
            spec.taints = None;
        }
        let patched = cx
            .node_writes
            .patch_object(api.clone(), &before, &after, Lock::Optimistic)
            .await
            .doing("changing taints of node");
        match patched {
            Err(error) if error.is_conflict() && left > 0 => {}
            patched => return patched.map(drop),
        }
    }
    Ok(())
}

async fn change_claim(
    cx: &Context,
    mut known: Option<Arc<NodeClaim>>,
    name: &str,
    change: impl Fn(&mut NodeClaim) + Send,
) -> Result<(), ReconcileError> {
    let api = cx.node_claims();
    for left in (0..MAX_ATTEMPTS).rev() {
        let before = match known.take() {
            Some(claim) => claim,
            None => Arc::new(api.get(name).await.doing("getting nodeclaim")?),
        };
        let patched = cx.change_claim_status(&before, &change).await;
        match patched {
            Err(error) if error.is_conflict() && left > 0 => {}
            patched => return patched.map(drop),
        }
    }
    Ok(())
}
