//! Keeps the instance types in the model current: providers are asked before each plan, and answer from their caches.

use std::sync::Arc;

use futures::future::join_all;
use karpenter_core::provider::{CloudProviderError, ErrorCode};

use crate::context::Context;
use crate::model::Stopped;

/// Requests the instance types of every managed NodePool from the provider and updates the model.
///
/// # Errors
/// When the operator is stopping.
pub async fn refresh_instance_types(cx: &Context) -> Result<(), Stopped> {
    let view = cx.view();
    let pools = view
        .snapshot
        .node_pools()
        .filter(|pool| cx.is_managed(&pool.spec.template.spec.node_class_ref));
    let answers = join_all(pools.map(|pool| async move {
        (
            pool.name().to_owned(),
            cx.provider.instance_types(pool).await,
        )
    }));
    for (pool, types) in answers.await {
        let known = view.snapshot.instance_types(&pool);
        if let Err(CloudProviderError::UnevaluatedNodePool(_)) = types {
            if known.is_some() {
                cx.model.forget_instance_types(pool).await?;
            }
            continue;
        }
        let code = types.as_ref().err().and_then(|error| ErrorCode::of(error));
        let code = code.cloned();
        let types = types.map_err(|error| error.to_string());
        let same = match (known, &types) {
            (Some(Ok(known)), Ok(types)) => Arc::ptr_eq(known, types),
            (Some(Err(known)), Err(error)) => known == error,
            _ => false,
        };
        if !same {
            if let Err(error) = &types {
                tracing::error!(
                    NodePool = crate::logging::object(None, &pool),
                    error,
                    "error-code.field" = code.as_ref().map(|code| code.field),
                    "error-code" = code.as_deref(),
                    "skipping, unable to resolve instance types"
                );
            }
            cx.model.set_instance_types(pool, types).await?;
        }
    }
    Ok(())
}
