//! Scenario tests: all of Karpenter on the embedded control plane, in virtual time.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[macro_use]
mod world;
mod cloud;

mod ageing;
mod agreement;
mod bad_input;
mod blocking;
mod buffers;
mod bundles;
mod claims;
mod controllers;
mod decisions;
mod disruption;
mod doctor;
mod events;
mod evictions;
mod explained;
mod failures;
mod joining;
mod kept;
mod kwok;
mod leadership;
mod leaving;
mod limits;
mod lines;
mod observability;
mod overlays;
mod overview;
mod pauses;
mod plans;
mod pod_nomination;
mod provisioning;
mod reconciliations;
mod repair;
mod requests;
mod restarts;
mod scale;
mod security;
mod shadow;
mod static_pools;
mod termination;
mod triggers;
