//! Finds the pod of a shadow by its label: a shadow has no lease.

use anyhow::anyhow;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use super::flags::ServerFlags;
use super::leader::Leader;
use crate::cluster::{Access, Cluster};

/// The label that the chart gives the pods of a shadow.
const LABEL: &str = "decisions.karpenter.sh/shadow=true";

/// Returns the running pod of a shadow, in the namespace of the flags or in any.
pub(super) async fn find(cluster: &Cluster, flags: &ServerFlags) -> anyhow::Result<Leader> {
    let namespace = flags.karpenter_namespace.as_deref();
    let pods: Api<Pod> = match namespace {
        Some(namespace) => Api::namespaced(cluster.client.clone(), namespace),
        None => Api::all(cluster.client.clone()),
    };
    let access = Access {
        verb: "list",
        group: "",
        resource: "pods",
        namespace,
        name: None,
    };
    let found = pods.list(&ListParams::default().labels(LABEL)).await;
    let found = found.map_err(|error| access.failed(cluster, error))?;
    let is_running = |pod: &&Pod| {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    let running = found.items.iter().find(is_running);
    let pod = running.ok_or_else(|| {
        let place = namespace.map_or("any namespace".to_owned(), |it| format!("namespace {it}"));
        anyhow!(
            "no running pod with the label {LABEL} in {place}: install the chart with shadow.enabled=true, or pass --server"
        )
    })?;
    Ok(Leader {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        pod: pod.metadata.name.clone().unwrap_or_default(),
    })
}
