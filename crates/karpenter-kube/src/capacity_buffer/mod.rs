//! Capacity buffers (feature gate CapacityBuffer): spare capacity for pods that do not exist yet.
//!
//! 1. [`Resolution`] resolves the pods of a buffer and their number, and writes its status.
//! 2. The provisioner places the in-memory pods of all [`Buffers`] after the real ones and launches the nodes that they need.
//! 3. [`Buffers`] keeps the result: whether a buffer is provisioned (condition Provisioning), and which nodes hold its pods,
//!    because those nodes are not empty.
//!
//! UPSTREAM: pkg/controllers/capacitybuffer

mod resolution;
mod stores;

pub use resolution::Resolution;
pub use stores::{Stores, Watches};

pub use crate::context::Buffers;
