//! The result of a scheduling pass, with reasons.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::{hash, labels};

use crate::dra::Failure;
use crate::pod::{InvalidPod, PodKey};
use crate::requirements::{Incompatible, Operator, Requirement, Requirements, Unaliased};
use crate::resources::Resources;
use crate::schedule::EffectiveZone;
use crate::taints::Taint;

/// The placements of a scheduling pass, and the nodes it plans to launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Planned nodes, in the order they were opened.
    pub new_claims: Vec<PlannedNodeClaim>,
    /// Pods placed on existing nodes, in the order they were placed.
    pub existing: Vec<Placement>,
    /// Pods that were not placed.
    pub unplaced: Vec<Unplaced>,
    /// The outcome of each NodePool, in the order they were tried.
    pub pools: Vec<PoolReport>,
    /// Pending pods by the zone that binds them before the pass; filled only for [`PodSet::Waiting`](crate::schedule::PodSet::Waiting).
    pub pending_by_zone: BTreeMap<EffectiveZone, usize>,
    /// Pods that were not tried because the pass was cancelled.
    pub undecided: Vec<PodKey>,
}

impl Plan {
    /// Returns the price of all planned nodes in dollars per hour, each at its cheapest offering.
    pub fn hourly_price(&self) -> f64 {
        self.new_claims.iter().map(|claim| claim.hourly_price).sum()
    }

    /// Returns the planned node that a pod was placed on.
    pub fn claim_of(&self, pod: &PodKey) -> Option<&PlannedNodeClaim> {
        self.new_claims
            .iter()
            .find(|claim| claim.pods.contains(pod) || claim.buffer_pods.contains(pod))
    }

    /// Returns the existing node that a pod was placed on.
    pub fn node_of(&self, pod: &PodKey) -> Option<&str> {
        self.existing
            .iter()
            .find(|placement| placement.pod == *pod)
            .map(|placement| placement.node.as_str())
    }
}

/// A pod placed on an existing node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The pod.
    pub pod: PodKey,
    /// The name of the Node, or of the NodeClaim while there is no Node.
    pub node: String,
    /// Whether the pod belongs to a capacity buffer.
    pub buffer: bool,
}

/// A planned node: a NodeClaim to create, with its pods and price.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedNodeClaim {
    /// The NodePool.
    pub node_pool: String,
    /// Compatible instance types, cheapest first, truncated to the request's `max_instance_types`.
    pub instance_types: Arc<[String]>,
    /// The pods.
    pub pods: Vec<PodKey>,
    /// Capacity buffers' pods.
    pub buffer_pods: Vec<PodKey>,
    /// Requests of the pods, plus the least that DaemonSets request on any of the instance types.
    pub requests: Resources,
    /// Price of the cheapest offering in dollars per hour.
    pub hourly_price: f64,
    /// Whether minValues were lowered.
    pub min_values_relaxed: bool,
    /// Ids of the capacity reservations the instance may use.
    pub reservations: Vec<String>,
    /// The NodeClaim to create; it has a `generateName` and no name.
    pub claim: DraftClaim,
}

/// A NodeClaim that is built on first access.
///
/// With hundreds of instance types each, the NodeClaims of a large plan need more memory than the rest of the plan, and most
/// plans are only compared by price.
#[derive(Clone)]
pub struct DraftClaim {
    /// The parts it is built from, unless it was made from a NodeClaim.
    fill: Option<Fill>,
    written: OnceLock<Box<NodeClaim>>,
    own: Option<Arc<NodeClaim>>,
}

/// The parts shared by similar drafts, and those of this draft.
#[derive(Clone)]
struct Fill {
    shape: Arc<DraftShape>,
    requests: Resources,
    min_values_relaxed: bool,
    /// Drivers of the devices of its pods, joined; empty without any.
    drivers: Arc<str>,
}

impl Fill {
    fn write(&self) -> Box<NodeClaim> {
        let mut claim = self.shape.prototype().clone();
        claim.spec.resources.requests = self.requests.to_quantities();
        let marks = claim.metadata.annotations.get_or_insert_default();
        marks.insert(
            annotations::MIN_VALUES_RELAXED.to_owned(),
            self.min_values_relaxed.to_string(),
        );
        if !self.drivers.is_empty() {
            marks.insert(
                annotations::REQUESTED_DRA_DRIVERS.to_owned(),
                self.drivers.to_string(),
            );
        }
        Box::new(claim)
    }
}

impl DraftClaim {
    pub(crate) fn new(
        shape: Arc<DraftShape>,
        requests: Resources,
        min_values_relaxed: bool,
        drivers: Arc<str>,
    ) -> Self {
        Self {
            fill: Some(Fill {
                shape,
                requests,
                min_values_relaxed,
                drivers,
            }),
            written: OnceLock::new(),
            own: None,
        }
    }

