//! Older generations in a cluster: the testbed's API server and controllers, the real Karpenter controllers, and a minimal cloud
//! provider.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod admission;
mod cloud;
mod projection;
mod reviews;
mod serving;
mod webhook;
mod world;
