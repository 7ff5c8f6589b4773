//! The resource and its spec.
//!
//! Absent and empty differ wherever the static hash tells them apart: tags, block devices, network interfaces and every
//! optional scalar.

use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use karpenter_core::quantity::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Alias, AmiFamily, EC2NodeClassStatus, rules};

karpenter_api::resource! {
    /// EC2NodeClass is what is particular to machines on EC2: where they run, what they boot, what they may do.
    EC2NodeClass {
        group: "karpenter.k8s.aws", version: "v1", plural: "ec2nodeclasses", scope: ClusterResourceScope,
        spec: EC2NodeClassSpec, status: EC2NodeClassStatus
    }
}

impl EC2NodeClass {
    /// The alias term, if there is one that can be read.
    pub fn alias(&self) -> Option<Alias> {
        let mut aliases = self.spec.ami_selector_terms.iter();
        aliases
            .find_map(|term| term.alias.as_deref().filter(|text| !text.is_empty()))
            .and_then(|text| Alias::parse(text).ok())
    }

    /// The family of the images: `spec.amiFamily`, else that of the alias, else `Custom`.
    pub fn ami_family(&self) -> AmiFamily {
        self.spec
            .ami_family
            .as_deref()
            .and_then(AmiFamily::from_name)
            .or_else(|| self.alias().map(|alias| alias.family))
            .unwrap_or(AmiFamily::Custom)
    }

    /// Whether the class is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    /// The network interfaces asked for; an empty list asks for none in particular.
    pub fn network_interfaces(&self) -> &[NetworkInterface] {
        self.spec.network_interfaces.as_deref().unwrap_or_default()
    }
}

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::spec()))]
pub struct EC2NodeClassSpec {
    /// Which subnets machines may be launched in. Terms are ORed.
    #[serde(default)]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::subnet_terms(), "x-required" = true))]
    pub subnet_selector_terms: Vec<SubnetSelectorTerm>,
    /// Which security groups machines get. Terms are ORed.
    #[serde(default)]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::security_group_terms(), "x-required" = true))]
    pub security_group_selector_terms: Vec<SecurityGroupSelectorTerm>,
    /// Which capacity reservations machines may use. Terms are ORed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::capacity_reservation_terms()))]
    pub capacity_reservation_selector_terms: Vec<CapacityReservationSelectorTerm>,
    /// The placement group machines are launched into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_group_selector: Option<PlacementGroupSelector>,
    /// Whether machines get a public address; without it the subnet decides.
    #[serde(
        rename = "associatePublicIPAddress",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub associate_public_ip_address: Option<bool>,
    /// The number of prefixes of addresses that each network interface gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ip_prefix_count: Option<i32>,
    /// Which machine images may be booted. Terms are ORed.
    #[serde(default)]
    #[schemars(length(min = 1, max = 30), extend("x-kubernetes-validations" = rules::ami_terms(), "x-required" = true))]
    pub ami_selector_terms: Vec<AmiSelectorTerm>,
    /// The format of user data and the default disks. May be left out with an alias, whose family then counts; with an alias it
    /// may only be the alias' family or Custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["AL2", "AL2023", "Bottlerocket", "Custom", "Windows2019", "Windows2022", "Windows2025"]))]
    pub ami_family: Option<String>,
    /// User data in the format of the family. Karpenter merges its own settings into it, except for Custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// The IAM role of machines; Karpenter makes the instance profile. Excludes instanceProfile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("role")))]
    pub role: Option<String>,
    /// The instance profile of machines. Excludes role. It must have a role that Karpenter may pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("instanceProfile")))]
    pub instance_profile: Option<String>,
    /// Tags of instances, volumes, launch templates and instance profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::tags()))]
    pub tags: Option<BTreeMap<String, String>>,
    /// Settings of the kubelet, with the names of its configuration file. They are checked by the controller, see the
    /// condition ValidationSucceeded. On AL2023 every field of the kubelet is taken, on other families a subset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub kubelet: Option<Map<String, Value>>,
    /// The disks of machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50), extend("x-kubernetes-validations" = rules::block_devices()))]
    pub block_device_mappings: Option<Vec<BlockDeviceMapping>>,
    /// What is done with local disks. RAID0 joins them for pods' ephemeral storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["RAID0"]))]
    pub instance_store_policy: Option<String>,
    /// The network interfaces of machines. With none, a machine gets one, or as many Elastic Fabric Adapters as are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 150), extend("x-kubernetes-validations" = rules::network_interfaces()))]
    pub network_interfaces: Option<Vec<NetworkInterface>>,
    /// Whether machines are monitored by the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detailed_monitoring: Option<bool>,
    /// How machines see the instance metadata service. By default it is enabled over IPv4, one hop away, with tokens required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = {
        "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 1, "httpTokens": "required",
    }))]
    pub metadata_options: Option<MetadataOptions>,
    /// How long idle connections are tracked. Only types on the Nitro system can have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_tracking: Option<ConnectionTracking>,
    /// A reserved field of EC2's CreateFleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Features of the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_options: Option<CpuOptions>,
}

/// Selects subnets. What is set is ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SubnetSelectorTerm {
    /// Tags they must have; the value `*` means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_tags")]
    pub tags: Option<BTreeMap<String, String>>,
    /// The id of one subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "subnet-[0-9a-z]+"))]
    pub id: Option<String>,
}

