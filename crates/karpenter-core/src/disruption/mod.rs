//! Which machines to give back, and what to buy instead.
//!
//! [`plan`] answers for a snapshot: *which commands should be started now, and why is every other machine kept?*
//!
//! 1. Every machine is looked at: it is a [`Candidate`] or [`Blocked`] for a reason.
//! 2. The methods run in this order, each until it finds nothing more or budgets are used up: emptiness, static drift,
//!    drift, multi-node consolidation, single-node consolidation. The first method that finds commands ends the pass.
//! 3. A what-if asks the scheduler where the pods of a set of candidates would go; [`consolidation`] judges the answer by
//!    price.
//! 4. A command's machines are marked in a fork and its replacements added to it, so the next command of the same pass
//!    reckons with it.
//! 5. Every candidate gets a [`Verdict`].
//!
//! [`validate`] decides, some time later and on a newer snapshot, whether a command still holds.
//!
//! UPSTREAM: pkg/controllers/disruption. DIFFERS: every candidate is evaluated, on all cores; multi-node consolidation starts
//! from upstream's ordered prefix and then improves it; several commands may come out of one pass.

pub mod balanced;
pub mod budgets;
pub mod candidate;
pub mod command;
pub mod consolidation;
pub mod cost;
mod methods;
pub mod pdb;
mod plan;
pub mod prices;
mod replacement;
pub mod simulation;
mod validate;

pub use budgets::Budgets;
pub use candidate::{Blocked, Candidate, Candidates, Unconsolidatable};
pub use command::{Command, CommandId, Decision, Method, Verdict, VerdictKind};
pub use plan::{DisruptionPlan, DisruptionRequest, MultiNodeSearch, Stopwatch, plan};
pub use validate::{Rejection, validate};
