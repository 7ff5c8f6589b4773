//! The plugin as users run it: the binary against an API server, kubectl that finds it, and the transport.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod answers;
mod bundles;
mod convert;
mod dashboard;
mod disk;
mod fixture;
mod kubectl;
mod mistakes;
mod nodes;
mod pause;
mod plan;
mod reference;
mod transport;

#[path = "../../../../crates/karpenter-testbed/tests/kubectl/usable.rs"]
mod usable;
