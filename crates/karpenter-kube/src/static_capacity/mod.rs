//! NodePools of a fixed size (feature gate StaticCapacity): [`Provisioning`] creates missing NodeClaims, and [`Deprovisioning`]
//! deletes surplus ones, as the process of `karpenter-core` decides. [`StaticCapacity`] is that process, which keeps both and static
//! drift below `limits.nodes` together.

mod deprovisioning;
mod provisioning;

pub use deprovisioning::Deprovisioning;
pub use provisioning::Provisioning;

pub use crate::context::StaticCapacity;
