//! EC2NodeClass v1beta1. UPSTREAM: pkg/apis/v1beta1/ec2nodeclass.go

use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use karpenter_aws::api::EC2NodeClassStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::v1alpha1::{switch, tokens};

karpenter_api::resource! {
    /// EC2NodeClass holds the settings of instances on EC2.
    EC2NodeClass {
        group: "karpenter.k8s.aws", version: "v1beta1", plural: "ec2nodeclasses", scope: ClusterResourceScope,
        spec: EC2NodeClassSpec, status: EC2NodeClassStatus
    }
}

/// The desired state of an EC2NodeClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = spec_rules()))]
pub struct EC2NodeClassSpec {
    /// Subnets; a subnet that satisfies one term is used.
    #[serde(default)]
    #[schemars(length(max = 30), extend("x-required" = true, "x-kubernetes-validations" = subnet_rules()))]
    pub subnet_selector_terms: Vec<SubnetSelectorTerm>,
    /// Security groups; one that satisfies one term is used.
    #[serde(default)]
    #[schemars(length(max = 30), extend("x-required" = true, "x-kubernetes-validations" = security_group_rules()))]
    pub security_group_selector_terms: Vec<SecurityGroupSelectorTerm>,
    /// AMIs; without terms the latest that EKS publishes for the family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = ami_rules()))]
    pub ami_selector_terms: Option<Vec<AmiSelectorTerm>>,
    /// The family of AMIs.
    #[serde(default, rename = "amiFamily", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ami_family")]
    pub ami_family: Option<String>,
    /// User data, merged with Karpenter's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// The IAM role of the instances; Karpenter creates an instance profile for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = not_empty("role")))]
    pub role: Option<String>,
    /// The instance profile of the instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = not_empty("instanceProfile")))]
    pub instance_profile: Option<String>,
    /// Tags of the created AWS resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = tag_rules()))]
    pub tags: Option<BTreeMap<String, String>>,
    /// The block devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50), extend("x-kubernetes-validations" = json!([{
        "message": "must have only one blockDeviceMappings with rootVolume",
        "rule": "self.filter(x, has(x.rootVolume) ? x.rootVolume == true : false).size() <= 1",
    }])))]
    pub block_device_mappings: Option<Vec<BlockDeviceMapping>>,
    /// The use of instance store volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["RAID0"]))]
    pub instance_store_policy: Option<String>,
    /// Whether detailed monitoring is enabled: CloudWatch metrics per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detailed_monitoring: Option<bool>,
    /// Whether instances get a public IP address; without it the subnet decides.
    #[serde(
        default,
        rename = "associatePublicIPAddress",
        skip_serializing_if = "Option::is_none"
    )]
    pub associate_public_ip_address: Option<bool>,
    /// The instance metadata service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = {
        "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 2, "httpTokens": "required",
    }))]
    pub metadata_options: Option<MetadataOptions>,
    /// The context of EC2 Fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// A term that selects subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubnetSelectorTerm {
    /// The tags; `*` is any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 20, "x-kubernetes-validations" = no_empty_tags()))]
    pub tags: Option<BTreeMap<String, String>>,
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "subnet-[0-9a-z]+"))]
    pub id: Option<String>,
}

/// A term that selects security groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecurityGroupSelectorTerm {
    /// The tags; `*` is any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 20, "x-kubernetes-validations" = no_empty_tags()))]
    pub tags: Option<BTreeMap<String, String>>,
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "sg-[0-9a-z]+"))]
    pub id: Option<String>,
    /// The name of the group, not of a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A term that selects AMIs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AmiSelectorTerm {
    /// The tags; `*` is any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 20, "x-kubernetes-validations" = no_empty_tags()))]
    pub tags: Option<BTreeMap<String, String>>,
    /// The id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "ami-[0-9a-z]+"))]
    pub id: Option<String>,
    /// The name of the image, not of a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The account of the image: an id, `self` or `amazon`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDeviceMapping {
    /// The device name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// The volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = json!([{
        "message": "snapshotID or volumeSize must be defined",
        "rule": "has(self.snapshotID) || has(self.volumeSize)",
    }])))]
    pub ebs: Option<BlockDevice>,
    /// Whether it is the root volume of the kubelet's data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_volume: Option<bool>,
}

/// An EBS volume, as in an AWSNodeTemplate.
pub type BlockDevice = crate::v1alpha1::BlockDevice;

