//! Karpenter on a laptop: an embedded control plane, simulated machines and the controllers, in one process.
//!
//! [`stack`] puts them together; the binary and the scenario tests both start from there. [`manifests`] applies YAML,
//! [`progress`] says what the cluster is doing, [`demo`] shows it off and waits until it has settled, [`args`] is the
//! command line.

pub mod args;
#[cfg(feature = "aws")]
pub mod aws;
pub mod demo;
pub mod manifests;
pub mod progress;
pub mod stack;
