//! The lines of a bundle.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use karpenter_core::cluster::{ClusterConfig, Marks};
use karpenter_core::disruption::Surroundings;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::{Owner, Pod, PodKey, Shape};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::Policy;
use serde::{Deserialize, Serialize};

use super::decision::Decision;
use super::kinds::{Kind, Object};
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
    Objects(Object),
    Types(Indexed<InstanceType>),
    Catalogue(PoolTypes),
    DaemonSets(Box<DaemonSetRow>),
    Marks(Marks),
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

/// An object that is no longer there. The namespace of a cluster-scoped one is empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Removed {
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Removed {
    pub(super) fn line(kind: Kind, namespace: &str, name: &str) -> Line {
        Line::Removed(Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
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
