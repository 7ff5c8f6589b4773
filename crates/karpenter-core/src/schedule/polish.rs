//! Making a packing cheaper: a few of its machines at a time are taken apart and their pods packed again.
//!
//! What a plan wastes is in few of its machines, those that were filled with what was left. Such a machine and some others,
//! drawn by chance, are packed anew as if each kind of pods were worth a little more or less than it is, and the result is kept
//! if it costs less. The dice always fall the same way, and the work is bounded by a count, so that equal inputs give equal
//! plans.

use super::packing::{Bin, Bins, Kind, Offer, Packer, machines};

/// Plans of more machines are left as they are: what few of their machines waste hardly shows.
const MOST_MACHINES: usize = 100;
/// So many times in a row nothing better is found before the search ends.
const PATIENCE: usize = 300;
/// How many machines are taken apart at once: two, or up to so many.
const AT_ONCE: usize = 6;
/// How far from its worth a kind may be taken to be.
const DOUBT: f64 = 0.2;
/// What a machine counts for beside its price, as a share of what it does elsewhere: a little cheaper may take one more.
const BESIDE: f64 = 0.5;

/// A sequence of numbers that look random: splitmix64.
struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn throw(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % sides.max(1) as u64) as usize
    }

    /// A number between 1 - `doubt` and 1 + `doubt`.
    fn near_one(&mut self, doubt: f64) -> f64 {
        1.0 + doubt * (self.throw(2001) as f64 / 1000.0 - 1.0)
    }
}

