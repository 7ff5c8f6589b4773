//! EC2NodeClass and its spec.
//!
//! Absent and empty fields differ wherever the static hash distinguishes them: tags, block device mappings,
//! network interfaces and every optional scalar.

use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use karpenter_core::quantity::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Alias, AmiFamily, EC2NodeClassStatus, rules};

karpenter_api::resource! {
    /// EC2NodeClass is the Schema for the EC2NodeClass API: the EC2-specific settings of nodes.
    EC2NodeClass {
        group: "karpenter.k8s.aws", version: "v1", plural: "ec2nodeclasses", scope: ClusterResourceScope,
        spec: EC2NodeClassSpec, status: EC2NodeClassStatus
    }
}

impl EC2NodeClass {
    /// Returns the first alias among the AMI selector terms that parses.
    pub fn alias(&self) -> Option<Alias> {
        let mut aliases = self.spec.ami_selector_terms.iter();
        aliases
            .find_map(|term| term.alias.as_deref().filter(|text| !text.is_empty()))
            .and_then(|text| Alias::parse(text).ok())
    }

    /// Returns the AMI family: `spec.amiFamily`, else the family of the alias, else `Custom`.
    pub fn ami_family(&self) -> AmiFamily {
        self.spec
            .ami_family
            .as_deref()
            .and_then(AmiFamily::from_name)
            .or_else(|| self.alias().map(|alias| alias.family))
            .unwrap_or(AmiFamily::Custom)
    }

    /// Returns whether the EC2NodeClass is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    /// Returns the specified network interfaces; empty if the spec has none.
    pub fn network_interfaces(&self) -> &[NetworkInterface] {
        self.spec.network_interfaces.as_deref().unwrap_or_default()
    }
}

/// The desired settings of nodes that use this EC2NodeClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::spec()))]
pub struct EC2NodeClassSpec {
    /// Subnets that instances may be launched in. The terms are ORed.
    #[serde(default)]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::subnet_terms(), "x-required" = true))]
    pub subnet_selector_terms: Vec<SubnetSelectorTerm>,
    /// Security groups of instances. The terms are ORed.
    #[serde(default)]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::security_group_terms(), "x-required" = true))]
    pub security_group_selector_terms: Vec<SecurityGroupSelectorTerm>,
    /// Capacity reservations that instances may be launched into. The terms are ORed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::capacity_reservation_terms()))]
    pub capacity_reservation_selector_terms: Vec<CapacityReservationSelectorTerm>,
    /// The placement group that instances are launched into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_group_selector: Option<PlacementGroupSelector>,
    /// Whether instances get a public IP address. By default the subnet decides.
    #[serde(
        rename = "associatePublicIPAddress",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub associate_public_ip_address: Option<bool>,
    /// The number of IP prefixes assigned to each network interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ip_prefix_count: Option<i32>,
    /// AMIs that instances may boot. The terms are ORed.
    #[serde(default)]
    #[schemars(length(min = 1, max = 30), extend("x-kubernetes-validations" = rules::ami_terms(), "x-required" = true))]
    pub ami_selector_terms: Vec<AmiSelectorTerm>,
    /// The AMI family, which decides the format of user data and the default volumes. Optional with an alias, which
    /// implies its family; with an alias only that family or Custom is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["AL2", "AL2023", "Bottlerocket", "Custom", "Windows2019", "Windows2022", "Windows2025"]))]
    pub ami_family: Option<String>,
    /// User data in the format of the AMI family. Karpenter merges its own settings into it, except for Custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// The IAM role of instances; Karpenter creates the instance profile for it. Mutually exclusive with
    /// instanceProfile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("role")))]
    pub role: Option<String>,
    /// The instance profile of instances. Mutually exclusive with role. Its role must be one that Karpenter may pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("instanceProfile")))]
    pub instance_profile: Option<String>,
    /// Tags of instances, volumes, launch templates and instance profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::tags()))]
    pub tags: Option<BTreeMap<String, String>>,
    /// Settings of the kubelet, with the field names of KubeletConfiguration. The controller validates them and reports
    /// the result in the condition ValidationSucceeded. AL2023 supports every field, the other families a subset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub kubelet: Option<Map<String, Value>>,
    /// The block devices of instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50), extend("x-kubernetes-validations" = rules::block_devices()))]
    pub block_device_mappings: Option<Vec<BlockDeviceMapping>>,
    /// How instance store volumes are used. RAID0 joins them into one volume for the ephemeral storage of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["RAID0"]))]
    pub instance_store_policy: Option<String>,
    /// The network interfaces of instances. If unset, an instance gets one network interface, or as many Elastic Fabric
    /// Adapters as its pods request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 150), extend("x-kubernetes-validations" = rules::network_interfaces()))]
    pub network_interfaces: Option<Vec<NetworkInterface>>,
    /// Whether CloudWatch collects detailed metrics of instances, every minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detailed_monitoring: Option<bool>,
    /// How instances reach the instance metadata service. By default it is enabled over IPv4 with a hop limit of 1, and
    /// tokens are required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = {
        "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 1, "httpTokens": "required",
    }))]
    pub metadata_options: Option<MetadataOptions>,
    /// Idle timeouts of connection tracking. Only instance types on the Nitro System support them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_tracking: Option<ConnectionTracking>,
    /// The Context field of EC2's CreateFleet, which is reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// CPU options of instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_options: Option<CpuOptions>,
}

