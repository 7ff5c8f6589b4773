//! Deletes several nodes with at most one replacement, or as many as the request allows.
//!
//! 1. Candidates are ordered by price per rescheduling cost, descending, as far as budgets allow.
//! 2. The longest prefix that saves money is found by binary search: upstream's result, so that this one is never worse.
//! 3. Each candidate is evaluated alone, on all cores: one whose pods cannot be scheduled elsewhere is left out from then on.
//! 4. Sets are grown from nothing, in other orders: candidates that need no replacement first, by price and by price per pod
//!    requests; candidates that need one on their own.
//! 5. The best set is improved until nothing helps or time is up: candidates whose pods still fit are added, members whose pods
//!    cause a replacement are dropped, cheap members are exchanged for more expensive candidates.
//!
//! Sets are compared by savings in dollars per hour. The result depends on time only through the point where the search ends.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::evaluation::{ROUND, cancelled, judge_alone, judge_sets};
use crate::disruption::candidate::{Candidate, NotConsolidatable};
use crate::disruption::consolidation::Move;
use crate::disruption::consolidation::balanced::{THRESHOLD, Totals};
use crate::disruption::pass::{Found, Pass, command};
use crate::disruption::simulation::Simulator;
use crate::pod::PodKey;

/// The length of upstream's longest prefix.
const UPSTREAM_PREFIX: usize = 101;

/// How many candidates in a row may fail to join a set before growing in this order ends.
const FAILURES: usize = 8;

/// Savings below this count as rounding errors.
const NOTHING: f64 = 1e-9;

pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    let mut found = Found::default();
    let all = std::mem::take(&mut pass.candidates);
    let totals = pass.totals(&all);
    let mut budgets = pass.budgets.clone();
    let mut candidates: Vec<&Candidate> = Vec::new();
    for candidate in all {
        if budgets.take(candidate.pool_name()) {
            candidates.push(candidate);
        } else {
            found.keep_for_budget(candidate, &pass.budgets);
        }
    }
    if candidates.len() < 2 {
        return found;
    }
    if cancelled(pass.request.multi_node.cancel.as_ref()) {
        found.timed_out = true;
        return found;
    }
    let simulator = pass.simulator();
    let mut search = Search {
        pass,
        simulator: &simulator,
        candidates: &candidates,
        totals: &totals,
        timed_out: false,
    };
    let any_set = search
        .pass
        .request
        .policy
        .behavior
        .multi_node_considers_any_set;
    let best = match any_set {
        true => {
            let prefix = search.prefix();
            search.improve(prefix)
        }
        false => search.upstream_prefix(),
    };
    found.timed_out = search.timed_out;
    if let Some(best) = best.filter(|best| best.members.len() >= 2) {
        let members: Vec<Candidate> = best
            .members
            .iter()
            .map(|index| candidates[*index].clone())
            .collect();
        let scores = totals.judge(&members.iter().collect::<Vec<_>>(), best.moved.savings);
        let mut command = command(pass.method, members, best.moved, best.score);
        command.scores = scores;
        pass.adopt(&command);
        found.commands.push(command);
    }
    found
}

/// A set of candidates that saves money.
#[derive(Clone, Debug)]
struct Set {
    members: BTreeSet<usize>,
    moved: Move,
    score: Option<f64>,
}

/// The result of evaluating a candidate alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alone {
    /// Its pods fit on other nodes.
    Free,
    /// Its pods need a new node, whether or not that saves money.
    Needs,
    /// Its pods cannot be scheduled.
    Stuck,
}

struct Search<'a, 'p> {
    pass: &'a mut Pass<'p>,
    simulator: &'a Simulator,
    candidates: &'a [&'a Candidate],
    totals: &'a Totals,
    timed_out: bool,
}

impl Search<'_, '_> {
    fn out_of_time(&mut self) -> bool {
        self.timed_out |= cancelled(self.pass.request.multi_node.cancel.as_ref());
        self.timed_out
    }

