//! Creates planned NodeClaims: in parallel, independently, with a last check of the limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::provisioning::{NotAdmitted, admit, has_limits};
use karpenter_core::schedule::PlannedNodeClaim;
use kube::api::{ListParams, PostParams};

use crate::context::Context;
use crate::controller::{Doing, ReconcileError};
use crate::logging;

/// Requests in parallel; the client's own rate limit applies as well.
const PARALLEL: usize = 100;

/// How many instance types a log line names.
const NAMED_TYPES: usize = 5;

/// Creates planned NodeClaims; results are in the order of `planned`. Nodes of `replaced` NodeClaims do
/// not count against limits.
///
/// The model has the NodeClaims before this returns, so that the next plan counts them.
pub async fn create_claims(
    cx: &Context,
    planned: &[PlannedNodeClaim],
    replaced: &BTreeSet<String>,
    reason: &'static str,
) -> Vec<Result<NodeClaim, LaunchError>> {
    let mut turn = match has_limits(&cx.view().snapshot, planned) {
        true => Some(cx.limited.lock().await),
        false => None,
    };
    if let Some(is_unknown) = turn.as_deref_mut().filter(|is_unknown| **is_unknown) {
        if let Err(error) = add_unreported(cx).await {
            let why = format!(
                "limits are unknown, the creation of a nodeclaim was not answered, {error}"
            );
            let refused = || Err(ReconcileError::Refused(why.clone()).into());
            return planned.iter().map(|_| refused()).collect();
        }
        *is_unknown = false;
    }
    let admitted = admit(&cx.view().snapshot, planned, replaced);
    let creations: Vec<_> = planned
        .iter()
        .zip(admitted)
        .map(|(planned, admitted)| async move { create(cx, planned, admitted?, reason).await })
        .collect();
    let created = futures::stream::iter(creations).buffered(PARALLEL);
    let created: Vec<_> = created.collect().await;
    if let Some(is_unknown) = turn.as_deref_mut() {
        *is_unknown = created.iter().any(is_unanswered);
    }
    created
}

/// Returns whether a NodeClaim may have been created although the request failed.
fn is_unanswered(result: &Result<NodeClaim, LaunchError>) -> bool {
    let Err(LaunchError::Reconcile(ReconcileError::Api { source, .. })) = result else {
        return false;
    };
    !matches!(&**source, kube::Error::Api(status) if status.code < 500)
}

/// Adds NodeClaims to the model that the API server has, and that the watch may not have reported yet. Those with an instance are in
/// the model: it launches no others.
async fn add_unreported(cx: &Context) -> Result<(), ReconcileError> {
    let listed = cx.node_claims().list(&ListParams::default()).await;
    for claim in listed.doing("listing nodeclaims")? {
        if claim
            .status
            .provider_id
            .as_deref()
            .is_none_or(str::is_empty)
        {
            cx.model.created_node_claim(claim).await?;
        }
    }
    Ok(())
}

/// Why a planned NodeClaim was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// What the plan relied on has changed since.
    #[error(transparent)]
    NotAdmitted(#[from] NotAdmitted),
    /// The request failed.
    #[error(transparent)]
    Reconcile(#[from] ReconcileError),
}

async fn create(
    cx: &Context,
    planned: &PlannedNodeClaim,
    claim: NodeClaim,
    reason: &'static str,
) -> Result<NodeClaim, LaunchError> {
    let created = cx
        .node_claims()
        .create(&PostParams::default(), &claim)
        .await
        .doing("creating nodeclaim")?;
    tracing::info!(
        NodePool = logging::object(None, &planned.node_pool),
        NodeClaim = logging::object(None, created.name()),
        nodepool = planned.node_pool,
        nodeclaim = created.name(),
        requests = logging::json(&planned.requests.to_quantities()),
        "instance-types" = logging::shortened(&planned.instance_types, NAMED_TYPES),
        "created nodeclaim"
    );
    let relaxed = if planned.min_values_relaxed {
        "true"
    } else {
        "false"
    };
    cx.metrics
        .nodeclaims_created_total
        .inc(&[reason, &planned.node_pool, relaxed]);
    cx.model
        .created_node_claim(created.clone())
        .await
        .map_err(ReconcileError::from)?;
    Ok(created)
}

/// Returns the created NodeClaims, and logs the errors of the others.
#[must_use]
pub fn created(results: Vec<Result<NodeClaim, LaunchError>>) -> Vec<Option<Arc<NodeClaim>>> {
    let log = |error: &LaunchError| tracing::error!(error = %error, "failed creating nodeclaim");
    results
        .into_iter()
        .map(|result| result.inspect_err(log).ok().map(Arc::new))
        .collect()
}
