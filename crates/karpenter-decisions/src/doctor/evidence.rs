//! What a check found, as parameters; the texts for it are in `sentences`.

use jiff::SignedDuration;
use karpenter_api::duration;
use serde::Serialize;

use super::check::{Check, Severity};

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum Evidence {
    /// [`Check::PdbImpossible`].
    PdbImpossible {
        pdb: String,
        /// Its rule, as `minAvailable 1`.
        rule: String,
        /// The number of pods it counts.
        pods: i64,
    },
    /// [`Check::PdbSelection`]: no pod.
    PdbSelectsNothing { pdb: String },
    /// [`Check::PdbSelection`]: every pod.
    PdbSelectsEverything { pdb: String, namespace: String },
    /// [`Check::SeveralPdbs`].
    SeveralPdbs {
        pdbs: Vec<String>,
        /// The number of pods that all of them select.
        pods: usize,
    },
    /// [`Check::PdbStatusStale`].
    PdbStatusStale {
        pdb: String,
        /// The message of Kubernetes' disruption controller, if there is one.
        message: String,
    },
    /// [`Check::DoNotDisruptWithoutEnd`]: pods.
    ProtectedPods {
        workload: String,
        annotation: &'static str,
        /// The number of pods.
        pods: usize,
    },
    /// [`Check::DoNotDisruptWithoutEnd`]: a node.
    ProtectedNode { node: String },
    /// [`Check::BarePods`].
    BarePods {
        namespace: String,
        /// The number of pods.
        pods: usize,
    },
    /// [`Check::StuckTerminating`]: pods.
    StuckPods {
        namespace: String,
        /// The number of pods.
        pods: usize,
        /// Minutes since the oldest should have been gone.
        minutes: i64,
    },
    /// [`Check::StuckTerminating`]: a node.
    StuckNode {
        node: String,
        /// Minutes since its deletion was requested.
        minutes: i64,
        finalizers: Vec<String>,
        /// Pods that are still on it and would have to be moved.
        pods: usize,
    },
    /// [`Check::ZoneLockedVolume`]: no NodePool launches nodes in the zone.
    ZoneGone {
        workload: String,
        zones: Vec<String>,
        /// The zones of the NodePools.
        offered: Vec<String>,
    },
    /// [`Check::ZoneLockedVolume`]: the NodePools have one zone.
    OneZoneLeft {
        zone: String,
        /// The number of workloads with volumes there.
        workloads: usize,
    },
    /// [`Check::LocalVolume`].
    LocalVolume {
        workload: String,
        volumes: Vec<String>,
    },
    /// [`Check::BudgetNeverOpens`].
    BudgetNeverOpens {
        node_pool: String,
        /// The reasons for which it never allows a disruption.
        reasons: Vec<String>,
        /// Days that were looked ahead.
        days: i64,
    },
    /// [`Check::ContradictoryRequirements`].
    ContradictoryRequirements {
        node_pool: String,
        key: String,
        /// The requirements on it.
        requirements: Vec<String>,
    },
    /// [`Check::NoInstanceTypes`].
    NoInstanceTypes {
        node_pool: String,
        /// The number of instance types of the provider.
        offered: usize,
        /// The provider's error, if it failed.
        error: String,
    },
    /// [`Check::LimitNearlyReached`].
    LimitNearlyReached {
        node_pool: String,
        resource: String,
        /// The capacity of its nodes.
        used: String,
        limit: String,
        /// Whether nothing is left.
        is_reached: bool,
    },
    /// [`Check::OverlappingNodePools`].
    OverlappingNodePools {
        /// The NodePools, in the order in which they are tried.
        node_pools: Vec<String>,
        weight: i32,
    },
    /// [`Check::MinValuesUnreachable`].
    MinValuesUnreachable {
        node_pool: String,
        key: String,
        /// The required number of values.
        min_values: u32,
        /// The number of values that its instance types have.
        available: usize,
    },
    /// [`Check::ConsolidationNever`].
    ConsolidationNever { node_pool: String },
    /// [`Check::ExpireAfterShort`].
    ExpireAfterShort {
        node_pool: String,
        /// `expireAfter`.
        expire_after: String,
        /// The time that it should exceed: ten starts of a node, or the termination grace period.
        than: String,
        /// What that time is.
        of: &'static str,
    },
    /// [`Check::DaemonSetOverhead`].
    DaemonSetOverhead {
        node_pool: String,
        /// Its smallest instance type.
        instance_type: String,
        resource: String,
        /// The part of it that DaemonSets request, in percent.
        percent: i64,
        daemon_sets: Vec<String>,
    },
    /// [`Check::NoMemoryLimit`].
    NoMemoryLimit {
        namespace: String,
        /// The number of workloads.
        workloads: usize,
        /// The number of their pods.
        pods: usize,
    },
    /// [`Check::NodeClassNotReady`].
    NodeClassNotReady {
        node_pool: String,
        /// Kind and name of the NodeClass.
        node_class: String,
        /// The message of the condition.
        message: String,
    },
    /// [`Check::SubnetAddressesLow`].
    SubnetAddressesLow {
        node_class: String,
        zone: String,
        /// The subnet of the zone with the most free addresses, which the next launch uses.
        subnet: String,
        free: u32,
        /// The smallest instance type that NodePools of the NodeClass launch in the zone.
        instance_type: String,
        /// The number of pods on it, each with an address.
        pods: i64,
    },
    /// [`Check::PermissionMissing`].
    PermissionMissing {
        verb: String,
        /// The resource, with its group.
        resource: String,
    },
    /// [`Check::CrdMissing`].
    CrdMissing {
        gate: String,
        /// The name of the CustomResourceDefinition.
        crd: String,
    },
    /// [`Check::UnreadableKnob`].
    UnreadableKnob {
        object: String,
        annotation: String,
        /// The beginning of its value.
        value: String,
        /// Why it cannot be read.
        why: String,
    },
}

