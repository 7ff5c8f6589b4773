//! Instance types of a class: requirements, capacity, overhead and offerings.
//!
//! - [`InstanceTypeInfo`]: an instance type as EC2 describes it.
//! - [`Shape`]: the settings of an EC2NodeClass that its instance types depend on.
//! - `labels`, `capacity`, `offerings`, `compatibility`: what is computed from the two.
//! - [`DiscoveredMemory`]: the memory that registered nodes report.
//! - [`Resolver`]: the instance types of each class, cached until their inputs change.
//! - `tables`: properties that EC2's API does not report.
//! - [`unavailable`] and [`shifted_zones`]: offerings that are not available at the moment.
//! - `offered`: the calls that keep the inputs up to date.
//!
//! UPSTREAM: pkg/providers/instancetype, pkg/cache/unavailableofferings.go

mod capacity;
mod compatibility;
mod discovered;
mod info;
mod labels;
#[cfg(feature = "sdk")]
pub mod offered;
mod offerings;
mod resolver;
mod shape;
pub mod shifted_zones;
mod tables;
#[cfg(test)]
mod tests;
pub mod unavailable;

pub use capacity::{ResolvedKubelet, Size, SizeSettings, size};
pub use discovered::DiscoveredMemory;
pub use info::{
    Accelerator, Architecture, Gpu, InstanceTypeInfo, LocalStorage, NetworkCard, NetworkInfo,
    NeuronDevice,
};
pub use offerings::OfferingState;
pub use resolver::{ExtraOfferings, ResolveError, Resolved, Resolver, ResolverSettings};
pub use shape::{PlacementGroup, Shape};
