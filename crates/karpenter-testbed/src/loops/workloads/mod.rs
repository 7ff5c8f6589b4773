//! The workload controllers of kube-controller-manager.
//!
//! Each controller is a pure plan (what to create, delete, report) and a driver that executes it. Not implemented in any of them:
//! adoption of orphans, ControllerRevision objects, slow start, and events other than those of pod creation.

pub(crate) mod daemon_set;
pub(crate) mod deployment;
pub(crate) mod job;
pub(crate) mod pods;
pub(crate) mod replica_set;
pub(crate) mod stateful_set;
