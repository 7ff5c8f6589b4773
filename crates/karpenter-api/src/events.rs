//! Reasons of the Kubernetes Events Karpenter publishes. Users alert on them, so they never change.
//!
//! UPSTREAM: pkg/events/reason.go

/// On a Pod: it is planned on this node or NodeClaim.
pub const NOMINATED: &str = "Nominated";
/// On a Pod: no existing or new node fits it.
pub const FAILED_SCHEDULING: &str = "FailedScheduling";
/// On a NodePool: no instance type meets its requirements.
pub const NO_COMPATIBLE_INSTANCE_TYPES: &str = "NoCompatibleInstanceTypes";
/// On a replacement NodeClaim: it is being launched.
pub const DISRUPTION_LAUNCHING: &str = "DisruptionLaunching";
/// On a replacement NodeClaim: the disruption waits for it.
pub const DISRUPTION_WAITING_READINESS: &str = "DisruptionWaitingReadiness";
/// On a Node and its NodeClaim: they are being disrupted.
pub const DISRUPTION_TERMINATING: &str = "DisruptionTerminating";
/// On a Node, NodeClaim or NodePool: disruption is not possible now.
pub const DISRUPTION_BLOCKED: &str = "DisruptionBlocked";
/// On a Node and its NodeClaim: consolidation cannot delete or replace the node.
pub const UNCONSOLIDATABLE: &str = "Unconsolidatable";
/// On a Node and its NodeClaim: consolidation found a command for the node.
pub const CONSOLIDATION_CANDIDATE: &str = "ConsolidationCandidate";
/// On a Node and its NodeClaim: a consolidation command was rejected.
pub const CONSOLIDATION_REJECTED: &str = "ConsolidationRejected";
/// On a Node and its NodeClaim, or the NodePool: a consolidation command was approved.
pub const CONSOLIDATION_APPROVED: &str = "ConsolidationApproved";
/// On a Pod: it was evicted.
pub const EVICTED: &str = "Evicted";
/// On a Pod: it was deleted ahead of the termination of its node.
pub const DISRUPTED: &str = "Disrupted";
/// On a Node: a pod cannot be drained.
pub const FAILED_DRAINING: &str = "FailedDraining";
/// On a Node: volumes are still attached.
pub const AWAITING_VOLUME_DETACHMENT: &str = "AwaitingVolumeDetachment";
/// On a Node and its NodeClaim: every pod will be deleted by a deadline.
pub const TERMINATION_GRACE_PERIOD_EXPIRING: &str = "TerminationGracePeriodExpiring";
/// On a Node: too many nodes are unhealthy for repair.
pub const NODE_REPAIR_BLOCKED: &str = "NodeRepairBlocked";
/// On a NodeClaim: the node is smaller than its instance type.
pub const FAILED_CONSISTENCY_CHECK: &str = "FailedConsistencyCheck";
/// On a NodeClaim: the provider has no capacity for it.
pub const INSUFFICIENT_CAPACITY_ERROR: &str = "InsufficientCapacityError";
/// On a NodeClaim: the kubelet registered without Karpenter's taint.
pub const UNREGISTERED_TAINT_MISSING: &str = "UnregisteredTaintMissing";
/// On a Pod: its do-not-disrupt annotation is neither `true` nor a positive duration.
pub const INVALID_DO_NOT_DISRUPT_ANNOTATION: &str = "InvalidDoNotDisruptAnnotation";
/// On a Pod: do-not-disrupt protects it until a time.
pub const DO_NOT_DISRUPT_UNTIL: &str = "DoNotDisruptUntil";
/// On a Pod: its do-not-disrupt duration has passed.
pub const DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED: &str = "DoNotDisruptGracePeriodElapsed";
/// On any object: a finalizer was removed.
pub const FINALIZED: &str = "Finalized";
/// On a NodePool: a pause of its disruption begins or ends. Not upstream's.
pub const DISRUPTION_PAUSED: &str = "DisruptionPaused";
/// On a NodePool: a field is ignored, or has an effect that its author is unlikely to want; the message names it.
pub const INVALID_NODE_POOL: &str = "InvalidNodePool";
/// On any object: it cannot be read and is ignored. Not upstream's.
pub const INVALID_OBJECT: &str = "InvalidObject";
/// On a NodeOverlay or CapacityBuffer: it has no effect, because its feature gate is off. Not upstream's.
pub const FEATURE_GATE_CLOSED: &str = "FeatureGateClosed";
/// On any object: the value of an annotation `operations.karpenter.sh/…` is invalid, and counts as absent. Not upstream's.
pub const INVALID_KNOB: &str = "InvalidKnob";