    fn write(fill: Option<&Fill>) -> Box<NodeClaim> {
        fill.map(Fill::write).unwrap_or_default()
    }

    /// Returns the requirements of the NodeClaim without building it; for instance types only how many there must be.
    pub(crate) fn requirements(&self) -> Requirements {
        match (&self.own, &self.fill) {
            (None, Some(Fill { shape, .. })) => {
                let mut requirements = shape.requirements.clone();
                if shape.min_types.is_some() {
                    let any = Requirement::exists(labels::INSTANCE_TYPE);
                    requirements.replace(any.with_min_values(shape.min_types));
                }
                requirements
            }
            _ => Requirements::from_api(&self.spec.requirements, &Unaliased).unwrap_or_default(),
        }
    }
}

impl From<NodeClaim> for DraftClaim {
    fn from(claim: NodeClaim) -> Self {
        Self {
            fill: None,
            written: OnceLock::new(),
            own: Some(Arc::new(claim)),
        }
    }
}

impl std::ops::Deref for DraftClaim {
    type Target = NodeClaim;

    fn deref(&self) -> &NodeClaim {
        match &self.own {
            Some(claim) => claim,
            None => self.written.get_or_init(|| Self::write(self.fill.as_ref())),
        }
    }
}

impl std::ops::DerefMut for DraftClaim {
    fn deref_mut(&mut self) -> &mut NodeClaim {
        let (fill, written) = (&self.fill, &mut self.written);
        let own = self.own.get_or_insert_with(|| {
            let claim = written.take().unwrap_or_else(|| Self::write(fill.as_ref()));
            Arc::new(*claim)
        });
        Arc::make_mut(own)
    }
}

impl PartialEq for DraftClaim {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for DraftClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        NodeClaim::fmt(self, f)
    }
}

/// The parts shared by drafts with the same requirements and instance types.
#[derive(Clone, Debug)]
pub(crate) struct DraftShape {
    pub(crate) pool: Arc<NodePool>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Without the list of instance types.
    pub(crate) requirements: Requirements,
    pub(crate) instance_types: Arc<[String]>,
    /// minValues of the instance type requirement.
    pub(crate) min_types: Option<u32>,
    pub(crate) hourly_price: f64,
    pub(crate) overhead: Resources,
    pub(crate) reservations: Vec<String>,
    pub(crate) price_overlay: bool,
    pub(crate) capacity_overlay: bool,
    /// The NodeClaim of drafts of this shape, without pod requests; built on first access.
    pub(crate) prototype: OnceLock<Box<NodeClaim>>,
}

impl DraftShape {
    fn prototype(&self) -> &NodeClaim {
        self.prototype.get_or_init(|| Box::new(self.write()))
    }

    fn write(&self) -> NodeClaim {
        let mut claim = self.pool.spec.template.to_node_claim();
        let mut requirements = self.requirements.clone();
        let listed = Requirement::new(
            labels::INSTANCE_TYPE,
            Operator::In,
            self.instance_types.iter().map(String::as_str),
        );
        requirements.replace(listed.with_min_values(self.min_types));
        claim.spec.requirements = requirements.to_node_selector_requirements();
        let metadata = &mut claim.metadata;
        metadata.generate_name = Some(format!("{}-", self.pool.name()));
        metadata.owner_references = Some(vec![owner(&self.pool)]);
        metadata.labels = Some(self.labels.clone());
        let marks = metadata.annotations.get_or_insert_default();
        let mut mark = |key: &str, value: String| marks.insert(key.to_owned(), value);
        mark(annotations::NODE_POOL_HASH, hash::node_pool(&self.pool));
        mark(
            annotations::NODE_POOL_HASH_VERSION,
            hash::NODE_POOL_HASH_VERSION.to_owned(),
        );
        if let Some(kubelet) = self.pool.kubelet_compatibility() {
            mark(annotations::KUBELET_COMPATIBILITY, kubelet.to_owned());
        }
        if self.price_overlay {
            mark(annotations::PRICE_OVERLAY_APPLIED, "true".to_owned());
        }
        if self.capacity_overlay {
            mark(annotations::CAPACITY_OVERLAY_APPLIED, "true".to_owned());
        }
        claim
    }
}

fn owner(pool: &NodePool) -> OwnerReference {
    OwnerReference {
        api_version: "karpenter.sh/v1".to_owned(),
        kind: NodePool::KIND.to_owned(),
        name: pool.name().to_owned(),
        uid: pool.uid().to_owned(),
        block_owner_deletion: Some(true),
        controller: None,
    }
}

