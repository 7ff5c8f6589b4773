//! Search for an order of steps that depend on the steps done before.

use std::collections::{BTreeMap, BTreeSet};

/// How many states are visited before the search continues with learned orders.
const MAX_STATES: usize = 500;
/// How often the search restarts with the steps first that were left over.
const MAX_RESTARTS: usize = 60;
/// How often the one-step look-ahead search restarts, each time with the steps that were left over first.
const MAX_LOOK_AHEADS: usize = 8;

/// Searches, with backtracking, for an order in which `may` allows each step after those done. Steps of the same class are
/// interchangeable. Returns the steps left over by the best attempt: none, if an order was found.
pub(crate) fn stuck(classes: &[usize], may: impl FnMut(&[usize], usize) -> bool) -> Vec<usize> {
    let mut search = Search {
        classes,
        may,
        done: vec![],
        seen: BTreeSet::new(),
        left: (0..classes.len()).collect(),
    };
    if !search.go() && !search.learned() {
        search.freest();
    }
    search.left
}

struct Search<'s, F> {
    classes: &'s [usize],
    may: F,
    done: Vec<usize>,
    /// The states visited: how many steps of each class were done.
    seen: BTreeSet<Vec<usize>>,
    /// The steps left over by the best attempt.
    left: Vec<usize>,
}

impl<F: FnMut(&[usize], usize) -> bool> Search<'_, F> {
    /// Does the first step that is possible, again and again with the steps first that were left over: most of those are
    /// possible only before others.
    fn learned(&mut self) -> bool {
        let mut order: Vec<usize> = (0..self.classes.len()).collect();
        for _ in 0..MAX_RESTARTS {
            let left = self.first_possible(order.clone());
            if left.is_empty() {
                return true;
            }
            // The classes of the steps left over, not only these steps: others of the class went first in vain.
            let classes: BTreeSet<usize> = left.iter().map(|step| self.classes[*step]).collect();
            order.sort_by_key(|step| !classes.contains(&self.classes[*step]));
        }
        false
    }

    /// Does the first of these steps that is possible, until none is; returns those left over.
    fn first_possible(&mut self, mut waiting: Vec<usize>) -> Vec<usize> {
        let mut done = vec![];
        while let Some(next) = waiting.iter().position(|step| (self.may)(&done, *step)) {
            done.push(waiting.remove(next));
        }
        if waiting.len() < self.left.len() {
            self.left.clone_from(&waiting);
        }
        waiting
    }

    /// Always does the step that keeps most others possible; of equal ones, those left over by the last attempt first.
    fn freest(&mut self) {
        let mut order: Vec<usize> = (0..self.classes.len()).collect();
        for _ in 0..MAX_LOOK_AHEADS {
            let left = self.freest_in(order.clone());
            if left.len() < self.left.len() {
                self.left.clone_from(&left);
            }
            if left.is_empty() {
                return;
            }
            order.sort_by_key(|step| !left.contains(step));
        }
    }

    fn freest_in(&mut self, mut waiting: Vec<usize>) -> Vec<usize> {
        let mut done = vec![];
        loop {
            let mut best: Option<(usize, usize)> = None;
            let mut tried = BTreeSet::new();
            for at in 0..waiting.len() {
                let step = waiting[at];
                if !tried.insert(self.classes[step]) || !(self.may)(&done, step) {
                    continue;
                }
                done.push(step);
                let mut known: BTreeMap<usize, bool> = BTreeMap::new();
                let free = waiting.iter().filter(|other| {
                    let class = self.classes[**other];
                    **other != step
                        && *known
                            .entry(class)
                            .or_insert_with(|| (self.may)(&done, **other))
                });
                let free = free.count();
                done.pop();
                if best.is_none_or(|(most, _)| free > most) {
                    best = Some((free, at));
                }
            }
            let Some((_, at)) = best else {
                return waiting;
            };
            done.push(waiting.remove(at));
        }
    }

    fn go(&mut self) -> bool {
        let waiting: Vec<usize> = (0..self.classes.len())
            .filter(|step| !self.done.contains(step))
            .collect();
        if waiting.len() < self.left.len() {
            self.left.clone_from(&waiting);
        }
        if waiting.is_empty() {
            return true;
        }
        let mut state = vec![0; self.classes.len()];
        self.done
            .iter()
            .for_each(|step| state[self.classes[*step]] += 1);
        if self.seen.len() >= MAX_STATES || !self.seen.insert(state) {
            return false;
        }
        let mut tried = BTreeSet::new();
        for step in waiting {
            if tried.insert(self.classes[step]) && (self.may)(&self.done, step) {
                self.done.push(step);
                if self.go() {
                    return true;
                }
                self.done.pop();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_found_where_the_first_choice_gets_stuck() {
        // The last step cannot come after both of the first two.
        let may = |done: &[usize], step: usize| step != 2 || done.len() < 2;
        assert_eq!(stuck(&[0, 1, 2], may), [0; 0]);
    }

    #[test]
    fn an_order_is_found_among_many_steps_that_are_always_possible() {
        // The last step must come before the first one; the others do not matter.
        let may = |done: &[usize], step: usize| step != 32 || !done.contains(&0);
        let classes: Vec<usize> = (0..33).collect();
        assert_eq!(stuck(&classes, may), [0; 0]);
    }

    #[test]
    fn an_order_is_found_in_which_steps_that_are_always_possible_come_late() {
        // A spread over two zones: steps 0 to 29 are in zone a and 30 to 40 in zone b, always possible; the others in a, with skew 2.
        let may = |done: &[usize], step: usize| {
            let in_b = done.iter().filter(|done| (30..41).contains(*done)).count();
            step < 41 || done.len() - in_b < in_b + 2
        };
        let classes: Vec<usize> = (0..53).collect();
        assert_eq!(stuck(&classes, may), [0; 0]);
    }

    #[test]
    fn an_order_is_found_in_which_some_steps_of_many_places_come_first() {
        // Twelve places with four steps each; the last step of a place is possible only as the first there.
        let may = |done: &[usize], step: usize| {
            step % 4 != 3 || !done.iter().any(|done| done / 4 == step / 4)
        };
        let classes: Vec<usize> = (0..48).collect();
        assert_eq!(stuck(&classes, may), [0; 0]);
    }

    #[test]
    fn steps_that_are_never_possible_are_left() {
        assert_eq!(stuck(&[0, 0, 1], |_, step| step != 2), [2]);
    }

    #[test]
    fn interchangeable_steps_do_not_multiply_the_search() {
        let mut calls = 0;
        let may = |done: &[usize], step: usize| {
            calls += 1;
            step < 30 || done.len() > 40
        };
        let classes: Vec<usize> = (0..40).map(|step| step / 30).collect();
        assert_eq!(stuck(&classes, may).len(), 10);
        assert!(calls < 100_000, "{calls}");
    }
}
