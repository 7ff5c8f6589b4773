//! Rehearsals: what a change does to nodes, dollars and evictions.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod buffers;
mod changes;
mod gates;
mod lifecycle;
mod steps;
mod versions;
pub mod world;
