//! Disruption decisions through the public interface, one scenario per test.
//!
//! UPSTREAM: pkg/controllers/disruption/{suite,consolidation,drift,emptiness,balanced}_test.go

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod assessment;
mod balanced;
mod behavior;
mod blockers;
mod budgets;
mod candidates;
mod commands;
mod consolidation;
mod drift;
mod fleet;
mod process;
mod validation;
mod verdicts;

#[path = "../scheduling/fixture.rs"]
#[expect(
    dead_code,
    reason = "shared with the scheduling scenarios, which use the rest"
)]
mod fixture;
