//! The ids of checks.

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Severity {
    /// A node cannot be removed or replaced, or none can be launched.
    Blocks,
    /// It may become a problem, or a setting does not do what its author expects.
    Warns,
}

macro_rules! checks {
    ($($(#[$doc:meta])* $check:ident),+ $(,)?) => {
        /// A check of the doctor. The name of a variant is its id, which does not change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Check {
            $($(#[$doc])* $check,)+
        }

        impl Check {
            pub const ALL: [Self; [$(Self::$check),+].len()] = [$(Self::$check),+];

            pub fn id(self) -> &'static str {
                match self {
                    $(Self::$check => stringify!($check),)+
                }
            }
        }
    };
}

checks! {
    /// A PodDisruptionBudget can never allow an eviction.
    PdbImpossible,
    /// A PodDisruptionBudget selects no pod, or every pod of its namespace.
    PdbSelection,
    /// Several PodDisruptionBudgets select the same pods: the API server rejects every eviction.
    SeveralPdbs,
    /// The status of a PodDisruptionBudget does not follow its specification.
    PdbStatusStale,
    /// Pods or nodes are protected from disruption without an end.
    DoNotDisruptWithoutEnd,
    /// Pods have no controller that would create them again.
    BarePods,
    /// Pods or nodes have been terminating for more than 15 minutes.
    StuckTerminating,
    /// Volumes are in a zone in which no NodePool launches nodes, or NodePools have one zone only.
    ZoneLockedVolume,
    /// Volumes are on the disk of a node.
    LocalVolume,
    /// The budgets of a NodePool never allow a disruption for some reason.
    BudgetNeverOpens,
    /// The requirements of a NodePool exclude each other.
    ContradictoryRequirements,
    /// A NodePool has no instance type to launch.
    NoInstanceTypes,
    /// A NodePool has used 95 % of a limit.
    LimitNearlyReached,
    /// NodePools of equal weight accept the same pods.
    OverlappingNodePools,
    /// A NodePool requires more distinct values than there are.
    MinValuesUnreachable,
    /// A NodePool never consolidates.
    ConsolidationNever,
    /// Nodes of a NodePool expire so soon that they spend their lives restarting.
    ExpireAfterShort,
    /// DaemonSets use more than 30 % of the smallest instance type of a NodePool.
    DaemonSetOverhead,
    /// Pods have no memory limit.
    NoMemoryLimit,
    /// The NodeClass of a NodePool is not ready.
    NodeClassNotReady,
    /// The subnets of a NodeClass have few free addresses in a zone.
    SubnetAddressesLow,
    /// Karpenter lacks a permission.
    PermissionMissing,
    /// A feature gate is on whose resource is not installed.
    CrdMissing,
    /// An annotation that Karpenter reads has a value that it cannot read.
    UnreadableKnob,
}
