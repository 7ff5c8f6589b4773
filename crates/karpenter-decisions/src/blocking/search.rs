//! Smallest sets, found by asking an oracle: the constraints that block a pod together, and those whose removal helps.
//!
//! A question has `n` constraints, numbered from 0. The oracle answers whether the pod fits while some of them are relaxed.
//! Constraints are assumed to be monotone (relaxing more never hurts); first fit does not promise that, so every result is
//! checked by asking once more, and marked if the check fails.

use std::collections::BTreeSet;

pub(super) type Set = BTreeSet<usize>;

/// Answers whether the pod fits while the constraints of a set are relaxed.
pub(super) trait Oracle {
    /// Returns the answer; `None` once the bound on questions is reached.
    fn fits(&mut self, relaxed: &Set) -> Option<bool>;
}

impl<F: FnMut(&Set) -> Option<bool>> Oracle for F {
    fn fits(&mut self, relaxed: &Set) -> Option<bool> {
        self(relaxed)
    }
}

/// Constraints that block together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Core {
    pub(super) set: Set,
    /// The pod does not fit while all other constraints are relaxed: this was asked in exactly this form.
    pub(super) exact: bool,
    /// Without any one of them the rest does not block.
    pub(super) minimal: bool,
    /// No smaller set blocks.
    pub(super) minimum: bool,
}

/// The most constraints among which pairs are searched: the number of pairs grows with the square.
const PAIRS_UP_TO: usize = 16;

/// Finds constraints that block together, of `order`; those that come first are preferred. `None` if nothing blocks once
/// everything is relaxed, or everything fits as it is.
pub(super) fn core(order: &[usize], oracle: &mut impl Oracle) -> Option<Core> {
    let all: Set = order.iter().copied().collect();
    let mut asked = Blocks { all: &all, oracle };
    if asked.blocks(&all) != Some(true) || asked.blocks(&Set::new()) != Some(false) {
        return None;
    }
    for one in order {
        let set = Set::from([*one]);
        match asked.blocks(&set) {
            Some(true) => {
                return Some(Core {
                    set,
                    exact: true,
                    minimal: true,
                    minimum: true,
                });
            }
            Some(false) => {}
            None => break,
        }
    }
    let mut found = all.clone();
    let mut proven = true;
    match asked.quick_explain(&Set::new(), false, order) {
        Some(set) if asked.blocks(&set) == Some(true) => found = set,
        _ => proven = false,
    }
    // What the constraints beside it hid may have made one of them look necessary.
    let mut minimal = proven;
    for one in order.iter().rev().filter(|_| proven) {
        if !found.contains(one) {
            continue;
        }
        let mut rest = found.clone();
        rest.remove(one);
        match asked.blocks(&rest) {
            Some(true) => found = rest,
            Some(false) => {}
            None => {
                minimal = false;
                break;
            }
        }
    }
    let minimum = minimal && asked.no_smaller(order, found.len());
    Some(Core {
        set: found,
        exact: true,
        minimal,
        minimum,
    })
}

/// Finds sets of constraints whose relaxation lets the pod fit: single constraints; if fewer than `enough`, pairs, at most
/// `tries`; if there is none, one larger set. No set contains another.
///
/// `core` blocks by itself, so that a set without any of it cannot help: only sets that touch it are tried.
pub(super) fn corrections(
    order: &[usize],
    core: &Set,
    enough: usize,
    tries: usize,
    oracle: &mut impl Oracle,
) -> Vec<Set> {
    let mut found: Vec<Set> = Vec::new();
    if core.is_empty() {
        return found;
    }
    for one in order.iter().filter(|one| core.contains(one)) {
        let set = Set::from([*one]);
        if oracle.fits(&set) == Some(true) {
            found.push(set);
        }
    }
    let helps_alone =
        |one: usize, found: &[Set]| found.iter().any(|set| set.len() == 1 && set.contains(&one));
    let mut left = tries;
    'pairs: for (position, first) in order.iter().enumerate() {
        for second in &order[position + 1..] {
            if found.len() >= enough || left == 0 {
                break 'pairs;
            }
            let touches = core.contains(first) || core.contains(second);
            if !touches || helps_alone(*first, &found) || helps_alone(*second, &found) {
                continue;
            }
            left -= 1;
            let set = Set::from([*first, *second]);
            match oracle.fits(&set) {
                Some(true) => found.push(set),
                Some(false) => {}
                None => break 'pairs,
            }
        }
    }
    if found.is_empty() {
        found.extend(one_correction(order, oracle));
    }
    found
}

/// Finds a set of constraints whose relaxation lets the pod fit, none of which can be kept.
fn one_correction(order: &[usize], oracle: &mut impl Oracle) -> Option<Set> {
    let mut relaxed: Set = order.iter().copied().collect();
    if oracle.fits(&relaxed) != Some(true) {
        return None;
    }
    for one in order {
        let mut fewer = relaxed.clone();
        fewer.remove(one);
        if oracle.fits(&fewer)? {
            relaxed = fewer;
        }
    }
    (!relaxed.is_empty()).then_some(relaxed)
}

/// Asks the oracle whether constraints block, the others relaxed.
struct Blocks<'a, O> {
    all: &'a Set,
    oracle: &'a mut O,
}

