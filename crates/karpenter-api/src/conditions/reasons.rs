//! Condition reasons. A condition set True without a reason has its type as reason.

/// Unknown: no controller has reconciled the condition yet.
pub const AWAITING_RECONCILIATION: &str = "AwaitingReconciliation";
/// Ready=False: a dependent is False.
pub const UNHEALTHY_DEPENDENTS: &str = "UnhealthyDependents";
/// Ready=Unknown: no dependent is False, and not all are True.
pub const RECONCILING_DEPENDENTS: &str = "ReconcilingDependents";

/// NodePool ValidationSucceeded=False.
pub const NODE_POOL_VALIDATION_FAILED: &str = "NodePoolValidationFailed";
/// NodePool NodeClassReady=False: the NodeClass does not exist.
pub const NODE_CLASS_NOT_FOUND: &str = "NodeClassNotFound";
/// NodePool NodeClassReady=False: the NodeClass is being deleted.
pub const NODE_CLASS_TERMINATING: &str = "NodeClassTerminating";
/// NodePool NodeClassReady=False: the NodeClass has no Ready condition.
pub const NODE_CLASS_READINESS_UNKNOWN: &str = "NodeClassReadinessUnknown";
/// NodePool NodeRegistrationHealthy=False.
pub const REGISTRATION_FAILED: &str = "RegistrationFailed";

/// NodeClaim Launched=Unknown.
pub const LAUNCH_FAILED: &str = "LaunchFailed";
/// NodeClaim Registered or Initialized=Unknown.
pub const NODE_NOT_FOUND: &str = "NodeNotFound";
/// NodeClaim Registered=Unknown: the provider's hooks have not finished.
pub const REGISTRATION_HOOK_PENDING: &str = "RegistrationHookPending";
/// NodeClaim Registered=False.
pub const MULTIPLE_NODES_FOUND: &str = "MultipleNodesFound";
/// NodeClaim Initialized=Unknown.
pub const NODE_NOT_READY: &str = "NodeNotReady";
/// NodeClaim Initialized=Unknown.
pub const STARTUP_TAINTS_EXIST: &str = "StartupTaintsExist";
/// NodeClaim Initialized=Unknown.
pub const KNOWN_EPHEMERAL_TAINTS_EXIST: &str = "KnownEphemeralTaintsExist";
/// NodeClaim Initialized=Unknown: the node has not reported a requested resource yet.
pub const RESOURCE_NOT_REGISTERED: &str = "ResourceNotRegistered";
/// NodeClaim Initialized=Unknown: a requested DRA driver has published no devices.
pub const DRA_DRIVER_POOLS_NOT_PUBLISHED: &str = "DRADriverPoolsNotPublished";
/// NodeClaim Drifted=True: the static hash differs.
pub const NODE_POOL_DRIFTED: &str = "NodePoolDrifted";
/// NodeClaim Drifted=True: its labels no longer satisfy the NodePool's requirements.
pub const REQUIREMENTS_DRIFTED: &str = "RequirementsDrifted";
/// NodeClaim Drifted=True: its instance type is no longer offered.
pub const INSTANCE_TYPE_NOT_FOUND: &str = "InstanceTypeNotFound";
/// NodeClaim ConsistentStateFound=False.
pub const CONSISTENCY_CHECK_FAILED: &str = "ConsistencyCheckFailed";
/// NodeClaim Drained=Unknown.
pub const DRAINING: &str = "Draining";
/// NodeClaim VolumesDetached=Unknown.
pub const AWAITING_VOLUME_DETACHMENT: &str = "AwaitingVolumeDetachment";
/// NodeClaim VolumesDetached=False.
pub const TERMINATION_GRACE_PERIOD_ELAPSED: &str = "TerminationGracePeriodElapsed";

/// NodeOverlay ValidationSucceeded=False: the overlay itself is invalid.
pub const RUNTIME_VALIDATION: &str = "RuntimeValidation";
/// NodeOverlay ValidationSucceeded=False: another overlay of the same weight conflicts with it.
pub const CONFLICT: &str = "Conflict";
/// NodePool PodNomination=False: the permission is missing.
pub const FORBIDDEN: &str = "Forbidden";
