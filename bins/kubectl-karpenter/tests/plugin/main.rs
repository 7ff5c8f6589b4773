//! The plugin as users run it: the binary against an API server, and kubectl that finds it.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod fixture;
mod kubectl;
mod pause;

#[path = "../../../../crates/karpenter-testbed/tests/kubectl/usable.rs"]
mod usable;
