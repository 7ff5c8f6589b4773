//! NodeClaims: from their creation to the deletion of their instances.
//!
//! [`lifecycle`] launches, registers, initializes and finalizes them; each step is one of its modules.

pub mod conditions;
pub mod consistency;
pub mod drift;
pub mod expiration;
pub mod garbage_collection;
pub mod hydration;
pub mod lifecycle;
pub mod model_gc;
pub mod pod_events;
pub mod removal;

pub use lifecycle::launch::Launches;
