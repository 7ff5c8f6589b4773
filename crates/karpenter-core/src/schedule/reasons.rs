//! Why pods were not placed, and why NodePools were not used, as values; [`fmt::Display`] renders upstream's texts.

use std::fmt;
use std::sync::Arc;

use karpenter_api::labels;

use crate::dra::Failure;
use crate::pod::InvalidPod;
use crate::requirements::{Incompatible, InvalidRequirement, Requirements};
use crate::resources::{InvalidResource, Resources, in_words};
use crate::taints::Taint;

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
    /// No NodePool has instance types: they were set for one that does not exist.
    UnknownNodePool {
        /// The name.
        name: String,
        /// A NodePool with a similar name.
        similar: Option<String>,
    },
    /// No NodePool can launch a node for the pod.
    NoFit(Arc<[PoolIncompatibility]>),
    /// A resource claim of the pod does not exist or was not created yet.
    Devices(Failure),
    /// Only reserved capacity is compatible, and it is used up; the pod waits for the next pass, without an event.
    ReservationWait(Arc<[PoolIncompatibility]>),
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
            Self::UnknownNodePool { name, similar } => {
                write!(
                    f,
                    "instance types were set for nodepool \"{name}\", which does not exist"
                )?;
                similar
                    .iter()
                    .try_for_each(|similar| write!(f, " (typo of \"{similar}\"?)"))
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
        /// The constraint.
        constraint: TopologyConstraint,
        /// The node label.
        key: String,
        /// Domains that the constraint admits, but in which no instance can be launched.
        domains: Vec<String>,
    },
    /// The NodePool's limit on `nodes` is reached.
    NodeLimit {
        /// The limit.
        limit: i64,
        /// The number of nodes of the NodePool, planned ones included.
        used: i64,
    },
    /// Every instance type that the pod fits on exceeds the NodePool's limits: those limits.
    Limits(Vec<ExceededLimit>),
    /// Fewer different values are left than minValues requires.
    MinValues {
        /// The label.
        key: String,
        /// The minimum.
        min_values: u32,
        /// The number of values left.
        found: u32,
        /// The requirements and resources of the pod and the DaemonSets.
        requested: Requested,
    },
    /// No instance type is left.
    InstanceTypes(InstanceTypeMismatch),
    /// Only reserved capacity is compatible, and it is used up.
    Reserved,
    /// No devices can be allocated for the pod's resource claims.
    Devices(Failure),
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
            Self::NodeLimit { .. } => f.write_str("node limits have been exhausted for nodepool"),
            Self::Limits(_) => f.write_str("all available instance types exceed limits for nodepool"),
            Self::MinValues { key, min_values, found, requested } => {
                write!(f, "minValues requirement is not met for label(s) (label(s)=[{key}]), {found} of {min_values} found{requested}")
            }
            Self::InstanceTypes(none) => none.fmt(f),
            Self::Reserved => f.write_str("one or more instance types with compatible reserved offerings are available, but could not be reserved"),
            Self::Devices(failure) => write!(f, "allocating dynamic resources, {failure}"),
        }
    }
}

/// The kinds of topology constraints. [`fmt::Display`] gives upstream's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyConstraint {
    /// A topology spread constraint.
    Spread,
    /// Pod affinity.
    Affinity,
    /// Pod anti-affinity, of the pod or of another one.
    AntiAffinity,
}

impl fmt::Display for TopologyConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spread => "topology spread",
            Self::Affinity => "pod affinity",
            Self::AntiAffinity => "pod anti-affinity",
        })
    }
}

/// A limit of a NodePool that excludes instance types. Amounts have the units of [`Resources`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExceededLimit {
    /// The resource.
    pub resource: String,
    /// The limit.
    pub limit: i64,
    /// The amount that the nodes of the NodePool use, planned ones included.
    pub used: i64,
    /// The least that any of the excluded instance types adds.
    pub needed: i64,
}

/// The requirements and resources that instance types were checked against.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Requested {
    /// The requirements of the pod and the NodePool.
    pub requirements: Requirements,
    /// Requests of the pod and the DaemonSets, on the instance type with the smallest DaemonSet overhead.
    pub resources: Resources,
    /// The same, on the instance type with the largest DaemonSet overhead.
    pub most_resources: Resources,
}

impl Requested {
    /// Returns the text of the requirements, without those on labels that exist in the simulation only.
    pub fn requirements_text(&self) -> String {
        let simulated = [labels::REGISTERED, labels::INITIALIZED, labels::HOSTNAME];
        self.requirements.display(|key| simulated.contains(&key))
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resources,
            most_resources,
            ..
        } = self;
        write!(f, ", requirements={}, resources=", self.requirements_text())?;
        if resources == most_resources {
            write!(f, "{resources}")
        } else {
            write!(f, "min={resources}, max={most_resources}")
        }
    }
}

/// A resource of which no instance type has as much as a pod requests. Amounts have the units of [`Resources`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The resource.
    pub resource: String,
    /// What the pod requests.
    pub requested: i64,
    /// The most that an instance type has for pods, after the DaemonSets.
    pub largest: i64,
    /// That instance type; `None` if no instance type has the resource.
    pub instance_type: Option<String>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            requested,
            largest,
            instance_type,
        } = self;
        let amount = |amount| in_words(resource, amount);
        match instance_type {
            None => write!(f, "no instance type has {resource}"),
            Some(name) => write!(
                f,
                "requests {resource} {}; the largest type, {name}, offers {}, short by {}",
                amount(*requested),
                amount(*largest),
                amount(requested.saturating_sub(*largest))
            ),
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
    pub requested: Requested,
    /// The pod requests at least a million cores, probably because `m` was forgotten.
    pub suspicious_cpu: bool,
    /// The resource that is short by most, of those of which no instance type of the NodePool has enough.
    pub shortage: Option<Shortage>,
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
        write!(f, "{text}{}", self.requested)?;
        // DIFFERS: upstream names neither the amount that there is nor a misspelt value.
        if let Some(shortage) = &self.shortage {
            write!(f, " ({shortage})")?;
        }
        for requirement in self.requested.requirements.iter() {
            if let Some(meant) = requirement.meant() {
                write!(f, " ({requirement}: typo of \"{meant}\"?)")?;
            }
        }
        if self.suspicious_cpu && text == "no instance type has enough resources" {
            f.write_str(" (CPU request >= 1 Million, m vs M typo?)")?;
        }
        Ok(())
    }
}

/// The outcome of a NodePool in a scheduling pass.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Instance types were set for a NodePool that does not exist.
    NotFound {
        /// A NodePool with a similar name.
        similar: Option<String>,
    },
    /// The NodePool's specification is invalid.
    Invalid(InvalidNodePool),
}

/// Why the specification of a NodePool is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidNodePool {
    /// A requirement is invalid.
    #[error(transparent)]
    Requirement(#[from] InvalidRequirement),
    /// A limit is invalid.
    #[error(transparent)]
    Limit(#[from] InvalidResource),
}