/// Selects subnets. The fields of a term are ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SubnetSelectorTerm {
    /// Tags that a subnet must have; the value `*` matches any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_tags")]
    pub tags: Option<BTreeMap<String, String>>,
    /// The ID of one subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "subnet-[0-9a-z]+"))]
    pub id: Option<String>,
}

/// Selects security groups. The fields of a term are ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SecurityGroupSelectorTerm {
    /// Tags that a security group must have; the value `*` matches any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_tags")]
    pub tags: Option<BTreeMap<String, String>>,
    /// The ID of one security group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "sg-[0-9a-z]+"))]
    pub id: Option<String>,
    /// The name of the security group, which is not its tag `Name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Selects capacity reservations. The fields of a term are ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityReservationSelectorTerm {
    /// Tags that a capacity reservation must have; the value `*` matches any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_tags")]
    pub tags: Option<BTreeMap<String, String>>,
    /// The ID of one capacity reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^cr-[0-9a-z]+$"))]
    pub id: Option<String>,
    /// The ID of the account that owns the capacity reservation.
    #[serde(rename = "ownerID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^[0-9]{12}$"))]
    pub owner_id: Option<String>,
    /// Whether the capacity reservation accepts every matching instance (`open`) or only instances that target it
    /// (`targeted`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["open", "targeted"]))]
    pub instance_match_criteria: Option<String>,
}

/// Selects one placement group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = rules::placement_group()))]
pub struct PlacementGroupSelector {
    /// The name of the placement group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub name: Option<String>,
    /// The ID of the placement group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^pg-[0-9a-z]+$"))]
    pub id: Option<String>,
}

/// Selects AMIs. The fields of a term are ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct AmiSelectorTerm {
    /// A release of the AMIs that EKS publishes, as `family@version`. The families are al2, al2023, bottlerocket,
    /// windows2019, windows2022 and windows2025. The version `latest` follows new releases; Windows families support no
    /// other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::alias()))]
    pub alias: Option<String>,
    /// Tags that an AMI must have; the value `*` matches any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_tags")]
    pub tags: Option<BTreeMap<String, String>>,
    /// The ID of one AMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "ami-[0-9a-z]+"))]
    pub id: Option<String>,
    /// The name of the AMI, which is not its tag `Name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The owner of the AMI: an account ID, `self`, `amazon` or `aws-marketplace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The name or ARN of an SSM parameter that holds the ID of an AMI.
    #[serde(
        rename = "ssmParameter",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub ssm_parameter: Option<String>,
}

/// A block device of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDeviceMapping {
    /// The device name, such as `/dev/xvda`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// The EBS volume of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::ebs()))]
    pub ebs: Option<BlockDevice>,
    /// Whether the device holds the kubelet's root directory. At most one mapping may set it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub root_volume: bool,
}

