//! Controllers of Karpenter: they watch the cluster, decide when the engine plans, and carry out its plans.
//!
//! A provider's program builds an [`operator::Operator`] from its
//! [`CloudProvider`](karpenter_core::provider::CloudProvider), and runs it:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use karpenter_core::provider::CloudProvider;
//! use karpenter_kube::operator::Operator;
//! use karpenter_kube::options::Options;
//! use karpenter_kube::process::{connect, stop_on_signal};
//!
//! async fn run(provider: Arc<dyn CloudProvider>, options: Options) -> Result<(), Box<dyn std::error::Error>> {
//!     let cluster = connect(&options).await?;
//!     Operator::builder(provider, cluster.clients, options)
//!         .registry(cluster.registry)
//!         .run(stop_on_signal())
//!         .await?;
//!     Ok(())
//! }
//! ```
//!
//! `examples/third-party-provider` in the repository is such a program with its provider; the book's page "Writing a provider"
//! explains it.
//!
//! ```text
//! API server ──watch──▶ model (one task) ──publish──▶ View ──▶ controllers ──▶ engine (pure) ──▶ plan ──▶ writes
//!                          ▲                                                                               │
//!                          └──────────────── nominations, deletion marks, new NodeClaims ◀─────────────────┘
//! ```
//!
//! | module | question it answers |
//! |---|---|
//! | [`operator`] | what runs, and in which order does it start and stop? |
//! | [`process`] | what do the `main` functions of controller binaries share? |
//! | [`model`] | what is the state of the cluster? One writer, immutable views |
//! | [`controller`] | how does a controller run: queue, single flight, back-off? |
//! | [`context`] | what do all controllers share? |
//! | [`provisioning`] | from pending pods to NodeClaims |
//! | [`nodeclaim`] | from the NodeClaim to its node, and to its deletion |
//! | [`node`] | how is a node drained, and when is it unhealthy? |
//! | [`nodepool`] | what does a NodePool's status say? |
//! | [`static_capacity`], [`capacity_buffer`], [`overlay`] | what do the feature gates of these names do? |
//! | [`closed_gates`] | which objects have no effect because their gate is off? |
//! | [`disruption`] | which nodes are disrupted? |
//! | [`events`], [`metrics`], [`observability`], [`logging`], [`admin`] | what do users and operators see? |
//! | [`listener`] | which components are notified of what passes decided? |
//! | [`decisions`] (feature `decisions`) | what was decided, and why is a pod pending or a node kept? |
//! | [`shadow`] (feature `decisions`) | what would be decided beside another Karpenter, without writing anything? |
//! | [`client::writes`] | how do controllers that write the same object avoid conflicts? |
//! | [`client`], [`watching`], [`watch_failure_log`], [`lease`], [`clock`], [`options`], [`provider`] | the plumbing |
//!
//! # Adding a controller
//!
//! A controller reconciles one object at a time. It is called for each change of the model, adds the keys that are due to
//! its queue, and reconciles a key by reading the latest [`model::View`]:
//!
//! 1. A struct with an `Arc<Context>` in the module of its subject (`nodeclaim/expiration.rs`), one controller per file.
//! 2. [`controller::Controller`]: `NAME` (upstream's), `KIND` (for logs), `triggered_by` (adds keys to the queue, quickly:
//!    it runs on the model's task), `reconcile` (returns [`controller::Next`]); `concurrency` and `backoff` if they differ.
//! 3. One line in `ControllerRegistry::built_in` in `operator/registry.rs`. A provider's own controllers go through `Builder::with`.
//!
//! A controller that works on all objects in passes implements [`controller::Periodic`] and is added with `ControllerRegistry::periodic`.
//!
//! The framework guarantees: never two reconciliations of one key at once; a change during a reconciliation requeues its
//! key; errors are logged and retried with back-off; conflicts and deleted objects are not errors; a panic ends its own
//! reconciliation only; times are those of the [`clock::Clock`], so that tests run in virtual time.
//!
//! A controller has these duties:
//!
//! - It reads `cx.view()` anew each time, and tolerates a view that lags behind its own writes: every action is idempotent.
//!   Memory is for speed, never for correctness.
//! - It writes the smallest patch ([`client::writes::Writes`] for NodeClaims, Nodes and NodePools, which several controllers write, else
//!   [`client::patch::patch_object`], [`client::patch::patch_status`]): with [`client::patch::Lock::Optimistic`] wherever a list (conditions, taints,
//!   finalizers) is touched, without a lock for single fields of its own. It computes the patch from [`client::writes::Writes::latest`].
//! - It logs and counts a step after the write that records it: a rejected write is retried.
//! - It deletes with a uid precondition, evicts through `clients.no_retry`, waits with `cx.clock` or `Next::After`.
//! - It reports to users through `cx.recorder`, counts in `cx.metrics`, logs milestones with upstream's message and keys.
//! - It never trusts user input: what cannot be parsed is reported on the object and skipped.
//!
//! `karpenter_core::disruption` decides which nodes are disrupted; [`disruption`] carries it out.

#![warn(missing_docs)]

pub mod admin;
pub mod capacity_buffer;
pub mod client;
pub mod clock;
pub mod closed_gates;
pub mod context;
pub mod controller;
#[cfg(feature = "decisions")]
pub mod decisions;
pub mod disruption;
mod error;
pub mod events;
pub mod lease;
pub mod listener;
pub mod logging;
pub mod metrics;
pub mod model;
pub mod node;
pub mod nodeclaim;
pub mod nodepool;
pub mod observability;
pub mod operator;
pub mod options;
pub mod overlay;
pub mod process;
pub mod provider;
pub mod provisioning;
mod queue;
mod readiness;
#[cfg(feature = "decisions")]
pub mod shadow;
pub mod static_capacity;
pub mod watch_failure_log;
pub mod watching;
