//! The scheduling rules through the public interface, one scenario per test.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/{suite,topology,nodeclaim}_test.go

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod affinity;
mod constraints;
mod cost;
mod daemons;
mod defaults;
mod device_allocation;
mod devices;
mod embedding;
mod existing;
mod fixture;
mod instance_types;
mod joining;
mod limits;
mod min_values;
mod offers;
mod order;
mod packing;
mod pod_nomination;
mod pools;
mod process;
mod queries;
mod reasons;
mod recompiled;
mod reserved;
mod resources;
mod selection;
mod state;
mod topology;
mod untried;
mod volumes;
mod zones;
