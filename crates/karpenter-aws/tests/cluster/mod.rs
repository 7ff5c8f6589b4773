//! Launched instances: the real controllers between an API server and a stand-in for AWS.
#![cfg(feature = "sdk")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod crowd;
mod garbage;
mod instance_status;
mod interruption;
mod launch;
mod metrics;
mod overlays;
mod placement;
mod policy;
mod reserved;
mod tagging;
mod unreadable;
pub mod world;
mod zonal_shift;
