//! Stands for the instances: they boot, and their kubelets join the cluster.
//!
//! A real provider has no such part. It passes user data to its instances, which starts a kubelet with
//! `--register-with-taints=karpenter.sh/unregistered=:NoExecute` and `--provider-id=lagoon://ID`. Here the Node object is created,
//! and the kubelets of the embedded control plane keep it ready: it has the annotation that they look for.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use karpenter_api::labels;
use karpenter_api::v1::NodeClaim;
use karpenter_kube::clock::Clock;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::PROVIDER_PREFIX;
use crate::lagoon::{Instance, Lagoon};

/// The annotation of Nodes that the embedded control plane keeps ready.
const FAKE_NODE: &str = "kwok.x-k8s.io/node";

/// Lets the instances of a cluster join it, until `stop` is cancelled. Errors are retried a second later.
pub async fn join(
    client: Client,
    cloud: Lagoon,
    cluster: String,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut joined = BTreeSet::new();
    while !stop.is_cancelled() {
        clock.sleep(Duration::from_secs(1)).await;
        for instance in cloud.instances(&cluster) {
            if !joined.contains(&instance.id) && register(&client, &instance).await.is_ok() {
                joined.insert(instance.id);
            }
        }
    }
}

/// Creates the Node of an instance, once its NodeClaim says what it has.
async fn register(client: &Client, instance: &Instance) -> kube::Result<()> {
    let id = format!("{PROVIDER_PREFIX}{}", instance.id);
    let claims: Api<NodeClaim> = Api::all(client.clone());
    let claims = claims.list(&ListParams::default()).await?;
    let claim = claims
        .iter()
        .find(|claim| claim.status.provider_id.as_ref() == Some(&id));
    let Some(claim) = claim else {
        return Err(kube::Error::Service(
            "the NodeClaim has no provider id yet".into(),
        ));
    };
    let mut node = Node::default();
    node.metadata.name = Some(instance.id.clone());
    node.metadata.annotations = Some([(FAKE_NODE.to_owned(), "fake".to_owned())].into());
    let own = [
        (labels::HOSTNAME, instance.id.as_str()),
        (labels::OS, "linux"),
        (labels::ARCH, "amd64"),
        (labels::ZONE, &instance.island),
    ];
    node.metadata.labels = Some(
        own.map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    );
    node.spec = Some(NodeSpec {
        provider_id: Some(id),
        taints: Some(vec![Taint {
            key: "karpenter.sh/unregistered".to_owned(),
            effect: "NoExecute".to_owned(),
            ..Taint::default()
        }]),
        ..NodeSpec::default()
    });
    node.status = Some(NodeStatus {
        capacity: Some(claim.status.capacity.clone()),
        allocatable: Some(claim.status.allocatable.clone()),
        ..NodeStatus::default()
    });
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await?;
    Ok(())
}
