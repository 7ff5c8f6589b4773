//! `karpenter.sh/v1beta1` and `karpenter.k8s.aws/v1beta1`: NodePool, NodeClaim and EC2NodeClass before v1.
//!
//! Controllers never read them: the API server converts them ([`crate::conversion`]). The types are the schemas of the served
//! versions. Where the type of a field has more values in v1 (operators of requirements, reasons of budgets, status), the type
//! of v1 is used, so that those values are not lost.
//!
//! UPSTREAM: pkg/apis/v1beta1 of both repositories (up to v1.0)

mod ec2_node_class;
mod node_claim;
mod node_pool;

pub use ec2_node_class::{
    AmiSelectorTerm, BlockDevice, BlockDeviceMapping, EC2NodeClass, EC2NodeClassSpec,
    MetadataOptions, SecurityGroupSelectorTerm, SubnetSelectorTerm,
};
pub use node_claim::{NodeClaim, NodeClaimSpec};
pub use node_pool::{
    ConsolidationPolicy, Disruption, NodeClaimTemplate, NodeClaimTemplateSpec, NodeClassReference,
    NodePool, NodePoolSpec,
};
