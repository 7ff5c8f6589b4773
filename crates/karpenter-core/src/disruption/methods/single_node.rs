//! Deletes nodes, or replaces them by cheaper ones, one per command.
//!
//! Candidates are evaluated on all cores, in rounds; the first in order that saves money is the command. NodePools take turns,
//! starting with those that the last pass did not reach, so that no NodePool is starved.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::evaluation::{ROUND, cancelled, judge_alone, rule_out};
use crate::disruption::candidate::{Candidate, NotConsolidatable};
use crate::disruption::consolidation::balanced::{THRESHOLD, Totals};
use crate::disruption::pass::{Found, Pass, command};

pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    let mut found = Found::default();
    let candidates = std::mem::take(&mut pass.candidates);
    let totals = pass.totals(&candidates);
    let candidates = match pass.request.policy.behavior.node_pools_take_turns {
        true => interleave(candidates, pass),
        false => candidates,
    };
    let mut waiting: VecDeque<&Candidate> = candidates.into();
    let mut simulator = None;
    while !waiting.is_empty() {
        if cancelled(pass.request.single_node_cancel.as_ref()) {
            found.timed_out = true;
            break;
        }
        if found.commands.len() >= pass.request.max_commands_of_single_nodes() {
            break;
        }
        let round = next_round(&mut waiting, pass, &totals, &mut found);
        let current = simulator.get_or_insert_with(|| match pass.request.finds_reasons {
            true => pass.simulator(),
            false => pass.simulator().ending_when_stuck(),
        });
        rule_out(pass, current, &round);
        judge_alone(pass, current, round.iter().copied());
        let mut round = round.into_iter();
        while let Some(candidate) = round.next() {
            let verdict = pass.alone.remove(&candidate.id());
            let verdict = verdict.unwrap_or(Err(NotConsolidatable::NotEvaluated));
            let verdict =
                verdict.and_then(|moved| match totals.score(&[candidate], moved.savings) {
                    Some(score) if score < THRESHOLD => Err(NotConsolidatable::Score {
                        score,
                        threshold: THRESHOLD,
                    }),
                    score => Ok((moved, score)),
                });
            match verdict {
                Err(why) => found.keep(candidate, why),
                Ok((moved, score)) => {
                    let scores = totals.judge(&[candidate], moved.savings);
                    let mut command = command(pass.method, vec![candidate.clone()], moved, score);
                    command.scores = scores;
                    pass.adopt(&command);
                    simulator = None;
                    found.commands.push(command);
                    // The rest of the round was evaluated without this command.
                    round
                        .rev()
                        .for_each(|candidate| waiting.push_front(candidate));
                    break;
                }
            }
        }
    }
    for candidate in waiting {
        if found.timed_out {
            found.unseen_pools.insert(candidate.pool_name().to_owned());
        }
        found.keep(candidate, NotConsolidatable::NotEvaluated);
    }
    found
}

/// Returns the next candidates that budgets allow and whose score can reach the threshold.
fn next_round<'c>(
    waiting: &mut VecDeque<&'c Candidate>,
    pass: &Pass<'_>,
    totals: &Totals,
    found: &mut Found,
) -> Vec<&'c Candidate> {
    let mut next = || {
        loop {
            let candidate = waiting.pop_front()?;
            if pass.budgets.of(candidate.pool_name()).remaining == 0 {
                found.keep_for_budget(candidate, &pass.budgets);
                continue;
            }
            // Even deleting it without a replacement would not reach the threshold.
            let score = totals.score(&[candidate], candidate.price);
            let Some(score) = score.filter(|score| *score < THRESHOLD) else {
                return Some(candidate);
            };
            found.keep(
                candidate,
                NotConsolidatable::Score {
                    score,
                    threshold: THRESHOLD,
                },
            );
        }
    };
    // One thread evaluates no candidate in vain.
    let most = if pass.request.threads > 1 { ROUND } else { 1 };
    std::iter::from_fn(&mut next).take(most).collect()
}

/// Alternates between NodePools, in the order of their best candidates; NodePools not reached last time come first.
fn interleave<'c>(candidates: Vec<&'c Candidate>, pass: &Pass<'_>) -> Vec<&'c Candidate> {
    let mut places: FxHashMap<&str, usize> = FxHashMap::default();
    let mut queues: Vec<VecDeque<&Candidate>> = Vec::new();
    for candidate in candidates {
        let pool = candidate.pool_name();
        let place = *places.entry(pool).or_insert_with(|| {
            queues.push(VecDeque::new());
            queues.len() - 1
        });
        queues[place].push_back(candidate);
    }
    let is_reached = |queue: &VecDeque<&Candidate>| {
        let pool = queue.front().map(|candidate| candidate.pool_name());
        pool.is_none_or(|pool| !pass.request.unseen_pools.contains(pool))
    };
    queues.sort_by_key(is_reached);
    let mut turns = Vec::new();
    while !queues.is_empty() {
        turns.extend(queues.iter_mut().filter_map(VecDeque::pop_front));
        queues.retain(|queue| !queue.is_empty());
    }
    turns
}
