//! `karpenter.sh/v1`: NodePool and NodeClaim.

mod node_claim;
mod node_pool;
mod requirement;

pub use node_claim::{NodeClaim, NodeClaimSpec, NodeClaimStatus, ResourceRequirements};
pub use node_pool::{
    Budget, ConsolidationPolicy, Disruption, DisruptionReason, NodeClaimTemplate,
    NodeClaimTemplateSpec, NodePool, NodePoolSpec, NodePoolStatus, TemplateMetadata,
};
pub use requirement::{
    NodeClassReference, NodeSelectorRequirement, NodeSelectorRequirementWithMinValues, Operator,
};
