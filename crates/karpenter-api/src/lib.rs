//! What Karpenter's Kubernetes resources look like, and the rules that belong to them alone.
//!
//! - [`v1`]: NodePool and NodeClaim (`karpenter.sh/v1`); [`v1alpha1`]: NodeOverlay; [`autoscaling`]: CapacityBuffer.
//! - [`labels`], [`conditions`], [`events`]: the vocabulary users, dashboards and providers depend on.
//! - [`duration`], [`budget`], [`cron`], [`hash`]: the semantics of single fields.
//! - [`validation`]: what is checked beyond the CRD schema, and the labels a provider knows ([`validation::WellKnown`]).
//! - [`crd`]: the CustomResourceDefinitions, generated from the types.
//!
//! The crate is pure: no client, no clock, no runtime. The time and the registered labels are arguments.

// The exported macro names this crate, here as elsewhere.
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
mod resource;
mod serialisation;
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