/// Settings of an EBS volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDevice {
    /// Whether the volume is deleted when the instance is terminated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
    /// Whether the volume is encrypted. Must not be set together with a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// I/O operations per second: provisioned for gp3, io1 and io2, not supported by other volume types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<i64>,
    /// The KMS key that encrypts the volume: its ID, alias or ARN.
    #[serde(rename = "kmsKeyID", default, skip_serializing_if = "Option::is_none")]
    pub kms_key_id: Option<String>,
    /// The ID of the snapshot that the volume is created from.
    #[serde(
        rename = "snapshotID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub snapshot_id: Option<String>,
    /// Throughput of a gp3 volume in MiB per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<i64>,
    /// The rate at which the volume is initialized from its snapshot, in MiB per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 300))]
    pub volume_initialization_rate: Option<i32>,
    /// The size of the volume as a quantity in Gi, G, Ti or T.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^((?:[1-9][0-9]{0,3}|[1-4][0-9]{4}|[5][0-8][0-9]{3}|59000)Gi|(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|[6][0-3][0-9]{3}|64000)G|([1-9]|[1-4][0-9]|5[0-8])Ti|([1-9]|[1-5][0-9]|6[0-4])T)$"))]
    pub volume_size: Option<String>,
    /// The EBS volume type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"]))]
    pub volume_type: Option<String>,
}

impl BlockDevice {
    /// Returns the volume size as a quantity; `None` if it is unset or cannot be parsed.
    pub fn size(&self) -> Option<Quantity> {
        self.volume_size.as_deref()?.parse().ok()
    }
}

/// Value of [`NetworkInterface::interface_type`]: an ordinary network interface.
pub const INTERFACE_TYPE_INTERFACE: &str = "interface";
/// Value of [`NetworkInterface::interface_type`]: an Elastic Fabric Adapter without IP address.
pub const INTERFACE_TYPE_EFA_ONLY: &str = "efa-only";

/// A network interface of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInterface {
    /// The index of the network card.
    #[serde(default)]
    #[schemars(range(min = 0), extend("x-default" = 0))]
    pub network_card_index: i32,
    /// The device index on the network card.
    #[serde(default)]
    #[schemars(range(min = 0), extend("x-default" = 0))]
    pub device_index: i32,
    /// The interface type: `interface` or `efa-only`.
    #[schemars(extend("enum" = ["interface", "efa-only"]))]
    pub interface_type: String,
}

impl NetworkInterface {
    /// Returns whether the interface is an Elastic Fabric Adapter without IP address.
    pub fn is_efa_only(&self) -> bool {
        self.interface_type == INTERFACE_TYPE_EFA_ONLY
    }
}

/// How instances reach the instance metadata service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetadataOptions {
    /// Whether the HTTP endpoint of the instance metadata service is enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["enabled", "disabled"], "x-default" = "enabled"))]
    pub http_endpoint: Option<String>,
    /// Whether the IPv6 endpoint of the instance metadata service is enabled.
    #[serde(
        rename = "httpProtocolIPv6",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("enum" = ["enabled", "disabled"], "x-default" = "disabled"))]
    pub http_protocol_ipv6: Option<String>,
    /// The hop limit of token responses. With 1, pods in their own network namespace cannot reach the instance metadata
    /// service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64), extend("x-default" = 1))]
    pub http_put_response_hop_limit: Option<i64>,
    /// Whether tokens are required (IMDSv2 only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["required", "optional"], "x-default" = "required"))]
    pub http_tokens: Option<String>,
}

/// Idle timeouts of connection tracking, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::connection_tracking()))]
pub struct ConnectionTracking {
    /// Timeout of established TCP connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 432_000))]
    pub tcp_established_timeout: Option<i32>,
    /// Timeout of UDP flows with more than one request and response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 180))]
    pub udp_stream_timeout: Option<i32>,
    /// Timeout of UDP flows with one request and response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 60))]
    pub udp_timeout: Option<i32>,
}

/// CPU options of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuOptions {
    /// Whether virtual machines can run on the instance. If enabled, only instance types that support nested
    /// virtualization are launched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["enabled", "disabled"]))]
    pub nested_virtualization: Option<String>,
}

impl CpuOptions {
    /// Returns whether nested virtualization is enabled.
    pub fn nested_virtualization(&self) -> bool {
        self.nested_virtualization.as_deref() == Some("enabled")
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn open_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn selector_tags(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": "string" },
        "minProperties": 1,
        "maxProperties": 20,
        "x-kubernetes-validations": rules::selector_tags(),
    })
}