    /// Evaluates sets; returns those that save money, in the order given.
    fn evaluate(&self, sets: &[BTreeSet<usize>]) -> Vec<Option<Set>> {
        let rules = self.pass.request.rules(self.pass.method);
        let candidates = |set: &BTreeSet<usize>| -> Vec<&Candidate> {
            set.iter().map(|index| self.candidates[*index]).collect()
        };
        let possible = |(_, members): &(usize, Vec<&Candidate>)| {
            !self.simulator.rules_out(members, rules.max_replacements)
        };
        let sets_with_members = sets.iter().map(candidates).enumerate();
        let (places, members): (Vec<usize>, Vec<_>) = sets_with_members.filter(possible).unzip();
        let judged = judge_sets(self.simulator, &members, rules, self.pass.request.threads);
        let mut saving_sets = vec![None; sets.len()];
        for ((place, members), moved) in places.into_iter().zip(&members).zip(judged) {
            let Ok(moved) = moved else { continue };
            let score = self.totals.score(members, moved.savings);
            if !score.is_some_and(|score| score < THRESHOLD) {
                saving_sets[place] = Some(Set {
                    members: sets[place].clone(),
                    moved,
                    score,
                });
            }
        }
        saving_sets
    }

    /// Finds the longest prefix that saves money, among upstream's lengths and beyond. Assumes that longer prefixes are less likely
    /// to save money.
    fn prefix(&mut self) -> Option<Set> {
        let count = self.candidates.len();
        let best = self.upstream_prefix();
        let beyond = self.prefix_between(UPSTREAM_PREFIX + 1, count);
        better(best, beyond)
    }

    /// Finds the longest prefix that saves money, among upstream's lengths.
    fn upstream_prefix(&mut self) -> Option<Set> {
        self.prefix_between(2, self.candidates.len().min(UPSTREAM_PREFIX))
    }

