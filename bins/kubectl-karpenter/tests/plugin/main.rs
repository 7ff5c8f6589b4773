//! The plugin as users run it: the binary against an API server, kubectl that finds it, and the transport.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod answers;
mod dashboard;
mod fixture;
mod kubectl;
mod mistakes;
mod pause;
mod plan;
mod transport;

#[path = "../../../../crates/karpenter-testbed/tests/kubectl/usable.rs"]
mod usable;
