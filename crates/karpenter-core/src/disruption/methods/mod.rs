//! The methods of a pass, one file each.

mod drift;
mod emptiness;
mod multi_node;
mod single_node;
mod static_drift;

use std::collections::BTreeSet;

use rayon::prelude::*;

use super::{
    candidate::{Candidate, Unconsolidatable},
    command::{Command, Method},
    consolidation::{self, Move},
    plan::{Kept, Pass},
    simulation::Simulator,
};
use crate::schedule::Cancel;

/// What a method found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) commands: Vec<Command>,
    pub(super) kept: Kept,
    pub(super) budget_blocked: bool,
    pub(super) timed_out: bool,
    pub(super) unseen_pools: BTreeSet<String>,
}

/// Runs the pass's method.
pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    match pass.method {
        Method::Emptiness => emptiness::run(pass),
        Method::StaticDrift => static_drift::run(pass),
        Method::Drift => drift::run(pass),
        Method::MultiNode => multi_node::run(pass),
        Method::SingleNode => single_node::run(pass),
    }
}

fn cancelled(cancel: Option<&Cancel>) -> bool {
    cancel.is_some_and(|cancel| cancel())
}

/// Judges sets of candidates side by side; the answers come in the order of the sets.
fn evaluate_all(
    pass: &Pass<'_>,
    simulator: &Simulator,
    sets: &[Vec<&Candidate>],
) -> Vec<Result<Move, Unconsolidatable>> {
    let rules = pass.request.rules(pass.method);
    let one = |set: &Vec<&Candidate>| consolidation::evaluate(simulator, set, rules);
    if pass.request.threads <= 1 || sets.len() == 1 {
        sets.iter().map(one).collect()
    } else {
        sets.par_iter().map(one).collect()
    }
}

fn command(method: Method, candidates: Vec<Candidate>, found: Move, score: Option<f64>) -> Command {
    let Move {
        replacements,
        placements,
        savings,
    } = found;
    Command {
        method,
        candidates,
        replacements,
        placements,
        savings,
        score,
    }
}
