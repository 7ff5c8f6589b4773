//! Karpenter's cloud provider for AWS: EC2NodeClass, launch and termination of EC2 instances, drift and interruption.
//!
//! The folders have the names of Karpenter's packages in Go, so that its users find their way. A module uses only those
//! above it in this table:
//!
//! | module | content |
//! |---|---|
//! | [`api`] | the resource EC2NodeClass: fields, validation, status, labels, static hash |
//! | [`kubelet`] | kubelet settings of an EC2NodeClass, and expressions in them |
//! | [`user_data`] | the user data with which an instance joins the cluster |
//! | [`options`] | flags and environment variables |
//! | [`sdk`] | calls to AWS: clients, pacing, retries, error classification, batching |
//! | [`providers`] | one provider per resource of AWS: instances, instance types, AMIs, launch templates, subnets, … |
//! | [`cloud_provider`] | [`Ec2Provider`](cloud_provider::Ec2Provider), which the engine and Karpenter's own controllers call |
//! | [`context`] | [`AwsContext`](context::AwsContext): what the controllers share; settings of the provider |
//! | [`controllers`] | node classes, interruption, tagging, capacity reservations, zonal shifts, metrics |
//! | [`operator`] | [`AwsOperator`](operator::AwsOperator): discovery of the cluster, creation of the providers, start of the controllers |
//!
//! Without the feature `sdk` the crate contains the resources and the decisions that make no calls: it builds in
//! seconds, and `karpenter-legacy`, tools and tests use it in this form.
//!
//! UPSTREAM: aws/karpenter-provider-aws

pub mod api;
#[cfg(feature = "sdk")]
pub mod cloud_provider;
#[cfg(feature = "sdk")]
pub mod context;
#[cfg(feature = "sdk")]
pub mod controllers;
pub mod kubelet;
#[cfg(all(test, feature = "sdk"))]
mod logged;
#[cfg(feature = "sdk")]
pub mod operator;
pub mod options;
pub mod providers;
#[cfg(feature = "sdk")]
pub mod sdk;
pub mod user_data;
