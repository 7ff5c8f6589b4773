//! The content of launch templates, independent of EC2's API: equal templates have equal names.
//!
//! UPSTREAM: pkg/providers/amifamily/resolver.go

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::requirements::Requirements;
use karpenter_core::resources::PODS;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::labels::{annotations, resources};
use crate::api::{
    BlockDevice, BlockDeviceMapping, ConnectionTracking, EC2NodeClass, MetadataOptions,
    NetworkInterface, labels,
};
use crate::providers::image::{bottlerocket_version, default_devices, first_compatible};
use crate::providers::instance_type;
use crate::providers::placement_group::PlacementGroup;
use crate::user_data;
use crate::user_data::{
    Cluster, NodeSettings, NodeTaint, UserDataError, binds_instance_storage_by_default,
    kubelet_labels, kubelet_taints,
};

/// Prefix of the names of launch templates.
pub const NAME_PREFIX: &str = "karpenter.k8s.aws/";

/// The user's reserved resources for an instance type.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reserved {
    /// kube-reserved, by resource name.
    pub kube: BTreeMap<String, String>,
    /// system-reserved, by resource name.
    pub system: BTreeMap<String, String>,
}

impl Reserved {
    /// Returns what is reserved for this instance type; nothing if the type is not among the resolved ones.
    #[must_use]
    pub fn of(types: &instance_type::Resolved, name: &str) -> Self {
        types
            .get(name)
            .map_or_else(Self::default, |(_, kubelet)| Self {
                kube: kubelet.kube_reserved.clone(),
                system: kubelet.system_reserved.clone(),
            })
    }
}

/// The capacity reservation that a template launches into.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Target {
    /// ID of the capacity reservation.
    pub id: String,
    /// Whether it is a capacity block.
    pub block: bool,
    /// Whether it may be interrupted.
    pub interruptible: bool,
}

impl Target {
    /// Returns the reservation of a reserved offering; `None` for other offerings.
    #[must_use]
    pub fn of(offering: &Offering) -> Option<Self> {
        if offering.capacity_type() != Some(core_labels::CAPACITY_TYPE_RESERVED) {
            return None;
        }
        Some(Self {
            id: offering.single(labels::CAPACITY_RESERVATION_ID)?.to_owned(),
            block: offering.single(labels::CAPACITY_RESERVATION_TYPE) == Some("capacity-block"),
            interruptible: offering.single(labels::CAPACITY_RESERVATION_INTERRUPTIBLE)
                == Some("true"),
        })
    }
}

/// Network interfaces of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Network {
    /// The interfaces of the EC2NodeClass.
    Listed(Vec<NetworkInterface>),
    /// This number of Elastic Fabric Adapters with IP address.
    Efa(u32),
    /// One ordinary interface.
    Primary,
}

/// The content of a launch template.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Template {
    /// Name of the node class: equal templates of different classes are different.
    pub node_class: String,
    pub image_id: String,
    /// User data in base64.
    pub user_data: String,
    pub block_devices: Vec<BlockDeviceMapping>,
    pub instance_profile: String,
    pub detailed_monitoring: Option<bool>,
    /// Options of the instance metadata service.
    pub metadata: MetadataOptions,
    pub network: Network,
    /// IDs of the security groups of all interfaces.
    pub security_groups: BTreeSet<String>,
    /// Number of IP prefixes per interface.
    pub ip_prefix_count: Option<i32>,
    /// Whether a public IP address is associated; `None` leaves it to the subnet.
    pub public_ip: Option<bool>,
    /// Timeouts of connection tracking.
    pub connection_tracking: Option<ConnectionTracking>,
    /// Whether the cluster is an IPv6 cluster.
    pub ipv6: bool,
    /// Whether nested virtualization is enabled; `None` if the node class does not set it.
    pub nested_virtualization: Option<String>,
    /// Whether Nitro Enclaves are enabled.
    pub enclaves: bool,
    /// Tenancy: `default` or `dedicated`.
    pub tenancy: String,
    /// ID of the placement group, and the partition.
    pub placement: Option<(String, Option<u32>)>,
    pub spot: bool,
    /// `None` if capacity reservations are not mentioned; otherwise the reservation to target, if any.
    pub reservation: Option<Option<Target>>,
    /// Tags of the launch template and of the resources created with the instance.
    pub tags: BTreeMap<String, String>,
}

