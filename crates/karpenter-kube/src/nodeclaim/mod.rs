//! NodeClaims: from the wish for a machine to its end.
//!
//! [`lifecycle`] launches, registers, initialises and finalises; its steps are one module each.

pub mod conditions;
pub mod consistency;
pub mod drift;
pub mod expiration;
pub mod garbage_collection;
pub mod ghosts;
pub mod hydration;
pub mod lifecycle;
pub mod pod_events;
pub mod removal;

mod finalize;
mod initialization;
mod launch;
mod liveness;
mod registration;
mod rests;

pub use launch::Launches;
