//! Looking for an order in which things can be done that depend on what was done before.

use std::collections::{BTreeMap, BTreeSet};

/// How many states are looked at before the search goes on at random.
const MOST_STATES: usize = 500;
/// How often the search that looks a step ahead begins again, with what was left before all else.
const TURNS: usize = 8;
/// How many orders are tried then.
const SHUFFLES: u64 = 500;

/// Does things one after another, each when `may` allows it after those done, going back where it gets stuck. Things of the same
/// class are interchangeable. What is left where it got furthest: nothing, if there is an order.
pub(crate) fn stuck(classes: &[usize], may: impl FnMut(&[usize], usize) -> bool) -> Vec<usize> {
    let mut search = Search {
        classes,
        may,
        done: vec![],
        seen: BTreeSet::new(),
        left: (0..classes.len()).collect(),
    };
    if !search.go() && !search.freest() {
        (1..=SHUFFLES).any(|turn| search.shuffled(turn));
    }
    search.left
}

struct Search<'s, F> {
    classes: &'s [usize],
    may: F,
    done: Vec<usize>,
    /// How many of each class were done, in states that were looked at.
    seen: BTreeSet<Vec<usize>>,
    /// What was left where it got furthest.
    left: Vec<usize>,
}

impl<F: FnMut(&[usize], usize) -> bool> Search<'_, F> {
    /// Does what can be done in an order that looks random.
    fn shuffled(&mut self, seed: u64) -> bool {
        let rank = |thing: &usize| {
            let mixed = (*thing as u64 + 1).wrapping_mul(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        let mut waiting: Vec<usize> = (0..self.classes.len()).collect();
        waiting.sort_by_key(rank);
        let mut done = vec![];
        while let Some(next) = waiting.iter().position(|thing| (self.may)(&done, *thing)) {
            done.push(waiting.remove(next));
        }
        if waiting.len() < self.left.len() {
            self.left = waiting;
        }
        self.left.is_empty()
    }

    /// Does next what keeps most others possible, and what was left the time before as soon as it is no worse.
    fn freest(&mut self) -> bool {
        let mut order: Vec<usize> = (0..self.classes.len()).collect();
        for _ in 0..TURNS {
            let left = self.freest_in(order.clone());
            if left.len() < self.left.len() {
                self.left.clone_from(&left);
            }
            if left.is_empty() {
                return true;
            }
            order.sort_by_key(|thing| !left.contains(thing));
        }
        false
    }

    fn freest_in(&mut self, mut waiting: Vec<usize>) -> Vec<usize> {
        let mut done = vec![];
        loop {
            let mut best: Option<(usize, usize)> = None;
            let mut tried = BTreeSet::new();
            for at in 0..waiting.len() {
                let thing = waiting[at];
                if !tried.insert(self.classes[thing]) || !(self.may)(&done, thing) {
                    continue;
                }
                done.push(thing);
                let mut known: BTreeMap<usize, bool> = BTreeMap::new();
                let free = waiting.iter().filter(|other| {
                    let class = self.classes[**other];
                    **other != thing
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
            .filter(|thing| !self.done.contains(thing))
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
            .for_each(|thing| state[self.classes[*thing]] += 1);
        if self.seen.len() >= MOST_STATES || !self.seen.insert(state) {
            return false;
        }
        let mut tried = BTreeSet::new();
        for thing in waiting {
            if tried.insert(self.classes[thing]) && (self.may)(&self.done, thing) {
                self.done.push(thing);
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
        // The last one cannot come after both of the first two.
        let may = |done: &[usize], thing: usize| thing != 2 || done.len() < 2;
        assert_eq!(stuck(&[0, 1, 2], may), [0; 0]);
    }

    #[test]
    fn an_order_is_found_among_many_things_that_are_in_no_hurry() {
        // The first one keeps the last one from being done; which of the others were done is no matter.
        let may = |done: &[usize], thing: usize| thing != 32 || !done.contains(&0);
        let classes: Vec<usize> = (0..33).collect();
        assert_eq!(stuck(&classes, may), [0; 0]);
    }

    #[test]
    fn an_order_is_found_in_which_those_that_can_wait_have_to() {
        // A spread over two zones: 0 to 29 go to zone a and 30 to 40 to zone b at any time, the others to a at a skew of two.
        let may = |done: &[usize], thing: usize| {
            let in_b = done.iter().filter(|done| (30..41).contains(*done)).count();
            thing < 41 || done.len() - in_b < in_b + 2
        };
        let classes: Vec<usize> = (0..53).collect();
        assert_eq!(stuck(&classes, may), [0; 0]);
    }

    #[test]
    fn what_nothing_makes_possible_is_left() {
        assert_eq!(stuck(&[0, 0, 1], |_, thing| thing != 2), [2]);
    }

    #[test]
    fn interchangeable_things_do_not_multiply_the_search() {
        let mut asked = 0;
        let may = |done: &[usize], thing: usize| {
            asked += 1;
            thing < 30 || done.len() > 40
        };
        let classes: Vec<usize> = (0..40).map(|thing| thing / 30).collect();
        assert_eq!(stuck(&classes, may).len(), 10);
        assert!(asked < 100_000, "{asked}");
    }
}
