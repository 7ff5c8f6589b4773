//! A deliberately naive solver: the specification the engine is compared with.
//!
//! It reads a cluster as plain Kubernetes objects ([`World`]), places one pod at a time, recomputes everything for each
//! decision and uses the first node that fits. It shares the engine's values (quantities, requirements, instance types)
//! and none of its algorithms.
//!
//! - [`solve`] places the pods; [`Solution`] is also what a plan of the engine is read as.
//! - [`check`] verifies a solution of either solver, one placement at a time.
//! - [`replay`] binds its pods as kube-scheduler would, with its own implementation of the filters.
//! - [`cost`] prices it, and [`quality`] says what it is worth beside its price.
// UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go, nodeclaim.go, existingnode.go, topology.go, preferences.go

pub mod catalogue;
mod check;
pub mod clusters;
mod devices;
pub mod engine;
mod order;
mod pod;
mod quality;
pub mod replay;
mod solve;
mod template;
mod topology;
mod volume;
mod world;

pub use check::{Violation, check, cost};
pub use pod::{PodId, id as pod_id, requests as pod_requests};
pub use quality::{Quality, quality};
pub use solve::{Claim, Solution, SolveSettings, solve};
pub use world::World;