/// A pod that was not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// The pod.
    pub pod: PodKey,
    /// Whether the pod belongs to a capacity buffer.
    pub buffer: bool,
    /// Why.
    pub why: Unschedulable,
}

/// Why a pod was not placed. [`fmt::Display`] gives the text of upstream's event, without `Failed to schedule pod, `.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unschedulable {
    /// The pod is invalid or has a feature that provisioning does not support.
    Invalid(Vec<InvalidPod>),
    /// There is no usable dynamic NodePool.
    NoNodePools,
    /// No NodePool has an instance type that meets the NodePool's own requirements.
    NoInstanceTypes,
    /// No NodePool can launch a node for the pod.
    NoFit(Vec<PoolIncompatibility>),
    /// A resource claim of the pod does not exist or was not created yet.
    Devices(Failure),
    /// Only reserved capacity is compatible, and it is used up; the pod waits for the next pass, without an event.
    ReservationWait(Vec<PoolIncompatibility>),
    /// A planned node was found, but truncating its instance types broke minValues.
    MinValuesAfterTruncation,
}

impl Unschedulable {
    /// Reports whether the pod waits for reserved capacity; such a pod is neither reported nor counted as unschedulable.
    pub fn is_deferred(&self) -> bool {
        matches!(self, Self::ReservationWait(_))
    }

    /// Reports whether neither an event nor a log line is due for the pod.
    pub fn is_silent(&self) -> bool {
        self.is_deferred()
            || matches!(self, Self::Invalid(problems) if problems.contains(&InvalidPod::ExcludesNodePools))
    }
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(problems) => join(f, problems),
            Self::NoNodePools => f.write_str("no dynamic nodepools found"),
            Self::NoInstanceTypes => {
                f.write_str("nodepool requirements filtered out all available instance types")
            }
            Self::Devices(failure) => failure.fmt(f),
            Self::NoFit(reasons) | Self::ReservationWait(reasons) => join(f, reasons),
            Self::MinValuesAfterTruncation => f.write_str(
                "pod didn't schedule because NodePool couldn't meet minValues requirements",
            ),
        }
    }
}

fn join<T: fmt::Display>(f: &mut fmt::Formatter<'_>, parts: &[T]) -> fmt::Result {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str("; ")?;
        }
        part.fmt(f)?;
    }
    Ok(())
}

/// Why one NodePool cannot launch a node for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolIncompatibility {
    /// The NodePool.
    pub node_pool: String,
    /// The least that its DaemonSets request on any of its instance types.
    pub daemon_overhead: Resources,
    /// The reason.
    pub reason: Incompatibility,
}

impl fmt::Display for PoolIncompatibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "incompatible with nodepool \"{}\", daemonset overhead={}, {}",
            self.node_pool, self.daemon_overhead, self.reason
        )
    }
}

/// Why a NodePool cannot launch a node for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incompatibility {
    /// Taints the pod does not tolerate.
    Taints(Vec<Taint>),
    /// Requirements of the pod that are incompatible with the NodePool.
    Requirements(Incompatible),
    /// Requirements of the pod's volumes that are incompatible with the NodePool.
    Volumes(Incompatible),
    /// A topology constraint leaves no domain.
    Topology {
        /// `topology spread`, `pod affinity`, `pod anti-affinity`.
        constraint: &'static str,
        /// The node label.
        key: String,
        /// Domains that the constraint admits, but in which no instance can be launched.
        domains: Vec<String>,
    },
    /// The NodePool's limit on `nodes` is reached.
    NodeLimit,
    /// Every instance type exceeds the NodePool's limits.
    Limits,
    /// Fewer different values are left than minValues requires.
    MinValues {
        /// The label.
        key: String,
        /// The minimum.
        min_values: u32,
        /// The number of values left.
        found: u32,
        /// The requirements and resources of the pod and the DaemonSets.
        asked: Requested,
    },
    /// No instance type is left.
    InstanceTypes(InstanceTypeMismatch),
    /// Only reserved capacity is compatible, and it is used up.
    Reserved,
    /// No devices can be allocated for the pod's resource claims.
    Devices(String),
}

