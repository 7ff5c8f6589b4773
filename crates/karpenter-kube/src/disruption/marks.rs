//! What the cluster shows of a command: the taint on the nodes, the condition on the NodeClaims.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::{DisruptionReason, NodeClaim};
use karpenter_core::disruption::Candidate;

use crate::context::Context;
use crate::controller::{Doing, ReconcileError};
use crate::model::View;
use crate::patch::Lock;

/// How often a write is tried when others write, too.
const TRIES: usize = 4;

/// Taints a candidate's node and says why on its NodeClaim.
pub(super) async fn mark(
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

/// Takes [`mark`] back. What is gone needs no unmarking.
///
/// The view is not asked: what was written just now, or was and nobody learnt, it need not have yet.
pub(super) async fn unmark(
    cx: &Context,
    node: Option<&str>,
    claim: &str,
) -> Result<(), ReconcileError> {
    let gone_is_fine = |result: Result<(), ReconcileError>| match result {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    };
    if let Some(node) = node {
        gone_is_fine(change_taint(cx, None, node, false).await)?;
    }
    gone_is_fine(
        change_claim(cx, None, claim, |claim| {
            claim
                .conditions_mut()
                .retain(|c| c.type_ != types::DISRUPTION_REASON);
        })
        .await,
    )
}

/// Takes back the marks of commands that this process knows nothing of; `held` are the NodeClaims of those it does. Whether
/// there were none.
pub(super) async fn heal(
    cx: &Context,
    view: &View,
    held: &BTreeSet<String>,
) -> Result<bool, ReconcileError> {
    let stray = view.snapshot.nodes().filter_map(|machine| {
        let claim = machine.claim.as_ref().filter(|claim| {
            !machine.is_deleting() && !claim.is_deleting() && !held.contains(claim.name())
        })?;
        let node = machine.node.as_ref().map(|node| node.name.as_str());
        let tainted = node
            .and_then(|name| view.node(name))
            .is_some_and(|node| is_tainted(node));
        let marked = tainted || claim.condition(types::DISRUPTION_REASON).is_some();
        marked.then_some((node, claim))
    });
    let healed = join_all(stray.map(|(node, claim)| unmark(cx, node, claim.name()))).await;
    let clean = healed.is_empty();
    // Somebody else is at it: the next pass looks again.
    let errors = healed.into_iter().filter_map(Result::err);
    ReconcileError::collect(errors.filter(|error| !error.is_expected()).collect())?;
    Ok(clean)
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|all| all.iter().any(|taint| taint.key == taints::DISRUPTED))
}

async fn change_taint(
    cx: &Context,
    mut known: Option<Arc<Node>>,
    name: &str,
    wanted: bool,
) -> Result<(), ReconcileError> {
    let api = cx.nodes();
    for left in (0..TRIES).rev() {
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
    for left in (0..TRIES).rev() {
        let before = match known.take() {
            Some(claim) => claim,
            None => Arc::new(api.get(name).await.doing("getting nodeclaim")?),
        };
        let patched = cx
            .claim_writes
            .change_status(api.clone(), &before, &change)
            .await
            .doing("updating nodeclaim status");
        match patched {
            Err(error) if error.is_conflict() && left > 0 => {}
            patched => return patched.map(drop),
        }
    }
    Ok(())
}
