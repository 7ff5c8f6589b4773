//! Dynamic resource allocation: which devices a pod's resource claims get, and where that lets the pod run.
//!
//! The question this module answers for the scheduler: *can the claims of this pod be satisfied on this candidate, for which
//! of its instance types, and what does that require of the candidate?* [`allocator`] is the way in.
//!
//! 1. [`model`] parses ResourceClaims, DeviceClasses and ResourceSlices once; what it cannot represent becomes a
//!    [`Problem`](model::Problem) of the object, never an error.
//! 2. [`pools`] assembles slices to pools: the newest generation, complete or not, valid or not.
//! 3. [`selector`] compiles and evaluates CEL device selectors, each at most once per device.
//! 4. [`capacity`] rounds requests for a share of a device to the device's policy.
//! 5. [`search`] finds devices: depth first over claims, requests, alternatives and slots, devices that exist before devices
//!    a machine would bring, bounded by a number of steps.
//! 6. [`ledger`] remembers what the pass has given to whom, per instance type while a machine's type is open.
//!
//! Supported: `exactly` and `firstAvailable`, exact counts and all, CEL selectors of class and request, `matchAttribute`,
//! shared devices with request policies, shared counters, claims from templates. Not supported, and said so on the pod:
//! other constraints and selectors. Not looked at, as upstream: admin access and device taints.
//!
//! UPSTREAM: pkg/scheduling/dynamicresources. DIFFERS: the search sees the candidate's requirements narrowed by the pod and
//! its volumes; the terms of a node selector are alternatives; a selector is compiled once; a claim that is not made yet
//! defers its pod.

pub mod allocator;
pub mod capacity;
mod inventory;
pub mod ledger;
pub mod model;
pub mod pools;
pub mod search;
pub mod selector;

pub use allocator::{Allocation, Allocator, Candidate, Failure, Inventory, claims_of};
pub use ledger::{Host, RUNNING, TypeKey};
pub use model::{Device, DeviceTemplate};
