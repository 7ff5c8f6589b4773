//! EC2 instances of NodeClaims.
//!
//! | module | content |
//! |---|---|
//! | [`filter`] | instance types that a NodeClaim may be launched as |
//! | [`launcher`] | launch of an instance, and the evaluation of its errors |
//! | [`fleet`] | batches of CreateFleet |
//! | `instances` | get, list, terminate, tag |
//!
//! UPSTREAM: pkg/providers/instance

pub mod filter;
pub mod fleet;
mod instances;
pub mod launcher;

pub use fleet::Fleets;
pub use instances::{Freshness, InReservation, Instance, InstanceError, Instances, instance_id};
pub use launcher::{LaunchRequest, Launcher};
