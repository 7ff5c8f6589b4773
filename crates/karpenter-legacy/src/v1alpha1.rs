//! `karpenter.k8s.aws/v1alpha1`: AWSNodeTemplate, and the inline settings of AWS of a Provisioner.
//!
//! UPSTREAM: pkg/apis/v1alpha1/awsnodetemplate.go, provider.go (up to v0.32)

use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use karpenter_api::conditions::{ConditionTypes, HasConditions, types};
use karpenter_api::crd::fields;
use karpenter_aws::api::{Ami, SecurityGroup, Subnet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::v1alpha5::condition_types;

karpenter_api::resource! {
    /// AWSNodeTemplate holds the settings of AWS, as EC2NodeClass does since v1beta1.
    AWSNodeTemplate {
        group: "karpenter.k8s.aws", version: "v1alpha1", plural: "awsnodetemplates", scope: ClusterResourceScope,
        spec: AWSNodeTemplateSpec, status: AWSNodeTemplateStatus
    }
}

impl HasConditions for AWSNodeTemplate {
    const TYPES: ConditionTypes = ConditionTypes {
        root: types::READY,
        dependents: &[
            condition_types::CONVERTED,
            condition_types::PROJECTION_READY,
        ],
    };

    fn conditions(&self) -> &[Condition] {
        &self.status.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.conditions
    }
}

/// The settings of AWS. `spec.provider` of a Provisioner has the same fields, except amiSelector and userData.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AWSNodeTemplateSpec {
    /// Embedded type of the old provider object; ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Embedded type of the old provider object; ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The family of AMIs: AL2 (without the field), Bottlerocket, Ubuntu, Windows2019, Windows2022 or Custom.
    #[serde(default, rename = "amiFamily", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ami_family")]
    pub ami_family: Option<String>,
    /// AMIs by tags, ids, names and owners.
    #[serde(
        default,
        rename = "amiSelector",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub ami_selector: BTreeMap<String, String>,
    /// Subnets by tags or ids.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub subnet_selector: BTreeMap<String, String>,
    /// Security groups by tags or ids.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub security_group_selector: BTreeMap<String, String>,
    /// The instance profile; without it the setting aws.defaultInstanceProfile applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_profile: Option<String>,
    /// A custom launch template. It has no equivalent.
    #[serde(
        default,
        alias = "launchTemplateName",
        skip_serializing_if = "Option::is_none"
    )]
    pub launch_template: Option<String>,
    /// User data, merged with Karpenter's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// The context of EC2 Fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Tags of the created AWS resources.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Whether detailed monitoring is enabled: CloudWatch metrics per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detailed_monitoring: Option<bool>,
    /// The instance metadata service. Without the object: enabled, no IPv6, two hops, tokens required; a field that
    /// is missing inside of it is left to EC2: one hop, tokens optional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_options: Option<MetadataOptions>,
    /// The block devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block_device_mappings: Vec<BlockDeviceMapping>,
}

/// The instance metadata service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetadataOptions {
    /// `enabled` or `disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "switch")]
    pub http_endpoint: Option<String>,
    /// `enabled` or `disabled`.
    #[serde(
        default,
        rename = "httpProtocolIPv6",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "switch")]
    pub http_protocol_ipv6: Option<String>,
    /// The hop limit of responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub http_put_response_hop_limit: Option<i64>,
    /// `required` or `optional`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "tokens")]
    pub http_tokens: Option<String>,
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
    pub ebs: Option<BlockDevice>,
}

/// An EBS volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDevice {
    /// Whether it is deleted with its instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
    /// Whether it is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// The IOPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<i64>,
    /// The KMS key of the encryption.
    #[serde(default, rename = "kmsKeyID", skip_serializing_if = "Option::is_none")]
    pub kms_key_id: Option<String>,
    /// The snapshot of the volume.
    #[serde(
        default,
        rename = "snapshotID",
        skip_serializing_if = "Option::is_none"
    )]
    pub snapshot_id: Option<String>,
    /// The throughput in MiB per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<i64>,
    /// Its size, a quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub volume_size: Option<serde_json::Value>,
    /// Its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "volume_type")]
    pub volume_type: Option<String>,
}

/// The observed state of an AWSNodeTemplate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AWSNodeTemplateStatus {
    /// The selected subnets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<Subnet>,
    /// The selected security groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<SecurityGroup>,
    /// The selected AMIs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub amis: Vec<Ami>,
    /// The EC2NodeClass into which it is projected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class: Option<String>,
    /// Conditions of the projection, including fields without an equivalent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "fields::atomic_conditions")]
    pub conditions: Vec<Condition>,
}

fn one_of(values: &[&str]) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": values })
}

fn ami_family(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    one_of(&[
        "AL2",
        "Bottlerocket",
        "Ubuntu",
        "Windows2019",
        "Windows2022",
        "Custom",
    ])
}

fn switch(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    one_of(&["enabled", "disabled"])
}

fn tokens(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    one_of(&["required", "optional"])
}

fn volume_type(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    one_of(&["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"])
}

/// The pattern of a quantity in Kubernetes' own schemas.
pub(crate) const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

fn quantity(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "pattern": QUANTITY,
        "x-kubernetes-int-or-string": true,
    })
}
