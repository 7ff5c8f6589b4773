//! CustomResourceDefinitions of older generations: Provisioner and AWSNodeTemplate, and the definitions of v1 that also serve
//! v1beta1, converted by the webhook.

use karpenter_api::crd;
use karpenter_api::crd::{Column, Definition, RestrictedDomain};
use serde_json::{Value, json};

use crate::v1alpha1::{AWSNodeTemplate, AWSNodeTemplateSpec, AWSNodeTemplateStatus};
use crate::v1alpha5::{Provisioner, ProvisionerSpec, ProvisionerStatus};
use crate::v1beta1;

/// The path of the conversion webhook in the definitions.
pub const PATH: &str = "/convert";

const READY: Column = Column::new(
    "Ready",
    "string",
    r#".status.conditions[?(@.type=="Ready")].status"#,
);
const AGE: Column = Column::new("Age", "date", ".metadata.creationTimestamp");
const NODE_CLASS: Column = Column::new("NodeClass", "string", ".status.nodeClass");
const LOSSLESS: Column = Column::wide(
    "Lossless",
    "string",
    r#".status.conditions[?(@.type=="Lossless")].status"#,
);

#[must_use]
pub fn provisioner() -> Value {
    Definition {
        group: Provisioner::GROUP,
        version: Provisioner::VERSION,
        kind: Provisioner::KIND,
        plural: Provisioner::PLURAL,
        namespaced: false,
        short_names: &[],
        categories: &["karpenter"],
        description: "Provisioner defines a set of nodes. Karpenter projects it into a NodePool of the same name.",
        columns: vec![
            Column::new("Template", "string", ".spec.providerRef.name"),
            Column::new("NodePool", "string", ".status.nodePool"),
            NODE_CLASS,
            READY,
            AGE,
            Column::wide("Weight", "integer", ".spec.weight"),
            Column::wide("CPU", "string", ".status.resources.cpu"),
            Column::wide("Memory", "string", ".status.resources.memory"),
            LOSSLESS,
        ],
        scale: None,
    }
    .build::<ProvisionerSpec, ProvisionerStatus>()
}

#[must_use]
pub fn aws_node_template() -> Value {
    Definition {
        group: AWSNodeTemplate::GROUP,
        version: AWSNodeTemplate::VERSION,
        kind: AWSNodeTemplate::KIND,
        plural: AWSNodeTemplate::PLURAL,
        namespaced: false,
        short_names: &[],
        categories: &["karpenter"],
        description: "AWSNodeTemplate holds the settings of AWS. Karpenter projects it into an EC2NodeClass of the same name.",
        columns: vec![
            Column::new("Family", "string", ".spec.amiFamily"),
            NODE_CLASS,
            READY,
            AGE,
            LOSSLESS,
        ],
        scale: None,
    }
    .build::<AWSNodeTemplateSpec, AWSNodeTemplateStatus>()
}

/// The service in the cluster by which the API server reaches the conversion webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}

/// Returns the NodePool definition with v1beta1. `provider` adds the label domains that a provider reserves.
#[must_use]
pub fn node_pool(provider: &[RestrictedDomain], webhook: &Service) -> Value {
    beside(crd::node_pool(provider), v1beta1::node_pool, webhook)
}

/// Returns the NodeClaim definition with v1beta1. `provider` adds the label domains that a provider reserves.
#[must_use]
pub fn node_claim(provider: &[RestrictedDomain], webhook: &Service) -> Value {
    beside(crd::node_claim(provider), v1beta1::node_claim, webhook)
}

/// Returns the EC2NodeClass definition with v1beta1.
#[must_use]
pub fn ec2_node_class(webhook: &Service) -> Value {
    beside(karpenter_aws::api::crd(), v1beta1::ec2_node_class, webhook)
}

/// Adds the version that `older` makes of v1, which stays the stored one.
fn beside(mut new: Value, older: fn(&Value) -> Value, webhook: &Service) -> Value {
    if let Some(versions) = new["spec"]["versions"].as_array_mut() {
        versions.extend(versions.first().map(older));
    }
    let Service {
        namespace,
        name,
        port,
    } = webhook;
    let service = json!({ "namespace": namespace, "name": name, "path": PATH, "port": port });
    new["spec"]["conversion"] = json!({
        "strategy": "Webhook",
        "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": { "service": service } },
    });
    new
}

/// Returns every definition of older generations with its file name. The webhook is the service `karpenter` of
/// the namespace `kube-system`, as the chart installs it.
#[must_use]
pub fn all(provider: &[RestrictedDomain]) -> Vec<(&'static str, Value)> {
    let webhook = Service {
        namespace: "kube-system".to_owned(),
        name: "karpenter".to_owned(),
        port: 8443,
    };
    vec![
        ("legacy/karpenter.sh_provisioners.yaml", provisioner()),
        (
            "legacy/karpenter.k8s.aws_awsnodetemplates.yaml",
            aws_node_template(),
        ),
        (
            "legacy/karpenter.sh_nodepools.yaml",
            node_pool(provider, &webhook),
        ),
        (
            "legacy/karpenter.sh_nodeclaims.yaml",
            node_claim(provider, &webhook),
        ),
        (
            "legacy/karpenter.k8s.aws_ec2nodeclasses.yaml",
            ec2_node_class(&webhook),
        ),
    ]
}