impl Template {
    /// Returns the name, which is a hash of the content.
    #[must_use]
    pub fn name(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        format!("{NAME_PREFIX}{}", fnv64(text.as_bytes()))
    }

    /// Returns the size of the user data before encoding, which EC2 limits.
    #[must_use]
    pub fn user_data_bytes(&self) -> usize {
        let padding = self.user_data.bytes().rev().take_while(|b| *b == b'=');
        (self.user_data.len() / 4 * 3).saturating_sub(padding.count())
    }
}

/// FNV-1a, 64 bits: stable across platforms and releases.
pub(crate) fn fnv64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Settings that all templates of a cluster share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Endpoint and certificate authority for nodes.
    pub cluster: Cluster,
    /// IP address of the cluster's DNS service.
    pub dns: Option<std::net::IpAddr>,
    pub region: String,
    /// The feature gate ReservedCapacity.
    pub reserved_capacity: bool,
}

/// The subject of one launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    pub class: &'a EC2NodeClass,
    /// The NodeClaim to launch an instance for.
    pub claim: &'a NodeClaim,
    /// Requirements of the NodeClaim.
    pub requirements: &'a Requirements,
    /// Capacity type: `spot`, `on-demand` or `reserved`.
    pub capacity_type: &'a str,
    /// Tenancy: `default` or `dedicated`.
    pub tenancy: &'a str,
    /// The node class's placement group.
    pub placement_group: Option<&'a PlacementGroup>,
    /// The required partition, if there is one.
    pub partition: Option<u32>,
    /// Tags of all created resources.
    pub tags: &'a BTreeMap<String, String>,
}

/// A template, and the instance types that are launched with it.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub template: Template,
    pub types: BTreeSet<String>,
}

/// Launch templates cannot be resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The node class has no instance profile yet.
    #[error("instance profile of EC2NodeClass `{0}` is not known yet")]
    NoInstanceProfile(String),
    /// The node class has no security groups.
    #[error("no security groups are present in the status")]
    NoSecurityGroups,
    /// None of the instance types can boot an AMI of the node class.
    #[error("no instance types satisfy requirements of amis {}", .0.join(", "))]
    NoImage(Vec<String>),
    /// The user data cannot be generated.
    #[error(transparent)]
    UserData(#[from] UserDataError),
}

/// Properties that the instance types of one template share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    image: String,
    efa: u32,
    pods: i64,
    reserved: Reserved,
    target: Option<Target>,
}

