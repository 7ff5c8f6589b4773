//! EC2 instances of NodeClaims.
//!
//! | module | content |
//! |---|---|
//! | [`filter`] | instance types that a NodeClaim may be launched as |
//! | [`launcher`] | launch of an instance, and the evaluation of its errors |
//! | [`fleet`] | batches of CreateFleet |
//! | `instances` | get, list, terminate, tag |
//! | `by_id` | batches of requests for single instances |
//! | `types` | an instance, reduced to the fields that are used |
//!
//! UPSTREAM: pkg/providers/instance

mod by_id;
pub mod filter;
pub mod fleet;
mod instances;
pub mod launcher;
mod types;

pub use fleet::Fleets;
pub use instances::{Freshness, InstanceError, Instances};
pub use launcher::{LaunchRequest, Launcher};
pub use types::{InReservation, Instance, instance_id};
