//! Evaluates sets of candidates, on several threads.

use rayon::prelude::*;

use crate::disruption::candidate::{Candidate, NotConsolidatable};
use crate::disruption::command::Method;
use crate::disruption::consolidation;
use crate::disruption::consolidation::{Move, Rules};
use crate::disruption::pass::Pass;
use crate::disruption::simulation::Simulator;
use crate::schedule::Cancel;

pub(super) fn cancelled(cancel: Option<&Cancel>) -> bool {
    cancel.is_some_and(|cancel| cancel())
}

/// The number of candidates evaluated between two checks for cancellation.
pub(super) const ROUND: usize = 64;

/// Evaluates sets of candidates on `threads` threads; the results are in the order of the sets.
pub(super) fn judge_sets(
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

/// Evaluates each candidate alone, unless its result is known: from this pass, or carried over from an earlier one.
pub(super) fn judge_alone<'c>(
    pass: &mut Pass<'_>,
    simulator: &Simulator,
    candidates: impl IntoIterator<Item = &'c Candidate>,
) {
    let rules = pass.request.rules(Method::SingleNode);
    let mut unknown: Vec<Vec<&Candidate>> = Vec::new();
    for candidate in candidates {
        if pass.alone.contains_key(&candidate.id()) {
            continue;
        }
        let known = pass.evaluations.of(simulator);
        match known.and_then(|known| known.find(candidate)) {
            Some((result, is_carried)) => {
                pass.evaluations.carried_over += usize::from(is_carried);
                pass.alone.insert(candidate.id(), result);
            }
            None => unknown.push(vec![candidate]),
        }
    }
    pass.evaluations.evaluated += unknown.len();
    let threads = pass.request.threads;
    if let Some(known) = pass.evaluations.of(simulator) {
        let one = |set: &Vec<&Candidate>| {
            let (outcome, trace) = simulator.remove_traced(set[0]);
            let result = consolidation::judge(simulator.prices(), outcome, set, rules);
            (result, trace)
        };
        let judged: Vec<_> = match threads <= 1 || unknown.len() == 1 {
            true => unknown.iter().map(one).collect(),
            false => unknown.par_iter().map(one).collect(),
        };
        for (set, (result, trace)) in unknown.iter().zip(judged) {
            if let Some(trace) = trace {
                known.record(set[0], &result, &trace);
            }
            pass.alone.insert(set[0].id(), result);
        }
        return;
    }
    let judged = judge_sets(simulator, &unknown, rules, threads);
    let ids = unknown.iter().map(|set| set[0].id());
    pass.alone.extend(ids.zip(judged));
}
