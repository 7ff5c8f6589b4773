//! Karpenter's decision engine: pure scheduling and disruption planning.
//!
//! What goes in: [`cluster::Cluster`] takes Kubernetes objects as they are seen and gives [`cluster::Snapshot`]s;
//! [`provider::CloudProvider`] says which machines can be bought ([`instance_type`], [`offering`]).
//! What comes out: [`schedule::schedule`] places pods on the machines of a snapshot and on new ones, as a
//! [`schedule::Plan`] with a reason for every pod it could not place. Smaller questions have modules of their own: whether a
//! machine has drifted ([`drift`]) or is to be repaired ([`repair`]), how many a static pool lacks ([`static_capacity`]), whether
//! a pool has room below its limits ([`limits`]), what a capacity buffer stands for ([`capacity_buffer`]), what NodeOverlays
//! change ([`overlay`]).
//!
//! Nothing here performs I/O, reads a clock or draws a random number: equal inputs give equal plans.

pub mod capacity_buffer;
pub mod cluster;
pub mod disruption;
pub mod dra;
pub mod drift;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod instance_type;
pub mod limits;
pub mod offering;
pub mod overlay;
pub mod pod;
pub mod provider;
pub mod quantity;
pub mod repair;
pub mod requirements;
pub mod resources;
pub mod schedule;
pub mod static_capacity;
pub mod taints;
mod well_known;
