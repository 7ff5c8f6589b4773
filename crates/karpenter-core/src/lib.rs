//! Karpenter's decision engine: which nodes pods need, and which nodes to delete or replace. A library without I/O.
//!
//! It serves two kinds of programs: Karpenter's controllers (`karpenter-kube`), and programs that ask the same questions about
//! instance types of their own, without a cluster. The shortest one:
//!
//! ```
//! use jiff::Timestamp;
//! use karpenter_api::v1::{NodeClassReference, NodePool};
//! use karpenter_core::cluster::{Cluster, ClusterConfig};
//! use karpenter_core::instance_type::InstanceType;
//! use karpenter_core::offering::{Offering, Price};
//! use karpenter_core::pod::Pod;
//! use karpenter_core::resources::Resources;
//! use karpenter_core::schedule::{Policy, Query, schedule};
//!
//! // What can be launched. CPUs are counted in thousandths, other resources in whole units.
//! let capacity = Resources::new().with("cpu", 4000).with("memory", 16 << 30).with("pods", 110);
//! let small = InstanceType::linux("small", "amd64", capacity).with_offering(Offering::on_demand("hall-1", Price::per_hour(0.10)));
//!
//! // For whom, and which pods wait.
//! let class = NodeClassReference { group: "example.com".into(), kind: "Rack".into(), name: "any".into() };
//! let mut cluster = Cluster::new(ClusterConfig::default());
//! cluster.apply_node_pool(&NodePool::ready("halls", class));
//! cluster.set_instance_types("halls", Ok([small].into()));
//! cluster.insert_pod(Pod::pending("default", "web", Resources::new().with("cpu", 500)));
//!
//! let plan = schedule(&cluster.snapshot(), &Policy::at(Timestamp::UNIX_EPOCH), &Query::default());
//! assert_eq!(plan.new_node_claims[0].instance_types[0], "small");
//! assert!(plan.unplaced.is_empty() && plan.ignored.is_empty());
//! ```
//!
//! | module | question it answers |
//! |---|---|
//! | [`cluster`] | what is the state of the cluster? [`Cluster`](cluster::Cluster) takes objects, and provides [`Snapshot`](cluster::Snapshot)s |
//! | [`instance_type`], [`offering`], [`provider`] | what can be launched? [`CloudProvider`](provider::CloudProvider) is the interface of a cloud |
//! | [`schedule`] | where do pods go? A [`Plan`](schedule::Plan), with a reason for every pod that has no place |
//! | [`disruption`] | which nodes are deleted or replaced? A [`DisruptionPlan`](disruption::DisruptionPlan), with a verdict for every node |
//! | [`pod`], [`requirements`], [`resources`], [`quantity`], [`taints`], [`dra`] | what do objects ask for? |
//! | [`drift`], [`repair`] | must a node be replaced because it is outdated, or unhealthy? |
//! | [`limits`], [`capacity_buffer`], [`overlay`] | what does a limit allow, what does a buffer reserve, what does a NodeOverlay change? |
//! | [`lifecycle`] | what happens next? The processes of provisioning, static NodePools, disruption, NodeClaims and termination |
//! | [`behavior`] | which rules do versions of Karpenter have another way? |
//! | [`reason`] | stable ids of all reasons, for metrics and tools |
//!
//! Nothing here performs I/O, reads a clock or draws a random number: equal inputs give equal plans. Requests and plans are
//! `#[non_exhaustive]`: requests are changed by their `with_` methods or in their fields, and fields may be added to both.
//!
//! Kubernetes types are those of `k8s-openapi`, in the version that [`karpenter_api::k8s_openapi`] exports.

#![warn(missing_docs)]

pub mod behavior;
pub mod capacity_buffer;
pub mod cluster;
pub mod disruption;
pub mod dra;
pub mod drift;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod instance_type;
mod json;
pub mod lifecycle;
pub mod limits;
pub mod offering;
pub mod overlay;
pub mod pod;
pub mod provider;
pub mod quantity;
pub mod reason;
pub mod repair;
pub mod requirements;
pub mod resources;
pub mod schedule;
pub mod spelling;
pub mod taints;

/// The examples of the README are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Defines methods `with_…` of requests and of what describes a provider: they set a field and return the value; `= …` says what the
/// field gets, instead of the argument.
macro_rules! setters {
    ($($(#[$doc:meta])* $method:ident($field:ident: $type:ty) $(= $value:expr)?;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $method(mut self, $field: $type) -> Self {
            self.$field = setters!(@value $field $($value)?);
            self
        }
    )*};
    (@value $field:ident) => { $field };
    (@value $field:ident $value:expr) => { $value };
}

pub(crate) use setters;
