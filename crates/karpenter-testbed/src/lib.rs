//! An in-memory Kubernetes control plane that real `kubectl` and kube clients talk to.
//!
//! What stands in for a cluster: an API server (in process as a `tower::Service`, or over HTTPS on loopback), a scheduler,
//! the workload controllers and node agents, with injectable time and faults. It shares no code with the engine
//! (architecture invariant I5), so that it can contradict it.
//!
//! | module | question it answers |
//! |---|---|
//! | [`registry`] | which kinds exist, how they are named, and what schema they have |
//! | [`fields`] | who owns which field: managed fields and server-side apply |
//! | [`patch`] | how JSON, merge and strategic merge patches change an object |
//! | [`present`] | how kinds are shown: discovery, OpenAPI, Tables, protobuf request bodies |
//! | [`store`] | where objects live: revisions, optimistic concurrency, watch |
//! | [`server`] | what happens to a request: verbs, admission, subresources, custom resources, HTTP |
//! | [`loops`] | who acts on objects: scheduler, workload controllers, node agents, garbage collection |
//! | [`Testbed`] | how a test or the playground starts all of it |
//! | [`clock`], [`faults`] | how time passes and what goes wrong |

pub mod clock;
pub mod faults;
pub mod fields;
pub mod loops;
pub mod patch;
pub mod present;
pub mod registry;
pub mod server;
pub mod store;
mod testbed;

pub use clock::Clock;
pub use faults::Faults;
pub use testbed::{Builder, Testbed};
