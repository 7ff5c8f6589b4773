//! Provisioners, AWSNodeTemplates and v1beta1: their CRDs, and the address of their conversion webhook.

use std::net::TcpListener;

use anyhow::{Context, Result};
use karpenter_kube::operator::own_namespace;
use karpenter_legacy::crd;
use karpenter_legacy::crd::Service;
use karpenter_legacy::options::LegacyOptions;
use karpenter_testbed::Testbed;
use serde_json::json;

use super::CLUSTER;
use crate::manifests;

/// Default name of the Service of the webhook.
const SERVICE: &str = "karpenter";

/// Returns the name of the instance profile that the CloudFormation stacks of older releases created.
pub(super) fn instance_profile() -> String {
    format!("KarpenterNodeInstanceProfile-{CLUSTER}")
}

/// Older generations, as installed in the cluster.
#[derive(Debug)]
pub(super) struct Generations {
    /// The port that the webhook must listen on.
    pub(super) webhook_port: u16,
}

impl Generations {
    /// Returns the options of the controllers.
    pub(super) fn options(&self) -> LegacyOptions {
        LegacyOptions {
            webhook_port: self.webhook_port,
            aws_default_instance_profile: instance_profile(),
            ..LegacyOptions::default()
        }
    }
}

/// Installs the CRDs, and the objects that the chart and Kubernetes create for the webhook.
pub(super) async fn install(testbed: &Testbed) -> Result<Generations> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let webhook_port = free
        .context("cannot find a free port for the webhook")?
        .port();
    let namespace = own_namespace();
    let webhook = Service {
        namespace: namespace.clone(),
        name: SERVICE.to_owned(),
        port: webhook_port,
    };
    let domains = [karpenter_aws::api::restricted_domain()];
    let definitions = [
        crd::provisioner(),
        crd::aws_node_template(),
        crd::node_pool(&domains, &webhook),
        crd::node_claim(&domains, &webhook),
        crd::ec2_node_class(&webhook),
    ];
    testbed
        .apply_crds(definitions)
        .await
        .context("cannot install the CRDs of older generations")?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": format!("{SERVICE}-cert"), "namespace": namespace },
    });
    // The playground has no pod network, so the endpoint of the webhook is created here.
    let endpoint = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": SERVICE, "namespace": namespace,
            "labels": { "kubernetes.io/service-name": SERVICE },
        },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["127.0.0.1"], "conditions": { "ready": true } }],
        "ports": [{ "name": "https-webhook", "port": webhook_port, "protocol": "TCP" }],
    });
    let text = format!("{secret}\n---\n{endpoint}\n");
    let objects = manifests::parse(&text)?;
    manifests::apply(&testbed.admin_client(), &objects).await?;
    Ok(Generations { webhook_port })
}
