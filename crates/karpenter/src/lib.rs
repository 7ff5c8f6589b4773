#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

pub use k8s_openapi;
pub use karpenter_api as api;
pub use karpenter_core as core;
#[cfg(feature = "kube")]
pub use karpenter_kube as kube;
