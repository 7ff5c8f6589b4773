//! Shadow: what this Karpenter would have done in a cluster that another Karpenter runs, and what the other did.
//!
//! - [`action`]: launches and disruptions in a form in which two Karpenters can be compared, and their agreement.
//! - [`window`]: provisioning, in windows of a minute: the same pods, the nodes that each launches for them.
//! - [`moves`]: disruption: the nodes that each disrupts, matched by name within ten minutes.
//! - [`comparison`]: both, fed with what is observed and what is decided.
//! - [`report`]: the totals and the largest differences.
//!
//! Decisions are made on the states of the other Karpenter. Within a window, the NodeClaims that the other created in it are left
//! out, and the nodes that this Karpenter planned replace them; afterwards, the state is that of the other again. Savings of
//! decisions are therefore added up one by one, and not compounded.
//!
//! What one Karpenter does and the other cannot see: nominations of pods to nodes, offerings that a launch found to be unavailable,
//! cool-downs. They explain part of the differences.

pub mod action;
pub mod comparison;
pub mod moves;
pub mod report;
pub mod window;

pub use comparison::Comparison;
pub use report::ShadowReport;
