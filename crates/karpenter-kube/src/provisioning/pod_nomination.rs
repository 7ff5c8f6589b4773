//! Writes `status.nominatedNodeName` of pods (feature gate `PodNomination`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use karpenter_core::lifecycle::provisioning::PodNomination;
use karpenter_core::pod::FIELD_MANAGER;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::context::Context;

/// Requests at a time.
const CONCURRENT: usize = 32;
/// How long the process waits for the writes; pods that are not written by then are written with a later check.
const LIMIT: Duration = Duration::from_secs(10);

/// The API server refuses the writes, because the permission is missing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forbidden;

/// Writes the nominated nodes of pods, in their order. Failures are not reported, except for a missing permission: pods that were
/// bound or deleted meanwhile need no nominated node, and the process repeats what is missing.
pub(super) async fn write(cx: &Context, nominations: Vec<PodNomination>) -> Result<(), Forbidden> {
    let count = nominations.len();
    let writes = nominations.into_iter().map(|it| write_one(cx, it));
    let mut writes = futures::stream::iter(writes).buffered(CONCURRENT);
    let all = async {
        let mut failed = 0_usize;
        while let Some(written) = writes.next().await {
            match written {
                Ok(()) => {}
                Err(error) if is(&error, 403) && !is_terminating(&error) => return Err(error),
                // Deleted, replaced or bound meanwhile.
                Err(error) if [404, 409, 422].iter().any(|code| is(&error, *code)) => {}
                Err(error) => {
                    failed += 1;
                    tracing::debug!(error = %error, "failed to nominate pod");
                }
            }
        }
        Ok(failed)
    };
    let limit = cx.clock.real_duration(LIMIT);
    match tokio::time::timeout(limit, all).await {
        Ok(Ok(0)) => Ok(()),
        Ok(Ok(failed)) => {
            tracing::info!(pods = count, failed, "nominated pods to nodes in part");
            Ok(())
        }
        Ok(Err(error)) => {
            cx.pod_nomination_forbidden.store(true, Ordering::Relaxed);
            tracing::error!(
                error = %error,
                "cannot patch pods/status: no more pods are nominated to nodes (feature gate PodNomination) until the controller restarts"
            );
            Err(Forbidden)
        }
        Err(_) => {
            tracing::info!(pods = count, "timed out nominating pods to nodes");
            Ok(())
        }
    }
}

async fn write_one(cx: &Context, nomination: PodNomination) -> Result<(), kube::Error> {
    let PodNomination { pod, node } = nomination;
    let api: Api<Pod> = Api::namespaced(cx.clients.no_retry.clone(), &pod.namespace);
    // A pod of the same name that was created meanwhile is another one.
    let patch = json!({ "metadata": { "uid": pod.uid }, "status": { "nominatedNodeName": node } });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    // Only the status of the answer is of interest: a whole pod is not deserialized.
    let request = kube::core::Request::new(api.resource_url());
    let request = request
        .patch_subresource("status", &pod.name, &params, &Patch::Merge(patch))
        .map_err(kube::Error::BuildRequest)?;
    cx.clients.no_retry.request_text(request).await.map(|_| ())
}

fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Reports whether the namespace is being deleted, which the API server answers with the same code.
fn is_terminating(error: &kube::Error) -> bool {
    error.to_string().contains("being terminated")
}