    fn prefix_between(&mut self, mut low: usize, mut high: usize) -> Option<Set> {
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

    fn improve(&mut self, prefix: Option<Set>) -> Option<Set> {
        let mut best = prefix;
        let alone = self.judge_alone();
        let of = |kind: Alone| -> Vec<usize> {
            (0..alone.len())
                .filter(|index| alone[*index] == Some(kind))
                .collect()
        };
        let (free, needs) = (of(Alone::Free), of(Alone::Needs));
        let both = |mut order: Vec<usize>| {
            order.extend(&needs);
            order
        };
        for order in [
            both(free.clone()),
            both(self.by_density(free)),
            needs.clone(),
        ] {
            if order.len() >= 2 && !self.out_of_time() {
                let grown = self.grow(None, &order);
                best = better(best, grown);
            }
        }
        let movable = |index: &usize| matches!(alone[*index], Some(Alone::Free | Alone::Needs));
        let movable: Vec<usize> = (0..alone.len()).filter(movable).collect();
        loop {
            let before = savings(best.as_ref());
            best = self.extend(best, &movable);
            best = self.shed(best);
            best = self.exchange(best, &movable);
            if savings(best.as_ref()) <= before + NOTHING || self.out_of_time() {
                return best;
            }
        }
    }

    /// Evaluates each candidate alone; `None` for those that were not reached in time.
    fn judge_alone(&mut self) -> Vec<Option<Alone>> {
        for round in self.candidates.chunks(ROUND) {
            if self.out_of_time() {
                break;
            }
            judge_alone(self.pass, self.simulator, round.iter().copied());
        }
        let kind = |candidate: &&Candidate| {
            Some(match self.pass.alone.get(&candidate.id())? {
                Ok(moved) if moved.replacements.is_empty() => Alone::Free,
                Err(NotConsolidatable::PodsStay { .. }) => Alone::Stuck,
                Ok(_) | Err(_) => Alone::Needs,
            })
        };
        self.candidates.iter().map(kind).collect()
    }

    /// Sorts by price per share of a node that the pods request, descending.
    fn by_density(&self, mut order: Vec<usize>) -> Vec<usize> {
        let density = |index: &usize| {
            let candidate = &self.candidates[*index];
            let capacity = candidate.node.allocatable();
            let share = |resource: &str| {
                let asked: i64 = candidate
                    .reschedulable()
                    .map(|pod| pod.shape.requests.get(resource))
                    .fold(0, i64::saturating_add);
                asked as f64 / (capacity.get(resource).max(1)) as f64
            };
            candidate.price / share("cpu").max(share("memory")).max(1e-6)
        };
        let densities: FxHashMap<usize, f64> =
            order.iter().map(|index| (*index, density(index))).collect();
        order.sort_by(|a, b| densities[b].total_cmp(&densities[a]));
        order
    }

    /// Adds candidates in order, in groups that double when they fit and shrink when they do not.
    fn grow(&mut self, mut best: Option<Set>, order: &[usize]) -> Option<Set> {
        let (mut at, mut group, mut failures) = (0, order.len().max(1), 0);
        while at < order.len() && failures < FAILURES && !self.out_of_time() {
            let end = (at + group).min(order.len());
            // Two groups are evaluated in parallel: this one, and its first half.
            let half = at + (end - at).div_ceil(2);
            let mut ends = vec![end, half];
            ends.dedup();
            let sets: Vec<BTreeSet<usize>> = ends
                .iter()
                .map(|end| with(best.as_ref(), &order[at..*end]))
                .collect();
            let found = self
                .evaluate(&sets)
                .into_iter()
                .zip(ends)
                .find_map(|(set, end)| Some((set?, end)));
            match found.filter(|(set, _)| saves_more(Some(set), best.as_ref())) {
                Some((set, reached)) => {
                    best = Some(set);
                    group = ((reached - at) * 2).max(1);
                    at = reached;
                    failures = 0;
                }
                None if end - at == 1 => {
                    at = end;
                    failures += 1;
                }
                None => group = ((end - at) / 4).max(1),
            }
        }
        best
    }

    /// Adds candidates whose pods still fit after the set was deleted. All other candidates are evaluated at once against that
    /// state; whether they fit together is then evaluated in full.
    fn extend(&mut self, best: Option<Set>, movable: &[usize]) -> Option<Set> {
        let set = best?;
        if self.out_of_time() {
            return Some(set);
        }
        let deleted: Vec<&Candidate> = set
            .members
            .iter()
            .map(|index| self.candidates[*index])
            .collect();
        let after = self.simulator.after(&deleted, &set.moved.placements);
        let rules = self.pass.request.rules(self.pass.method);
        let outsiders: Vec<usize> = movable
            .iter()
            .copied()
            .filter(|index| !set.members.contains(index))
            .collect();
        let (mut fit, mut pay) = (Vec::new(), Vec::new());
        for round in outsiders.chunks(ROUND) {
            if self.out_of_time() {
                break;
            }
            let after_the_set: Vec<Candidate> = round
                .iter()
                .map(|index| {
                    let candidate = self.candidates[*index];
                    Candidate {
                        pods: { after.snapshot().node_pods(candidate.name()).cloned() }
                            .unwrap_or_default(),
                        ..candidate.clone()
                    }
                })
                .collect();
            let sets: Vec<Vec<&Candidate>> = after_the_set.iter().map(|one| vec![one]).collect();
            let judged = judge_sets(&after, &sets, rules, self.pass.request.threads);
            for (index, verdict) in round.iter().zip(judged) {
                match verdict {
                    Ok(moved) if moved.replacements.is_empty() => fit.push(*index),
                    Ok(_) => pay.push(*index),
                    Err(_) => {}
                }
            }
        }
        fit.extend(pay);
        self.grow(Some(set), &fit)
    }

    /// Drops members whose pods cause a replacement, where the rest saves more.
    fn shed(&mut self, best: Option<Set>) -> Option<Set> {
        let mut best = best?;
        let replacements = best.moved.replacements.iter();
        let displaced: BTreeSet<PodKey> =
            replacements.flat_map(|draft| draft.pods.clone()).collect();
        let moves_there = |index: &usize| {
            let candidate: &Candidate = self.candidates[*index];
            candidate
                .reschedulable()
                .any(|pod| displaced.contains(&pod.key))
        };
        let owners: Vec<usize> = best.members.iter().copied().filter(moves_there).collect();
        let price_of = |index: usize| self.candidates[index].price;
        for dropped in [owners.as_slice()].into_iter().chain(owners.chunks(1)) {
            let replacement_price: f64 = best
                .moved
                .replacements
                .iter()
                .map(|draft| draft.hourly_price)
                .sum();
            let lost: f64 = dropped.iter().map(|index| price_of(*index)).sum();
            let left: BTreeSet<usize> = best
                .members
                .iter()
                .copied()
                .filter(|index| !dropped.contains(index))
                .collect();
            if lost >= replacement_price || left.len() < 2 || left.len() == best.members.len() {
                continue;
            }
            if self.out_of_time() {
                break;
            }
            if let Some(set) = self.evaluate(&[left]).pop().flatten()
                && saves_more(Some(&set), Some(&best))
            {
                best = set;
            }
        }
        Some(best)
    }

    /// Exchanges the cheapest members for a more expensive candidate.
    fn exchange(&mut self, best: Option<Set>, movable: &[usize]) -> Option<Set> {
        let mut best = best?;
        let price_of = |index: &usize| self.candidates[*index].price;
        let by_price = |mut indices: Vec<usize>| {
            indices.sort_by(|a, b| price_of(a).total_cmp(&price_of(b)).then_with(|| a.cmp(b)));
            indices
        };
        let outsiders = movable.iter().copied();
        let outsiders = by_price(
            outsiders
                .filter(|one| !best.members.contains(one))
                .collect(),
        );
        let mut failures = 0;
        for outsider in outsiders.into_iter().rev() {
            let members = by_price(best.members.iter().copied().collect());
            let mut lost = 0.0;
            let mut sets = Vec::new();
            let mut left = best.members.clone();
            left.insert(outsider);
            for (count, member) in members.iter().enumerate() {
                lost += price_of(member);
                if lost + NOTHING >= price_of(&outsider) || sets.len() == 2 {
                    break;
                }
                left.remove(member);
                if (count + 1).is_power_of_two() {
                    sets.push(left.clone());
                }
            }
            if sets.is_empty() || failures >= FAILURES || self.out_of_time() {
                break;
            }
            let exchanged = self.evaluate(&sets).into_iter().flatten();
            let exchanged = exchanged.fold(None, |best, set| better(best, Some(set)));
            match exchanged.filter(|set| saves_more(Some(set), Some(&best))) {
                Some(set) => {
                    best = set;
                    failures = 0;
                }
                None => failures += 1,
            }
        }
        Some(best)
    }
}

fn with(set: Option<&Set>, more: &[usize]) -> BTreeSet<usize> {
    let members = set.into_iter().flat_map(|set| set.members.iter().copied());
    members.chain(more.iter().copied()).collect()
}

fn savings(set: Option<&Set>) -> f64 {
    set.map_or(0.0, |set| set.moved.savings)
}

/// Reports whether a set saves more than another, and not only by a rounding error.
fn saves_more(set: Option<&Set>, than: Option<&Set>) -> bool {
    savings(set) > savings(than) + NOTHING
}

/// Returns the set that saves more; the first if both save the same.
fn better(a: Option<Set>, b: Option<Set>) -> Option<Set> {
    if saves_more(b.as_ref(), a.as_ref()) || a.is_none() {
        b
    } else {
        a
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saving(savings: f64, member: usize) -> Option<Set> {
        let moved = Move {
            replacements: Vec::new(),
            placements: Vec::new(),
            savings,
        };
        Some(Set {
            members: BTreeSet::from([member]),
            moved,
            score: None,
        })
    }

    #[test]
    fn the_first_of_two_sets_is_kept_unless_the_second_saves_clearly_more() {
        let kept = |a, b| better(a, b).map(|set| set.members.into_iter().collect::<Vec<_>>());
        assert_eq!(kept(saving(1.0, 1), saving(2.0, 2)), Some(vec![2]));
        assert_eq!(kept(saving(2.0, 1), saving(1.0, 2)), Some(vec![1]));
        assert_eq!(kept(saving(1.0, 1), saving(1.0, 2)), Some(vec![1]));
        assert_eq!(kept(saving(1.0, 1), saving(1.0 + 1e-10, 2)), Some(vec![1]));
        assert_eq!(kept(saving(1.0, 1), None), Some(vec![1]));
        assert_eq!(kept(None, saving(0.0, 2)), Some(vec![2]));
        assert_eq!(kept(None, None), None);
        assert!(!saves_more(saving(NOTHING, 1).as_ref(), None));
    }
}
