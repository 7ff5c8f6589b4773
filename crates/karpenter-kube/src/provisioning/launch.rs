//! Creates planned NodeClaims: in parallel, independently, with a last check of the limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use karpenter_api::v1::NodeClaim;
use karpenter_core::limits::{LimitExceeded, LimitHeadroom};
use karpenter_core::schedule::PlannedNodeClaim;
use kube::api::{ListParams, PostParams};

use crate::context::Context;
use crate::controller::{Doing, ReconcileError};
use crate::logging;
use crate::model::View;

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
    let view = cx.view();
    let is_limited = |planned: &PlannedNodeClaim| {
        let pool = view.node_pool(&planned.node_pool);
        pool.is_some_and(|pool| !pool.spec.limits.is_empty())
    };
    // NodeClaims of NodePools with limits are created by one caller at a time: the next one counts them.
    let mut turn = match planned.iter().any(is_limited) {
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
    let view = cx.view();
    let mut room = LimitHeadroom::new(&view.snapshot, replaced);
    let admitted: Vec<Result<(), LaunchError>> = planned
        .iter()
        .map(|planned| admit(&view, &mut room, planned))
        .collect();
    let creations: Vec<_> = planned
        .iter()
        .zip(admitted)
        .map(|(planned, admitted)| async move {
            admitted?;
            create(cx, planned, reason).await
        })
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
    /// The NodePool does not exist any more.
    #[error("nodepool `{0}` not found")]
    NoPool(String),
    /// The NodePool has grown since the plan.
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    /// The request failed.
    #[error(transparent)]
    Reconcile(#[from] ReconcileError),
}

/// Checks that the NodePool exists and that its limits allow the planned node.
fn admit<'a>(
    view: &'a View,
    room: &mut LimitHeadroom<'a>,
    planned: &PlannedNodeClaim,
) -> Result<(), LaunchError> {
    let pool = view
        .node_pool(&planned.node_pool)
        .ok_or_else(|| LaunchError::NoPool(planned.node_pool.clone()))?;
    Ok(room.take(pool, planned)?)
}

async fn create(
    cx: &Context,
    planned: &PlannedNodeClaim,
    reason: &'static str,
) -> Result<NodeClaim, LaunchError> {
    let mut claim = planned.to_node_claim();
    if claim.spec.termination_grace_period.is_none() {
        let profile = cx.provider.profile();
        claim
            .spec
            .termination_grace_period
            .clone_from(&profile.default_termination_grace_period);
    }
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