/// The instance metadata service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetadataOptions {
    /// `enabled` or `disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "enabled")]
    pub http_endpoint: Option<String>,
    /// `enabled` or `disabled`.
    #[serde(
        default,
        rename = "httpProtocolIPv6",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "disabled")]
    pub http_protocol_ipv6: Option<String>,
    /// The hop limit of responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64), extend("x-default" = 2))]
    pub http_put_response_hop_limit: Option<i64>,
    /// `required` or `optional`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "required")]
    pub http_tokens: Option<String>,
}

/// The AMI families of v1beta1 and Windows2025, which was added later.
pub(crate) const AMI_FAMILIES: [&str; 8] = [
    "AL2",
    "AL2023",
    "Bottlerocket",
    "Custom",
    "Ubuntu",
    "Windows2019",
    "Windows2022",
    "Windows2025",
];

fn ami_family(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": AMI_FAMILIES, "x-required": true })
}

fn with_default(mut schema: schemars::Schema, default: &str) -> schemars::Schema {
    schema.insert("x-default".to_owned(), default.into());
    schema
}

fn enabled(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    with_default(switch(generator), "enabled")
}

fn disabled(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    with_default(switch(generator), "disabled")
}

fn required(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    with_default(tokens(generator), "required")
}

fn rule(message: &str, rule: &str) -> Value {
    json!({ "message": message, "rule": rule })
}

fn not_empty(field: &str) -> Value {
    json!([rule(&format!("{field} cannot be empty"), "self != ''")])
}

fn no_empty_tags() -> Value {
    json!([rule(
        "empty tag keys or values aren't supported",
        "self.all(k, k != '' && self[k] != '')"
    )])
}

fn tag_rules() -> Value {
    let restricted = |key: &str, test: &str| {
        rule(
            &format!("tag contains a restricted tag matching {key}"),
            test,
        )
    };
    json!([
        rule("empty tag keys aren't supported", "self.all(k, k != '')"),
        restricted(
            "kubernetes.io/cluster/",
            "self.all(k, !k.startsWith('kubernetes.io/cluster') )"
        ),
        restricted(
            "karpenter.sh/nodepool",
            "self.all(k, k != 'karpenter.sh/nodepool')"
        ),
        restricted(
            "karpenter.sh/managed-by",
            "self.all(k, k !='karpenter.sh/managed-by')"
        ),
        restricted(
            "karpenter.sh/nodeclaim",
            "self.all(k, k !='karpenter.sh/nodeclaim')"
        ),
        restricted(
            "karpenter.k8s.aws/ec2nodeclass",
            "self.all(k, k !='karpenter.k8s.aws/ec2nodeclass')"
        ),
    ])
}

fn subnet_rules() -> Value {
    json!([
        rule("subnetSelectorTerms cannot be empty", "self.size() != 0"),
        rule(
            "expected at least one, got none, ['tags', 'id']",
            "self.all(x, has(x.tags) || has(x.id))"
        ),
        rule(
            "'id' is mutually exclusive, cannot be set with a combination of other fields in subnetSelectorTerms",
            "self.all(x, !(has(x.id) && has(x.tags)))"
        ),
    ])
}

fn security_group_rules() -> Value {
    json!([
        rule(
            "securityGroupSelectorTerms cannot be empty",
            "self.size() != 0"
        ),
        rule(
            "expected at least one, got none, ['tags', 'id', 'name']",
            "self.all(x, has(x.tags) || has(x.id) || has(x.name))"
        ),
        rule(
            "'id' is mutually exclusive, cannot be set with a combination of other fields in securityGroupSelectorTerms",
            "self.all(x, !(has(x.id) && (has(x.tags) || has(x.name))))"
        ),
        rule(
            "'name' is mutually exclusive, cannot be set with a combination of other fields in securityGroupSelectorTerms",
            "self.all(x, !(has(x.name) && (has(x.tags) || has(x.id))))"
        ),
    ])
}

fn ami_rules() -> Value {
    json!([
        rule(
            "expected at least one, got none, ['tags', 'id', 'name']",
            "self.all(x, has(x.tags) || has(x.id) || has(x.name))"
        ),
        rule(
            "'id' is mutually exclusive, cannot be set with a combination of other fields in amiSelectorTerms",
            "self.all(x, !(has(x.id) && (has(x.tags) || has(x.name) || has(x.owner))))"
        ),
    ])
}

fn spec_rules() -> Value {
    json!([
        rule(
            "amiSelectorTerms is required when amiFamily == 'Custom'",
            "self.amiFamily == 'Custom' ? has(self.amiSelectorTerms) && self.amiSelectorTerms.size() != 0 : true"
        ),
        rule(
            "must specify exactly one of ['role', 'instanceProfile']",
            "(has(self.role) && !has(self.instanceProfile)) || (!has(self.role) && has(self.instanceProfile))"
        ),
    ])
}
