//! Dynamic resource allocation: which devices a pod's resource claims get, and where that lets the pod run.
//!
//! (Being built by the lead: parsing stands in [`model`]; the allocator with `Allocator::{allocate, commit, retain}` follows.)

pub mod model;

pub use model::{Device, DeviceTemplate};
