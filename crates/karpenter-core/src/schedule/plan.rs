//! What the scheduler decided, and why.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use karpenter_api::{
    hash,
    k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference,
    labels::{self, annotations},
    v1::{NodeClaim, NodePool},
};

use super::EffectiveZone;
use crate::{
    dra::Failure,
    pod::{PodKey, PodProblem},
    requirements::{Incompatible, Operator, Requirement, Requirements, Unaliased},
    resources::Resources,
    taints::Taint,
};

/// Where pods go.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Machines to launch, in the order they were opened.
    pub new_claims: Vec<ClaimDraft>,
    /// Pods that go to machines that exist, in the order they were placed.
    pub existing: Vec<Placement>,
    /// Pods that go nowhere.
    pub unplaced: Vec<Unplaced>,
    /// What became of each NodePool, in the order they were tried.
    pub pools: Vec<PoolReport>,
    /// Pending pods by the zone they were bound to before the run, if pending pods were asked for.
    pub pending_by_zone: BTreeMap<EffectiveZone, usize>,
    /// Pods that were not looked at because the run was cancelled.
    pub undecided: Vec<PodKey>,
}

impl Plan {
    /// Dollars an hour for all new machines, each at its cheapest offering.
    pub fn hourly_price(&self) -> f64 {
        self.new_claims.iter().map(|claim| claim.hourly_price).sum()
    }

    /// The draft that a pod was placed on.
    pub fn claim_of(&self, pod: &PodKey) -> Option<&ClaimDraft> {
        self.new_claims
            .iter()
            .find(|claim| claim.pods.contains(pod) || claim.buffer_pods.contains(pod))
    }

    /// The existing machine that a pod was placed on.
    pub fn node_of(&self, pod: &PodKey) -> Option<&str> {
        self.existing
            .iter()
            .find(|placement| placement.pod == *pod)
            .map(|placement| placement.node.as_str())
    }
}

/// A pod on a machine that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The pod.
    pub pod: PodKey,
    /// The machine: its Node name, or its NodeClaim's while there is no Node.
    pub node: String,
    /// A capacity buffer's pod.
    pub buffer: bool,
}

/// A machine to launch.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimDraft {
    /// The NodePool.
    pub node_pool: String,
    /// Instance types that will do, cheapest first, truncated.
    pub instance_types: Arc<[String]>,
    /// The pods.
    pub pods: Vec<PodKey>,
    /// Capacity buffers' pods.
    pub buffer_pods: Vec<PodKey>,
    /// What the pods ask for, and the DaemonSets that will run there at least.
    pub requests: Resources,
    /// Dollars an hour of the cheapest offering.
    pub hourly_price: f64,
    /// minValues were lowered.
    pub min_values_relaxed: bool,
    /// Reservations the machine may use.
    pub reservations: Vec<String>,
    /// The NodeClaim to create; it has a `generateName` and no name.
    pub claim: DraftClaim,
}

/// A NodeClaim that is written out when it is first looked at.
///
/// With hundreds of instance types in each, the NodeClaims of a large plan are larger than everything that led to them, and
/// most plans are only asked what they cost.
#[derive(Clone)]
pub struct DraftClaim {
    /// What it is written from, unless it is somebody's own.
    fill: Option<Fill>,
    written: OnceLock<Box<NodeClaim>>,
    own: Option<Arc<NodeClaim>>,
}

/// What alike drafts share, and what is one's own.
#[derive(Clone)]
struct Fill {
    shape: Arc<DraftShape>,
    requests: Resources,
    min_values_relaxed: bool,
    /// Drivers of the devices its pods get, joined; empty without any.
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
    pub(super) fn new(
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

    /// What the NodeClaim requires, without writing it out; of the instance types only how many there must be.
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

/// What drafts with the same requirements and instance types have in common.
#[derive(Clone, Debug)]
pub(super) struct DraftShape {
    pub(super) pool: Arc<NodePool>,
    pub(super) labels: BTreeMap<String, String>,
    /// Without the list of instance types.
    pub(super) requirements: Requirements,
    pub(super) instance_types: Arc<[String]>,
    /// How many different instance types there must be, if that is asked for.
    pub(super) min_types: Option<u32>,
    pub(super) hourly_price: f64,
    pub(super) overhead: Resources,
    pub(super) reservations: Vec<String>,
    pub(super) price_overlay: bool,
    pub(super) capacity_overlay: bool,
    /// The NodeClaim that drafts of this shape create, but for what their pods ask for; written when first looked at.
    pub(super) prototype: OnceLock<Box<NodeClaim>>,
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
    /// A capacity buffer's pod.
    pub buffer: bool,
    /// Why.
    pub why: WhyNot,
}

/// Why a pod was not placed. [`fmt::Display`] gives the text of upstream's event, without `Failed to schedule pod, `.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhyNot {
    /// The pod itself cannot be provisioned for.
    Invalid(Vec<PodProblem>),
    /// There is no NodePool to launch from.
    NoNodePools,
    /// NodePools have no instance type that meets their own requirements.
    NoInstanceTypes,
    /// No NodePool can launch a machine for it.
    NoFit(Vec<PoolReason>),
    /// Its resource claims cannot be looked up: one is missing, or not made yet.
    Devices(Failure),
    /// Reserved capacity would do but is used up; the pod waits for the next pass. Not worth an event.
    ReservationWait(Vec<PoolReason>),
    /// A machine was found, but with fewer instance types than minValues asks for once the list was cut.
    MinValuesAfterTruncation,
}

impl WhyNot {
    /// Whether the pod only waits, which is neither reported nor counted.
    pub fn is_deferred(&self) -> bool {
        matches!(self, Self::ReservationWait(_))
    }

