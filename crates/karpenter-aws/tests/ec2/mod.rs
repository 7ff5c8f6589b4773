//! The provider's calls to AWS, over HTTP to a stand-in that is written from AWS's own models.
#![cfg(feature = "sdk")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod fleets;
mod instances;
mod launches;
mod permissions;
mod questions;
mod reports;
mod resources;
mod second_opinion;
pub mod support;
mod templates;
mod unused_templates;
