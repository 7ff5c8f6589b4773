//! The methods of a pass, one file each.

mod drift;
mod emptiness;
mod multi_node;
mod single_node;
mod static_drift;

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::{
    candidate::{Blocked, Candidate, Unconsolidatable},
    command::{Command, Method},
    consolidation::{self, Move, Rules},
    plan::{Kept, Pass},
    simulation::Simulator,
};
use crate::schedule::Cancel;

/// What a method found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) commands: Vec<Command>,
    pub(super) kept: Kept,
    /// Machines that must go and cannot, by name.
    pub(super) blocked: BTreeMap<String, Blocked>,
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

/// How many candidates are looked at between two checks of the clock.
const ROUND: usize = 64;

/// Judges sets of candidates on `threads` threads; the answers come in the order of the sets.
fn judge_sets(
    simulator: &Simulator,
    sets: &[Vec<&Candidate>],
    rules: Rules,
    threads: usize,
) -> Vec<Result<Move, Unconsolidatable>> {
    let one = |set: &Vec<&Candidate>| consolidation::evaluate(simulator, set, rules);
    if threads <= 1 || sets.len() == 1 {
        sets.iter().map(one).collect()
    } else {
        sets.par_iter().map(one).collect()
    }
}

/// Judges each candidate as if it went alone, unless that is known.
fn judge_alone<'c>(
    pass: &mut Pass<'_>,
    simulator: &Simulator,
    candidates: impl IntoIterator<Item = &'c Candidate>,
) {
    let unknown: Vec<Vec<&Candidate>> = candidates
        .into_iter()
        .filter(|candidate| !pass.alone.contains_key(candidate.name()))
        .map(|candidate| vec![candidate])
        .collect();
    let rules = pass.request.rules(Method::SingleNode);
    let judged = judge_sets(simulator, &unknown, rules, pass.request.threads);
    let names = unknown.iter().map(|set| set[0].name().to_owned());
    pass.alone.extend(names.zip(judged));
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
        scores: Vec::new(),
    }
}
