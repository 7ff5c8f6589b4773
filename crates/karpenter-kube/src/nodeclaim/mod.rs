//! NodeClaims: from the wish for a machine to its end.
//!
//! [`lifecycle`] launches, registers, initialises and finalises; its steps are one module each.

pub mod conditions;
pub mod lifecycle;
pub mod pod_events;

mod finalize;
mod initialization;
mod launch;
mod liveness;
mod registration;

pub use launch::Launches;
