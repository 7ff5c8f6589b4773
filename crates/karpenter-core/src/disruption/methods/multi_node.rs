//! Several machines go at once, for at most one new one.
//!
//! 1. Candidates in order (most money for the least trouble first), as far as budgets allow.
//! 2. The longest prefix that pays, by binary search: upstream's answer, so that ours is never worse.
//! 3. The set is improved: candidates left out are added, in groups that shrink when they do not fit; members are dropped
//!    where that saves more; until nothing helps or time is up.
//!
//! A set's worth is what it saves in dollars an hour.

use std::collections::BTreeSet;

use super::{Found, cancelled, command, evaluate_all};
use crate::disruption::{
    balanced::{THRESHOLD, Totals},
    candidate::Candidate,
    consolidation::Move,
    plan::Pass,
    simulation::Simulator,
};

pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    let mut found = Found::default();
    let all = std::mem::take(&mut pass.candidates);
    let totals = Totals::new(&pass.snapshot, &all);
    let mut budgets = pass.budgets.clone();
    let mut candidates: Vec<Candidate> = Vec::new();
    for candidate in all {
        if budgets.take(candidate.pool_name()) {
            candidates.push(candidate);
        } else {
            found.keep_for_budget(&candidate);
        }
    }
    if candidates.len() < 2 {
        return found;
    }
    let simulator = Simulator::new(&pass.snapshot, &pass.request.schedule);
    let mut search = Search {
        pass,
        simulator: &simulator,
        candidates: &candidates,
        totals: &totals,
        timed_out: false,
    };
    let best = search.prefix();
    let best = search.improve(best);
    found.timed_out = search.timed_out;
    if let Some(best) = best.filter(|best| best.members.len() >= 2) {
        let members = best
            .members
            .iter()
            .map(|index| candidates[*index].clone())
            .collect();
        let command = command(pass.method, members, best.moved, best.score);
        pass.adopt(&command);
        found.commands.push(command);
    }
    found
}

/// A set that pays.
#[derive(Clone, Debug)]
struct Set {
    members: BTreeSet<usize>,
    moved: Move,
    score: Option<f64>,
}

struct Search<'a> {
    pass: &'a Pass<'a>,
    simulator: &'a Simulator,
    candidates: &'a [Candidate],
    totals: &'a Totals,
    timed_out: bool,
}

impl Search<'_> {
    fn out_of_time(&mut self) -> bool {
        self.timed_out |= cancelled(self.pass.request.multi_node.cancel.as_ref());
        self.timed_out
    }

    /// The sets that pay, in the order given.
    fn evaluate(&self, sets: &[BTreeSet<usize>]) -> Vec<Option<Set>> {
        let members: Vec<Vec<&Candidate>> = sets
            .iter()
            .map(|set| set.iter().map(|index| &self.candidates[*index]).collect())
            .collect();
        let judged = evaluate_all(self.pass, self.simulator, &members);
        let mut sets_that_pay = Vec::with_capacity(sets.len());
        for ((set, members), moved) in sets.iter().zip(&members).zip(judged) {
            sets_that_pay.push(moved.ok().and_then(|moved| {
                let score = self.totals.score(members, moved.savings);
                let rejected = score.is_some_and(|score| score < THRESHOLD);
                (!rejected).then(|| Set {
                    members: set.clone(),
                    moved,
                    score,
                })
            }));
        }
        sets_that_pay
    }

    /// The longest prefix that pays, if more machines are always harder to do without.
    ///
    /// Several lengths are tried side by side, as many as there are threads.
    fn prefix(&mut self) -> Option<Set> {
        let (mut low, mut high) = (2, self.candidates.len());
        let mut best = None;
        while low <= high && !self.out_of_time() {
            let middle = low + (high - low) / 2;
            let sets = [(0..middle).collect::<BTreeSet<usize>>()];
            match self.evaluate(&sets).pop().flatten() {
                Some(set) => {
                    best = Some(set);
                    low = middle + 1;
                }
                None => high = middle - 1,
            }
        }
        best
    }

    /// Adds and drops members as long as that saves more.
    fn improve(&mut self, start: Option<Set>) -> Option<Set> {
        let mut best = start;
        loop {
            let before = savings(best.as_ref());
            best = self.add(best);
            best = self.drop_members(best);
            if savings(best.as_ref()) <= before || self.out_of_time() {
                return best;
            }
        }
    }

    /// Tries to add what is left out, in order, in groups that double when they fit and halve when they do not.
    fn add(&mut self, mut best: Option<Set>) -> Option<Set> {
        let members = best
            .as_ref()
            .map(|set| set.members.clone())
            .unwrap_or_default();
        let left: Vec<usize> = (0..self.candidates.len())
            .filter(|index| !members.contains(index))
            .collect();
        let (mut at, mut group) = (0, left.len().max(1));
        while at < left.len() && !self.out_of_time() {
            let end = (at + group).min(left.len());
            // Two groups side by side: this one, and its first half.
            let half = at + (end - at).div_ceil(2);
            let mut sets: Vec<BTreeSet<usize>> = vec![self.with(best.as_ref(), &left[at..end])];
            if half < end {
                sets.push(self.with(best.as_ref(), &left[at..half]));
            }
            let ends = [end, half];
            let found = self
                .evaluate(&sets)
                .into_iter()
                .zip(ends)
                .find_map(|(set, end)| Some((set?, end)));
            match found.filter(|(set, _)| set.moved.savings > savings(best.as_ref())) {
                Some((set, reached)) => {
                    best = Some(set);
                    group = ((reached - at) * 2).max(1);
                    at = reached;
                }
                None if end - at == 1 => at = end,
                None => group = ((end - at) / 4).max(1),
            }
        }
        best
    }

    fn with(&self, set: Option<&Set>, more: &[usize]) -> BTreeSet<usize> {
        let members = set.into_iter().flat_map(|set| set.members.iter().copied());
        members.chain(more.iter().copied()).collect()
    }

    /// Drops members one at a time where what is left saves more.
    fn drop_members(&mut self, best: Option<Set>) -> Option<Set> {
        let mut best = best?;
        if best.moved.replacements.is_empty() {
            // Every member of a set that needs no replacement saves its whole price.
            return Some(best);
        }
        for index in best.members.clone() {
            if best.members.len() <= 2 || self.out_of_time() {
                break;
            }
            let mut without = best.members.clone();
            without.remove(&index);
            if let Some(set) = self.evaluate(&[without]).pop().flatten()
                && set.moved.savings > best.moved.savings
            {
                best = set;
            }
        }
        Some(best)
    }
}

fn savings(set: Option<&Set>) -> f64 {
    set.map_or(0.0, |set| set.moved.savings)
}
