//! Checks beyond the CRD schema, reported in the ValidationSucceeded condition of the object.
//!
//! Every problem is reported, not just the first. [`Findings::errors`] make an object unusable; [`Findings::warnings`] do not.
//!
//! UPSTREAM: pkg/apis/v1/nodepool_validation.go, pkg/apis/v1/nodeclaim_validation.go, pkg/apis/v1alpha1/nodeoverlay_validation.go

mod names;
mod node_overlay;
mod node_pool;
mod problem;
mod requirement;
mod well_known;

pub use names::{InvalidName, label_value, qualified_name};
pub use node_overlay::node_overlay;
pub use node_pool::node_pool;
pub use problem::{Findings, Problem};
pub use requirement::{RequirementParts, requirement};
pub use well_known::{RestrictedLabel, WellKnown};
