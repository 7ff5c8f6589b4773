//! Older generations in a cluster: the testbed's API server, its loops, the real controllers, a cloud of a few lines.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod admission;
mod cloud;
mod projection;
mod serving;
mod webhook;
mod world;
