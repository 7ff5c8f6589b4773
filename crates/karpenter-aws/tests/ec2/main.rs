//! What the provider does to AWS, over HTTP against a stand-in that is written from AWS's own models.
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
mod resources;
mod second_opinion;
mod support;
mod templates;
