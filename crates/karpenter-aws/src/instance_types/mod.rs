//! Instance types: what EC2 says about them, and what a node made from one will look like in a class.
//!
//! - [`InstanceTypeInfo`]: EC2's description, cut down to what matters.
//! - [`Shape`]: what of an EC2NodeClass shapes its instance types.
//! - `labels`, `capacity`, `offerings`, `compatibility`: what comes of the two.
//! - [`DiscoveredMemory`]: what registered nodes turned out to have.
//! - [`Resolver`]: the instance types of each class, kept until something about them changes.
//! - `tables`: what EC2's API does not say.

mod capacity;
mod compatibility;
mod discovered;
mod info;
mod labels;
mod offerings;
mod resolver;
mod shape;
mod tables;
#[cfg(test)]
mod tests;

pub use capacity::{ResolvedKubelet, Size, SizeSettings, size};
pub use discovered::DiscoveredMemory;
pub use info::{
    Accelerator, Architecture, Gpu, InstanceTypeInfo, LocalStorage, NetworkCard, NetworkInfo,
    NeuronDevice,
};
pub use offerings::Market;
pub use resolver::{ExtraOfferings, ResolveError, Resolved, Resolver, ResolverSettings};
pub use shape::{PlacementGroup, Shape};
