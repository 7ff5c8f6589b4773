//! The requests of a command to the API server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::{Candidate, Command, CommandId};
use karpenter_core::lifecycle::disruption::{Event, TaintedNode};

use super::{Answer, report, taints};
use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::is_not_found;
use crate::model::View;
use crate::provisioning::launch;

/// Least number of attempts to delete a NodeClaim, even if the command has timed out.
const DELETE_TRIES: u32 = 4;
/// Delay after the first of these attempts; it grows with each.
const DELETE_RETRY: Duration = Duration::from_secs(1);
/// Longest delay between these attempts.
const DELETE_WAIT: Duration = Duration::from_secs(10);

/// Taints the nodes of a command.
pub(super) async fn taint(cx: Arc<Context>, view: Arc<View>, command: Arc<Command>) -> Answer {
    let reason = command.method.reason();
    let tainting = command
        .candidates
        .iter()
        .map(|candidate| taints::taint(&cx, &view, candidate, &reason));
    let mut failed = BTreeSet::new();
    for (candidate, result) in command.candidates.iter().zip(join_all(tainting).await) {
        let Err(error) = result else { continue };
        failed.insert(candidate.claim_name().to_owned());
        if !error.is_not_found() {
            tracing::error!(node = candidate.name(), error = %error, "failed to taint a node for disruption");
        }
    }
    Event::Tainted { failed }.into()
}

/// Removes taints and conditions.
pub(super) async fn untaint(cx: Arc<Context>, nodes: Vec<TaintedNode>) -> Answer {
    let untainting = nodes
        .iter()
        .map(|node| taints::untaint(&cx, node.node.as_deref(), &node.claim));
    let (mut left, mut failure) = (Vec::new(), None);
    for (node, result) in nodes.iter().zip(join_all(untainting).await) {
        let Err(error) = result else { continue };
        left.push(node.clone());
        // A conflict with another writer is expected: it is retried.
        if !error.is_expected() {
            tracing::error!(nodeclaim = node.claim, error = %error, "failed to remove the taint of a disruption");
            failure = Some(error);
        }
    }
    Answer {
        event: Event::Untainted(left),
        failure,
    }
}

/// Creates the NodeClaims of the replacements. The model counts them by then.
pub(super) async fn launch(cx: Arc<Context>, command: Arc<Command>) -> Answer {
    let replaced = command.candidates.iter().map(Candidate::claim_name);
    let replaced: BTreeSet<String> = replaced.map(str::to_owned).collect();
    let method = report::reason(command.method);
    let launched = launch::create_claims(&cx, &command.replacements, &replaced, method).await;
    Event::Launched(launch::created(launched).into_iter().flatten().collect()).into()
}

/// Returns whether the API server has the NodeClaim; true if the request fails.
async fn exists(cx: &Context, claim: &NodeClaim) -> bool {
    match cx.node_claims().get(claim.name()).await {
        Ok(found) => found.uid() == claim.uid(),
        Err(error) => !is_not_found(&error),
    }
}

/// Deletes a candidate's NodeClaim. Its replacements are ready, so the deletion is retried while the API server is unavailable.
pub(super) async fn delete(
    cx: Arc<Context>,
    command: CommandId,
    candidate: Candidate,
    until: Timestamp,
) -> Answer {
    let claim = &candidate.claim;
    let mut tries = 1;
    let deleted = loop {
        let deletion = cx.claim_writes.delete(cx.node_claims(), claim, Lock::None);
        let Err(error) = deletion.await else {
            break true;
        };
        if cx.clock.now() > until && tries >= DELETE_TRIES {
            tracing::error!(node = candidate.name(), error = %error, "failed to delete a nodeclaim for disruption");
            break false;
        }
        cx.clock
            .sleep((DELETE_RETRY * tries).min(DELETE_WAIT))
            .await;
        // A new NodeClaim of the same name is not part of the command.
        if !exists(&cx, claim).await {
            break true;
        }
        tries += 1;
    };
    let claim = claim.name().to_owned();
    Event::Deleted {
        command,
        claim,
        deleted,
    }
    .into()
}
