//! What Karpenter decided and why: records of passes, the current reason of each pending pod and each node, and explanations.
//!
//! ```
//! use jiff::Timestamp;
//! use karpenter_core::cluster::{Cluster, ClusterConfig};
//! use karpenter_core::pod::Pod;
//! use karpenter_core::resources::Resources;
//! use karpenter_decisions::history::History;
//! use karpenter_decisions::stage::standing;
//!
//! // A pod that no pass has decided on yet.
//! let mut cluster = Cluster::new(ClusterConfig::default());
//! cluster.insert_pod(Pod::pending("shop", "web", Resources::new().with("cpu", 500)));
//! let snapshot = cluster.snapshot();
//! let pod = snapshot.pod("shop", "web").unwrap();
//! let standing = standing(&snapshot, &History::new(Timestamp::UNIX_EPOCH), pod, None).unwrap();
//! assert_eq!(standing.id, "Batching");
//! ```
//!
//! - [`record`]: a [`DecisionRecord`](record::DecisionRecord) describes what one pass of the provisioner, of disruption or of static
//!   capacity decided. [`ring`] keeps the latest records within bounds.
//! - [`index`]: the reason of each pending pod and each node, since when it has it, and the records of it.
//! - [`history`]: both together, fed by the passes.
//! - [`blocking`]: what blocks a pending pod, and what would help, found by running the scheduler.
//! - [`what_if`]: what would be done with a node after a [`change`]: without a PodDisruptionBudget, with another budget.
//! - [`doctor`]: what blocks nodes, what it costs, whose it is, and how to unblock it.
//! - [`explain`]: answers about a pod, a node, a NodeClaim or a NodePool, from a snapshot and the history; [`groups`] counts pods
//!   and nodes by reason.
//! - [`rehearse`]: what nodes, dollars and evictions would do after a change.
//! - [`choice`]: why a NodeClaim has its instance type.
//! - [`overview`]: the state of the cluster in numbers, and its changes.
//! - [`shadow`]: what this Karpenter would do in a cluster that another one runs, compared with what that one does.
//!
//! Nothing here performs I/O, reads a clock or draws a random number: time is an argument, and equal inputs give equal answers.
//! The reasons themselves are [`karpenter_core::reason::Reason`].

pub mod answer;
pub mod blocking;
pub mod bundle;
pub mod change;
pub mod choice;
pub mod digest;
pub mod doctor;
pub mod explain;
pub mod groups;
pub mod history;
pub mod index;
pub mod overview;
mod passes;
pub mod pdb;
pub mod prices;
pub mod record;
pub mod rehearse;
pub mod ring;
pub mod shadow;
pub mod stage;
pub mod what_if;
pub mod workload;

/// Group and version of all answers.
pub const API_VERSION: &str = "decisions.karpenter.sh/v1alpha1";