/// Returns a duration as Kubernetes writes it.
pub(super) fn text(duration: SignedDuration) -> String {
    duration::format(duration)
}

impl Evidence {
    pub fn check(&self) -> Check {
        match self {
            Self::PdbImpossible { .. } => Check::PdbImpossible,
            Self::PdbSelectsNothing { .. } | Self::PdbSelectsEverything { .. } => {
                Check::PdbSelection
            }
            Self::SeveralPdbs { .. } => Check::SeveralPdbs,
            Self::PdbStatusStale { .. } => Check::PdbStatusStale,
            Self::ProtectedPods { .. } | Self::ProtectedNode { .. } => {
                Check::DoNotDisruptWithoutEnd
            }
            Self::BarePods { .. } => Check::BarePods,
            Self::StuckPods { .. } | Self::StuckNode { .. } => Check::StuckTerminating,
            Self::ZoneGone { .. } | Self::OneZoneLeft { .. } => Check::ZoneLockedVolume,
            Self::LocalVolume { .. } => Check::LocalVolume,
            Self::BudgetNeverOpens { .. } => Check::BudgetNeverOpens,
            Self::ContradictoryRequirements { .. } => Check::ContradictoryRequirements,
            Self::NoInstanceTypes { .. } => Check::NoInstanceTypes,
            Self::LimitNearlyReached { .. } => Check::LimitNearlyReached,
            Self::OverlappingNodePools { .. } => Check::OverlappingNodePools,
            Self::MinValuesUnreachable { .. } => Check::MinValuesUnreachable,
            Self::ConsolidationNever { .. } => Check::ConsolidationNever,
            Self::ExpireAfterShort { .. } => Check::ExpireAfterShort,
            Self::DaemonSetOverhead { .. } => Check::DaemonSetOverhead,
            Self::NoMemoryLimit { .. } => Check::NoMemoryLimit,
            Self::NodeClassNotReady { .. } => Check::NodeClassNotReady,
            Self::SubnetAddressesLow { .. } => Check::SubnetAddressesLow,
            Self::PermissionMissing { .. } => Check::PermissionMissing,
            Self::CrdMissing { .. } => Check::CrdMissing,
            Self::UnreadableKnob { .. } => Check::UnreadableKnob,
        }
    }

    /// Returns how bad it is; `keeps_nodes` says whether it keeps any node.
    pub(super) fn severity(&self, keeps_nodes: bool) -> Severity {
        let blocks = match self {
            Self::PdbImpossible { .. }
            | Self::SeveralPdbs { .. }
            | Self::PdbStatusStale { .. }
            | Self::ProtectedPods { .. }
            | Self::ProtectedNode { .. }
            | Self::StuckNode { .. }
            | Self::ZoneGone { .. } => keeps_nodes,
            Self::BudgetNeverOpens { reasons, .. } => reasons.iter().any(|it| it != "Drifted"),
            Self::LimitNearlyReached { is_reached, .. } => *is_reached,
            Self::SubnetAddressesLow { free, .. } => *free == 0,
            Self::ContradictoryRequirements { .. }
            | Self::NoInstanceTypes { .. }
            | Self::MinValuesUnreachable { .. }
            | Self::NodeClassNotReady { .. }
            | Self::PermissionMissing { .. } => true,
            _ => false,
        };
        if blocks {
            Severity::Blocks
        } else {
            Severity::Warns
        }
    }
}