impl fmt::Display for Incompatibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taints(taints) => {
                let each = |taint: &Taint| format!("did not tolerate taint (taint={taint})");
                let all: Vec<String> = taints.iter().map(each).collect();
                f.write_str(&all.join("; "))
            }
            Self::Requirements(incompatible) => write!(f, "incompatible requirements, {incompatible}"),
            Self::Volumes(incompatible) => write!(f, "incompatible volume requirements, {incompatible}"),
            Self::Topology { constraint, key, domains } => {
                write!(f, "unsatisfiable topology constraint for {constraint}, key={key}")?;
                if domains.is_empty() { Ok(()) } else { write!(f, " (nothing can be launched in {})", domains.join(", ")) }
            }
            Self::NodeLimit => f.write_str("node limits have been exhausted for nodepool"),
            Self::Limits => f.write_str("all available instance types exceed limits for nodepool"),
            Self::MinValues { key, min_values, found, asked } => {
                write!(f, "minValues requirement is not met for label(s) (label(s)=[{key}]), {found} of {min_values} found{asked}")
            }
            Self::InstanceTypes(none) => none.fmt(f),
            Self::Reserved => f.write_str("one or more instance types with compatible reserved offerings are available, but could not be reserved"),
            Self::Devices(problem) => write!(f, "allocating dynamic resources, {problem}"),
        }
    }
}

/// The requirements and resources that instance types were checked against.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Requested {
    /// The requirements, as text.
    pub requirements: String,
    /// Requests of the pod and the DaemonSets, on the instance type with the smallest DaemonSet overhead.
    pub resources: Resources,
    /// The same, on the instance type with the largest DaemonSet overhead.
    pub most_resources: Resources,
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requirements,
            resources,
            most_resources,
        } = self;
        write!(f, ", requirements={requirements}, resources=")?;
        if resources == most_resources {
            write!(f, "{resources}")
        } else {
            write!(f, "min={resources}, max={most_resources}")
        }
    }
}

/// Which of the three checks (requirements, resources, offering) instance types passed, alone and in pairs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct InstanceTypeMismatch {
    /// Some instance type met the requirements.
    pub requirements: bool,
    /// Some instance type had enough resources.
    pub resources: bool,
    /// Some instance type had a compatible offering.
    pub offering: bool,
    /// One instance type passed both of these checks.
    pub requirements_and_resources: bool,
    /// One instance type passed both of these checks.
    pub requirements_and_offering: bool,
    /// One instance type passed both of these checks.
    pub resources_and_offering: bool,
    /// The requirements and resources of the pod and the DaemonSets.
    pub asked: Requested,
    /// The pod requests at least a million cores, probably because `m` was forgotten.
    pub suspicious_cpu: bool,
}

impl fmt::Display for InstanceTypeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match (self.requirements, self.resources, self.offering) {
            (false, false, false) => {
                "no instance type met the scheduling requirements or had enough resources or had a required offering"
            }
            (false, false, true) => {
                "no instance type met the scheduling requirements or had enough resources"
            }
            (false, true, false) => {
                "no instance type met the scheduling requirements or had a required offering"
            }
            (true, false, false) => {
                "no instance type had enough resources or had a required offering"
            }
            (false, true, true) => "no instance type met all requirements",
            (true, false, true) => "no instance type has enough resources",
            (true, true, false) => "no instance type has the required offering",
            (true, true, true) if self.requirements_and_resources => {
                "no instance type which met the scheduling requirements and had enough resources, had a required offering"
            }
            (true, true, true) if self.resources_and_offering => {
                "no instance type which had enough resources and the required offering met the scheduling requirements"
            }
            (true, true, true) if self.requirements_and_offering => {
                "no instance type which met the scheduling requirements and the required offering had the required resources"
            }
            (true, true, true) => "no instance type met the requirements/resources/offering tuple",
        };
        write!(f, "{text}{}", self.asked)?;
        if self.suspicious_cpu && text == "no instance type has enough resources" {
            f.write_str(" (CPU request >= 1 Million, m vs M typo?)")?;
        }
        Ok(())
    }
}

/// The outcome of a NodePool in a scheduling pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// The NodePool.
    pub node_pool: String,
    /// Whether it was used, or why not.
    pub outcome: PoolOutcome,
}

/// Whether a NodePool could launch nodes in a scheduling pass.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolOutcome {
    /// The NodePool was considered.
    Used,
    /// The NodePool is static: it has `replicas` and does not scale with pods.
    Static,
    /// The NodePool is being deleted.
    Deleting,
    /// The NodePool's Ready condition is not True.
    NotReady,
    /// The provider failed to list the instance types; the text is the provider's error.
    Unknown(String),
    /// The instance types are not known yet: the provider has not been asked, or NodeOverlays have not been evaluated.
    Unevaluated,
    /// No instance type meets the NodePool's requirements (event NoCompatibleInstanceTypes).
    NoCompatibleInstanceTypes {
        /// Whether unmet minValues are the cause.
        min_values: bool,
    },
    /// The NodePool's specification is invalid.
    Invalid(String),
}
