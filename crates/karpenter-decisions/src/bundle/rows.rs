//! The lines of a bundle.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_core::cluster::{
    ClusterConfig, ControllerSelector, Labels, Marks, StorageClass, Volume, VolumeAttachment,
    VolumeClaim,
};
use karpenter_core::disruption::Surroundings;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::{Owner, Pod, PodKey, Shape};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::Policy;
use serde::{Deserialize, Serialize};

use super::decision::Decision;
use super::settings::Redaction;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) kind: ManifestKind,
    pub(super) schema: u32,
    /// The version of the engine that wrote it.
    pub(super) engine: String,
    pub(super) at: Timestamp,
    pub(super) provider: String,
    pub(super) epoch: u64,
    pub(super) redact: Redaction,
    pub(super) config: ClusterConfig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ManifestKind {
    Manifest,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Trailer {
    pub(super) kind: TrailerKind,
    /// The number of lines before.
    pub(super) lines: u64,
    /// The digest of all bytes before.
    pub(super) blake3: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TrailerKind {
    Trailer,
}

/// A line between manifest and trailer. Each adds to the state that the lines before have led to, or is decided on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "s", content = "v", rename_all = "lowercase")]
#[expect(clippy::large_enum_variant, reason = "one line is in memory at a time")]
pub(super) enum Line {
    Shapes(Indexed<Shape>),
    Limits(Indexed<Resources>),
    Owners(Indexed<Vec<Owner>>),
    Pods(Box<PodRow>),
    Nodes(Box<corev1::Node>),
    NodeClaims(Box<NodeClaim>),
    NodePools(Box<NodePool>),
    Overlays(Box<NodeOverlay>),
    Types(Indexed<InstanceType>),
    Catalogue(PoolTypes),
    DaemonSets(Box<DaemonSetRow>),
    Pdbs(Box<PodDisruptionBudget>),
    Selectors(Selector),
    Storage(Storage),
    Devices(Box<Devices>),
    Marks(MarksRow),
    Removed(Removed),
    /// A pass that was recorded on the state so far.
    Passes(Box<PassRow>),
    /// The settings of the passes on the last state.
    Requests(Box<Request>),
    Decisions(Decision),
}

/// A value that other lines refer to by its number.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Indexed<T> {
    pub(super) i: u32,
    pub(super) v: T,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A pod. Its shape, limits and owners are numbers of lines that other pods share.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PodRow {
    pub(super) i: u32,
    pub(super) limits: u32,
    pub(super) owners: u32,
    pub(super) pod: Pod,
}

/// The instance types of a NodePool, by their numbers, or the provider's error.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PoolTypes {
    pub(super) pool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) types: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DaemonSetRow {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) template: PodRow,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) template_has_affinity: bool,
    /// Its newest pod, which need not exist any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) newest: Option<PodRow>,
}

/// What default spread constraints and namespace selectors are evaluated on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub(super) enum Selector {
    Service {
        namespace: String,
        name: String,
        selector: Option<Labels>,
    },
    Controller {
        kind: String,
        namespace: String,
        name: String,
        selector: ControllerSelector,
    },
    Namespace {
        name: String,
        labels: Labels,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Storage {
    Claim(VolumeClaim),
    Volume(Volume),
    Class(StorageClass),
    AttachLimits {
        node: String,
        drivers: BTreeMap<String, u32>,
    },
    Attachment(VolumeAttachment),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Devices {
    Slice(ResourceSlice),
    Claim(ResourceClaim),
    Class(DeviceClass),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct MarksRow(#[serde(with = "MarksFields")] pub(super) Marks);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Marks", rename_all = "camelCase", deny_unknown_fields)]
struct MarksFields {
    #[serde(default, skip_serializing_if = "is_false")]
    claim: bool,
    name: String,
    #[serde(default, skip_serializing_if = "is_false")]
    for_deletion: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nominated_until: Option<Timestamp>,
}

/// The settings of the passes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Request {
    pub(super) policy: Policy,
    /// The policy of disruption, where it differs.
    pub(super) disruption: Policy,
    pub(super) surroundings: Surroundings,
    pub(super) spot_to_spot: bool,
    pub(super) max_replacements: usize,
    pub(super) max_commands: usize,
    pub(super) unseen_pools: BTreeSet<String>,
    pub(super) cooling_down_pools: BTreeSet<String>,
    pub(super) static_headroom: BTreeMap<String, u32>,
    /// Pods of capacity buffers.
    pub(super) buffer_pods: Vec<PodRow>,
    pub(super) gates: BTreeMap<String, bool>,
    pub(super) options: BTreeMap<String, String>,
}

/// An object that is no longer there, by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Removed {
    Pod(String, String),
    Node(String),
    NodeClaim(String),
    NodePool(String),
    NodeOverlay(String),
    InstanceTypes(String),
    DaemonSet(String, String),
    Pdb(String, String),
    Service(String, String),
    Controller(String, String, String),
    Namespace(String),
    VolumeClaim(String, String),
    Volume(String),
    StorageClass(String),
    AttachLimits(String),
    VolumeAttachment(String),
    ResourceSlice(String),
    ResourceClaim(String, String),
    DeviceClass(String),
}

/// A pass of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PassRow {
    pub(super) decision: Decision,
    pub(super) request: Request,
    /// Pods with the nodes that they were nominated to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) nominated: Vec<(PodKey, String)>,
    /// Whether the pass looked for consolidations.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) consolidates: bool,
}
