//! The interface of a cloud provider.
//!
//! A provider lists the instance types of a NodePool, launches and terminates instances, and lists the existing ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::SignedDuration;
use karpenter_api::duration::Duration;
use karpenter_api::k8s_openapi::api::core::v1::Taint;
use karpenter_api::kube_core::Resource;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_api::validation::WellKnown;
use serde::{Deserialize, Serialize};

use crate::instance_type::InstanceType;
use crate::offering::DEFAULT_RESERVATION_ID;
use crate::setters;

/// The kind of the objects with the provider's own settings (EC2NodeClass, …).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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

impl NodeClassKind {
    /// Returns the kind of a custom resource.
    ///
    /// ```
    /// use karpenter_api::v1::NodePool;
    /// use karpenter_core::provider::NodeClassKind;
    ///
    /// let kind = NodeClassKind::of::<NodePool>();
    /// assert_eq!((kind.group.as_str(), kind.plural.as_str()), ("karpenter.sh", "nodepools"));
    /// ```
    pub fn of<K: Resource<DynamicType = ()>>() -> Self {
        Self {
            group: K::group(&()).into_owned(),
            version: K::version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            plural: K::plural(&()).into_owned(),
        }
    }
}

/// What never changes about a provider, as long as a process runs.
///
/// ```
/// use karpenter_api::validation::WellKnown;
/// use karpenter_core::provider::{NodeClassKind, ProviderProfile};
///
/// let class = NodeClassKind {
///     group: "example.com".to_owned(),
///     version: "v1".to_owned(),
///     kind: "Rack".to_owned(),
///     plural: "racks".to_owned(),
/// };
/// let profile = ProviderProfile::new("racks", [class])
///     .with_well_known(WellKnown::default().with_restricted_domain("example.com"));
/// assert_eq!(profile.node_classes[0].kind, "Rack");
/// assert!(profile.repair_policies.is_empty());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProviderProfile {
    /// The name, for metrics.
    pub name: String,
    /// The supported NodeClass kinds; the first is the default.
    pub node_classes: Vec<NodeClassKind>,
    /// The labels, resources and values that the provider knows.
    pub well_known: WellKnown,
    /// The label with the reservation id of a reserved offering and of its nodes; the engine counts the instances left in a
    /// reservation by it.
    pub reservation_id_label: String,
    /// The conditions of an unhealthy node; an empty list disables repair.
    pub repair_policies: Vec<RepairPolicy>,
    /// The termination grace period of NodePools without one; `None` is unlimited.
    pub default_termination_grace_period: Option<Duration>,
    /// How long a launch may take, from the creation of the NodeClaim until the provider knows the provider id; five minutes, as
    /// upstream, unless the provider needs longer. A NodeClaim that takes longer is deleted.
    pub launch_timeout: std::time::Duration,
    /// Taints that a component of the provider removes from a new Node, beside those of Kubernetes and Karpenter: pods are planned onto
    /// the node as if it did not have them, and it is initialized once they are gone. Key and effect count.
    pub ephemeral_taints: Vec<Taint>,
}

/// How long a launch may take by default.
pub const LAUNCH_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5 * 60);

impl ProviderProfile {
    /// Returns the profile of a provider without labels of its own, repair and default termination grace period.
    pub fn new(
        name: impl Into<String>,
        node_classes: impl IntoIterator<Item = NodeClassKind>,
    ) -> Self {
        Self {
            name: name.into(),
            node_classes: node_classes.into_iter().collect(),
            well_known: WellKnown::default(),
            reservation_id_label: DEFAULT_RESERVATION_ID.to_owned(),
            repair_policies: Vec::new(),
            default_termination_grace_period: None,
            launch_timeout: LAUNCH_TIMEOUT,
            ephemeral_taints: Vec::new(),
        }
    }

    setters! {
        /// Sets the labels, resources and values that the provider knows.
        with_well_known(well_known: WellKnown);
        /// Sets the label with the reservation id.
        with_reservation_id_label(reservation_id_label: impl Into<String>) = reservation_id_label.into();
        /// Sets the conditions of an unhealthy node.
        with_repair_policies(repair_policies: impl IntoIterator<Item = RepairPolicy>) = repair_policies.into_iter().collect();
        /// Sets how long a launch may take.
        with_launch_timeout(launch_timeout: std::time::Duration);
        /// Sets the taints that a component of the provider removes from a new Node.
        with_ephemeral_taints(ephemeral_taints: impl IntoIterator<Item = Taint>) = ephemeral_taints.into_iter().collect();
        /// Sets the termination grace period of NodePools without one.
        with_default_termination_grace_period(default_termination_grace_period: Duration) = Some(default_termination_grace_period);
    }
}

