//! The walkthroughs of users of Karpenter (`tests/seeds`), one for each API generation, as black boxes: with their manifests and
//! install values unchanged, a real Helm and a real kubectl, and the controller's binary as a separate process; the embedded API
//! server over HTTPS and the AWS fake over HTTP run in this process.
//!
//! `cargo xtask walkthrough 1|2|3` builds the binary, runs one of them and prints its output. Without kubectl, Helm or the binary
//! they are skipped, except under xtask.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod cluster;
mod controller;
mod everything;
mod install;
mod one;
mod plans;
mod three;
mod two;
