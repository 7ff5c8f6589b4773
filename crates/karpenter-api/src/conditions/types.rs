//! Condition types of NodePool, NodeClaim and NodeOverlay.

/// The root of every condition set.
pub const READY: &str = "Ready";
/// NodePool, NodeOverlay: the checks beyond the schema pass.
pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
/// NodePool: its NodeClass exists and is ready.
pub const NODE_CLASS_READY: &str = "NodeClassReady";
/// NodePool: recent nodes have registered. Not part of Ready.
pub const NODE_REGISTRATION_HEALTHY: &str = "NodeRegistrationHealthy";
/// NodeClaim: the provider has launched the instance.
pub const LAUNCHED: &str = "Launched";
/// NodeClaim: the node has joined the cluster.
pub const REGISTERED: &str = "Registered";
/// NodeClaim: the node is ready for pods.
pub const INITIALIZED: &str = "Initialized";
/// NodeClaim: no pod event has occurred on the node for consolidateAfter.
pub const CONSOLIDATABLE: &str = "Consolidatable";
/// NodeClaim: it no longer matches its NodePool or NodeClass.
pub const DRIFTED: &str = "Drifted";
/// NodeClaim: it is being disrupted voluntarily.
pub const DISRUPTION_REASON: &str = "DisruptionReason";
/// NodeClaim: the node has the resources that the provider reported.
pub const CONSISTENT_STATE_FOUND: &str = "ConsistentStateFound";
/// NodeClaim: its node is drained of pods.
pub const DRAINED: &str = "Drained";
/// NodeClaim: its volumes are detached.
pub const VOLUMES_DETACHED: &str = "VolumesDetached";
/// NodeClaim: the provider has accepted the deletion of the instance.
pub const INSTANCE_TERMINATING: &str = "InstanceTerminating";
/// On a NodePool, False if pods cannot be nominated to nodes. Not upstream's.
pub const POD_NOMINATION: &str = "PodNomination";
