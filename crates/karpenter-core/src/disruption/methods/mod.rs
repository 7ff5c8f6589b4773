//! The disruption methods, one module each.

mod drift;
mod emptiness;
mod multi_node;
mod single_node;
mod static_drift;

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::candidate::{Candidate, NotConsolidatable, NotDisruptable};
use super::command::{Command, Method};
use super::consolidation;
use super::consolidation::{Move, Rules};
use super::plan::{Kept, Pass};
use super::simulation::Simulator;
use crate::schedule::Cancel;

/// The result of a method.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) commands: Vec<Command>,
    pub(super) kept: Kept,
    /// Drifted nodes whose pods cannot be scheduled elsewhere, by name.
    pub(super) blocked: BTreeMap<String, NotDisruptable>,
    pub(super) budget_blocked: bool,
    pub(super) timed_out: bool,
    pub(super) unseen_pools: BTreeSet<String>,
}

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

/// The number of candidates evaluated between two checks for cancellation.
const ROUND: usize = 64;

/// Evaluates sets of candidates on `threads` threads; the results are in the order of the sets.
fn judge_sets(
    simulator: &Simulator,
    sets: &[Vec<&Candidate>],
    rules: Rules,
    threads: usize,
) -> Vec<Result<Move, NotConsolidatable>> {
    let one = |set: &Vec<&Candidate>| consolidation::evaluate(simulator, set, rules);
    if threads <= 1 || sets.len() == 1 {
        sets.iter().map(one).collect()
    } else {
        sets.par_iter().map(one).collect()
    }
}

/// Evaluates each candidate alone, unless its result is cached.
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
