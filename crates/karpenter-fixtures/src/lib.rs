//! Builders of Kubernetes objects for tests, benches and examples: pods, nodes, NodePools, NodeClaims, workloads, volumes.
//!
//! A test states what its rule is about; the builder fills in the rest with the defaults of a small cluster:
//!
//! ```
//! use karpenter_fixtures::*;
//!
//! let web = pod("web")
//!     .cpu("1")
//!     .memory("2Gi")
//!     .label("app", "web")
//!     .spread(ZONE, 1, ("app", "web"))
//!     .select(ARCH, "arm64")
//!     .build();
//! assert_eq!(web.spec.unwrap().node_selector.unwrap()[ARCH], "arm64");
//!
//! let spot = node_pool("spot")
//!     .requires(CAPACITY_TYPE, "In", &["spot"])
//!     .limit("cpu", "100")
//!     .budget("10%")
//!     .weight(5)
//!     .build();
//! assert_eq!(spot.spec.weight, Some(5));
//! ```
//!
//! A node with its NodeClaim and a pod that runs on it:
//!
//! ```
//! use karpenter_fixtures::*;
//!
//! let node = node("n").pool("spot").zone(Z2).cpu("8");
//! let claim = claim_of(&node).build();
//! assert_eq!(claim.status.provider_id.as_deref(), Some("fake://n"));
//! assert_eq!(claim.metadata.labels.unwrap()[ZONE], Z2);
//!
//! let running = pod("web").cpu("1").controlled_by("ReplicaSet", "web-1").on("n").build();
//! assert_eq!(running.status.unwrap().phase.as_deref(), Some("Running"));
//! ```
//!
//! Workloads take the methods of a pod for their template:
//!
//! ```
//! use karpenter_fixtures::*;
//!
//! let web = deployment("web").replicas(3).cpu("500m").anti_affinity(HOSTNAME, ("app", "web"));
//! assert_eq!(web.build().spec.unwrap().replicas, Some(3));
//! assert_eq!(pdb("web").min_available(1).build().metadata.name.as_deref(), Some("web"));
//! ```
//!
//! Objects are kept as JSON until [`Object::build`] reads them, so that a test can also [set](Object::set) a field to what
//! a user could write but the types do not allow:
//!
//! ```
//! use karpenter_fixtures::*;
//!
//! let invalid = pod("p").set("/spec/containers/0/resources/requests/cpu", "much");
//! assert_eq!(invalid.json()["spec"]["containers"][0]["resources"]["requests"]["cpu"], "much");
//! ```
//!
//! Instance types and offerings are types of the engine: their builders are in `karpenter_core::fake` (feature `fake`).

mod node;
mod node_pool;
mod object;
mod pod;
mod storage;
mod workload;

pub use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
pub use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
pub use k8s_openapi::api::policy::v1::PodDisruptionBudget;
pub use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
pub use karpenter_api::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, INITIALIZED, INSTANCE_TYPE, NODE_POOL, OS, REGISTERED, ZONE,
};
pub use karpenter_api::v1::{NodeClaim, NodePool};
pub use node::{bare_node, claim_of, node, node_claim};
pub use node_pool::{node_pool, requirement};
pub use object::{Object, copies, read};
pub use pod::{HasPodSpec, affinity_term, expression, pod, term};
pub use storage::{csi_node, persistent_volume, persistent_volume_claim, storage_class};
pub use workload::{daemon_set, deployment, pdb};

/// The first zone of the fake cloud.
pub const Z1: &str = "test-zone-1";
/// The second zone of the fake cloud.
pub const Z2: &str = "test-zone-2";
/// The third zone of the fake cloud, without spot capacity.
pub const Z3: &str = "test-zone-3";

/// The time at which ready objects became ready: 2026-01-01.
pub const EPOCH: &str = "2026-01-01T00:00:00Z";
