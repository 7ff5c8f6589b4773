//! Karpenter on Cluster API: nodes are Machines, launched from the templates of MachineDeployments.
//!
//! The objects of Cluster API are in the management cluster, in the namespace of the Cluster; NodePools, NodeClaims and Nodes are in
//! the workload cluster. Both may be one cluster.
//!
//! # One Machine of its own for each NodeClaim
//!
//! A MachineDeployment says what can be launched: instance type, zone, capacity, templates. Its `spec.replicas` is never written.
//! A launch creates a Machine that belongs to no MachineSet, under a name that is derived from the NodeClaim's uid, and then its
//! infrastructure machine and its bootstrap configuration as copies of the MachineDeployment's templates.
//!
//! The other way is to increment `spec.replicas` and to adopt the Machine that appears. Replicas are a counter, which does not say whose
//! replica was counted: after `kill -9` between the write and the adoption, the next process must know that it was counted, so the
//! write needs a ledger of uids beside the counter, in the same patch. Even with it, Cluster API chooses which Machine a decrement
//! deletes: with two MachineSets, as during a rollout, it deletes one of the old MachineSet although another is marked, and a decrement
//! that is repeated deletes a second one. A Machine of its own has none of this: the second POST answers that the Machine exists, and
//! DELETE deletes this Machine. What it gives up is what a MachineSet does (rollouts, remediation), which is Karpenter's drift and repair.
//!
//! After `kill -9` at any point:
//!
//! | killed after | next |
//! |---|---|
//! | nothing was written | the launch is repeated |
//! | the Machine was created | `create` finds it by its name and uid label, and creates what it lacks |
//! | everything was created | `create` returns what the Machine's annotation says was launched |
//! | the NodeClaim was deleted | `delete` finds the Machine by its name, with or without a provider id |
//! | the NodeClaim is gone | `list` returns the Machine, and the garbage collection deletes it |
//!
//! | module | question it answers |
//! |---|---|
//! | [`node_class`] | what is configured? |
//! | [`deployment`] | what does a MachineDeployment offer, and why is it refused? |
//! | [`catalogue`] | which instance types has a NodePool? |
//! | [`machine`] | what is written into a Machine, and read from it? |
//! | [`hub`] | how are the objects of the management cluster read and written? |
//! | [`provider`] | the `CloudProvider` |
//! | [`controllers`] | what else runs: the status of node classes, Machines that were deleted by others |

pub mod catalogue;
pub mod controllers;
pub mod deployment;
mod errors;
pub mod hub;
pub mod machine;
pub mod node_class;
pub mod provider;

pub use hub::Hub;
pub use node_class::{ClusterAPINodeClass, GROUP};
pub use provider::ClusterApiProvider;
