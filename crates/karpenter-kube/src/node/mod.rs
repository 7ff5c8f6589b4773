//! Nodes on their way out: [`termination`] drains them, [`eviction`] moves their pods.

mod drain;
pub mod eviction;
pub mod health;
pub(crate) mod protection;
pub mod termination;
