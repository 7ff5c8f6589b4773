//! Turning drafts into NodeClaims: in parallel, each for itself, with a last look at the limits.

use std::sync::Arc;

use futures::StreamExt;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::quantity::Quantity;
use karpenter_core::resources::Resources;
use karpenter_core::schedule::ClaimDraft;
use kube::api::PostParams;

use crate::context::Context;
use crate::controller::{Doing, ReconcileError};
use crate::logging;
use crate::model::View;

/// Requests in flight at a time; the client's own rate limit comes on top.
const PARALLEL: usize = 100;

/// How many instance types a log line names.
const NAMED_TYPES: usize = 5;

/// Creates the NodeClaims of drafts; each result stands for the draft at its place.
///
/// The model knows of a claim before this returns, so that the next decision counts it.
pub async fn create_claims(
    cx: &Context,
    drafts: &[ClaimDraft],
    reason: &'static str,
) -> Vec<Result<NodeClaim, LaunchError>> {
    let creations: Vec<_> = drafts
        .iter()
        .map(|draft| create(cx, draft, reason))
        .collect();
    futures::stream::iter(creations)
        .buffered(PARALLEL)
        .collect()
        .await
}

/// Why a draft did not become a NodeClaim.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The NodePool is gone.
    #[error("nodepool `{0}` not found")]
    NoPool(String),
    /// The NodePool has grown past its limits since the decision.
    #[error("{0}")]
    LimitsExceeded(String),
    /// The API server refused.
    #[error(transparent)]
    Reconcile(#[from] ReconcileError),
}

async fn create(
    cx: &Context,
    draft: &ClaimDraft,
    reason: &'static str,
) -> Result<NodeClaim, LaunchError> {
    let view = cx.view();
    let pool = view
        .node_pool(&draft.node_pool)
        .ok_or_else(|| LaunchError::NoPool(draft.node_pool.clone()))?;
    check_limits(pool, &usage(&view, pool.name())).map_err(LaunchError::LimitsExceeded)?;
    let mut claim = NodeClaim::clone(&draft.claim);
    if claim.spec.termination_grace_period.is_none() {
        claim.spec.termination_grace_period = cx.provider.default_termination_grace_period();
    }
    let created = cx
        .node_claims()
        .create(&PostParams::default(), &claim)
        .await
        .doing("creating nodeclaim")?;
    tracing::info!(
        NodePool = logging::object(None, &draft.node_pool),
        NodeClaim = logging::object(None, created.name()),
        nodepool = draft.node_pool,
        nodeclaim = created.name(),
        requests = logging::json(&draft.requests.to_quantities()),
        "instance-types" = logging::shortened(&draft.instance_types, NAMED_TYPES),
        "created nodeclaim"
    );
    let relaxed = if draft.min_values_relaxed {
        "true"
    } else {
        "false"
    };
    cx.metrics
        .nodeclaims_created_total
        .inc(&[reason, &draft.node_pool, relaxed]);
    cx.model
        .created_node_claim(created.clone())
        .await
        .map_err(ReconcileError::from)?;
    Ok(created)
}

/// What a pool's machines add up to, those included that are on their way.
fn usage(view: &View, pool: &str) -> Resources {
    let mut usage = Resources::new();
    for machine in view
        .snapshot
        .nodes()
        .filter(|m| m.claim.is_some() && m.node_pool() == Some(pool) && !m.is_deleting())
    {
        usage.add_assign(&machine.capacity());
        usage.set("nodes", usage.get("nodes") + 1);
    }
    usage
}

/// Says which limit the pool is beyond, if any.
fn check_limits(pool: &NodePool, usage: &Resources) -> Result<(), String> {
    let used = usage.to_quantities();
    for (resource, limit) in &pool.spec.limits {
        let (Ok(limit), Some(used)) = (limit.0.parse::<Quantity>(), used.get(resource)) else {
            continue;
        };
        let Ok(used) = used.0.parse::<Quantity>() else {
            continue;
        };
        if used > limit {
            return Err(format!(
                "{resource} resource usage of {used} exceeds limit of {limit}"
            ));
        }
    }
    Ok(())
}

/// The NodeClaims that were created, and the errors of the others, logged.
#[must_use]
pub fn settle(results: Vec<Result<NodeClaim, LaunchError>>) -> Vec<Option<Arc<NodeClaim>>> {
    let log = |error: &LaunchError| tracing::error!(error = %error, "failed creating nodeclaim");
    results
        .into_iter()
        .map(|result| result.inspect_err(log).ok().map(Arc::new))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;

    #[test]
    fn a_pool_beyond_a_limit_is_refused_with_the_numbers() {
        let mut pool = NodePool::default();
        pool.spec.limits = [
            ("cpu".to_owned(), K8sQuantity("10".into())),
            ("nodes".to_owned(), K8sQuantity("2".into())),
        ]
        .into();
        let used = |cpu: i64, nodes: i64| {
            [("cpu", cpu), ("nodes", nodes)]
                .into_iter()
                .collect::<Resources>()
        };
        assert_eq!(check_limits(&pool, &used(10_000, 2)), Ok(()));
        assert_eq!(
            check_limits(&pool, &used(10_500, 2)),
            Err("cpu resource usage of 10500m exceeds limit of 10".into())
        );
        assert_eq!(
            check_limits(&pool, &used(1, 3)),
            Err("nodes resource usage of 3 exceeds limit of 2".into())
        );
    }
}
