//! The rules by which controllers move objects on: when a node is consolidatable or expires, which pods a drain evicts, which
//! pending pods are planned, and when a pass is made.
//!
//! The controllers of `karpenter-kube` and the rehearsal of `karpenter-decisions` call the same functions, so that a rehearsal
//! does what the controllers would do. The time is an argument.

pub mod conditions;
pub mod drain;
pub mod nominations;
pub mod passes;
pub mod pod_events;
pub mod recent_replacements;