impl<O: Oracle> Blocks<'_, O> {
    fn blocks(&mut self, kept: &Set) -> Option<bool> {
        let relaxed = self.all.difference(kept).copied().collect();
        self.oracle.fits(&relaxed).map(|fits| !fits)
    }

    /// Returns the constraints of `candidates` that block together with `background`, none of which can be left out.
    ///
    /// QuickXplain (U. Junker, 2004): of `n` constraints `k` are found by about `2k·log(n/k) + 2k` questions.
    fn quick_explain(
        &mut self,
        background: &Set,
        changed: bool,
        candidates: &[usize],
    ) -> Option<Set> {
        if changed && self.blocks(background)? {
            return Some(Set::new());
        }
        if let [only] = candidates {
            return Some(Set::from([*only]));
        }
        let (first, second) = candidates.split_at(candidates.len() / 2);
        let with = |more: &mut dyn Iterator<Item = usize>| {
            background.iter().copied().chain(more).collect::<Set>()
        };
        let of_second = self.quick_explain(&with(&mut first.iter().copied()), true, second)?;
        let of_first = self.quick_explain(
            &with(&mut of_second.iter().copied()),
            !of_second.is_empty(),
            first,
        )?;
        Some(of_first.union(&of_second).copied().collect())
    }

    /// Reports whether it is certain that no set of fewer than `size` constraints blocks. That none blocks alone is known.
    fn no_smaller(&mut self, order: &[usize], size: usize) -> bool {
        if size <= 2 {
            return true;
        }
        if size > 3 || order.len() > PAIRS_UP_TO {
            return false;
        }
        order.iter().enumerate().all(|(position, first)| {
            order[position + 1..]
                .iter()
                .all(|second| self.blocks(&Set::from([*first, *second])) == Some(false))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A question that is blocked by any of these sets of constraints.
    #[derive(Debug)]
    struct Blockers {
        sets: Vec<Set>,
        asked: usize,
    }

    impl Oracle for Blockers {
        fn fits(&mut self, relaxed: &Set) -> Option<bool> {
            self.asked += 1;
            Some(self.sets.iter().all(|set| !set.is_disjoint(relaxed)))
        }
    }

    fn blockers(n: usize) -> impl Strategy<Value = Blockers> {
        proptest::collection::vec(proptest::collection::btree_set(0..n, 1..4), 1..4)
            .prop_map(|sets| Blockers { sets, asked: 0 })
    }

    proptest! {
        #[test]
        fn a_core_blocks_and_without_any_of_it_the_rest_does_not(mut question in blockers(12)) {
            let order: Vec<usize> = (0..12).collect();
            let core = core(&order, &mut question).expect("a question that is blocked has a core");
            prop_assert!(core.exact && core.minimal);
            prop_assert!(question.sets.contains(&core.set), "{core:?}");
            if core.minimum {
                prop_assert!(question.sets.iter().all(|set| set.len() >= core.set.len()));
            }
        }

        #[test]
        fn each_correction_helps_and_none_of_it_can_be_kept(mut question in blockers(12)) {
            let order: Vec<usize> = (0..12).collect();
            let core = core(&order, &mut question).unwrap();
            let found = corrections(&order, &core.set, 5, 64, &mut question);
            prop_assert!(!found.is_empty());
            for set in found {
                prop_assert_eq!(question.fits(&set), Some(true));
                for one in &set {
                    let mut fewer = set.clone();
                    fewer.remove(one);
                    prop_assert_eq!(question.fits(&fewer), Some(false), "{:?} without {}", set, one);
                }
            }
        }
    }

    #[test]
    fn a_core_of_one_is_a_smallest_one() {
        let mut question = |relaxed: &Set| Some(relaxed.contains(&3));
        let found = core(&[0, 1, 2, 3], &mut question).unwrap();
        assert_eq!(found.set, Set::from([3]));
        assert!(found.minimum);
    }

    #[test]
    fn of_two_cores_the_constraints_that_come_first_are_reported() {
        let sets = vec![Set::from([4, 5]), Set::from([1, 2])];
        let mut question = Blockers { sets, asked: 0 };
        assert_eq!(
            core(&[5, 4, 3, 2, 1, 0], &mut question).unwrap().set,
            Set::from([4, 5])
        );
        assert_eq!(
            core(&[0, 1, 2, 3, 4, 5], &mut question).unwrap().set,
            Set::from([1, 2])
        );
    }

    #[test]
    fn a_question_that_nothing_blocks_or_that_nothing_helps_has_no_core() {
        assert_eq!(core(&[0, 1], &mut |_: &Set| Some(true)), None);
        assert_eq!(core(&[0, 1], &mut |_: &Set| Some(false)), None);
    }

    #[test]
    fn few_of_many_constraints_are_found_by_few_questions() {
        let mut question = Blockers {
            sets: vec![Set::from([70, 180, 190])],
            asked: 0,
        };
        let order: Vec<usize> = (0..200).collect();
        let core = core(&order, &mut question).unwrap();
        assert_eq!(core.set, Set::from([70, 180, 190]));
        assert!(question.asked < 200 + 60, "{} questions", question.asked);
    }

    #[test]
    fn a_search_that_is_cut_short_still_tells_a_set_that_blocks() {
        let mut left = 10;
        let mut question = |relaxed: &Set| {
            left -= 1;
            (left > 0).then(|| relaxed.contains(&1) || relaxed.contains(&2))
        };
        let core = core(&(0..8).collect::<Vec<_>>(), &mut question).unwrap();
        assert!(core.exact && !core.minimal && !core.minimum);
        assert!(core.set.contains(&1) && core.set.contains(&2));
    }
}