impl Packer<'_> {
    /// The same pods on machines that cost less, if that is found in at most `work`.
    pub(super) fn polish(&mut self, kinds: &[Kind], mut bins: Bins, work: usize) -> Bins {
        if machines(&bins) > MOST_MACHINES {
            return bins;
        }
        let (beside, most_work) = (self.beside, self.most_work);
        self.beside *= BESIDE;
        self.most_work = self.work.saturating_add(work);
        let mut dice = Dice(1);
        let mut in_vain = 0;
        while in_vain < PATIENCE && self.work < self.most_work && machines(&bins) > 1 {
            in_vain += 1;
            let number = 2 + dice.throw(AT_ONCE - 1);
            let taken = self.draw(&bins, kinds, number, &mut dice);
            let mut some: Vec<Kind> = kinds.to_vec();
            some.iter_mut().for_each(|kind| kind.count = 0);
            let mut before = 0.0;
            for (place, copies) in &taken {
                let bin = &bins[*place].0;
                before += self.cost(bin) * *copies as f64;
                for (kind, count) in &bin.counts {
                    some[*kind].count += count * copies;
                }
            }
            for kind in &mut some {
                kind.worth *= dice.near_one(DOUBT);
            }
            let affordable = |offer: &Offer<'_>| offer.price <= before;
            let Some(mut found) = self.pack_on(&some, affordable) else {
                continue;
            };
            found.iter_mut().for_each(|(bin, _)| self.reprice(bin));
            let costs = found
                .iter()
                .map(|(bin, copies)| self.cost(bin) * *copies as f64);
            if costs.sum::<f64>() >= before - 1e-9 {
                continue;
            }
            in_vain = 0;
            for (place, copies) in &taken {
                bins[*place].1 -= copies;
            }
            bins.retain(|(_, copies)| *copies > 0);
            bins.extend(found);
        }
        (self.beside, self.most_work) = (beside, most_work);
        bins
    }

    fn cost(&self, bin: &Bin) -> f64 {
        bin.price + self.beside
    }

    /// Draws machines to be taken apart: one that wastes more than two others, and any. Places in the plan, and how many of each.
    fn draw(
        &self,
        bins: &Bins,
        kinds: &[Kind],
        number: usize,
        dice: &mut Dice,
    ) -> Vec<(usize, usize)> {
        let waste = |bin: &Bin| {
            let worth = |(kind, count): &(usize, usize)| kinds[*kind].worth * *count as f64;
            let worth: f64 = bin.counts.iter().map(worth).sum();
            self.cost(bin) - worth
        };
        let mut left: Vec<usize> = bins.iter().map(|(_, copies)| *copies).collect();
        let mut taken: Vec<(usize, usize)> = Vec::with_capacity(number);
        for turn in 0..number {
            let total: usize = left.iter().sum();
            if total == 0 {
                break;
            }
            let mut any = || {
                let mut at = dice.throw(total);
                let here = |copies: &usize| {
                    let here = at < *copies;
                    at = at.wrapping_sub(*copies);
                    here
                };
                left.iter().position(here).unwrap_or(0)
            };
            let mut place = any();
            if turn == 0 {
                for other in [any(), any()] {
                    if waste(&bins[other].0) > waste(&bins[place].0) {
                        place = other;
                    }
                }
            }
            left[place] -= 1;
            match taken.iter_mut().find(|(known, _)| *known == place) {
                Some((_, copies)) => *copies += 1,
                None => taken.push((place, 1)),
            }
        }
        taken
    }

    /// Makes a bin the cheapest machine on offer that holds what it holds.
    fn reprice(&self, bin: &mut Bin) {
        let stall = self.stalls.iter().find(|stall| stall.set == bin.set);
        for offer in stall.iter().flat_map(|stall| &stall.offers) {
            let mut amounts = bin.used.iter().zip(offer.room);
            if offer.price < bin.price && amounts.all(|(used, room)| used <= room) {
                (bin.price, bin.row) = (offer.price, offer.row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{algebra::ANYTHING, packing::Stall};
    use super::*;

    const SMALL: Offer<'_> = Offer {
        price: 1.0,
        row: 0,
        room: &[4],
    };
    const LARGE: Offer<'_> = Offer {
        price: 1.9,
        row: 1,
        room: &[8],
    };

    fn packer() -> Packer<'static> {
        Packer {
            stalls: vec![Stall {
                set: ANYTHING,
                offers: vec![LARGE, SMALL],
                takes: vec![0, 1],
            }],
            beside: 0.1,
            width: 1,
            work: 0,
            most_work: 1_000_000,
        }
    }

    fn kinds(counts: [usize; 2]) -> Vec<Kind> {
        let kind = |(need, count)| Kind {
            set: ANYTHING,
            needs: [(0, need)].into_iter().collect(),
            origin: None,
            count,
            worth: 0.25 * need as f64,
        };
        [3, 1].into_iter().zip(counts).map(kind).collect()
    }

    fn bin(offer: Offer<'_>, counts: &[(usize, usize)]) -> Bin {
        let used = counts
            .iter()
            .map(|(kind, count)| [3, 1][*kind] * *count as i64);
        Bin {
            set: ANYTHING,
            row: offer.row,
            price: offer.price,
            used: [used.sum()].into_iter().collect(),
            counts: counts.to_vec(),
        }
    }

    #[test]
    fn machines_that_waste_are_packed_again() {
        // Sixteen units on three large machines; two are enough.
        let wasteful = vec![
            (bin(LARGE, &[(0, 2)]), 1),
            (bin(LARGE, &[(0, 2)]), 1),
            (bin(LARGE, &[(1, 4)]), 1),
        ];
        let polished = packer().polish(&kinds([4, 4]), wasteful, 1_000_000);
        let price = |bins: &Bins| {
            bins.iter()
                .map(|(bin, n)| bin.price * *n as f64)
                .sum::<f64>()
        };
        assert!((price(&polished) - 3.8).abs() < 1e-9, "{polished:?}");
        let mut placed = [0, 0];
        for (bin, copies) in &polished {
            bin.counts
                .iter()
                .for_each(|(kind, count)| placed[*kind] += count * copies);
            assert!(bin.used[0] <= [4, 8][bin.row as usize]);
        }
        assert_eq!(placed, [4, 4]);
    }

    #[test]
    fn what_cannot_be_bettered_and_what_there_is_no_time_for_stays() {
        let rows = |bins: Bins| -> Vec<(u32, usize)> {
            bins.iter().map(|(bin, n)| (bin.row, *n)).collect()
        };
        let full = vec![(bin(LARGE, &[(0, 2), (1, 2)]), 2)];
        assert_eq!(
            rows(packer().polish(&kinds([4, 4]), full, 1_000_000)),
            [(1, 2)]
        );
        let wasteful = || vec![(bin(LARGE, &[(1, 1)]), 2)];
        assert_eq!(
            rows(packer().polish(&kinds([0, 2]), wasteful(), 0)),
            [(1, 2)]
        );
        let many = vec![(bin(LARGE, &[(1, 1)]), MOST_MACHINES + 1)];
        let many = packer().polish(&kinds([0, MOST_MACHINES + 1]), many, 1_000_000);
        assert_eq!(rows(many), [(1, MOST_MACHINES + 1)]);
        let polished = packer().polish(&kinds([0, 2]), wasteful(), 1_000_000);
        assert_eq!(rows(polished), [(0, 1)]);
    }
}
