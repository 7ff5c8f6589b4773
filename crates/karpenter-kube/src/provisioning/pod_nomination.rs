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
use tokio::sync::watch;

use crate::clock::Clock;
use crate::context::Context;

/// Requests at a time.
const CONCURRENT: usize = 32;
/// How long the process waits for the writes; pods that are not written by then are written with a later check.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a Node waits for the nominations of others: see [`Together`].
const MAX_WAIT: Duration = Duration::from_secs(2);

/// The number of Nodes whose pods are being nominated.
///
/// When a Node becomes schedulable, kube-scheduler tries every pending pod, fails for those whose Node is not schedulable yet, and clears
/// their nominations. So Nodes that join at the same time become schedulable together, once the pods of all are nominated.
#[derive(Debug, Default)]
pub(super) struct Together(watch::Sender<usize>);

/// A Node whose pods are being nominated, until it is dropped.
pub(super) struct Nominating<'a>(&'a Together);

impl Together {
    pub(super) fn begin(&self) -> Nominating<'_> {
        self.0.send_modify(|count| *count += 1);
        Nominating(self)
    }

    /// Waits until no pods are being nominated, two seconds at most.
    pub(super) async fn others(&self, clock: &Clock) {
        let mut count = self.0.subscribe();
        let limit = clock.real_duration(MAX_WAIT);
        let _elapsed = tokio::time::timeout(limit, count.wait_for(|count| *count == 0)).await;
    }
}

impl Drop for Nominating<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

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
    let limit = cx.clock.real_duration(WRITE_TIMEOUT);
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

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_waits_for_the_nominations_of_others_two_seconds_at_most() {
        let (together, clock) = (Together::default(), Clock::real());
        let waited = async |ends_after: Option<u64>| {
            let other = ends_after.map(|_| together.begin());
            let began = Instant::now();
            let ends = async {
                sleep(Duration::from_millis(ends_after.unwrap_or_default())).await;
                drop(other);
            };
            let waits = async {
                together.others(&clock).await;
                began.elapsed().as_millis()
            };
            tokio::join!(ends, waits).1
        };
        assert_eq!(waited(None).await, 0);
        assert_eq!(waited(Some(500)).await, 500);
        assert_eq!(waited(Some(9000)).await, 2000);
    }
}
