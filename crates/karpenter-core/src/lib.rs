//! Karpenter's decision engine: pure scheduling and disruption planning.
//!
//! What goes in: [`cluster::Cluster`] takes Kubernetes objects as they are seen and gives [`cluster::Snapshot`]s;
//! [`provider::CloudProvider`] says which machines can be bought ([`instance_type`], [`offering`]).
//! What comes out: [`schedule::schedule`] places pods on the machines of a snapshot and on new ones, as a
//! [`schedule::Plan`] with a reason for every pod it could not place.
//!
//! Nothing here performs I/O, reads a clock or draws a random number: equal inputs give equal plans.

pub mod cluster;
pub mod disruption;
pub mod dra;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod instance_type;
pub mod offering;
pub mod overlay;
pub mod pod;
pub mod provider;
pub mod quantity;
pub mod requirements;
pub mod resources;
pub mod schedule;
pub mod taints;
mod well_known;
