//! Scenarios: the whole of Karpenter on the embedded control plane, in virtual time.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod world;

mod disruption;
mod failures;
mod provisioning;
mod restarts;
mod termination;
