//! The contract with a cloud.
//!
//! A provider tells which machines can be bought for a NodePool, buys them, gives them back, and lists what it has.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use jiff::SignedDuration;
use karpenter_api::{
    duration::Duration,
    v1::{NodeClaim, NodePool},
    v1alpha1::NodeOverlay,
    validation::WellKnown,
};

use crate::{instance_type::InstanceType, offering::DEFAULT_RESERVATION_ID};

/// The type of the objects that hold what is particular to a provider (EC2NodeClass, …).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeClassKind {
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Plural name, as in URLs.
    pub plural: String,
}

/// When a node counts as broken and is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairPolicy {
    /// Type of the node condition.
    pub condition_type: String,
    /// The status that means broken.
    pub condition_status: String,
    /// How long it may last.
    pub toleration: SignedDuration,
}

/// What a registration hook says about a NodeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookOutcome {
    /// Registration may go on.
    Ready,
    /// Registration may go on; the NodeClaim and its Node get these labels.
    ReadyWith(BTreeMap<String, String>),
    /// Ask again after this time.
    Wait(SignedDuration),
}

/// A step that must be done before a node counts as registered.
#[async_trait]
pub trait RegistrationHook: Send + Sync {
    /// Name, for messages.
    fn name(&self) -> &str;
    /// Whether `claim` may be registered.
    ///
    /// # Errors
    /// When the hook cannot tell; it is asked again.
    async fn registered(&self, claim: &NodeClaim) -> Result<HookOutcome, CloudProviderError>;
}

/// The NodeOverlays of the cluster, for providers.
pub trait Overlays: Send + Sync {
    /// Instance types as the overlays change them for the machines of a NodePool; the same `Arc` while nothing changed.
    ///
    /// # Errors
    /// [`CloudProviderError::UnevaluatedNodePool`] as long as it is not known which overlays count for the pool.
    fn apply(
        &self,
        node_pool: &str,
        types: Arc<[InstanceType]>,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError>;

    /// Returns the overlays that count: those that are valid and do not contradict another.
    fn accepted(&self) -> Vec<Arc<NodeOverlay>>;
}

/// A cloud.
#[async_trait]
pub trait CloudProvider: Send + Sync + 'static {
    /// Name, for metrics.
    fn name(&self) -> &str;
    /// The labels, resources and values the provider knows.
    fn well_known(&self) -> &WellKnown;
    /// Supported NodeClass kinds; the first is the default.
    fn node_classes(&self) -> Vec<NodeClassKind>;
    /// The label that names the capacity reservation of a reserved offering and of its machines; the engine counts the machines
    /// left in a reservation by it.
    fn reservation_id_label(&self) -> &str {
        DEFAULT_RESERVATION_ID
    }
    /// Conditions that mean a node is broken; none disables repair.
    fn repair_policies(&self) -> Vec<RepairPolicy> {
        Vec::new()
    }
    /// How long a machine's end may take at most, for NodePools that do not say; none waits for ever.
    fn default_termination_grace_period(&self) -> Option<Duration> {
        None
    }
    /// Told before anything is bought, if the cluster's NodeOverlays count: whoever chooses in [`create`](Self::create) among the types
    /// of a claim by price or capacity looks at them through these.
    fn use_overlays(&self, overlays: Arc<dyn Overlays>) {
        let _ = overlays;
    }
    /// Buys a machine for `claim`, and returns the claim with what is known about it: labels, annotations, provider id, image
    /// id, capacity, allocatable.
    ///
    /// # Errors
    /// See [`CloudProviderError`].
    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError>;
    /// Gives the machine back. `Ok` means the request was accepted.
    ///
    /// # Errors
    /// [`CloudProviderError::NodeClaimNotFound`] when it is gone.
    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError>;
    /// The machine with this provider id.
    ///
    /// # Errors
    /// [`CloudProviderError::NodeClaimNotFound`] when there is none.
    async fn get(&self, provider_id: &str) -> Result<NodeClaim, CloudProviderError>;
    /// All machines of this cluster.
    ///
    /// # Errors
    /// When the cloud cannot be asked.
    async fn list(&self) -> Result<Vec<NodeClaim>, CloudProviderError>;
    /// All instance types for a NodePool, those without available offerings included. Return the same `Arc` while nothing
    /// changed: the engine compiles a catalogue once.
    ///
    /// # Errors
    /// When they are not known; the NodePool is skipped.
    async fn instance_types(
        &self,
        pool: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError>;
    /// Why the machine is no longer what its NodeClass asks for, if it is not.
    ///
    /// # Errors
    /// When the cloud cannot tell.
    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<String>, CloudProviderError>;
    /// Steps that registration waits for.
    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        Vec::new()
    }
}

/// Why a provider could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloudProviderError {
    /// There is no such machine.
    #[error("nodeclaim not found, {0}")]
    NodeClaimNotFound(String),
    /// The cloud has none of the machines asked for.
    #[error("insufficient capacity, {0}")]
    InsufficientCapacity(String),
    /// The NodeClass cannot be used yet.
    #[error("NodeClassRef not ready, {0}")]
    NodeClassNotReady(String),
    /// The launch failed for a reason worth showing on the NodeClaim.
    #[error("creating nodeclaim, {message}")]
    Create {
        /// Reason of the condition.
        reason: String,
        /// Message of the condition.
        message: String,
    },
    /// NodeOverlays have not been evaluated for the NodePool yet.
    #[error("nodepool `{0}` is awaiting evaluation")]
    UnevaluatedNodePool(String),
    /// Anything else.
    #[error("{0}")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl CloudProviderError {
    /// An error from a sentence.
    pub fn other(message: impl Into<String>) -> Self {
        Self::Other(message.into().into())
    }

    /// The machine is gone.
    pub fn is_node_claim_not_found(&self) -> bool {
        matches!(self, Self::NodeClaimNotFound(_))
    }

    /// The cloud is out of the machines asked for.
    pub fn is_insufficient_capacity(&self) -> bool {
        matches!(self, Self::InsufficientCapacity(_))
    }

    /// The NodeClass cannot be used yet.
    pub fn is_node_class_not_ready(&self) -> bool {
        matches!(self, Self::NodeClassNotReady(_))
    }

    /// The value of the `error` label of the provider metrics; empty for causes without a name.
    pub fn metric_label(&self) -> &'static str {
        match self {
            Self::NodeClaimNotFound(_) => "NodeClaimNotFoundError",
            Self::InsufficientCapacity(_) => "InsufficientCapacityError",
            Self::NodeClassNotReady(_) => "NodeClassNotReadyError",
            Self::Create { .. } | Self::UnevaluatedNodePool(_) | Self::Other(_) => "",
        }
    }
}
