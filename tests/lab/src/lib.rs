//! Karpenter in one process: the embedded control plane, simulated nodes and the controllers.
//!
//! The playground and the simulator start from here, and the scenario tests of the controllers are this crate's own.
//! [`local_cluster`] starts the parts together, [`manifests`] applies YAML, [`progress`] summarizes the state of the cluster.
//! With the feature `aws`, `aws` starts the AWS provider against the fake of AWS.

#[cfg(feature = "aws")]
pub mod aws;
pub mod local_cluster;
pub mod manifests;
pub mod progress;