/// When a node counts as unhealthy and is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairPolicy {
    /// Type of the node condition.
    pub condition_type: String,
    /// The status that means unhealthy.
    pub condition_status: String,
    /// How long the status may last before the node is replaced.
    pub toleration: SignedDuration,
}

/// The decision of a registration hook about a NodeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookOutcome {
    /// Registration may continue.
    Ready,
    /// Registration may continue; the NodeClaim and its Node get these labels.
    ReadyWith(BTreeMap<String, String>),
    /// Registration waits; the hook is called again after this time.
    Wait(SignedDuration),
}

/// A step that must be complete before a node counts as registered.
#[async_trait]
pub trait RegistrationHook: Send + Sync {
    /// Returns the name, for messages.
    fn name(&self) -> &str;
    /// Decides whether `claim` may be registered.
    ///
    /// # Errors
    /// Fails if the hook cannot decide; it is called again.
    async fn registered(&self, claim: &NodeClaim) -> Result<HookOutcome, CloudProviderError>;
}

/// The NodeOverlays of the cluster, for providers.
pub trait Overlays: Send + Sync {
    /// Returns instance types after the overlays of a NodePool; the same `Arc` while nothing changed.
    ///
    /// # Errors
    /// [`CloudProviderError::UnevaluatedNodePool`] as long as overlays have not been evaluated for the NodePool.
    fn apply(
        &self,
        node_pool: &str,
        types: Arc<[InstanceType]>,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError>;

    /// Returns the overlays in use: those that are valid and do not conflict with another.
    fn accepted(&self) -> Vec<Arc<NodeOverlay>>;
}

/// A cloud provider.
#[async_trait]
pub trait CloudProvider: Send + Sync + 'static {
    /// Returns what never changes about the provider.
    fn profile(&self) -> &ProviderProfile;
    /// Provides the NodeOverlays of the cluster, before any launch, if the feature is enabled. A provider that chooses among the
    /// instance types of a NodeClaim by price or capacity in [`create`](Self::create) applies them.
    fn use_overlays(&self, overlays: Arc<dyn Overlays>) {
        let _ = overlays;
    }
    /// Launches an instance for `claim`, and returns the claim with the known properties of the instance: labels, annotations,
    /// provider id, image id, capacity, allocatable.
    ///
    /// # Errors
    /// See [`CloudProviderError`].
    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError>;
    /// Terminates the instance. `Ok` means that the request was accepted; it is called again until the instance does not exist any more.
    ///
    /// A NodeClaim that is deleted before its launch was recorded has no provider id, and may have an instance nevertheless: it is
    /// found as [`create`](Self::create) finds it after a crash, by what is derived from the NodeClaim's uid. A provider whose instances
    /// always have an id once they exist may leave them to the garbage collection, which terminates what [`list`](Self::list) returns.
    ///
    /// # Errors
    /// [`CloudProviderError::NodeClaimNotFound`] if the instance does not exist, or not any more.
    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError>;
    /// Returns the instance with this provider id, as a NodeClaim.
    ///
    /// # Errors
    /// [`CloudProviderError::NodeClaimNotFound`] if there is none.
    async fn get(&self, provider_id: &str) -> Result<NodeClaim, CloudProviderError>;
    /// Returns all instances of this cluster, as NodeClaims; shared, so that a provider that keeps them makes no copies. One that has no
    /// provider id yet has the name of its NodeClaim.
    ///
    /// # Errors
    /// Fails if the cloud's API fails.
    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError>;
    /// Returns all instance types of a NodePool, including those without available offerings. Implementations should return the same
    /// `Arc` while nothing changed, because the engine compiles each list once.
    ///
    /// # Errors
    /// Fails if they are not known; the NodePool is skipped.
    async fn instance_types(
        &self,
        pool: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError>;
    /// Returns the reason if the instance no longer matches its NodeClass.
    ///
    /// # Errors
    /// Fails if the cloud's API fails.
    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<String>, CloudProviderError>;
    /// Returns the free addresses of the subnets of each NodeClass, as far as they are known without a call; `None` if the provider
    /// does not count addresses. The doctor reports subnets that have few left.
    fn subnet_addresses(&self) -> Option<Vec<SubnetAddresses>> {
        None
    }
    /// Returns the steps that registration waits for.
    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        Vec::new()
    }
}

