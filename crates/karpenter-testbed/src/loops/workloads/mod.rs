//! Stands for kube-controller-manager's workload controllers.
//!
//! Each controller is a pure plan (what to create, delete, report) and a driver that carries it out. Left out of all of
//! them: adoption of orphans, ControllerRevision objects, slow start, and events other than pod creation's outcome.

pub(crate) mod daemon_set;
pub(crate) mod deployment;
pub(crate) mod job;
pub(crate) mod pods;
pub(crate) mod replica_set;
pub(crate) mod stateful_set;