/// Returns the templates for a launch of any of `types`. `reserved_of` returns the user's reserved resources for an
/// instance type.
///
/// # Errors
/// If the node class lacks something, or its user data is invalid.
pub fn resolve(
    launch: &Launch<'_>,
    cluster: &ClusterSettings,
    types: &[InstanceType],
    reserved_of: impl Fn(&InstanceType) -> Reserved,
) -> Result<Vec<Resolved>, TemplateError> {
    let class = launch.class;
    let Some(profile) = class
        .status
        .instance_profile
        .as_deref()
        .filter(|p| !p.is_empty())
    else {
        let name = class.metadata.name.clone().unwrap_or_default();
        return Err(TemplateError::NoInstanceProfile(name));
    };
    if class.status.security_groups.is_empty() {
        return Err(TemplateError::NoSecurityGroups);
    }
    let asks_efa = launch
        .claim
        .spec
        .resources
        .requests
        .contains_key(resources::EFA);
    let mut groups: BTreeMap<Group, BTreeSet<String>> = BTreeMap::new();
    for t in types {
        let Some(ami) = first_compatible(&class.status.amis, &t.requirements) else {
            continue;
        };
        let efa = if asks_efa {
            u32::try_from(t.capacity.get(resources::EFA)).unwrap_or(0)
        } else {
            0
        };
        let group = Group {
            image: ami.id.clone(),
            efa,
            pods: t.capacity.get(PODS),
            reserved: reserved_of(t),
            target: None,
        };
        let targets: BTreeSet<Option<Target>> =
            if launch.capacity_type == core_labels::CAPACITY_TYPE_RESERVED {
                let available = t.offerings.iter().filter(|o| o.available);
                available.filter_map(Target::of).map(Some).collect()
            } else {
                [None].into()
            };
        for target in targets {
            let group = Group {
                target,
                ..group.clone()
            };
            groups.entry(group).or_default().insert(t.name.clone());
        }
    }
    if groups.is_empty() {
        let ids = class.status.amis.iter().map(|a| a.id.clone()).collect();
        return Err(TemplateError::NoImage(ids));
    }
    groups
        .into_iter()
        .map(|(group, types)| {
            let template = template(launch, cluster, profile, &group)?;
            Ok(Resolved { template, types })
        })
        .collect()
}

fn template(
    launch: &Launch<'_>,
    cluster: &ClusterSettings,
    profile: &str,
    group: &Group,
) -> Result<Template, TemplateError> {
    let class = launch.class;
    let spec = &class.spec;
    let family = class.ami_family();
    let settings = node_settings(launch, cluster, group);
    let data = user_data::generate(family, &settings)?;
    data.check_size()?;
    for sentence in &data.ignored {
        tracing::info!(
            logger = "launchtemplate",
            EC2NodeClass = class.metadata.name,
            "{sentence}"
        );
    }
    let devices = match spec.block_device_mappings.as_deref() {
        Some(listed) if !listed.is_empty() => listed.to_vec(),
        _ => default_devices(family)
            .iter()
            .map(|d| BlockDeviceMapping {
                device_name: Some(d.name.to_owned()),
                ebs: Some(BlockDevice {
                    encrypted: Some(true),
                    volume_type: Some("gp3".into()),
                    volume_size: Some(format!("{}Gi", d.gibibytes)),
                    ..BlockDevice::default()
                }),
                root_volume: false,
            })
            .collect(),
    };
    let network = match (class.network_interfaces(), group.efa) {
        ([], 0) => Network::Primary,
        ([], efa) => Network::Efa(efa),
        (listed, _) => Network::Listed(listed.to_vec()),
    };
    let ipv6 = cluster.dns.is_some_and(|ip| ip.is_ipv6());
    let mut metadata = spec.metadata_options.clone().unwrap_or(MetadataOptions {
        http_endpoint: Some("disabled".into()),
        http_protocol_ipv6: Some(if ipv6 { "enabled" } else { "disabled" }.into()),
        http_put_response_hop_limit: Some(2),
        http_tokens: Some("required".into()),
    });
    if lacks_ipv6_metadata(&cluster.region) {
        metadata.http_protocol_ipv6 = None;
    }
    Ok(Template {
        node_class: class.metadata.name.clone().unwrap_or_default(),
        image_id: group.image.clone(),
        user_data: data.encoded(),
        block_devices: devices,
        instance_profile: profile.to_owned(),
        detailed_monitoring: spec.detailed_monitoring,
        metadata,
        network,
        security_groups: class
            .status
            .security_groups
            .iter()
            .map(|g| g.id.clone())
            .collect(),
        ip_prefix_count: spec.ip_prefix_count.filter(|n| *n > 0),
        public_ip: spec.associate_public_ip_address,
        connection_tracking: spec.connection_tracking.clone(),
        ipv6,
        nested_virtualization: spec
            .cpu_options
            .as_ref()
            .and_then(|o| o.nested_virtualization.clone()),
        enclaves: launch
            .claim
            .spec
            .resources
            .requests
            .contains_key(resources::NITRO_SANDBOX),
        tenancy: launch.tenancy.to_owned(),
        placement: launch
            .placement_group
            .map(|g| (g.id.clone(), launch.partition)),
        spot: launch.capacity_type == core_labels::CAPACITY_TYPE_SPOT,
        reservation: cluster.reserved_capacity.then(|| group.target.clone()),
        tags: launch.tags.clone(),
    })
}

