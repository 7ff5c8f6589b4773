//! Nodes that are being deleted: [`termination`] drains them, [`eviction`] evicts their pods.

pub mod eviction;
pub mod health;
pub(crate) mod protection;
pub mod termination;
