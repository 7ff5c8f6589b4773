//! Karpenter's Kubernetes resources and the rules that depend on them alone.
//!
//! - [`v1`]: NodePool and NodeClaim (`karpenter.sh/v1`); [`v1alpha1`]: NodeOverlay; [`autoscaling`]: CapacityBuffer.
//! - [`labels`], [`conditions`], [`events`]: names that users, dashboards and providers depend on.
//! - [`duration`], [`budget`], [`cron`], [`hash`], [`pause`]: the semantics of single fields and annotations.
//! - [`validation`]: checks beyond the CRD schema, and the labels of a provider ([`validation::WellKnown`]).
//! - [`crd`]: the CustomResourceDefinitions, generated from the types.
//!
//! The crate is pure: no client, no clock, no runtime. The time and the registered labels are arguments.

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
