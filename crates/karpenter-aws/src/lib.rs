//! Karpenter's cloud provider for AWS: EC2NodeClass, launch and termination of EC2 instances, drift and interruption.
//!
//! Without the feature `sdk` the crate contains the resources and the decisions that make no calls: it builds in
//! seconds, and `karpenter-legacy`, tools and tests use it in this form.
//!
//! UPSTREAM: aws/karpenter-provider-aws

pub mod api;
#[cfg(feature = "sdk")]
pub mod capacity_discovery;
pub mod changes;
#[cfg(feature = "sdk")]
pub mod discovery;
#[cfg(feature = "sdk")]
pub mod fleet;
pub mod hash;
pub mod images;
#[cfg(feature = "sdk")]
pub mod instance_controllers;
#[cfg(feature = "sdk")]
pub mod instance_profiles;
#[cfg(feature = "sdk")]
pub mod instance_status;
pub mod instance_types;
#[cfg(feature = "sdk")]
pub mod instances;
#[cfg(feature = "sdk")]
pub mod interruption;
pub mod kubelet;
#[cfg(feature = "sdk")]
pub mod kubernetes_version;
pub mod launch;
#[cfg(feature = "sdk")]
pub mod launch_templates;
#[cfg(feature = "sdk")]
pub mod launcher;
#[cfg(feature = "sdk")]
pub mod node_class;
#[cfg(feature = "sdk")]
pub mod offering_metrics;
#[cfg(feature = "sdk")]
pub mod operator;
pub mod options;
#[cfg(feature = "sdk")]
pub mod placement_groups;
pub mod pricing;
#[cfg(feature = "sdk")]
pub mod provider;
#[cfg(feature = "sdk")]
pub mod reservations;
#[cfg(feature = "sdk")]
pub mod reserved;
#[cfg(feature = "sdk")]
pub mod sdk;
#[cfg(feature = "sdk")]
pub mod security_groups;
pub mod shifted_zones;
#[cfg(feature = "sdk")]
pub mod stores;
#[cfg(feature = "sdk")]
pub mod subnets;
#[cfg(feature = "sdk")]
pub mod tagging;
pub mod unavailable;
pub mod user_data;
#[cfg(feature = "sdk")]
pub mod zonal_shift;
