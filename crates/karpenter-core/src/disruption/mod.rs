//! Disruption planning: which nodes to delete, and which replacements to launch.
//!
//! [`plan`] returns, for a snapshot, the commands to start now, and the reason why every other node is kept.
//!
//! 1. Every node is checked: it is a [`Candidate`], or [`NotDisruptable`] with a reason.
//! 2. The methods run in this order, each until it finds nothing more or budgets are used up: emptiness, static drift,
//!    drift, multi-node consolidation, single-node consolidation. The first method that finds commands ends the pass.
//! 3. A simulation finds where the pods of a set of candidates would be scheduled; [`consolidation`] applies the price rules to
//!    the result.
//! 4. A command's nodes are marked for deletion in a fork of the snapshot and its replacements added to it, so that the next
//!    command of the same pass takes it into account.
//! 5. Every node gets a [`Verdict`].
//!
//! [`validate`] checks, after a delay and on a newer snapshot, whether a command is still valid.
//!
//! UPSTREAM: pkg/controllers/disruption. DIFFERS: every candidate is evaluated, on all cores; multi-node consolidation starts
//! from upstream's ordered prefix and then improves it; one pass may return several commands.

mod assessment;
pub mod budgets;
pub mod candidate;
pub mod command;
pub mod consolidation;
pub mod cost;
mod methods;
mod pass;
mod plan;
mod request;
pub mod simulation;
mod staying;
mod validate;

pub use assessment::Assessor;
pub use budgets::Budgets;
pub use candidate::blockers::blockers;
pub use candidate::{Candidate, Candidates, NotConsolidatable, NotDisruptable, Surroundings};
pub use command::{Command, CommandId, Decision, Method, Verdict, VerdictKind};
pub use consolidation::replacement::MinValuesUnmet;
pub use plan::{DisruptionPlan, Planner, plan};
pub use request::{DisruptionRequest, MultiNodeSearch, Stopwatch};
pub use staying::{PodStays, StayingPods};
pub(crate) use validate::startable;
pub use validate::{CommandInvalidated, validate};
