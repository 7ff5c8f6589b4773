//! Why a pod does not fit on a planned node.

use crate::dra::Failure;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::ids::GroupId;
use crate::schedule::compile::pools::template::UnmetMinValues;

/// Why a pod does not fit on a planned node. Ids only: the report turns them into values for the pods that end unplaced.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// The NodePool's limit on `nodes` is reached.
    NodeLimit,
    /// No instance type is within the NodePool's limits.
    Limits,
    /// A taint is not tolerated.
    Taints,
    /// The requirements are incompatible.
    Requirements,
    /// A host port is in use.
    HostPorts,
    /// The requirements of the volumes are incompatible with the others.
    Volumes,
    /// No row that is left meets these requirements and has room.
    InstanceTypes(SetId),
    /// The rows that are left have fewer different values than minValues requires.
    MinValues(UnmetMinValues),
    /// A topology constraint leaves no domain for the pod, wherever it is placed.
    NoDomain(GroupId),
    /// A topology constraint leaves only domains, or no others, in which the pod does not fit.
    Topology(GroupId),
    /// No devices can be allocated.
    Devices(Box<Failure>),
    /// Only reserved capacity is compatible, and it is used up.
    Reserved,
}

impl Refusal {
    /// Reports whether the planned node, or a new one of the NodePool, refuses the pod in the rest of the pass too. Domains,
    /// devices and reservations can become available again.
    pub(crate) fn is_permanent(&self) -> bool {
        !matches!(
            self,
            Self::NoDomain(_) | Self::Topology(_) | Self::Devices(_) | Self::Reserved
        )
    }
}
