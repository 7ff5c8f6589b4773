//! Karpenter's decision engine: pure scheduling and disruption planning.
//!
//! Input: [`cluster::Cluster`] takes Kubernetes objects as the API server returns them and provides [`cluster::Snapshot`]s;
//! [`provider::CloudProvider`] lists the instance types that can be launched ([`instance_type`], [`offering`]).
//! Output: [`schedule::schedule`] places pods on the nodes of a snapshot and on planned nodes, as a [`schedule::Plan`] with a
//! reason for every pod that could not be placed; [`disruption::plan()`] decides which nodes to delete or replace. Smaller
//! decisions have modules of their own: whether a NodeClaim has drifted ([`drift`]), whether a node must be repaired
//! ([`repair`]), how many nodes a static NodePool lacks ([`static_capacity`]), whether a NodePool is below its limits
//! ([`limits`]), how much capacity a buffer reserves ([`capacity_buffer`]), and how NodeOverlays change instance types
//! ([`overlay`]).
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
pub mod reason;
pub mod repair;
pub mod requirements;
pub mod resources;
pub mod schedule;
pub mod static_capacity;
pub mod taints;
mod well_known;
