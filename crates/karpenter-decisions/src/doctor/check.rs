//! The ids of checks, and what the operator has to look for so that they can run.

use karpenter_core::provider::SubnetAddresses;
use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Severity {
    /// A node cannot be removed or replaced, or none can be launched.
    Blocks,
    /// It may become a problem, or a setting does not do what its author expects.
    Warns,
}

impl Severity {
    pub(super) fn blocks_if(blocks: bool) -> Self {
        match blocks {
            true => Self::Blocks,
            false => Self::Warns,
        }
    }
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
    PermissionMissing,
    /// A feature gate is on whose resource is not installed.
    CrdMissing,
    /// An annotation that Karpenter reads has a value that it cannot read.
    UnreadableKnob,
}

/// What is known about the installation; `None` where it was not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    pub missing_permissions: Option<Vec<MissingPermission>>,
    /// Resources of enabled feature gates that are not installed.
    pub missing_kinds: Option<Vec<MissingKind>>,
    /// The free addresses of the subnets of NodeClasses.
    pub subnets: Option<Vec<SubnetAddresses>>,
}

/// A permission that Karpenter lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingPermission {
    pub verb: String,
    /// The resource, with its group: `pods`, `nodeclaims.karpenter.sh`, `pods/eviction`.
    pub resource: String,
}

/// A resource that is not installed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingKind {
    /// The feature gate that needs it.
    pub gate: String,
    /// The name of its CustomResourceDefinition.
    pub crd: String,
}

impl Installation {
    /// Returns the number of checks that can be made.
    pub fn checks(&self) -> usize {
        let known = Check::ALL.into_iter();
        known.filter(|check| self.is_known_for(*check)).count()
    }

    /// Reports whether a check can be made.
    pub(super) fn is_known_for(&self, check: Check) -> bool {
        match check {
            Check::PermissionMissing => self.missing_permissions.is_some(),
            Check::CrdMissing => self.missing_kinds.is_some(),
            Check::SubnetAddressesLow => self.subnets.is_some(),
            _ => true,
        }
    }
}
