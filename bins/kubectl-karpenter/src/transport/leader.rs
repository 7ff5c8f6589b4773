//! Finds the pod of Karpenter's leader through its lease.

use anyhow::{anyhow, bail};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::ListParams;

use super::flags::ServerFlags;
use crate::cluster::{Access, Cluster};

/// The namespaces in which Karpenter is usually installed.
const NAMESPACES: [&str; 2] = ["kube-system", "karpenter"];

/// How long after a lease has expired its holder counts as down; the clocks may differ.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);

/// The pod of the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) namespace: String,
    pub(super) pod: String,
}

/// Returns the namespaces in which Karpenter is looked for.
pub(super) fn namespaces(flags: &ServerFlags) -> Vec<&str> {
    match &flags.karpenter_namespace {
        Some(namespace) => vec![namespace],
        None => NAMESPACES.to_vec(),
    }
}

/// Reads the lease, and returns its holder's pod.
pub(super) async fn find(cluster: &Cluster, flags: &ServerFlags) -> anyhow::Result<Leader> {
    let name = flags.leader_election_name.as_str();
    let candidates = namespaces(flags);
    for &namespace in &candidates {
        let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), namespace);
        let access = Access {
            verb: "get",
            group: "coordination.k8s.io",
            resource: "leases",
            namespace: Some(namespace),
            name: Some(name),
        };
        let lease = leases.get_opt(name).await;
        if let Some(lease) = lease.map_err(|error| access.failed(cluster, error))? {
            return holder(&lease, namespace, Timestamp::now());
        }
    }
    // Only users with the right to list every lease find Karpenter in another namespace without naming it.
    if flags.karpenter_namespace.is_none() {
        let leases: Api<Lease> = Api::all(cluster.client.clone());
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = leases.list(&named).await.map(|list| list.items);
        if let Ok([lease]) = found.as_deref() {
            let namespace = lease.metadata.namespace.as_deref().unwrap_or_default();
            return holder(lease, namespace, Timestamp::now());
        }
    }
    Err(anyhow!(
        "no lease \"{name}\" in namespace {}: is Karpenter installed? If in another namespace, pass --karpenter-namespace",
        candidates.join(" or ")
    ))
}

fn holder(lease: &Lease, namespace: &str, now: Timestamp) -> anyhow::Result<Leader> {
    let spec = lease.spec.as_ref();
    let identity = spec.and_then(|spec| spec.holder_identity.as_deref());
    // The identity is the name of the pod, then `_`, which no pod's name contains.
    let pod = identity
        .unwrap_or_default()
        .split('_')
        .next()
        .unwrap_or_default();
    if pod.is_empty() {
        bail!("no replica of Karpenter leads: check `kubectl get pods -n {namespace}`");
    }
    let renewed = spec
        .and_then(|spec| spec.renew_time.as_ref())
        .map(|time| time.0);
    let duration = spec
        .and_then(|spec| spec.lease_duration_seconds)
        .unwrap_or_default();
    let valid = SignedDuration::from_secs(i64::from(duration)) + CLOCK_SKEW;
    if let Some(renewed) = renewed
        && now.duration_since(renewed) > valid
    {
        bail!(
            "Karpenter is down: its leader {pod} has not renewed the lease since {renewed}; check `kubectl get pods -n {namespace}`"
        );
    }
    Ok(Leader {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(identity: &str, renewed: &str) -> Result<String, String> {
        let lease = serde_json::from_value(json!({ "spec": {
            "holderIdentity": identity, "leaseDurationSeconds": 15, "renewTime": renewed,
        }}));
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let leader = holder(&lease.unwrap(), "karpenter", now);
        leader
            .map(|leader| leader.pod)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_leader_is_the_pod_in_the_identity_of_the_lease() {
        let fresh = "2026-01-01T11:59:55.000000Z";
        assert_eq!(
            found("karpenter-0_abc", fresh),
            Ok("karpenter-0".to_owned())
        );
        // client-go's identity of other releases.
        assert_eq!(found("karpenter-0", fresh), Ok("karpenter-0".to_owned()));
    }

    #[test]
    fn a_lease_without_a_holder_or_without_renewals_has_no_leader() {
        let fresh = "2026-01-01T11:59:55.000000Z";
        let error = found("", fresh).unwrap_err();
        assert!(
            error.starts_with("no replica of Karpenter leads"),
            "{error}"
        );
        let error = found("karpenter-0_abc", "2026-01-01T11:58:00.000000Z").unwrap_err();
        assert!(
            error.starts_with("Karpenter is down: its leader karpenter-0"),
            "{error}"
        );
        // It has expired, but the clocks may differ.
        assert!(found("karpenter-0_abc", "2026-01-01T11:59:10.000000Z").is_ok());
    }
}
