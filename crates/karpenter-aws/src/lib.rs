//! Karpenter on AWS: from an EC2NodeClass to running instances and back.
//!
//! Without the feature `sdk` the crate holds the resources and the decisions that need no call: it builds in seconds, and
//! `karpenter-legacy`, tools and tests use it so.
//!
//! UPSTREAM: aws/karpenter-provider-aws

pub mod api;
pub mod hash;
pub mod images;
pub mod instance_types;
pub mod kubelet;
#[cfg(feature = "sdk")]
pub mod sdk;
pub mod shifted_zones;
pub mod user_data;