    /// Whether nobody needs to be told.
    pub fn is_silent(&self) -> bool {
        self.is_deferred()
            || matches!(self, Self::Invalid(problems) if problems.contains(&PodProblem::ExcludesNodePools))
    }
}

impl fmt::Display for WhyNot {
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

/// Why one NodePool cannot launch a machine for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReason {
    /// The NodePool.
    pub node_pool: String,
    /// What its DaemonSets ask for at least.
    pub daemon_overhead: Resources,
    /// What is in the way.
    pub reason: Reason,
}

impl fmt::Display for PoolReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "incompatible with nodepool \"{}\", daemonset overhead={}, {}",
            self.node_pool, self.daemon_overhead, self.reason
        )
    }
}

/// What is in the way of launching a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Taints the pod does not tolerate.
    Taints(Vec<Taint>),
    /// The pod's requirements on nodes.
    Requirements(Incompatible),
    /// The pod's volumes can only be attached elsewhere.
    Volumes(Incompatible),
    /// A topology constraint leaves no domain.
    Topology {
        /// `topology spread`, `pod affinity`, `pod anti-affinity`.
        constraint: &'static str,
        /// The node label.
        key: String,
        /// Domains the constraint admits here, though nothing can be launched there.
        domains: Vec<String>,
    },
    /// The NodePool may not have more nodes.
    NodeLimit,
    /// Every instance type exceeds the NodePool's limits.
    Limits,
    /// Fewer different values are left than minValues asks for.
    MinValues {
        /// The label.
        key: String,
        /// What is asked for.
        min_values: u32,
        /// What is left.
        found: u32,
        /// What was asked for.
        asked: Asked,
    },
    /// No instance type is left.
    InstanceTypes(NoInstanceType),
    /// Reserved capacity would do, but is used up.
    Reserved,
    /// The pod's resource claims cannot be met.
    Devices(String),
}

impl fmt::Display for Reason {
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

/// What was asked of instance types.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Asked {
    /// The requirements, as text.
    pub requirements: String,
    /// What the pod and the DaemonSets ask for, with the fewest that run on an instance type.
    pub resources: Resources,
    /// The same, with the most.
    pub most_resources: Resources,
}

impl fmt::Display for Asked {
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

/// Which of the three tests an instance type must pass were passed, and together.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NoInstanceType {
    /// Some instance type met the requirements.
    pub requirements: bool,
    /// Some instance type had enough resources.
    pub resources: bool,
    /// Some instance type had a fitting offering.
    pub offering: bool,
    /// One instance type passed both.
    pub requirements_and_resources: bool,
    /// One instance type passed both.
    pub requirements_and_offering: bool,
    /// One instance type passed both.
    pub resources_and_offering: bool,
    /// What was asked for.
    pub asked: Asked,
    /// The pod asks for a million cores: `m` was probably forgotten.
    pub suspicious_cpu: bool,
}

impl fmt::Display for NoInstanceType {
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

/// What became of a NodePool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// The NodePool.
    pub node_pool: String,
    /// Whether and why it was not used.
    pub outcome: PoolOutcome,
}

/// Whether a NodePool could be launched from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolOutcome {
    /// It was considered.
    Used,
    /// It is static: it does not follow pods.
    Static,
    /// It is being deleted.
    Deleting,
    /// Its Ready condition is not True.
    NotReady,
    /// Its instance types cannot be known; the reason is the provider's.
    Unknown(String),
    /// Its instance types are not known yet: the provider has not been asked, or NodeOverlays have not been evaluated for it.
    Unevaluated,
    /// Its requirements leave no instance type (event NoCompatibleInstanceTypes).
    NoCompatibleInstanceTypes {
        /// minValues are the cause.
        min_values: bool,
    },
    /// Something in its specification cannot be read.
    Invalid(String),
}
