//! Validation of pending pods: why no node can be launched for a pod, whatever the NodePools are.
//!
//! UPSTREAM: pkg/controllers/provisioning/provisioner.go, Validate

use std::fmt;

use karpenter_api::labels::NODE_POOL;
use karpenter_api::v1::Operator;
use karpenter_api::validation::{Findings, Problem, RequirementParts, WellKnown, requirement};

use super::{LabelExpr, NodeTerm, Shape};

/// Why Karpenter does not provision for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidPod {
    /// Every alternative of the pod's node affinity excludes nodes of NodePools, which is valid and not reported.
    ExcludesNodePools,
    /// Node affinity uses `matchFields`.
    MatchFields,
    /// A requirement on node labels is invalid.
    Requirement(Problem),
    /// A resource quantity is invalid.
    Resource(String),
    /// A volume of the pod prevents scheduling.
    Volume(VolumeProblem),
    /// The pod has resource claims, and dynamic resource allocation is not simulated.
    DynamicResources,
}

/// Why a volume prevents scheduling.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VolumeProblem {
    /// The claim does not exist.
    ClaimNotFound(String),
    /// The claim is being deleted.
    ClaimDeleting(String),
    /// The claim lost its volume.
    ClaimLost(String),
    /// The volume does not exist.
    VolumeNotFound(String),
    /// The volume is being deleted.
    VolumeDeleting(String),
    /// The claim names a volume but binding was not completed.
    NotBound(String),
    /// The claim is unbound and has no storage class.
    NoStorageClass(String),
    /// The storage class does not exist.
    StorageClassNotFound(String),
    /// The claim is unbound although its class has volume binding mode Immediate.
    UnboundImmediate(String),
    /// The provisioner is not supported.
    UnsupportedProvisioner(String),
    /// The storage class restricts a topology key that is not supported.
    UnsupportedTopologyKey(String),
}

impl fmt::Display for VolumeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClaimNotFound(name) => write!(f, "persistentvolumeclaim \"{name}\" not found"),
            Self::ClaimDeleting(name) => {
                write!(f, "persistentvolumeclaim \"{name}\" is being deleted")
            }
            Self::ClaimLost(name) => write!(
                f,
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume"
            ),
            Self::VolumeNotFound(name) => write!(f, "persistentvolume \"{name}\" not found"),
            Self::VolumeDeleting(name) => write!(f, "persistentvolume \"{name}\" is being deleted"),
            Self::NotBound(name) => write!(
                f,
                "persistentvolumeclaim \"{name}\" names a volume but is not bound to it"
            ),
            Self::NoStorageClass(name) => {
                write!(f, "unbound pvc \"{name}\" must define a storage class")
            }
            Self::StorageClassNotFound(name) => write!(f, "storageclass \"{name}\" not found"),
            Self::UnboundImmediate(name) => write!(
                f,
                "pvc \"{name}\" with immediate volume binding mode must be bound"
            ),
            Self::UnsupportedProvisioner(name) => {
                write!(f, "provisioner \"{name}\" is not supported")
            }
            Self::UnsupportedTopologyKey(key) => {
                write!(f, "storage class topology key \"{key}\" is not supported")
            }
        }
    }
}

impl fmt::Display for InvalidPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExcludesNodePools => {
                f.write_str("configured to not run on a Karpenter provisioned node")
            }
            Self::MatchFields => {
                f.write_str("node selector term with matchFields is not supported")
            }
            Self::Requirement(problem) => problem.fmt(f),
            Self::Resource(problem) => f.write_str(problem),
            Self::Volume(problem) => problem.fmt(f),
            Self::DynamicResources => f.write_str(
                "pod has Dynamic Resource Allocation requirements, which are not simulated",
            ),
        }
    }
}

/// Checks node selector and required node affinity of a pod. Preferences are not checked.
pub fn validate(shape: &Shape, well_known: &WellKnown) -> Vec<InvalidPod> {
    let mut problems: Vec<InvalidPod> = shape
        .problem
        .iter()
        .cloned()
        .map(InvalidPod::Resource)
        .collect();
    let excludes = |expression: &LabelExpr| {
        expression.key == NODE_POOL && expression.operator == "DoesNotExist"
    };
    let excludes = |term: &NodeTerm| term.expressions.iter().any(excludes);
    if !shape.required_nodes.is_empty() && shape.required_nodes.iter().all(excludes) {
        return vec![InvalidPod::ExcludesNodePools];
    }
    let mut findings = Findings::default();
    for (key, value) in &shape.node_selector {
        let values = [value.clone()];
        let parts = RequirementParts {
            key,
            operator: &Operator::In,
            values: &values,
            min_values: None,
        };
        requirement(parts, well_known, &mut findings);
    }
    for term in &shape.required_nodes {
        if term.has_fields {
            problems.push(InvalidPod::MatchFields);
        }
        for expression in &term.expressions {
            let operator = Operator::from(expression.operator.as_str());
            let parts = RequirementParts {
                key: &expression.key,
                operator: &operator,
                values: &expression.values,
                min_values: None,
            };
            requirement(parts, well_known, &mut findings);
        }
    }
    problems.extend(findings.errors.into_iter().map(InvalidPod::Requirement));
    problems
}