/// The free addresses of a subnet into which nodes of a NodeClass are launched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubnetAddresses {
    /// The name of the NodeClass.
    pub node_class: String,
    /// The zone.
    pub zone: String,
    /// The id of the subnet.
    pub subnet: String,
    /// The number of addresses that are not used.
    pub free: u32,
}

/// The error code of a cloud's failed call, for a separate field in log lines. An error that has a code returns it as the last
/// of its sources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}")]
pub struct ErrorCode {
    /// The name of the field, such as `aws-error-code`.
    pub field: &'static str,
    /// The code, such as `UnauthorizedOperation`.
    pub code: Box<str>,
}

impl ErrorCode {
    /// Returns the code of an error, if it or one of its sources has one.
    pub fn of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        std::iter::successors(Some(error), |error| error.source())
            .find_map(|error| error.downcast_ref())
    }
}

impl std::ops::Deref for ErrorCode {
    type Target = str;

    fn deref(&self) -> &str {
        &self.code
    }
}

/// Why a call of a provider failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloudProviderError {
    /// The instance does not exist.
    #[error("nodeclaim not found, {0}")]
    NodeClaimNotFound(String),
    /// The cloud has no capacity for any of the requested instance types.
    #[error("insufficient capacity, {0}")]
    InsufficientCapacity(String),
    /// The NodeClass is not ready.
    #[error("NodeClassRef not ready, {0}")]
    NodeClassNotReady(String),
    /// The launch failed for a reason to report in a condition of the NodeClaim.
    #[error("creating nodeclaim, {message}")]
    Create {
        /// Reason of the condition.
        reason: String,
        /// Message of the condition.
        message: String,
        /// The call that failed, if it was one.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// NodeOverlays have not been evaluated for the NodePool yet.
    #[error("nodepool `{0}` is awaiting evaluation")]
    UnevaluatedNodePool(String),
    /// Any other error.
    #[error("{0}")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl CloudProviderError {
    /// Creates an error of kind [`Other`](Self::Other) from another error, or from a message.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// Reports whether the instance does not exist.
    pub fn is_node_claim_not_found(&self) -> bool {
        matches!(self, Self::NodeClaimNotFound(_))
    }

    /// Reports whether the cloud has no capacity.
    pub fn is_insufficient_capacity(&self) -> bool {
        matches!(self, Self::InsufficientCapacity(_))
    }

    /// Reports whether the NodeClass is not ready.
    pub fn is_node_class_not_ready(&self) -> bool {
        matches!(self, Self::NodeClassNotReady(_))
    }

    /// Returns the value of the `error` label of the provider metrics; empty for errors without a name.
    pub fn metric_label(&self) -> &'static str {
        match self {
            Self::NodeClaimNotFound(_) => "NodeClaimNotFoundError",
            Self::InsufficientCapacity(_) => "InsufficientCapacityError",
            Self::NodeClassNotReady(_) => "NodeClassNotReadyError",
            Self::Create { .. } | Self::UnevaluatedNodePool(_) | Self::Other(_) => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-197
    #[test]
    fn errors_begin_with_upstreams_words() {
        type Error = CloudProviderError;
        for (error, text) in [
            (
                Error::NodeClaimNotFound("x".into()),
                "nodeclaim not found, x",
            ),
            (
                Error::InsufficientCapacity("x".into()),
                "insufficient capacity, x",
            ),
            (
                Error::NodeClassNotReady("x".into()),
                "NodeClassRef not ready, x",
            ),
            (
                Error::Create {
                    reason: "R".into(),
                    message: "x".into(),
                    source: None,
                },
                "creating nodeclaim, x",
            ),
            (
                Error::UnevaluatedNodePool("a".into()),
                "nodepool `a` is awaiting evaluation",
            ),
            (Error::other("x"), "x"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
