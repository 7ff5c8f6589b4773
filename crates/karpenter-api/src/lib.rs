//! Karpenter's Kubernetes resources: types, CustomResourceDefinitions, validation, and the names that others depend on.
//!
//! ```
//! use karpenter_api::labels;
//! use karpenter_api::v1::{NodeClassReference, NodePool};
//! use karpenter_api::validation::WellKnown;
//!
//! let class = NodeClassReference { group: "example.com".into(), kind: "Rack".into(), name: "any".into() };
//! let pool = NodePool::ready("halls", class).with_requirement(labels::ARCH, "In", ["amd64"]);
//! assert_eq!(serde_json::to_value(&pool)?["kind"], "NodePool");
//! assert!(WellKnown::default().contains(labels::ARCH));
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! - [`v1`]: NodePool and NodeClaim (`karpenter.sh/v1`); [`v1alpha1`]: NodeOverlay; [`autoscaling`]: CapacityBuffer.
//! - [`labels`], [`conditions`], [`events`]: names that users, dashboards and providers depend on.
//! - [`duration`], [`budget`], [`cron`], [`hash`], [`pause`]: the semantics of single fields and annotations.
//! - [`validation`]: checks beyond the CRD schema, and the labels of a provider ([`validation::WellKnown`]).
//! - [`crd`]: the CustomResourceDefinitions, generated from the types; [`resource!`] defines the root type of a NodeClass.
//!
//! The crate is pure: no client, no clock, no runtime. The time and the registered labels are arguments. `karpenter-core` decides
//! with these types, `karpenter-kube` carries it out.

#![warn(missing_docs)]

// The exported macro refers to this crate by name, inside this crate, too.
extern crate self as karpenter_api;

pub mod autoscaling;
pub mod budget;
pub mod conditions;
pub mod crd;
pub mod cron;
pub mod duration;
pub mod events;
pub mod hash;
pub mod labels;
pub mod pause;
mod resource;
mod serialization;
pub mod v1;
pub mod v1alpha1;
pub mod validation;

use std::collections::BTreeMap;

pub use k8s_openapi;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
pub use kube_core;
pub use serde;

/// Quantities by resource name, as Kubernetes writes them (`cpu: 100m`).
pub type ResourceList = BTreeMap<String, Quantity>;

/// The examples of the README are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
