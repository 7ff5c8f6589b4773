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
        /// The PodDisruptionBudget.
        pdb: String,
        /// Its rule, as `minAvailable 1`.
        rule: String,
        /// The number of pods it counts.
        pods: i64,
    },
    /// [`Check::PdbSelection`]: no pod.
    PdbSelectsNothing {
        /// The PodDisruptionBudget.
        pdb: String,
    },
    /// [`Check::PdbSelection`]: every pod.
    PdbSelectsEverything {
        /// The PodDisruptionBudget.
        pdb: String,
        /// The namespace.
        namespace: String,
    },
    /// [`Check::SeveralPdbs`].
    SeveralPdbs {
        /// The PodDisruptionBudgets.
        pdbs: Vec<String>,
        /// The number of pods that all of them select.
        pods: usize,
    },
    /// [`Check::PdbStatusStale`].
    PdbStatusStale {
        /// The PodDisruptionBudget.
        pdb: String,
        /// The message of Kubernetes' disruption controller, if there is one.
        message: String,
    },
    /// [`Check::DoNotDisruptWithoutEnd`]: pods.
    ProtectedPods {
        /// The workload.
        workload: String,
        /// The annotation.
        annotation: &'static str,
        /// The number of pods.
        pods: usize,
    },
    /// [`Check::DoNotDisruptWithoutEnd`]: a node.
    ProtectedNode {
        /// The node.
        node: String,
    },
    /// [`Check::BarePods`].
    BarePods {
        /// The namespace.
        namespace: String,
        /// The number of pods.
        pods: usize,
    },
    /// [`Check::StuckTerminating`]: pods.
    StuckPods {
        /// The namespace.
        namespace: String,
        /// The number of pods.
        pods: usize,
        /// Minutes since the oldest should have been gone.
        minutes: i64,
    },
    /// [`Check::StuckTerminating`]: a node.
    StuckNode {
        /// The node.
        node: String,
        /// Minutes since its deletion was requested.
        minutes: i64,
        /// Its finalizers.
        finalizers: Vec<String>,
        /// Pods that are still on it and would have to be moved.
        pods: usize,
    },
    /// [`Check::ZoneLockedVolume`]: no NodePool launches nodes in the zone.
    ZoneGone {
        /// The workload.
        workload: String,
        /// The volumes' zones.
        zones: Vec<String>,
        /// The zones of the NodePools.
        offered: Vec<String>,
    },
    /// [`Check::ZoneLockedVolume`]: the NodePools have one zone.
    OneZoneLeft {
        /// The zone.
        zone: String,
        /// The number of workloads with volumes there.
        workloads: usize,
    },
    /// [`Check::LocalVolume`].
    LocalVolume {
        /// The workload.
        workload: String,
        /// The volumes.
        volumes: Vec<String>,
    },
    /// [`Check::BudgetNeverOpens`].
    BudgetNeverOpens {
        /// The NodePool.
        node_pool: String,
        /// The reasons for which it never allows a disruption.
        reasons: Vec<String>,
        /// Days that were looked ahead.
        days: i64,
    },
    /// [`Check::ContradictoryRequirements`].
    ContradictoryRequirements {
        /// The NodePool.
        node_pool: String,
        /// The key.
        key: String,
        /// The requirements on it.
        requirements: Vec<String>,
    },
    /// [`Check::NoInstanceTypes`].
    NoInstanceTypes {
        /// The NodePool.
        node_pool: String,
        /// The number of instance types of the provider.
        offered: usize,
        /// The provider's error, if it failed.
        error: String,
    },
    /// [`Check::LimitNearlyReached`].
    LimitNearlyReached {
        /// The NodePool.
        node_pool: String,
        /// The resource.
        resource: String,
        /// The capacity of its nodes.
        used: String,
        /// The limit.
        limit: String,
        /// Whether nothing is left.
        is_reached: bool,
    },
    /// [`Check::OverlappingNodePools`].
    OverlappingNodePools {
        /// The NodePools, in the order in which they are tried.
        node_pools: Vec<String>,
        /// Their weight.
        weight: i32,
    },
    /// [`Check::MinValuesUnreachable`].
    MinValuesUnreachable {
        /// The NodePool.
        node_pool: String,
        /// The key.
        key: String,
        /// The required number of values.
        min_values: u32,
        /// The number of values that its instance types have.
        available: usize,
    },
    /// [`Check::ConsolidationNever`].
    ConsolidationNever {
        /// The NodePool.
        node_pool: String,
    },
    /// [`Check::ExpireAfterShort`].
    ExpireAfterShort {
        /// The NodePool.
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
        /// The NodePool.
        node_pool: String,
        /// Its smallest instance type.
        instance_type: String,
        /// The resource.
        resource: String,
        /// The part of it that DaemonSets request, in percent.
        percent: i64,
        /// The DaemonSets.
        daemon_sets: Vec<String>,
    },
    /// [`Check::NoMemoryLimit`].
    NoMemoryLimit {
        /// The namespace.
        namespace: String,
        /// The number of workloads.
        workloads: usize,
        /// The number of their pods.
        pods: usize,
    },
    /// [`Check::NodeClassNotReady`].
    NodeClassNotReady {
        /// The NodePool.
        node_pool: String,
        /// Kind and name of the NodeClass.
        node_class: String,
        /// The message of the condition.
        message: String,
    },
    /// [`Check::SubnetAddressesLow`].
    SubnetAddressesLow {
        /// The NodeClass.
        node_class: String,
        /// The zone.
        zone: String,
        /// The subnet of the zone with the most free addresses, which the next launch uses.
        subnet: String,
        /// Its free addresses.
        free: u32,
        /// The smallest instance type that NodePools of the NodeClass launch in the zone.
        instance_type: String,
        /// The number of pods on it, each with an address.
        pods: i64,
    },
    /// [`Check::PermissionMissing`].
    PermissionMissing {
        /// The verb.
        verb: String,
        /// The resource, with its group.
        resource: String,
    },
    /// [`Check::CrdMissing`].
    CrdMissing {
        /// The feature gate.
        gate: String,
        /// The name of the CustomResourceDefinition.
        crd: String,
    },
    /// [`Check::UnreadableKnob`].
    UnreadableKnob {
        /// The object.
        object: String,
        /// The annotation.
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
    /// Returns the check.
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
