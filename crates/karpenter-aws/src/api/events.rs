//! Reasons of the Kubernetes Events of the AWS provider. Users alert on them, so they never change.
//!
//! UPSTREAM: pkg/cloudprovider/events, pkg/controllers/interruption/events, pkg/controllers/nodeclass

/// On a NodePool or NodeClaim: its EC2NodeClass does not exist.
pub const FAILED_RESOLVING_NODE_CLASS: &str = "FailedResolvingNodeClass";
/// On an EC2NodeClass: its deletion waits for its NodeClaims.
pub const WAITING_ON_NODE_CLAIM_TERMINATION: &str = "WaitingOnNodeClaimTermination";
/// On a NodeClaim: the service-linked role for spot instances does not exist and may not be created.
pub const SPOT_SERVICE_LINKED_ROLE_CREATION_FAILURE: &str = "SpotServiceLinkedRoleCreationFailure";
/// On a NodeClaim and its Node: EC2 reclaims the spot instance in two minutes.
pub const SPOT_INTERRUPTED: &str = "SpotInterrupted";
/// On a NodeClaim and its Node: the spot instance is at elevated risk of interruption.
pub const SPOT_REBALANCE_RECOMMENDATION: &str = "SpotRebalanceRecommendation";
/// On a NodeClaim and its Node: EC2 reclaims an instance of an interruptible capacity reservation.
pub const CAPACITY_RESERVATION_INSTANCE_INTERRUPTED: &str =
    "CapacityReservationInstanceInterrupted";
/// On a NodeClaim and its Node: the instance is stopping or stopped.
pub const INSTANCE_STOPPING: &str = "InstanceStopping";
/// On a NodeClaim and its Node: the instance is shutting down or terminated.
pub const INSTANCE_TERMINATING: &str = "InstanceTerminating";
/// On a NodeClaim and its Node: a status check fails, or AWS has scheduled a change of the instance.
pub const INSTANCE_UNHEALTHY: &str = "InstanceUnhealthy";
/// On a NodeClaim and its Node: an interruption terminates them.
pub const TERMINATING_ON_INTERRUPTION: &str = "TerminatingOnInterruption";
/// On a NodePool: a zone that it can use has an active zonal shift.
pub const ZONAL_SHIFT_ACTIVE: &str = "ZonalShiftActive";
/// On a NodePool: the zonal shift of a zone that it can use has ended.
pub const ZONAL_SHIFT_CLEARED: &str = "ZonalShiftCleared";