/// Selects security groups. What is set is ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SecurityGroupSelectorTerm {
    /// Tags they must have; the value `*` means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_tags")]
    pub tags: Option<BTreeMap<String, String>>,
    /// The id of one security group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "sg-[0-9a-z]+"))]
    pub id: Option<String>,
    /// The group's name, which is not the tag `Name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Selects capacity reservations. What is set is ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityReservationSelectorTerm {
    /// Tags they must have; the value `*` means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_tags")]
    pub tags: Option<BTreeMap<String, String>>,
    /// The id of one reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^cr-[0-9a-z]+$"))]
    pub id: Option<String>,
    /// The account that owns them.
    #[serde(rename = "ownerID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^[0-9]{12}$"))]
    pub owner_id: Option<String>,
    /// Whether they take any instance that matches (`open`) or only those that ask for them (`targeted`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["open", "targeted"]))]
    pub instance_match_criteria: Option<String>,
}

/// Names one placement group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = rules::placement_group()))]
pub struct PlacementGroupSelector {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub name: Option<String>,
    /// Its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^pg-[0-9a-z]+$"))]
    pub id: Option<String>,
}

/// Selects machine images. What is set is ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct AmiSelectorTerm {
    /// A release of the images EKS publishes, as `family@version`. The families are al2, al2023, bottlerocket, windows2019,
    /// windows2022 and windows2025; the version `latest` follows new releases, and is the only one for Windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::alias()))]
    pub alias: Option<String>,
    /// Tags they must have; the value `*` means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_tags")]
    pub tags: Option<BTreeMap<String, String>>,
    /// The id of one image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "ami-[0-9a-z]+"))]
    pub id: Option<String>,
    /// The image's name, which is not the tag `Name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The owner of the images: an account, `self`, `amazon` or `aws-marketplace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The name or ARN of an SSM parameter that holds the id of an image.
    #[serde(
        rename = "ssmParameter",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub ssm_parameter: Option<String>,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDeviceMapping {
    /// The name of the device, such as `/dev/xvda`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// The EBS volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::ebs()))]
    pub ebs: Option<BlockDevice>,
    /// Whether the kubelet's directory lies on it. At most one disk may say so.
    #[serde(default, skip_serializing_if = "is_false")]
    pub root_volume: bool,
}

/// An EBS volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDevice {
    /// Whether it goes with the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
    /// Whether it is encrypted. Not to be set with a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// Input/output operations a second: provisioned for gp3, io1 and io2, not supported by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<i64>,
    /// The KMS key it is encrypted with: id, alias or ARN.
    #[serde(rename = "kmsKeyID", default, skip_serializing_if = "Option::is_none")]
    pub kms_key_id: Option<String>,
    /// The snapshot it is made from.
    #[serde(
        rename = "snapshotID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub snapshot_id: Option<String>,
    /// Throughput of a gp3 volume in MiB a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<i64>,
    /// How fast it is filled from its snapshot, in MiB a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 300))]
    pub volume_initialization_rate: Option<i32>,
    /// Its size in Gi, G, Ti or T.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^((?:[1-9][0-9]{0,3}|[1-4][0-9]{4}|[5][0-8][0-9]{3}|59000)Gi|(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|[6][0-3][0-9]{3}|64000)G|([1-9]|[1-4][0-9]|5[0-8])Ti|([1-9]|[1-5][0-9]|6[0-4])T)$"))]
    pub volume_size: Option<String>,
    /// Its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"]))]
    pub volume_type: Option<String>,
}

impl BlockDevice {
    /// The size as a quantity, if it can be read.
    pub fn size(&self) -> Option<Quantity> {
        self.volume_size.as_deref()?.parse().ok()
    }
}

/// Value of [`NetworkInterface::interface_type`]: an ordinary interface.
pub const INTERFACE_TYPE_INTERFACE: &str = "interface";
/// Value of [`NetworkInterface::interface_type`]: an Elastic Fabric Adapter without IP.
pub const INTERFACE_TYPE_EFA_ONLY: &str = "efa-only";

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInterface {
    /// The network card it sits on.
    #[serde(default)]
    #[schemars(range(min = 0), extend("x-default" = 0))]
    pub network_card_index: i32,
    /// Its place on the card.
    #[serde(default)]
    #[schemars(range(min = 0), extend("x-default" = 0))]
    pub device_index: i32,
    /// `interface` or `efa-only`.
    #[schemars(extend("enum" = ["interface", "efa-only"]))]
    pub interface_type: String,
}

impl NetworkInterface {
    /// Whether it is an Elastic Fabric Adapter without IP.
    pub fn is_efa_only(&self) -> bool {
        self.interface_type == INTERFACE_TYPE_EFA_ONLY
    }
}

/// How machines see the instance metadata service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetadataOptions {
    /// Whether it can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["enabled", "disabled"], "x-default" = "enabled"))]
    pub http_endpoint: Option<String>,
    /// Whether it can be reached over IPv6.
    #[serde(
        rename = "httpProtocolIPv6",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("enum" = ["enabled", "disabled"], "x-default" = "disabled"))]
    pub http_protocol_ipv6: Option<String>,
    /// How many hops a token may travel. With 1 pods in their own network cannot reach the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64), extend("x-default" = 1))]
    pub http_put_response_hop_limit: Option<i64>,
    /// Whether a token is needed (IMDSv2 only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["required", "optional"], "x-default" = "required"))]
    pub http_tokens: Option<String>,
}

/// How long idle connections are tracked, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::connection_tracking()))]
pub struct ConnectionTracking {
    /// Established TCP connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 432_000))]
    pub tcp_established_timeout: Option<i32>,
    /// UDP flows with more than one request and reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 180))]
    pub udp_stream_timeout: Option<i32>,
    /// UDP flows with one request and reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 60))]
    pub udp_timeout: Option<i32>,
}

/// Features of the processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuOptions {
    /// Whether virtual machines can run on the machine. When enabled, only types that support it are launched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["enabled", "disabled"]))]
    pub nested_virtualization: Option<String>,
}

impl CpuOptions {
    /// Whether nested virtualization is asked for.
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
