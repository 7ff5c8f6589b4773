//! Scenarios: the whole of Karpenter on the embedded control plane, in virtual time.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod world;

mod ageing;
mod buffers;
mod disruption;
mod failures;
mod observability;
mod overlays;
mod provisioning;
mod repair;
mod restarts;
mod static_pools;
mod termination;
