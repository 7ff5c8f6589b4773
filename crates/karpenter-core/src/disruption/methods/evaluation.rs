//! Evaluates sets of candidates, on several threads.

use std::collections::hash_map::Entry;

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

/// Marks candidates that certainly cannot be consolidated alone as not evaluated, unless the request asks for all reasons.
pub(super) fn rule_out(pass: &mut Pass<'_>, simulator: &Simulator, candidates: &[&Candidate]) {
    if pass.request.finds_reasons {
        return;
    }
    let replacements = pass.request.rules(Method::SingleNode).max_replacements;
    for candidate in candidates {
        let alone = pass.alone.entry(candidate.id());
        if let Entry::Vacant(alone) = alone
            && simulator.rules_out(&[candidate], replacements)
        {
            alone.insert(Err(NotConsolidatable::NotEvaluated));
        }
    }
}

/// Evaluates each candidate alone, unless an earlier method of the pass did.
pub(super) fn judge_alone<'c>(
    pass: &mut Pass<'_>,
    simulator: &Simulator,
    candidates: impl IntoIterator<Item = &'c Candidate>,
) {
    let rules = pass.request.rules(Method::SingleNode);
    let unknown = candidates.into_iter();
    let unknown = unknown.filter(|candidate| !pass.alone.contains_key(&candidate.id()));
    let unknown: Vec<Vec<&Candidate>> = unknown.map(|candidate| vec![candidate]).collect();
    pass.evaluated += unknown.len();
    let judged = judge_sets(simulator, &unknown, rules, pass.request.threads);
    let ids = unknown.iter().map(|set| set[0].id());
    pass.alone.extend(ids.zip(judged));
}