/// Regions whose EC2 does not support the IPv6 endpoint of the metadata service.
fn lacks_ipv6_metadata(region: &str) -> bool {
    matches!(
        region,
        "us-iso-east-1"
            | "us-iso-west-1"
            | "us-isob-east-1"
            | "us-isob-west-1"
            | "us-isof-south-1"
            | "us-isof-east-1"
    )
}

fn node_settings(launch: &Launch<'_>, cluster: &ClusterSettings, group: &Group) -> NodeSettings {
    let (class, claim) = (launch.class, launch.claim);
    let mut kubelet: Map<String, Value> = class.spec.kubelet.clone().unwrap_or_default();
    kubelet.insert("maxPods".into(), group.pods.into());
    for (key, values) in [
        ("kubeReserved", &group.reserved.kube),
        ("systemReserved", &group.reserved.system),
    ] {
        kubelet.remove(key);
        if !values.is_empty() {
            kubelet.insert(key.into(), json!(values));
        }
    }
    if let Some(dns) = cluster.dns {
        kubelet.entry("clusterDNS").or_insert_with(|| json!([dns]));
    }
    let taints = |list: &[k8s_openapi::api::core::v1::Taint]| -> Vec<NodeTaint> {
        list.iter()
            .map(|t| NodeTaint {
                key: t.key.clone(),
                value: t.value.clone().unwrap_or_default(),
                effect: t.effect.clone(),
            })
            .collect()
    };
    let own = claim.metadata.labels.iter().flatten();
    let mut node_labels: BTreeMap<&str, &str> =
        own.map(|(k, v)| (k.as_str(), v.as_str())).collect();
    // Labels of its reservation come with the registration: a node that outlives the reservation would get them again.
    node_labels.insert(core_labels::CAPACITY_TYPE, launch.capacity_type);
    let alias = class.alias();
    let images: Vec<(&str, &str)> = class
        .status
        .amis
        .iter()
        .filter_map(|a| Some((a.id.as_str(), a.name.as_deref()?)))
        .collect();
    let version = bottlerocket_version(alias.as_ref(), &class.spec.ami_selector_terms, &images);
    NodeSettings {
        cluster: cluster.cluster.clone(),
        labels: kubelet_labels(node_labels),
        taints: kubelet_taints(
            taints(&claim.spec.taints),
            taints(&claim.spec.startup_taints),
        ),
        kubelet,
        raid0: class.spec.instance_store_policy.as_deref() == Some("RAID0"),
        default_mounts: binds_instance_storage_by_default(version),
        custom: class.spec.user_data.clone(),
    }
}

/// Returns the annotations that a NodeClaim gets from its node class at launch.
#[must_use]
pub fn launch_annotations(class: &EC2NodeClass) -> BTreeMap<String, String> {
    let profile = class.status.instance_profile.as_deref();
    let pairs = [
        (
            annotations::NODE_CLASS_HASH,
            class.annotation(annotations::NODE_CLASS_HASH),
        ),
        (
            annotations::NODE_CLASS_HASH_VERSION,
            class.annotation(annotations::NODE_CLASS_HASH_VERSION),
        ),
        (annotations::INSTANCE_PROFILE_NAME, profile),
    ];
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.unwrap_or_default().to_owned()))
        .collect()
}
