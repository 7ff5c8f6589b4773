//! The checks of the doctor: for each a cluster that triggers it, and a near miss that does not.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod budgets;
mod fixture;
mod pods;
mod pools;
mod savings;
