//! The algebra of node requirements: the label values that a pod, a NodePool or an instance type admits.
//!
//! A [`Requirement`] is a set of admitted values of one label key; "the label is absent" counts as one more value. Every
//! operator of the Kubernetes API denotes such a set, intersection is intersection, and two requirements are compatible when
//! the intersection is not empty. [`Requirements`] holds one requirement per key.
// UPSTREAM: pkg/scheduling/requirement.go, pkg/scheduling/requirements.go

mod json;
mod requirement;
mod set;
#[cfg(test)]
mod tests;
mod well_known;

pub use karpenter_api::v1::Operator;
pub use requirement::{InvalidRequirement, Requirement};
pub use set::{AllowUndefined, Conflict, Incompatible, LabelNames, Requirements, Unaliased};
