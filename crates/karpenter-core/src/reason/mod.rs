//! Stable reasons: why a pod is pending, a node is kept, a NodePool or an instance type is not used.
//!
//! A [`Reason`] has an id that does not change within an API version, typed parameters, and a short text. Metrics, records,
//! answers and tools identify a reason by its id; the texts of events stay with the engine's own types. `engine` maps each
//! variant of those types to a reason, without wildcards: a new variant does not compile until it has one.

mod engine;

use std::fmt;

use serde::{Serialize, Serializer};

pub use engine::{ignored_reason, pod_reason, pool_reasons};

use crate::resources::plain;
pub use crate::schedule::Shortage;

/// Declares the reasons: variant, parameters, text.
macro_rules! reasons {
    ($($(#[$doc:meta])+ $id:ident { $($(#[$field_doc:meta])+ $field:ident: $kind:ty),* $(,)? } $text:literal $(, $argument:expr)*;)+) => {
        /// Why something is as it is. [`fmt::Display`] gives the short text.
        ///
        /// ```
        /// use karpenter_core::reason::Reason;
        ///
        /// let reason = Reason::Pdb { pod: "shop/payments-0".into(), budget: "payments".into() };
        /// assert_eq!(reason.id(), "Pdb");
        /// assert_eq!(reason.to_string(), "PodDisruptionBudget payments allows no eviction of pod shop/payments-0");
        /// assert_eq!(serde_json::to_value(&reason)?["parameters"]["budget"], "payments");
        /// # Ok::<(), serde_json::Error>(())
        /// ```
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "id", content = "parameters", rename_all_fields = "camelCase")]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])+ $id { $($(#[$field_doc])+ $field: $kind),* },)+
        }

        impl Reason {
            /// The ids of all reasons.
            pub const IDS: &[&str] = &[$(stringify!($id)),+];

            /// Returns the stable id.
            pub fn id(&self) -> &'static str {
                match self {
                    $(Self::$id { .. } => stringify!($id),)+
                }
            }
        }

        #[expect(unused_variables, reason = "a text names the important parameters, not all")]
        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$id { $($field),* } => write!(f, $text $(, $argument)*),)+
                }
            }
        }
    };
}

/// Joins the values of a parameter for the text.
fn list(values: &[String]) -> String {
    values.join(", ")
}

