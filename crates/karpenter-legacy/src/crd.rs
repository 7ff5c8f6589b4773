//! CustomResourceDefinitions of older generations: Provisioner and AWSNodeTemplate, and the definitions of v1 that also serve
//! v1beta1, converted by the webhook.

use karpenter_api::crd::{Column, Definition, RestrictedDomain, rules};
use karpenter_api::{crd, labels};
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

/// Returns the Provisioner definition.
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

/// Returns the AWSNodeTemplate definition.
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

/// The address of the conversion webhook for the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A service in the cluster.
    Service {
        /// The namespace of the service.
        namespace: String,
        /// The name of the service.
        name: String,
        /// The port of the service.
        port: u16,
    },
    /// A URL. `https` in a real cluster.
    Url(String),
}

/// Returns the NodePool definition with v1beta1. `provider` adds the label domains that a provider reserves.
#[must_use]
pub fn node_pool(provider: &[RestrictedDomain], reach: &Reach) -> Value {
    let mut old = Definition {
        group: v1beta1::NodePool::GROUP,
        version: v1beta1::NodePool::VERSION,
        kind: v1beta1::NodePool::KIND,
        plural: v1beta1::NodePool::PLURAL,
        namespaced: false,
        short_names: &[],
        categories: &["karpenter"],
        description: "NodePool defines a set of nodes that Karpenter may launch, and how it may disrupt them.",
        columns: vec![
            Column::new("NodeClass", "string", ".spec.template.spec.nodeClassRef.name"),
            Column::wide("Weight", "integer", ".spec.weight"),
        ],
        scale: None,
    }
    .build::<v1beta1::NodePoolSpec, karpenter_api::v1::NodePoolStatus>();
    let (domains, forbidden) = (
        with_karpenter(provider),
        [labels::NODE_POOL, labels::HOSTNAME],
    );
    let template = &mut spec_mut(&mut old)["properties"]["template"]["properties"];
    template["metadata"]["properties"]["labels"]["x-kubernetes-validations"] =
        rules::label_map(&domains, &forbidden);
    requirement_key_mut(&mut template["spec"])["x-kubernetes-validations"] =
        rules::label_key(&domains, &forbidden);
    beside(crd::node_pool(provider), old, reach)
}

/// Returns the NodeClaim definition with v1beta1. `provider` adds the label domains that a provider reserves.
#[must_use]
pub fn node_claim(provider: &[RestrictedDomain], reach: &Reach) -> Value {
    let mut old = Definition {
        group: v1beta1::NodeClaim::GROUP,
        version: v1beta1::NodeClaim::VERSION,
        kind: v1beta1::NodeClaim::KIND,
        plural: v1beta1::NodeClaim::PLURAL,
        namespaced: false,
        short_names: &[],
        categories: &["karpenter"],
        description: "NodeClaim is the request for one node, with its status.",
        columns: vec![
            Column::new(
                "Type",
                "string",
                r".metadata.labels.node\.kubernetes\.io/instance-type",
            ),
            Column::new(
                "Zone",
                "string",
                r".metadata.labels.topology\.kubernetes\.io/zone",
            ),
            Column::new("Node", "string", ".status.nodeName"),
            READY,
            AGE,
            Column::wide(
                "Capacity",
                "string",
                r".metadata.labels.karpenter\.sh/capacity-type",
            ),
            Column::wide(
                "NodePool",
                "string",
                r".metadata.labels.karpenter\.sh/nodepool",
            ),
            Column::wide("NodeClass", "string", ".spec.nodeClassRef.name"),
        ],
        scale: None,
    }
    .build::<v1beta1::NodeClaimSpec, karpenter_api::v1::NodeClaimStatus>();
    let key = requirement_key_mut(spec_mut(&mut old));
    key["x-kubernetes-validations"] =
        rules::label_key(&with_karpenter(provider), &[labels::HOSTNAME]);
    beside(crd::node_claim(provider), old, reach)
}

/// Returns the EC2NodeClass definition with v1beta1.
#[must_use]
pub fn ec2_node_class(reach: &Reach) -> Value {
    let old = Definition {
        group: v1beta1::EC2NodeClass::GROUP,
        version: v1beta1::EC2NodeClass::VERSION,
        kind: v1beta1::EC2NodeClass::KIND,
        plural: v1beta1::EC2NodeClass::PLURAL,
        namespaced: false,
        short_names: &["ec2nc", "ec2ncs"],
        categories: &["karpenter"],
        description: "EC2NodeClass holds the settings of instances on EC2.",
        columns: vec![AGE],
        scale: None,
    }
    .build::<v1beta1::EC2NodeClassSpec, karpenter_aws::api::EC2NodeClassStatus>();
    beside(karpenter_aws::api::crd(), old, reach)
}

/// Adds the versions of `old` to those of `new`, whose version stays the stored one.
fn beside(mut new: Value, mut old: Value, reach: &Reach) -> Value {
    let old = &mut old["spec"]["versions"][0];
    old["storage"] = false.into();
    if let Some(versions) = new["spec"]["versions"].as_array_mut() {
        versions.push(old.take());
    }
    let client = match reach {
        Reach::Service {
            namespace,
            name,
            port,
        } => {
            json!({ "service": { "namespace": namespace, "name": name, "path": PATH, "port": port } })
        }
        Reach::Url(url) => json!({ "url": url }),
    };
    new["spec"]["conversion"] = json!({
        "strategy": "Webhook",
        "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": client },
    });
    new
}

/// Returns every definition of older generations with its file name. The webhook is the service `karpenter` of
/// the namespace `kube-system`, as the chart installs it.
#[must_use]
pub fn all(provider: &[RestrictedDomain]) -> Vec<(&'static str, Value)> {
    let reach = Reach::Service {
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
            node_pool(provider, &reach),
        ),
        (
            "legacy/karpenter.sh_nodeclaims.yaml",
            node_claim(provider, &reach),
        ),
        (
            "legacy/karpenter.k8s.aws_ec2nodeclasses.yaml",
            ec2_node_class(&reach),
        ),
    ]
}

fn with_karpenter(provider: &[RestrictedDomain]) -> Vec<RestrictedDomain> {
    std::iter::once(RestrictedDomain::karpenter())
        .chain(provider.iter().cloned())
        .collect()
}

fn spec_mut(definition: &mut Value) -> &mut Value {
    &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
}

fn requirement_key_mut(spec: &mut Value) -> &mut Value {
    &mut spec["properties"]["requirements"]["items"]["properties"]["key"]
}
