//! Dynamic resource allocation: which devices a pod's resource claims get, and on which nodes the pod can then run.
//!
//! For the scheduler, this module decides whether the resource claims of a pod can be satisfied on a candidate, for which of its
//! instance types, and with which additional requirements. [`allocator`] is the entry point.
//!
//! 1. [`model`] parses ResourceClaims, DeviceClasses and ResourceSlices once; a feature that is not supported becomes a
//!    [`Problem`](model::Problem) of the object, never an error.
//! 2. [`pools`] merges slices into pools: the newest generation, complete or not, valid or not.
//! 3. [`selector`] compiles and evaluates CEL device selectors, each at most once per device.
//! 4. [`capacity`] rounds requests for a share of a device to the device's policy.
//! 5. [`search`] finds devices: depth first over claims, requests, alternatives and slots, existing devices before devices that
//!    an instance type will publish, bounded by a number of steps.
//! 6. [`ledger`] records the allocations of the pass, per instance type while the type of a planned node is open.
//!
//! Supported: `exactly` and `firstAvailable`, exact counts and all, CEL selectors of class and request, `matchAttribute`,
//! shared devices with request policies, shared counters, claims from templates. Not supported, and reported on the pod: other
//! constraints and selectors. Ignored, as upstream: admin access and device taints.
//!
//! UPSTREAM: pkg/scheduling/dynamicresources. DIFFERS: the search uses the candidate's requirements narrowed by the pod and its
//! volumes; the terms of a node selector are alternatives; a selector is compiled once; a claim that does not exist yet defers
//! its pod.

pub mod allocator;
pub mod capacity;
mod inventory;
pub mod ledger;
pub mod model;
pub mod pools;
pub mod search;
pub mod selector;

pub use allocator::{Allocation, Allocator, Candidate, Failure, Inventory};
pub use ledger::{Host, RUNNING, TypeKey};
pub use model::{Device, DeviceTemplate};