reasons! {
    // A pending pod, before a decision.

    /// The pod has scheduling gates.
    SchedulingGated {} "the pod has scheduling gates";
    /// Another scheduler is responsible for the pod and has not marked it unschedulable.
    OtherScheduler {
        /// The scheduler.
        scheduler: String,
    } "scheduler {scheduler} has not marked the pod unschedulable";
    /// kube-scheduler has not tried to schedule the pod yet, or is about to bind it.
    NotMarkedUnschedulable {} "kube-scheduler has not marked the pod unschedulable";
    /// kube-scheduler evicts other pods to make room for the pod.
    Preempting {
        /// The node.
        node: String,
    } "kube-scheduler preempts pods on node {node} for the pod";
    /// No node is launched for pods of DaemonSets.
    DaemonSetPod {} "no node is launched for a pod of a DaemonSet";
    /// The pod is part of the batch that the next pass schedules.
    Batching {} "the pod waits for the next scheduling pass";
    /// The model of the cluster is not in sync with the API server.
    ModelNotSynced {} "the cluster model is not in sync";
    /// The scheduling pass ran out of time before it tried the pod.
    Undecided {} "the scheduling pass ran out of time before this pod";

    // A pending pod without a place.

    /// The pod is invalid, has a feature that provisioning does not support, or excludes nodes of NodePools.
    Invalid {
        /// The problems.
        problems: Vec<String>,
    } "{}", list(problems);
    /// No usable dynamic NodePool exists.
    NoNodePools {} "no usable dynamic NodePool exists";
    /// No instance type meets the requirements of any NodePool.
    NoInstanceTypes {} "no instance type meets the requirements of a NodePool";
    /// The pod does not tolerate taints of the NodePool.
    TaintNotTolerated {
        /// The taints, as `key=value:effect`.
        taints: Vec<String>,
    } "does not tolerate {}", list(taints);
    /// Requirements of the pod conflict with those of the NodePool.
    RequirementMismatch {
        /// The conflicts.
        conflicts: Vec<String>,
    } "incompatible requirements: {}", list(conflicts);
    /// Requirements of the pod's volumes conflict with those of the NodePool.
    VolumeMismatch {
        /// The conflicts.
        conflicts: Vec<String>,
    } "incompatible requirements of volumes: {}", list(conflicts);
    /// A topology constraint leaves no domain.
    TopologyUnsatisfiable {
        /// `topology spread`, `pod affinity` or `pod anti-affinity`.
        constraint: String,
        /// The node label.
        key: String,
        /// Domains that the constraint admits, but in which no instance can be launched.
        domains: Vec<String>,
    } "{constraint} on {key} leaves no domain";
    /// The NodePool has as many nodes as its limit allows.
    NodeLimitReached {
        /// The limit.
        limit: i64,
        /// The number of nodes, planned ones included.
        used: i64,
    } "{used} of {limit} nodes are in use";
    /// Every instance type exceeds a limit of the NodePool. Amounts are quantities.
    LimitReached {
        /// The resource.
        resource: String,
        /// The limit.
        limit: String,
        /// What the nodes of the NodePool use, planned ones included.
        used: String,
        /// The least that an excluded instance type adds.
        needed: String,
        /// By how much the limit is exceeded then.
        short_by: String,
    } "{resource} {used} of {limit} in use, needs {needed}, short by {short_by}";
    /// Fewer different values are left than `minValues` requires.
    MinValuesUnmet {
        /// The label; absent if truncating the instance types broke `minValues`.
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// The minimum.
        min_values: u32,
        /// The number of values left.
        found: u32,
    } "minValues of {} is not met: {found} of {min_values}", key.as_deref().unwrap_or("a label");
    /// No instance type has enough resources.
    TooLarge {
        /// Requests of the pod and the DaemonSets.
        requests: String,
        /// The pod requests a million cores or more: `m` may be missing.
        suspicious_cpu: bool,
        /// The resource that is short by most; absent if instance types have enough of each, but none of all.
        #[serde(skip_serializing_if = "Option::is_none")]
        shortage: Option<Shortage>,
    } "{}", shortage.as_ref().map_or_else(|| format!("no instance type has enough resources for {requests}"), ToString::to_string);
    /// No instance type meets the requirements of the pod and the NodePool.
    NoMatchingType {
        /// The requirements.
        requirements: String,
    } "no instance type meets {requirements}";
    /// No compatible offering is available.
    OfferingUnavailable {
        /// The requirements.
        requirements: String,
        /// When the first of the offerings may be available again, if that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<String>,
    } "no offering is available for {requirements}";
    /// Instance types meet requirements, resources and offering, but none of them all three.
    CombinationUnavailable {
        /// The requirements.
        requirements: String,
        /// Requests of the pod and the DaemonSets.
        requests: String,
    } "no instance type meets {requirements}, has room for {requests} and is offered";
    /// Only reserved capacity is compatible, and it is used up.
    ReservedUsedUp {} "reserved capacity is used up";
    /// No devices can be allocated for the pod's resource claims.
    DevicesUnavailable {
        /// The problem.
        problem: String,
    } "{problem}";
    /// The pod fits alone, but not beside the pods that were placed before it.
    Competition {
        /// The owners of the pods, as `Kind namespace/name`, the largest first.
        takers: Vec<String>,
    } "the pod fits alone, but not beside pods of {}", list(takers);
    /// Not all pods of the pod's group have a place.
    GangIncomplete {} "not all pods of the group have a place";

    // A pending pod, after a decision.

    /// The pod's NodeClaim has not been launched yet.
    WaitingForLaunch {
        /// The NodeClaim.
        node_claim: String,
    } "NodeClaim {node_claim} is being launched";
    /// Launching the pod's NodeClaim has failed, and is retried.
    LaunchFailing {
        /// The NodeClaim.
        node_claim: String,
        /// The provider's error.
        message: String,
    } "launching NodeClaim {node_claim} fails: {message}";
    /// The instance of the pod's NodeClaim has not joined the cluster yet.
    WaitingForRegistration {
        /// The NodeClaim.
        node_claim: String,
    } "the instance of NodeClaim {node_claim} has not joined the cluster";
    /// The pod's node is not initialized yet.
    WaitingForInitialization {
        /// The NodeClaim.
        node_claim: String,
        /// Why it is not.
        message: String,
    } "the node of NodeClaim {node_claim} is not initialized: {message}";
    /// The pod has a place, but kube-scheduler has not bound it.
    WaitingForBind {
        /// The node.
        node: String,
        /// kube-scheduler's message.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    } "kube-scheduler has not bound the pod to {node}";

    // A node that is not a candidate for disruption.

    /// A disruption command for the node is in flight.
    InFlight {} "a disruption command is in flight";
    /// The node has no NodeClaim.
    NotManaged {} "the node has no NodeClaim";
    /// The NodeClaim has no Node.
    NoNode {} "the NodeClaim has no Node";
    /// The node is not initialized.
    NotInitialized {} "the node is not initialized";
    /// The node or the NodePool is being deleted.
    Deleting {} "it is being deleted";
    /// Pending pods are nominated to the node.
    Nominated {} "pending pods are nominated to the node";
    /// The node has the annotation `karpenter.sh/do-not-disrupt`.
    NodeDoNotDisrupt {} "the node has the annotation karpenter.sh/do-not-disrupt";
    /// The node lacks the NodePool label.
    NoNodePoolLabel {} "the node lacks the label karpenter.sh/nodepool";
    /// The node's NodePool does not exist, or has no known instance types.
    NoNodePool {
        /// The NodePool.
        node_pool: String,
    } "NodePool {node_pool} does not exist or has no known instance types";
    /// A pod has the annotation `karpenter.sh/do-not-disrupt`.
    PodDoNotDisrupt {
        /// The pod, as `namespace/name`.
        pod: String,
    } "pod {pod} has the annotation karpenter.sh/do-not-disrupt";
    /// Several PodDisruptionBudgets cover a pod, which the eviction API rejects.
    SeveralPdbs {
        /// The pod, as `namespace/name`.
        pod: String,
        /// The budgets.
        budgets: Vec<String>,
    } "several PodDisruptionBudgets cover pod {pod}: {}", list(budgets);
    /// A PodDisruptionBudget allows no eviction.
    Pdb {
        /// The pod, as `namespace/name`.
        pod: String,
        /// The budget.
        budget: String,
    } "PodDisruptionBudget {budget} allows no eviction of pod {pod}";
    /// Pods of the node can be scheduled nowhere else.
    PodsStay {
        /// The number of pods.
        count: usize,
        /// Up to five of the pods, each with its reason.
        pods: Vec<StayingPod>,
    } "{count} of its pods can be scheduled nowhere else";

    // A node that is kept.

    /// The NodePool is static: it has `replicas`.
    Static {} "the NodePool is static";
    /// The NodePool no longer has the node's instance type.
    InstanceTypeUnknown {
        /// The instance type.
        instance_type: String,
    } "the NodePool no longer has instance type {instance_type}";
    /// The node lacks a label.
    NoLabel {
        /// The label.
        label: String,
    } "the node lacks the label {label}";
    /// The NodePool has `consolidateAfter: Never`.
    Disabled {} "consolidateAfter is Never";
    /// The node is empty and waits for the emptiness method.
    Empty {} "the node is empty, which the emptiness method handles";
    /// The NodePool has `consolidationPolicy: WhenEmpty`, and the node is not empty.
    WhenEmpty {} "consolidationPolicy is WhenEmpty, and the node is not empty";
    /// The node has the annotation `karpenter.sh/do-not-consolidate`.
    NodeDoNotConsolidate {} "the node has the annotation karpenter.sh/do-not-consolidate";
    /// The node's pods changed within `consolidateAfter`.
    TooRecent {} "pods changed within consolidateAfter";
    /// Virtual pods of CapacityBuffers are placed on the node.
    BufferPods {} "capacity of a CapacityBuffer is placed on the node";
    /// The node's pods would need more new nodes than a command may launch.
    SeveralReplacements {
        /// The number of new nodes.
        count: usize,
    } "its pods would need {count} new nodes";
    /// No replacement is cheaper.
    NotCheaper {} "no replacement is cheaper";
    /// The cheaper instance types do not satisfy `minValues`.
    MinValues {
        /// The unmet `minValues`.
        problem: String,
    } "the cheaper instance types do not satisfy minValues: {problem}";
    /// Spot nodes are not replaced by spot nodes: the feature gate is off.
    SpotToSpotDisabled {} "a spot node is not replaced by a spot node: the feature gate SpotToSpotConsolidation is off";
    /// Too few spot instance types are cheaper.
    SpotToSpotFlexibility {
        /// The number required.
        needed: usize,
        /// The number found.
        found: usize,
    } "{found} of {needed} required spot instance types are cheaper";
    /// The score by the policy `Balanced` is too low.
    Score {
        /// The score.
        score: f64,
        /// The lowest score that is approved.
        threshold: f64,
    } "score {score:.2} is below {threshold:.2}";
    /// The NodePool's disruption budget is used up.
    Budget {
        /// The NodePool.
        node_pool: String,
    } "the disruption budgets of NodePool {node_pool} allow no further node now";
    /// The search ended before the node was evaluated.
    NotEvaluated {} "the search ended before this node";
    /// The saving does not pay back the cost of the move.
    Payback {} "the saving does not pay back the move";
    /// Earlier moves of the NodePool saved less than forecast.
    BackedOff {} "earlier moves saved less than forecast";
    /// The node's price is already paid by a commitment.
    CommitmentUnused {} "a commitment pays for the node";
    /// Voluntary disruption is paused.
    Paused {
        /// The end.
        until: String,
        /// The reasons for which no node is disrupted; every reason if empty.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reasons: Vec<String>,
        /// The user who paused.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The user's explanation.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    } "voluntary disruption is paused";
    /// The node's wave of a rollout has not begun.
    WaveNotReached {} "the node's wave of the rollout has not begun";
    /// Too many replicas of a workload would run on one spot offering.
    SpotExposure {} "too many replicas would run on one spot offering";
    /// kube-scheduler may place the pods otherwise than planned.
    UncertainPlacement {} "kube-scheduler may place the pods otherwise";

    // A NodePool in a scheduling pass; also Static, Deleting, Invalid and Paused.

    /// The NodePool was considered.
    Used {} "the NodePool was considered";
    /// The NodePool's Ready condition is not True.
    NotReady {} "the NodePool is not ready";
    /// The provider failed to list the instance types.
    Unknown {
        /// The provider's error.
        problem: String,
    } "the instance types are not known: {problem}";
    /// The instance types are not known yet.
    Unevaluated {} "the instance types are not known yet";
    /// No instance type meets the NodePool's own requirements.
    NoCompatibleInstanceTypes {
        /// Whether unmet `minValues` are the cause.
        min_values: bool,
    } "no instance type meets the NodePool's requirements";
    /// The NodePool is in cool-down after failed launches.
    Resting {} "the NodePool is in cool-down after failures";

    // An instance type or offering that was not taken.

    /// A requirement of the NodePool excludes the instance type.
    PoolRequirement {
        /// The requirement.
        requirement: String,
    } "the NodePool requires {requirement}";
    /// A requirement of the pods excludes the instance type.
    PodRequirement {
        /// The requirement.
        requirement: String,
    } "the pods require {requirement}";
    /// The instance type has too little of a resource.
    TooSmall {
        /// The resource.
        resource: String,
        /// How much is missing, as a quantity.
        short_by: String,
    } "{resource} is short by {short_by}";
    /// The offering has no capacity.
    Unavailable {
        /// When it may be offered again.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<String>,
    } "the offering has no capacity";
    /// The instance type exceeds a limit of the NodePool.
    OverLimit {
        /// The resource.
        resource: String,
    } "it exceeds the limit of {resource}";
    /// Another instance type is cheaper.
    Dearer {
        /// Difference in dollars per hour.
        by: f64,
    } "it costs ${by:.4} an hour more";
    /// The list of instance types was cut to the longest that a NodeClaim can have.
    MinValuesTail {} "the list of instance types was cut";
    /// The risk of interruption outweighs the price.
    Risk {} "the risk of interruption outweighs the price";
    /// Too many replicas of a workload use the offering.
    Concentration {} "too many replicas use the offering";

    // A disruption command that was not started.

    /// Budgets changed, or pods were nominated to the nodes.
    BudgetChanged {} "budgets changed, or pods were nominated to the nodes";
    /// The pods cannot be scheduled any more, or need other replacements.
    SchedulingChanged {} "the pods need other nodes than planned";
    /// The nodes or their pods changed.
    NodesChanged {} "the nodes or their pods changed";
}

impl Serialize for Shortage {
    /// Writes amounts as quantities, with the difference of both.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'a> {
            resource: &'a str,
            requested: String,
            largest: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            instance_type: Option<&'a str>,
            short_by: String,
        }
        let amount = |amount| plain(&self.resource, amount);
        Written {
            resource: &self.resource,
            requested: amount(self.requested),
            largest: amount(self.largest),
            instance_type: self.instance_type.as_deref(),
            short_by: amount(self.requested.saturating_sub(self.largest)),
        }
        .serialize(serializer)
    }
}

/// A pod that can be scheduled nowhere else.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StayingPod {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// The id of its reason.
    pub reason: &'static str,
    /// Upstream's text.
    pub text: String,
}
