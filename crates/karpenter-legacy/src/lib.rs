//! Karpenter's resources before v1 and their conversion.
//!
//! | generation | resources | support |
//! |---|---|---|
//! | `v1alpha5`, `v1alpha1` | Provisioner, AWSNodeTemplate ([`v1alpha5`], [`v1alpha1`]) | separate definitions; projected into v1 objects ([`alpha`]) by a controller (feature `controller`) or by `kubectl karpenter convert` |
//! | `v1beta1` | NodePool, NodeClaim, EC2NodeClass | served in addition to v1; converted losslessly ([`conversion`]) by a webhook (`webhook`, served over TLS by `serving`; feature `controller`); documents are upgraded permanently ([`beta`]) |
//!
//! [`finding`] has the findings about an object: field, problem, fix. [`crd`] has the definitions.
//! Without the feature `controller` the crate is pure.

pub mod alpha;
pub mod beta;
#[cfg(feature = "controller")]
pub mod controller;
pub mod conversion;
pub mod crd;
pub mod finding;
pub mod kubelet;
pub mod names;
#[cfg(feature = "controller")]
pub mod options;
#[cfg(feature = "controller")]
pub mod serving;
pub mod v1alpha1;
pub mod v1alpha5;
mod v1beta1;
#[cfg(feature = "controller")]
pub mod webhook;
