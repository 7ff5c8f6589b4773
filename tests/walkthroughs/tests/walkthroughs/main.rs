//! The walkthroughs that users of Karpenter showed us (`tests/seeds`), one API generation each, as black boxes: their manifests and
//! install values unchanged, a real Helm and a real kubectl, the binary of the controller as a process of its own; the embedded
//! API server over HTTPS and the stand-in for EC2 over HTTP in this one.
//!
//! `cargo xtask walkthrough 1|2|3` builds the binary, runs one and prints what happens. Where there is no kubectl, no Helm or no
//! binary they say so and pass, but not under xtask.

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
mod three;
mod two;
