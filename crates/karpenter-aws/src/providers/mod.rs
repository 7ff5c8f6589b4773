//! The resources of AWS that instances are launched with, one provider for each: it calls AWS, caches the answers and
//! decides what follows from them.
//!
//! | module | content |
//! |---|---|
//! | [`instance`] | instances: selection of instance types, launch, description, termination, tags |
//! | [`instance_type`] | instance types and offerings of a node class |
//! | [`image`] | AMIs of a node class |
//! | [`launch_template`] | launch templates |
//! | [`subnet`], [`security_group`] | subnets and security groups of a node class |
//! | [`capacity_reservation`], [`placement_group`] | capacity reservations and placement group of a node class |
//! | [`instance_profile`] | instance profiles in IAM |
//! | [`pricing`] | on-demand and spot prices |
//! | [`version`] | the cluster's version of Kubernetes |
//! | [`changes`] | which instance types a change concerns |
//!
//! UPSTREAM: pkg/providers

#[cfg(feature = "sdk")]
pub mod capacity_reservation;
pub mod changes;
pub mod image;
#[cfg(feature = "sdk")]
pub mod instance;
#[cfg(feature = "sdk")]
pub mod instance_profile;
pub mod instance_type;
#[cfg(feature = "sdk")]
pub mod launch_template;
#[cfg(feature = "sdk")]
pub mod placement_group;
pub mod pricing;
#[cfg(feature = "sdk")]
pub mod security_group;
#[cfg(feature = "sdk")]
pub mod subnet;
#[cfg(feature = "sdk")]
pub mod version;
