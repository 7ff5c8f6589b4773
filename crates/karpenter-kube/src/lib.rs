//! Karpenter's cluster side: what watches, decides when to decide, and carries decisions out.
//!
//! ```text
//! API server ──watch──▶ model (one task) ──publish──▶ View ──▶ controllers ──▶ engine (pure) ──▶ plan ──▶ writes
//!                          ▲                                                                               │
//!                          └──────────────── nominations, marks, claims just created ◀────────────────────┘
//! ```
//!
//! | module | question it answers |
//! |---|---|
//! | [`operator`] | what runs, in which order does it start and stop? |
//! | [`process`] | what does the `main` of a controller binary share with the others? |
//! | [`model`] | what is the cluster like now? One writer, immutable views |
//! | [`controller`] | how does a controller run: queue, single flight, back-off? |
//! | [`context`] | what do controllers work with? |
//! | [`provisioning`] | from pending pods to NodeClaims |
//! | [`nodeclaim`] | from the NodeClaim to the node, and to its end |
//! | [`node`] | how is a node drained, and when is it broken? |
//! | [`nodepool`] | what does a NodePool's status say? |
//! | [`static_capacity`], [`capacity_buffer`], [`overlay`] | what do the feature gates of these names do? |
//! | [`disruption`] | which machines are given back? |
//! | [`events`], [`metrics`], [`observability`], [`logging`], [`admin`] | how is it told? |
//! | [`writes`] | how do controllers that write one object keep out of each other's way? |
//! | [`client`], [`watching`], [`outage`], [`patch`], [`lease`], [`clock`], [`options`], [`scheduler_config`], [`provider`] | the plumbing |
//!
//! # Adding a controller
//!
//! A controller works on one object at a time. It is told of changes, names the keys that are due, and reconciles a key
//! by reading the latest [`model::View`]:
//!
//! 1. A struct with an `Arc<Context>` in the module of its subject (`nodeclaim/expiration.rs`), one controller a file.
//! 2. [`controller::Controller`]: `name` (upstream's), `kind` (for logs), `triggered_by` (adds keys to the queue, quickly:
//!    it runs on the model's task), `reconcile` (returns [`controller::Next`]); `concurrency` and `backoff` if they differ.
//! 3. One line in `Setup::controllers` in `operator.rs`. A provider's own controllers go through `Builder::with`.
//!
//! A controller that looks at everything in passes implements [`controller::Periodic`] and is added with `Setup::periodic`.
//!
//! What the framework gives: never two reconciliations of one key at once; a change during one leads to another; errors
//! are logged and retried with back-off, conflicts and vanished objects are not errors; panics stay in their
//! reconciliation; times are the [`clock::Clock`]'s, so that tests run in virtual time.
//!
//! What a controller owes:
//!
//! - It reads `cx.view()` anew each time, and copes with a view that lags behind its own writes: whatever it does twice
//!   must be harmless. Memory is for speed, never for truth.
//! - It writes the smallest patch ([`writes::Writes`] for NodeClaims, Nodes and NodePools, which several controllers write, else
//!   [`patch::patch_object`], [`patch::patch_status`]): with [`patch::Lock::Optimistic`] wherever a list (conditions, taints,
//!   finalizers) is touched, without a lock for single fields of its own. It computes the patch from [`writes::Writes::latest`].
//! - It logs and counts what happened after the write that says so: a write that is refused is tried again.
//! - It deletes with a uid precondition, evicts through `clients.no_retry`, waits with `cx.clock` or `Next::After`.
//! - It tells users by `cx.recorder`, counts in `cx.metrics`, logs milestones with upstream's message and keys.
//! - It never trusts user input: what cannot be read is reported on the object and skipped.
//!
//! Which machines are given back is decided by `karpenter_core::disruption`; [`disruption`] has it done.

pub mod admin;
pub mod capacity_buffer;
pub mod client;
pub mod clock;
pub mod context;
pub mod controller;
pub mod disruption;
pub mod events;
pub mod lease;
pub mod logging;
pub mod metrics;
pub mod model;
pub mod node;
pub mod nodeclaim;
pub mod nodepool;
pub mod observability;
pub mod operator;
pub mod options;
pub mod outage;
pub mod overlay;
pub mod patch;
pub mod process;
pub mod provider;
pub mod provisioning;
mod readiness;
mod resting;
pub mod scheduler_config;
pub mod static_capacity;
pub mod watching;
pub mod writes;
